"""Per-patient gradients of many sites: which engine a module gets, the bound on a patient, and the optimizers."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import nn

from polyclinic.errors import ConfigError
from polyclinic.models.tabular import logistic, mlp
from polyclinic.training.losses import CROSS_ENTROPY
from polyclinic.training.sites.optimizers import dump_state, restore_state, take_step
from polyclinic.training.stacked.batches import Batch
from polyclinic.training.stacked.engines import Engine, choose, sums
from polyclinic.training.stacked.layers import plan
from polyclinic.training.stacked.linear import patient_norms
from polyclinic.training.stacked.propagation import factors_of
from polyclinic.training.stacked.rows import row_norms
from polyclinic.training.task import TrainSettings

FEATURES = 6


def made(sites: int, patients: int, rows: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Batch:
    """Each site's patients with ``rows`` rows each, of which the last site has one patient fewer than the others."""
    generator = torch.Generator().manual_seed(seed)
    width = patients * rows
    x = torch.randn(sites, width, FEATURES, dtype=torch.float64, generator=generator).to(dtype)
    y = torch.randint(0, 3, (sites, width), generator=generator)
    weight = torch.full((sites, width), 1.0 / rows, dtype=dtype)
    member = (torch.arange(width) // rows).repeat(sites, 1)
    weight[-1, -rows:] = 0
    x[-1, -rows:] = 0
    if rows > 1:
        member[-1, -rows:] = patients
    return Batch(x, y, weight, member, patients, rows == 1)


def models(
    build: Callable[[], nn.Module], sites: int, dtype: torch.dtype = torch.float64
) -> tuple[nn.Module, torch.Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        modules = [build().to(dtype) for _ in range(sites)]
    return modules[0], torch.stack([torch.cat([p.detach().flatten() for p in m.parameters()]) for m in modules])


def wide() -> nn.Module:
    first = nn.Sequential(nn.Linear(FEATURES, 80), nn.ReLU(inplace=True))
    return nn.Sequential(first, nn.Linear(80, 70), nn.Tanh(), nn.Linear(70, 60), nn.SiLU(), logistic(60, 3))


@pytest.mark.parametrize("max_norm", [0.3, None])
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 3e-5)])
def test_closed_form_equals_per_example(
    rows: int, max_norm: float | None, dtype: torch.dtype, tolerance: float
) -> None:
    batch = made(3, 7, rows, dtype)
    module, theta = models(wide, 3, dtype)
    gradient, loss = sums(module, "linear", max_norm, 1000)(theta, batch)
    expected, expected_loss = sums(module, "functional", max_norm, 3)(theta, batch)
    assert gradient.dtype == loss.dtype == dtype
    torch.testing.assert_close(gradient, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(loss, expected_loss, rtol=tolerance, atol=tolerance)


def test_a_patients_norm_is_as_exact_as_the_layers_values_whatever_the_weights_are() -> None:
    batch = made(3, 7, 2)
    module, theta = models(wide, 3)
    parts, _ = factors_of(plan(module), theta, batch, CROSS_ENTROPY, None)  # type: ignore[arg-type]
    rows, _ = row_norms(parts)
    exact = patient_norms(parts, rows, batch)
    coarse = patient_norms(parts, rows, replace(batch, weight=batch.weight.float()))
    assert exact.dtype == coarse.dtype == torch.float64 and torch.equal(exact, coarse)


def test_each_patient_is_clipped_once_by_their_own_norm() -> None:
    batch = made(2, 4, 3)
    module, theta = models(lambda: mlp(FEATURES, 3, (5,)), 2)
    expected = torch.zeros_like(theta)
    for site in range(2):
        for patient in range(4 - site):
            chosen = batch.member[site] == patient
            for parameter, value in zip(
                module.parameters(), theta[site].split([p.numel() for p in module.parameters()]), strict=True
            ):
                parameter.data.copy_(value.view_as(parameter))
            loss = nn.functional.cross_entropy(module(batch.x[site, chosen]), batch.y[site, chosen])
            gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))])
            expected[site] += gradient * min(1.0, 0.2 / (float(gradient.norm()) + 1e-6))
    torch.testing.assert_close(sums(module, "linear", 0.2, 99)(theta, batch)[0], expected, rtol=1e-11, atol=1e-12)


scale = st.integers(-30, 30).map(lambda power: 10.0**power)


@examples(max_examples=60)
@example(inputs=1e4, first=1.0, second=1e30, max_norm=1e-6, rows=1, opposed=False, engine="linear", seed=0)
@example(inputs=1e25, first=1.0, second=1.0, max_norm=1.0, rows=2, opposed=True, engine="linear", seed=0)
@given(
    inputs=scale, first=scale, second=scale, max_norm=st.sampled_from([1e-6, 1e-3, 1.0, 1e3]),
    rows=st.sampled_from([1, 2, 3]), opposed=st.booleans(), engine=st.sampled_from(["linear", "functional"]),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_no_patient_adds_more_than_the_bound(
    inputs: float, first: float, second: float, max_norm: float, rows: int, opposed: bool, engine: Engine, seed: int
) -> None:
    batch = made(2, 1, rows, torch.float32, seed)
    batch.x.mul_(inputs)
    if opposed and rows > 1:  # two rows whose gradients nearly cancel
        batch.x[0, 1] = batch.x[0, 0] * (1 + 1e-6)
        batch.y[0, 1] = (batch.y[0, 0] + 1) % 3
    module, theta = models(
        lambda: nn.Sequential(nn.Linear(FEATURES, 40), nn.ReLU(), nn.Linear(40, 3)), 2, torch.float32
    )
    border = FEATURES * 40 + 40
    theta[:, :border].mul_(first)
    theta[:, border:].mul_(second)
    gradient = sums(module, engine, max_norm, 2)(theta, batch)[0]
    assert torch.isfinite(gradient).all()
    assert bool((torch.linalg.vector_norm(gradient, dim=1, dtype=torch.float64) <= max_norm).all())


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("engine", ["linear", "functional"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e200])
def test_a_patient_whose_gradient_is_not_finite_adds_nothing(engine: Engine, rows: int, value: float) -> None:
    batch = made(2, 4, rows)
    module, theta = models(lambda: logistic(FEATURES, 3), 2)
    compute = sums(module, engine, 0.2, 99)
    without = Batch(batch.x, batch.y, batch.weight.clone(), batch.member, 4, batch.one_row)
    without.weight[0, :rows] = 0
    expected = compute(theta, without)[0]
    batch.x[0, 0] = value
    torch.testing.assert_close(compute(theta, batch)[0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("engine", ["linear", "functional"])
@pytest.mark.parametrize("cell", [1.0, 1e38, float("inf")])
def test_an_infinite_activation_of_one_patient_leaves_the_others_alone(engine: Engine, cell: float) -> None:
    batch = made(2, 6, 3, torch.float32)  # three rows are padded to four
    module, theta = models(wide, 2, torch.float32)
    theta[:, : FEATURES * 80].mul_(10)  # with which a large cell is an infinite activation
    compute = sums(module, engine, 0.2, 99)
    without = Batch(batch.x, batch.y, batch.weight.clone(), batch.member, batch.patients, False)
    without.weight[0, :3] = 0
    expected = compute(theta, without)[0]
    assert float(expected[0].norm()) > 0.2
    batch.x[0, :3] = cell
    moved = torch.linalg.vector_norm(compute(theta, batch)[0] - expected, dim=1)
    assert float(moved.max()) <= 0.2 * (1 + 1e-5)


def test_a_long_gradient_that_is_finite_is_clipped_not_dropped() -> None:
    batch = made(1, 2, 1, torch.float32)
    module, theta = models(lambda: logistic(FEATURES, 3), 1, torch.float32)
    batch.x[0, 0] *= 1e25  # its square is infinite in float32
    gradients = [sums(module, engine, 0.2, 9)(theta, batch)[0] for engine in ("linear", "functional")]
    torch.testing.assert_close(*gradients)
    assert float(gradients[0].norm()) > 0.1


class Recurrent(nn.Module):
    """A long short-term memory over the columns; torch.func may or may not take it."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.memory(x[..., None])[0][:, -1])
        return out


class Branching(nn.Module):
    """Looks at its data in Python, which torch.func refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(FEATURES, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x if float(x.sum()) > 0 else -x)
        return out


class Doubled(nn.Sequential):
    """A sequence with a forward of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = 2 * super().forward(x)
        return out


def frozen() -> nn.Module:
    module = mlp(FEATURES, 3, (4,))
    next(module.parameters()).requires_grad_(False)
    return module


def shared() -> nn.Module:
    layer = nn.Linear(FEATURES, FEATURES)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(FEATURES, 3))


@pytest.mark.parametrize(
    ("build", "engine"),
    [
        (lambda: nn.Linear(FEATURES, 3), "linear"),
        (lambda: logistic(FEATURES, 3), "linear"),
        (lambda: nn.Sequential(nn.Dropout(0.0), mlp(FEATURES, 3, (4,))), "linear"),
        (lambda: nn.Sequential(nn.Dropout(0.5), mlp(FEATURES, 3, (4,))), "linear"),
        (lambda: nn.Sequential(nn.Linear(FEATURES, 4), nn.LayerNorm(4), nn.Linear(4, 3)), "layered"),
        (lambda: Doubled(nn.Linear(FEATURES, 3)), "layered"),
        (frozen, "functional"),
        (shared, "layered"),
        (Branching, "opacus"),
    ],
)
def test_the_engine_follows_from_the_module(build: Callable[[], nn.Module], engine: Engine) -> None:
    assert choose(build(), FEATURES) == engine
    assert choose(build(), FEATURES, engine) == engine


def test_choosing_leaves_the_module_and_the_global_generator() -> None:
    module, state = Recurrent(), torch.random.get_rng_state()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert choose(module, FEATURES) in ("functional", "opacus")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize(
    ("build", "engine", "reason"),
    [
        (lambda: nn.Sequential(nn.Linear(FEATURES, 4), nn.LayerNorm(4)), "linear", "'linear'.*LayerNorm is not"),
        (lambda: nn.Sequential(nn.AlphaDropout(0.5), nn.Linear(FEATURES, 3)), "linear", "AlphaDropout is not"),
        (frozen, "linear", "frozen"),
        (shared, "linear", "share parameters"),
        (Branching, "functional", "'functional' cannot take this model"),
        (lambda: logistic(FEATURES, 3), "linaer", "unknown.*Did you mean 'linear'"),
    ],
)
def test_an_engine_that_cannot_take_the_module_is_refused(
    build: Callable[[], nn.Module], engine: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        choose(build(), FEATURES, engine)


@pytest.mark.parametrize("engine", ["linear", "functional"])
def test_dropout_differs_between_sites_and_rows(engine: Engine) -> None:
    module, theta = models(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(FEATURES, 3)), 1)
    theta, batch = theta.repeat(2, 1), made(2, 5, 1)
    batch.x.fill_(1.0)
    batch.y.zero_()
    batch.weight.fill_(1.0)
    gradient = sums(module, engine, None, 9)(theta, batch)[0]
    assert not torch.equal(gradient[0], gradient[1])


CLASSES: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
}  # fmt: skip


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("optimizer", CLASSES)
def test_stacked_optimizers_equal_torchs(optimizer: str, decay: float, momentum: float) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [torch.Size((2, 3)), torch.Size((4,))]
    begin = torch.randn(2, 10, generator=generator, dtype=torch.float64)
    chosen = TrainSettings(1.0, 1, 0.05, 1.0, None, optimizer, momentum, decay)
    theta, state = begin.clone(), restore_state([{}, {}], [6, 4], chosen, torch.float64)
    options = {"momentum": momentum} if optimizer == "sgd" else {}
    parameters = [
        [nn.Parameter(p.clone().view(s)) for p, s in zip(row.split([6, 4]), shapes, strict=True)] for row in begin
    ]
    theirs = [CLASSES[optimizer](row, lr=0.05, weight_decay=decay, **options) for row in parameters]  # type: ignore[call-arg]
    for _ in range(5):
        gradient = torch.randn(2, 10, generator=generator, dtype=torch.float64)
        for row, step, values in zip(parameters, theirs, gradient, strict=True):
            for parameter, value in zip(row, values.split([6, 4]), strict=True):
                parameter.grad = value.view_as(parameter).clone()
            step.step()
        theta = take_step(theta, gradient.clone(), state, chosen)
        # Out of the stack and back: a site's kept state loses nothing.
        state = restore_state(dump_state(state, shapes, chosen), [6, 4], chosen, torch.float64)
    expected = torch.stack([torch.cat([p.detach().flatten() for p in row]) for row in parameters])
    np.testing.assert_allclose(theta.numpy(), expected.numpy(), rtol=1e-13, atol=1e-14)
