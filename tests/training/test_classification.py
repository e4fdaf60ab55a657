"""Local training: agreement with Opacus, the patient as the unit, empty batches, and what is refused."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.models.tabular import initialise, logistic, mlp
from polyclinic.privacy.streams import keyed_stream
from polyclinic.training import classification, modules
from polyclinic.training.stacked.engines import choose
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings


def double(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: build().double()


BUILD = double(lambda: mlp(4, 3, (5,)))
START = {name: value.double().numpy() for name, value in initialise(BUILD, 7).items()}


@pytest.fixture(params=["linear", "functional", "opacus"], autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every property here holds for every engine."""
    monkeypatch.setitem(ENGINE, "engine", request.param)


ENGINE: dict[str, object] = {"engine": "auto"}


def settings(**changes: object) -> TrainSettings:
    values: dict[str, object] = ENGINE | {
        "sample_rate": 1.0, "local_steps": 1, "learning_rate": 0.3, "max_grad_norm": 0.2, "noise_multiplier": 1e-12,
    }  # fmt: skip
    return TrainSettings(**(values | changes))  # type: ignore[arg-type]


def rows(patients: int = 12, repeats: int = 1, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(patients, 4)), rng.integers(0, 3, patients)
    order = np.repeat(np.arange(patients), repeats)
    return Rows(x[order], y[order], order, patients)


def work(data: Rows, site: str = "a", **changes: object) -> SiteWork:
    return SiteWork(data, keyed_stream(0, "batches", site), keyed_stream(0, "noise", site), data.patients, **changes)  # type: ignore[arg-type]


def one(data: Rows, **changes: object) -> SiteUpdate:
    return classification.train(BUILD, START, [work(data)], settings(**changes))[0]


def distance(a: SiteUpdate, b: SiteUpdate) -> float:
    return float(np.sqrt(sum(np.sum((a.arrays[k] - b.arrays[k]) ** 2) for k in a.arrays)))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_private_step_equals_opacus(optimizer: str) -> None:
    data = rows()
    module = GradSampleModule(modules.load(BUILD, START))
    inner = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer](module.parameters(), lr=0.3)
    theirs = DPOptimizer(inner, noise_multiplier=0.0, max_grad_norm=0.2, expected_batch_size=data.patients)
    for _ in range(3):
        theirs.zero_grad()
        functional.cross_entropy(module(torch.from_numpy(data.x)), torch.from_numpy(data.y)).backward()
        theirs.step()
    ours = one(data, local_steps=3, optimizer=optimizer)
    for name, value in module._module.state_dict().items():
        np.testing.assert_allclose(ours.arrays[name], value.numpy(), atol=1e-6)


def test_fault_21_repeating_a_patients_rows_does_not_change_the_update() -> None:
    assert distance(one(rows()), one(rows(repeats=5))) < 1e-9


def test_removing_a_patient_moves_the_update_by_at_most_the_clip() -> None:
    data = rows(repeats=3)
    data.x[data.patient == 11] *= 1e4
    kept = data.patient != 11
    without = Rows(data.x[kept], data.y[kept], data.patient[kept], 11)
    step = settings()
    with_all = classification.train(BUILD, START, [work(data)], step)[0]
    less = SiteWork(without, keyed_stream(0, "b"), keyed_stream(0, "noise", "a"), 12)
    moved = distance(with_all, classification.train(BUILD, START, [less], step)[0])
    assert moved <= step.learning_rate * step.max_grad_norm / 12 * (1 + 1e-6)


def test_fault_28_a_record_that_is_not_finite_contributes_nothing() -> None:
    data = rows()
    data.x[3, 1] = 1e300
    assert all(np.isfinite(value).all() for value in one(data, noise_multiplier=1.0).arrays.values())


def test_fault_12_empty_batches_add_noise_and_count_as_steps() -> None:
    update = one(rows(patients=3), sample_rate=1e-9, local_steps=4, noise_multiplier=1.0)
    assert update.steps == 4
    assert all(np.any(update.arrays[name] != START[name]) for name in START)


def test_fault_08_steps_taken_equal_steps_in_the_event() -> None:
    chosen = settings(local_steps=7, sample_rate=0.5, noise_multiplier=1.1)
    assert classification.event(chosen).count == one(rows(), local_steps=7).steps == 7


def test_fault_08_sites_do_not_share_noise() -> None:
    data = rows()
    first, second = classification.train(
        BUILD, START, [work(data, "a"), work(data, "b")], settings(noise_multiplier=1.0)
    )
    assert distance(first, second) > 1e-3


def test_fault_28_the_divisor_is_public_not_the_realised_batch() -> None:
    data = rows(patients=12)
    doubled = classification.train(
        BUILD, START, [SiteWork(data, keyed_stream(0, "b"), keyed_stream(0, "n"), 24.0)], settings()
    )[0]
    moved = {name: value - START[name] for name, value in doubled.arrays.items()}
    for name, value in one(data).arrays.items():
        np.testing.assert_allclose(value - START[name], 2 * moved[name], atol=1e-9)


def test_without_privacy_a_full_batch_step_is_plain_gradient_descent() -> None:
    data = rows()
    module = modules.load(BUILD, START)
    functional.cross_entropy(module(torch.from_numpy(data.x)), torch.from_numpy(data.y)).backward()
    ours = one(data, noise_multiplier=None)
    for name, p in module.named_parameters():
        assert p.grad is not None
        np.testing.assert_allclose(ours.arrays[name], START[name] - 0.3 * p.grad.numpy(), atol=1e-9)


def test_kept_continues_where_it_stopped() -> None:
    data = rows()
    two = one(data, local_steps=2, optimizer="adam")
    first = one(data, optimizer="adam")
    second = classification.train(BUILD, first.arrays, [work(data, state=first.state)], settings(optimizer="adam"))[0]
    assert distance(two, second) < 1e-9


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.InstanceNorm1d(4, affine=False, track_running_stats=True)])
def test_fault_13_modules_that_mix_patients_are_refused(layer: nn.Module) -> None:
    with pytest.raises(ConfigError, match="mixes patients"):
        modules.check_module(nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 2)))


def test_arrays_that_do_not_fit_are_refused_by_name() -> None:
    wrong = {**START, "0.weight": np.zeros((2, 2))}
    with pytest.raises(ConfigError, match=r"'0.weight' has shape \(2, 2\); allowed is \(5, 4\)"):
        modules.load(BUILD, wrong)
    with pytest.raises(ConfigError, match="not finite"):
        modules.load(BUILD, {**START, "0.bias": np.full(5, np.nan)})


def test_initial_parameters_follow_the_seed_and_leave_global_state() -> None:
    before = torch.random.get_rng_state()
    a, b, c = (initialise(lambda: mlp(3, 2, (4,)), seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(a["0.weight"], b["0.weight"]) and not torch.equal(a["0.weight"], c["0.weight"])


class Counting(nn.Module):
    """Keeps a sum of its inputs in a buffer, which would leave without noise."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + x.detach().sum(0)
        out: torch.Tensor = self.linear(x)
        return out


class Centring(nn.Module):
    """Subtracts the batch's mean: no part of it is a normalisation layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x - x.mean(0))
        return out


def test_buffers_written_by_data_do_not_leave() -> None:
    build = double(Counting)
    start = {name: value.numpy() for name, value in initialise(build, 0).items()}
    update = classification.train(build, start, [work(rows())], settings(noise_multiplier=1.0, engine="auto"))[0]
    assert np.array_equal(update.arrays["seen"], start["seen"])
    assert not np.array_equal(update.arrays["linear.weight"], start["linear.weight"])


class Shifting(nn.Linear):
    """Shifts exponents by the largest of all rows: one row far from the others leaves nothing of theirs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = super().forward(x)
        weight = torch.exp(logits - logits.max())
        return logits * weight / weight.sum(1, keepdim=True)


@pytest.mark.parametrize("build", [Centring, lambda: Shifting(4, 3)])
def test_a_model_that_mixes_by_hand_is_found_by_probing(build: Callable[[], nn.Module]) -> None:
    start = {name: value.numpy() for name, value in initialise(build, 0).items()}
    with pytest.raises(ConfigError, match="one row's values change another row's output or gradient"):
        classification.check(build, start, 4)


def test_dropout_is_no_mixing() -> None:
    build = lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))  # noqa: E731
    classification.check(build, {name: value.numpy() for name, value in initialise(build, 0).items()}, 4)


class Remembering(nn.Module):
    """Adds the earlier batch's first row to every output of the next one; no buffer shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.last = torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x + self.last.to(x.dtype))
        self.last = x[0].detach()
        return out


@pytest.mark.parametrize("build", [Remembering, Counting])
def test_a_model_that_remembers_records_between_batches_is_refused(build: Callable[[], nn.Module]) -> None:
    with pytest.raises(ConfigError, match="remembers records between batches"):
        classification.check(build, {name: value.numpy() for name, value in initialise(build, 0).items()}, 4)


def test_dropout_follows_its_own_stream_and_leaves_global_state() -> None:
    build = double(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
    start = {name: value.numpy() for name, value in initialise(build, 0).items()}
    before = torch.random.get_rng_state()

    def trained(key: str) -> np.ndarray:
        site = work(rows(), layers=keyed_stream(0, "layers", key))
        return classification.train(build, start, [site], settings(local_steps=3, engine="auto"))[0].arrays["0.weight"]

    first = trained("a")
    torch.rand(7)
    assert np.array_equal(first, trained("a")) and not np.array_equal(first, trained("b"))
    torch.random.set_rng_state(before)
    trained("a")
    assert torch.equal(torch.random.get_rng_state(), before)


class Notebook(nn.Module):
    """Copies the batch into a trainable parameter, which would leave with the model."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.memo = nn.Linear(4, 3), nn.Linear(4, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.memo.weight.data.copy_(x.detach().sum(0, keepdim=True))
        out: torch.Tensor = self.linear(x) + 0 * self.memo(x.detach())
        return out


class Signed(torch.autograd.Function):
    """Rows stay apart on the way forth; on the way back all are multiplied by the sign of the batch's sum."""

    @staticmethod
    def forward(ctx, x, weight):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        return gradient @ weight, torch.sign(x.sum()) * gradient.T @ x


class MixedGradients(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Signed.apply(x, self.weight) + self.bias
        return out


class LastRow(nn.Linear):
    """Only the first row's output depends on another row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.cat([x[:1] + 0.1 * x[-1:], x[1:]]))


class Asleep(nn.Linear):
    """Mixes patients once training has moved gate and weights, both zero at first, so that neither shows the other."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.gate = nn.Parameter(torch.zeros(()))
        nn.init.zeros_(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + self.gate * (x - x.mean(0)))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (Notebook, "remembers records"),
        (Asleep, "mixes patients"),
        (lambda: MixedGradients(4, 3), "mixes patients"),
        (lambda: LastRow(4, 3), "mixes patients"),
    ],
)
def test_models_that_hide_records_in_parameters_or_gradients_are_refused(
    build: Callable[[], nn.Module], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        classification.check(build, {name: value.numpy() for name, value in initialise(build, 0).items()}, 4)


def test_a_model_whose_layers_share_an_array_passes() -> None:
    def shared() -> nn.Module:
        first, last = nn.Linear(4, 4), nn.Linear(4, 4)
        last.weight = first.weight
        return nn.Sequential(first, nn.Tanh(), last)

    modules.check_behaviour(shared, {name: value.numpy() for name, value in shared().state_dict().items()}, 4)


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Dropout(0.3), nn.ReLU(), nn.Linear(6, 3)),
        lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(8, 3)),
        lambda: logistic(4, 3),
        lambda: mlp(4, 3, (5, 5)),
    ],
)  # fmt: skip
def test_models_that_keep_patients_apart_pass(build: Callable[[], nn.Module]) -> None:
    classification.check(build, {name: value.numpy() for name, value in initialise(build, 0).items()}, 4)


def test_spectral_norm_is_refused_before_any_round_and_weight_norm_trains() -> None:
    def build(norm: Callable[[nn.Module], nn.Module]) -> nn.Module:
        return nn.Sequential(norm(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 3))

    spectral, weighted = (
        partial(build, norm) for norm in (parametrizations.spectral_norm, parametrizations.weight_norm)
    )
    with pytest.raises(ConfigError, match="No engine gives each patient's gradient|remembers records"):
        classification.check(spectral, {name: value.numpy() for name, value in initialise(spectral, 0).items()}, 4)
    arrays = {name: value.numpy() for name, value in initialise(weighted, 0).items()}
    classification.check(weighted, arrays, 4)
    assert choose(weighted(), 4) == "functional"


def test_attention_is_refused_with_its_replacement() -> None:
    with pytest.raises(ConfigError, match="has nn.MultiheadAttention.*use polyclinic.models.sequences.Attention"):
        modules.check_module(nn.TransformerEncoderLayer(4, 2, 8))


@pytest.mark.parametrize("unit", [nn.GRU, nn.LSTM, nn.RNN])
def test_recurrent_units_are_refused_with_their_replacement(unit: type[nn.Module]) -> None:
    with pytest.raises(ConfigError, match=f"has nn.{unit.__name__}.*use opacus.layers.DP{unit.__name__} in its place"):
        modules.check_module(nn.Sequential(unit(4, 3), nn.Linear(3, 2)))
