"""A patient's contribution is the same bit for bit whoever else is there, for every way in which a hospital computes one.

Models and questions are such that rounding decides: h + 2h - 3h is 0 but for rounding, and a large factor makes a contribution
of it. Sums of patients computed together then move by tens of clip norms where a library takes another kernel.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polyclinic.client.answers import right_patients
from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import Rows
from polyclinic.inference.gauss_newton import GaussNewton
from polyclinic.inference.likelihood import Logistic
from polyclinic.inference.private_flow import FlowSums, flow_settings
from polyclinic.models.flows import ConditionalFlow
from polyclinic.privacy.perturbation import bounded_rows
from polyclinic.privacy.sums import Contributions, clipped_total
from polyclinic.synthesis.games.builders import make
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.bins import Bins
from polyclinic.synthesis.methods.independent import Independent
from polyclinic.synthesis.methods.latent import Latent
from polyclinic.synthesis.methods.moments import Moments
from polyclinic.synthesis.visits.method import VisitByVisit
from polyclinic.training import classification
from polyclinic.training.losses import DENSITY
from polyclinic.training.modules import dump
from polyclinic.training.stacked import trainer
from polyclinic.training.stacked.batches import build_table, patient_blocks
from polyclinic.training.stacked.clip_factors import clip_factors
from polyclinic.training.stacked.layers import plan
from polyclinic.training.stacked.products import outer_products, rows_product
from polyclinic.training.stacked.propagation import factors_of
from polyclinic.training.stacked.rows import row_norms
from polyclinic.training.synthesis import GameTask
from polyclinic.training.task import SiteWork, TrainSettings
from polyclinic.types import Floats
from tests.synthesis.games.test_games import LAYOUT as WARD
from tests.synthesis.games.test_games import records as ward_records
from tests.synthesis.tables import MIXED, mixed, rows_of

MOST = 601
# Around the numbers of patients at which libraries take other kernels.
SOME = (2, 17, 33, 65, 101, 129, 257)
FEATURES = 6
SETTINGS = TrainSettings(1.0, 1, 1.0, 1.0, 1e-300, double=True, apart=True)


class Quiet:
    """Draws of no noise; batches of everybody."""

    def uniform(self, size: Any) -> Floats:
        return np.full(size, 0.5)

    def normal(self, size: Any) -> Floats:
        return np.zeros(size)


def patients_of(number: int, rows_each: Callable[[int], int] = lambda _: 1, seed: int = 0) -> Rows:
    """The first so many of always the same patients."""
    counts = np.array([rows_each(index) for index in range(number)])
    rng = np.random.default_rng(seed)
    rows = int(np.sum([rows_each(index) for index in range(MOST)]))
    two, y = rng.normal(size=(rows, 2)), (rng.random(rows) < 0.8).astype(np.int64)
    end = int(counts.sum())
    return Rows(np.tile(two, 3)[:end], y[:end], np.repeat(np.arange(number), counts), number)


def only(rows: Rows, chosen: np.ndarray) -> Rows:
    """Those of ``chosen``, (patients,) bool."""
    there = chosen[rows.patient]
    return Rows(rows.x[there], rows.y[there], (np.cumsum(chosen) - 1)[rows.patient[there]], int(chosen.sum()))


def cancelling(module: nn.Sequential, factor: float) -> nn.Sequential:
    """Three equal numbers, weighed 1, 2 and -3, in the first layer or behind it; the last layer times ``factor``."""
    layers = [part for part in module if isinstance(part, nn.Linear)]
    with torch.no_grad():
        if len(layers) == 1:
            rows = torch.randn(len(layers[0].weight), 2, generator=torch.Generator().manual_seed(1))
            layers[0].weight.copy_(torch.cat([rows, 2 * rows, -3 * rows], 1) * factor)
            layers[0].bias.zero_()
        else:
            layers[0].weight.copy_(torch.tensor([0.31, 0.17] * 3))
            layers[0].bias.fill_(0.4)
            layers[1].weight.copy_(torch.tensor([[1.0, 2.0, -3.0]]))
            layers[1].bias.zero_()
            for part in layers[2:]:
                part.weight.fill_(factor ** (1 / (len(layers) - 2)))
                part.bias.zero_()
            layers[-1].weight[0] *= -1
    return module


def mlp(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(FEATURES, 3), nn.Tanh(), nn.Linear(3, 1), nn.Tanh(), *between, nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 2)
    )  # fmt: skip


def pictures() -> nn.Sequential:
    made = nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(6, 1), nn.Tanh(), nn.Linear(1, 2)
    )  # fmt: skip
    with torch.no_grad():
        made[1].weight.copy_(torch.full((3, 1, 2, 2), 0.3))
        made[1].bias.fill_(0.1)
        made[4].weight.copy_(torch.tensor([[1.0, 1.0, 2.0, 2.0, -3.0, -3.0]]))
        made[4].bias.zero_()
    return made


class Sharp(nn.Module):
    """No stack of layers that has a closed form: torch.func would take it, and Opacus."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 1.0


def sharp(factor: float) -> nn.Module:
    made = Sharp()
    cancelling(made.inner, factor)
    return made


def odd() -> nn.Sequential:
    """Of widths at which MKL rounds a row by its place among the others."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(nn.Linear(FEATURES, 13), nn.Tanh(), nn.Linear(13, 33), nn.Tanh(), nn.Linear(33, 5))


def flow() -> nn.Module:
    import zuko

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        step = zuko.flows.MaskedAutoregressiveTransform(4, 2, hidden_features=(5, 7))
        return ConditionalFlow(4, 2, [step]).based_on(torch.zeros(4), torch.eye(4) + 0.1 * torch.ones(4, 4).tril())


def few(index: int) -> int:
    return 1 + index % 3


#: By kind: the module of a factor, rows of each patient, settings.
KINDS: dict[str, tuple[Callable[[float], nn.Module], Callable[[int], int], dict[str, Any]]] = {
    "logistic": (lambda f: cancelling(nn.Sequential(nn.Linear(FEATURES, 2)), f), lambda _: 1, {}),
    "mlp": (lambda f: cancelling(mlp(), f), lambda _: 1, {}),
    "wide": (lambda f: odd(), lambda _: 1, {}),
    "several rows": (lambda f: cancelling(mlp(), f), few, {}),
    "convolution": (lambda f: scaled(pictures(), f), lambda _: 1, {}),
    "flow": (lambda f: flow(), few, {"loss": DENSITY}),
    "functional": (sharp, few, {"engine": "functional"}),
    "opacus": (sharp, lambda _: 1, {"engine": "opacus"}),
}


def scaled(module: nn.Sequential, factor: float) -> nn.Sequential:
    with torch.no_grad():
        module[-1].weight.copy_(torch.tensor([[-factor], [factor]]))
        module[-1].bias.zero_()
    return module


def clipped(kind: str, factor: float, rows: Rows, apart: bool = True) -> Floats:
    """The sum of the rows' patients' clipped gradients, by one step of length 1 without noise."""
    make, _, options = KINDS[kind]
    arrays = {name: value.astype(np.float64) for name, value in dump(make(factor)).items()}
    # Steps from far weights would be rounded away: all is read off the optimizer's momentum.
    settings = replace(SETTINGS, momentum=0.5, apart=apart, **options)
    work = SiteWork(rows, Quiet(), Quiet(), 1.0)
    update = classification.train(lambda: make(factor).double(), arrays, [work], settings)[0]
    kept = {name: value for name, value in update.state.items() if name.endswith("momentum_buffer")}
    return np.concatenate([kept[name].ravel() for name in sorted(kept)])


def check_kind(kind: str, factor: float, numbers: Any) -> None:
    """One patient more adds to the sum what that patient gives alone."""
    rows_each = KINDS[kind][1]
    before, lengths = (0, np.zeros(1)), [0.0]
    for number in numbers:
        rows = patients_of(number, rows_each)
        last = clipped(kind, factor, only(rows, np.arange(number) == number - 1))
        without = patients_of(number - 1, rows_each)
        fewer = before[1] if before[0] == number - 1 else clipped(kind, factor, without)
        before = number, clipped(kind, factor, rows)
        np.testing.assert_allclose(before[1] - fewer, last, rtol=0, atol=1e-12 * number, err_msg=str(number))
        lengths.append(float(np.linalg.norm(last)))
    assert 0.1 < max(lengths) <= 1.0 + 1e-12


@pytest.mark.parametrize("factor", [1e6, 1e30])
@pytest.mark.parametrize("kind", [*KINDS])
def test_fault_31_one_patient_more_adds_to_a_step_what_the_patient_gives_alone(kind: str, factor: float) -> None:
    check_kind(kind, factor, SOME)


@pytest.mark.parametrize("kind", ["wide", "several rows", "convolution", "flow"])
def test_fault_31_so_it_does_where_memory_is_for_one_patient_at_a_time(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of patients with many rows, or of a very wide model."""
    monkeypatch.setattr(trainer, "MEMORY_LIMIT", 1)
    sizes: list[int] = []

    def blocks(table: Any, chosen: Any, at_once: Callable[[int], int]) -> Any:
        sizes.extend(at_once(1 << power) for power in range(8))
        return patient_blocks(table, chosen, at_once)

    monkeypatch.setattr(trainer, "patient_blocks", blocks)
    check_kind(kind, 1e30, SOME[:4])
    assert set(sizes) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1e6, 1e30])
@pytest.mark.parametrize("kind", [*KINDS])
def test_fault_31_so_does_each_of_600_patients(kind: str, factor: float) -> None:
    check_kind(kind, factor, range(2, 601))


@pytest.mark.parametrize("kind", ["logistic", "mlp", "wide", "convolution", "flow"])
def test_fault_31_a_patients_rows_norm_and_factor_are_bit_equal_at_every_place(kind: str) -> None:
    make, _, options = KINDS[kind]
    module = make(1e30).double()
    layers, theta = plan(module), torch.cat([p.detach().flatten() for p in module.parameters()])[None]
    assert not isinstance(layers, str)

    def computed(rows: Rows) -> list[torch.Tensor]:
        table = build_table([SiteWork(rows, Quiet(), Quiet())], torch.float64)
        found: list[list[torch.Tensor]] = []
        for block in patient_blocks(table, np.ones(rows.patients, dtype=bool), lambda _: 64):
            parts, _ = factors_of(layers, theta, block, options.get("loss", "cross-entropy"), None)
            norms, _ = row_norms(parts, apart=True)
            found.append(
                [*(v for p in parts for v in (p.input, p.output)), norms, clip_factors(norms, 1.0, theta.dtype)]
            )
        return [torch.cat(values)[: rows.patients] for values in zip(*found, strict=True)]

    rows = patients_of(150)
    together = computed(rows)
    for gone in (0, 17, 64):
        kept = np.arange(150) != gone
        for value, other in zip(together, computed(only(rows, kept)), strict=True):
            assert torch.equal(value[torch.from_numpy(kept)], other)
    for index in (0, 63, 64, 149):
        for value, other in zip(together, computed(only(rows, np.arange(150) == index)), strict=True):
            assert torch.equal(value[index], other[0])


@pytest.mark.parametrize("rows", [1, 2, 16])
def test_products_of_stacked_rows_do_not_depend_on_their_place(rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for inner in (1, 3, 13, 31, 77):
        for outer in (1, 11, 64, 127):
            weight = torch.randn(1, inner, outer, generator=generator, dtype=torch.float64)
            x = torch.randn(32, rows, inner, generator=generator, dtype=torch.float64)
            g = torch.randn(32, rows, outer, generator=generator, dtype=torch.float64)
            assert torch.equal(rows_product(x, weight).roll(5, 0), rows_product(x.roll(5, 0), weight))
            assert torch.equal(outer_products(g, x).roll(5, 0), outer_products(g.roll(5, 0), x.roll(5, 0)))
            torch.testing.assert_close(rows_product(x, weight), x @ weight)
            torch.testing.assert_close(outer_products(g, x), g.mT @ x)


def test_poisson_batches_sum_what_each_of_their_patients_gives_alone() -> None:
    class Half(Quiet):
        def uniform(self, size: Any) -> Floats:
            return np.random.default_rng(5).random(size)

    rows = patients_of(60)
    chosen = np.random.default_rng(5).random((1, 60))[0] < 0.3
    make = KINDS["mlp"][0]
    arrays = {name: value.astype(np.float64) for name, value in dump(make(1e30)).items()}
    settings = replace(SETTINGS, sample_rate=0.3, momentum=0.5)
    update = classification.train(
        lambda: make(1e30).double(), arrays, [SiteWork(rows, Half(), Quiet(), 1 / 0.3)], settings
    )[0]
    names = sorted(name for name in update.state if name.endswith("momentum_buffer"))
    total = np.concatenate([update.state[name].ravel() for name in names])
    each = [clipped("mlp", 1e30, only(rows, np.arange(60) == index)) for index in np.flatnonzero(chosen)]
    np.testing.assert_allclose(total, np.sum(each, axis=0), atol=1e-12)


def test_a_gradient_whose_square_overflows_counts_as_nothing_alone_and_in_company() -> None:
    rows = patients_of(5)
    rows.x[2] = 1e200
    assert not clipped("logistic", 1.0, only(rows, np.arange(5) == 2)).any()
    total = clipped("logistic", 1.0, rows)
    np.testing.assert_allclose(total, clipped("logistic", 1.0, only(rows, np.arange(5) != 2)), atol=1e-14)


COLUMNS = 25
CODES = Schema(
    name="codes", unit="record",
    columns=(
        *(Column(name=f"c{i}", kind="categorical", categories=("a", "b")) for i in range(COLUMNS)),
        Column(name="sbp", kind="trajectory", steps=5, bounds=(60.0, 240.0)),
        Column(name="died", kind="binary", role="label"),
    ),
)  # fmt: skip
LAYOUT = Layout.of(CODES)


@cache
def coded() -> Floats:
    rng = np.random.default_rng(3)
    x = np.zeros((MOST, LAYOUT.features))
    for number in range(COLUMNS):
        x[np.arange(MOST), 2 * number + rng.integers(0, 2, MOST)] = 1.0
    x[:, 2 * COLUMNS :] = rng.uniform(-1, 1, (MOST, 5))
    return LAYOUT.rows(x, rng.integers(0, 2, MOST))


def latent(factor: float) -> Contributions:
    method = Latent(LAYOUT, bins=64)
    width = len(method._scale)
    weights, bias = np.zeros((12, width)), np.zeros(12)
    each = np.random.default_rng(3).uniform(0.1, 1, COLUMNS)
    weights[0, : 2 * COLUMNS] = np.repeat(each, 2) * factor
    bias[0] = -each.sum() * factor
    return partial(method.contributions, 3, {"weights": weights, "bias": bias, **SCORED})


def posterior(method: Any, question: dict[str, np.ndarray]) -> Contributions:
    def contributions(rows: Floats, patient: np.ndarray, patients: int) -> Floats:
        return np.asarray(method.contributions(question, rows[:, [50, 51, 52, 56]]))

    return contributions


def gauss_newton(factor: float) -> Contributions:
    method = GaussNewton(Logistic(("a", "b", "c", "died")), np.zeros(4), np.full(4, 2.5))
    basis = np.diag(np.ones(4)) * factor
    return posterior(method, {"estimate": np.array([1.0, 2.0, -3.0, 0.0]) * factor, "basis": basis})


def flow_sums(factor: float) -> Contributions:
    method = FlowSums(
        Logistic(("a", "b", "c", "died")), np.zeros(4), np.full(4, 2.5), flow_settings({"draws": 3, "hidden": 3}, 3)
    )
    question = method.question(method.begin(10.0))
    return posterior(method, {**question, "draws": question["draws"] * min(factor, 1e6)})


@cache
def visited() -> Floats:
    return rows_of(VISITS.layout, mixed(MOST, 3))


VISITS = VisitByVisit(Layout.of(MIXED))
HISTOGRAMS = {
    name: bins.used / np.maximum(bins.used.sum(axis=1, keepdims=True), 1) for name, bins in VISITS._histograms.items()
}
_USED = Bins.of(LAYOUT, 64).used
SCORED = {"histograms": _USED / _USED.sum(axis=1, keepdims=True)}
SUMS: dict[str, Callable[[float], Contributions]] = {
    "latent": latent,
    "moments": lambda _: partial(Moments(LAYOUT).contributions, 1, {}),
    "scores": lambda _: partial(Moments(LAYOUT, rounds=2).contributions, 2, SCORED),
    "independent": lambda _: partial(Independent(LAYOUT).contributions, 1, {}),
    "gauss-newton": gauss_newton,
    "flow": flow_sums,
    "visits": lambda _: partial(VISITS.contributions, 1, {}),
    "transitions": lambda _: partial(VISITS.contributions, 2, HISTOGRAMS),
}


# Every number of patients up to 600 would take a quarter of an hour.
SLOW = {"visits", "transitions"}


def check_sum(kind: str, factor: float, numbers: Any) -> None:
    contributions, z = SUMS[kind](factor), visited() if kind in SLOW else coded()
    given: list[Floats] = []

    def seen(rows: Floats, patient: np.ndarray, patients: int) -> Floats:
        given.append(contributions(rows, patient, patients))
        return given[-1]

    size, alone = contributions(z[:1], np.zeros(1, dtype=np.int64), 1).shape[1], np.zeros(1, dtype=np.int64)
    each = [contributions(z[index : index + 1], alone, 1)[0] for index in range(MOST)]
    clipped = [clipped_total(seen, size, z[index : index + 1], alone, 1, apart=True) for index in range(MOST)]
    for number in numbers:
        given.clear()
        total = clipped_total(seen, size, z[:number], np.arange(number), number, apart=True)
        assert np.array_equal(np.concatenate(given), np.stack(each[:number]))
        np.testing.assert_allclose(total, np.sum(clipped[:number], axis=0), rtol=0, atol=1e-12 * number)


@pytest.mark.parametrize("factor", [1e6, 1e22])
@pytest.mark.parametrize("kind", [*SUMS])
def test_fault_31_a_sum_is_of_what_each_patient_gives_alone(kind: str, factor: float) -> None:
    check_sum(kind, factor, (1, 16, 33, 101, 129))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in SUMS if kind not in SLOW])
def test_fault_31_a_sum_is_of_that_for_any_number_of_patients(kind: str) -> None:
    check_sum(kind, 1e22, range(1, 601))


def test_fault_31_a_games_pair_does_not_depend_on_the_others() -> None:
    game = make(WARD, "gan", batch=100, steps=3)
    module = game.generator(WARD)
    rng = np.random.default_rng(1)
    weights = {name: rng.normal(0, 30, value.shape).astype(value.dtype) for name, value in dump(module).items()}
    task = GameTask(game, WARD).with_question(weights)
    critic = dump(game.critic(WARD))
    last = [name for name in critic if name.endswith("weight")][-1]
    critic = {name: value.astype(np.float64) * (1e5 if name == last else 1.0) for name, value in critic.items()}
    x, y = WARD.features_and_labels(ward_records(300))
    settings = replace(SETTINGS, momentum=0.5)
    totals = {}
    for number in (1, 2, 16, 17, 64, 65, 128, 129, 299, 300):
        rows = Rows(x[:number], y[:number], np.arange(number), number)
        build = lambda: game.critic(WARD)  # noqa: E731
        update = task.train(build, critic, [SiteWork(rows, Quiet(), Quiet(), 1.0, layers=Quiet())], settings)[0]
        names = sorted(name for name in update.state if name.endswith("momentum_buffer"))
        totals[number] = np.concatenate([update.state[name].ravel() for name in names])
    for number in (1, 16, 64, 128, 299):
        assert np.linalg.norm(totals[number + 1] - totals[number]) <= 1.0 + 1e-9


def test_fault_31_a_choice_counts_each_patient_as_alone() -> None:
    rng = np.random.default_rng(2)
    rows = patients_of(MOST)
    part = rng.normal(size=(20, 2, 2)) * 1e22
    judges = {"weight": np.concatenate([part, 2 * part, -3 * part], axis=2), "bias": np.zeros((20, 2))}
    each = np.array([right_patients(judges, only(rows, np.arange(MOST) == index)) for index in range(129)])
    for number in (1, 17, 65, 129):
        assert np.array_equal(right_patients(judges, patients_of(number)), each[:number].sum(axis=0))


def test_a_convex_tasks_rows_are_those_of_each_patient_alone() -> None:
    rows = patients_of(300, few)
    sign = 2.0 * rows.y - 1.0
    together = bounded_rows(rows.x * 1e30, sign, rows.patient, 300, 1.0).rows
    for index in range(0, 300, 7):
        own = rows.patient == index
        mine = bounded_rows(rows.x[own] * 1e30, sign[own], np.zeros(own.sum(), dtype=np.int64), 1, 1.0).rows
        assert np.array_equal(mine[0], together[index])
