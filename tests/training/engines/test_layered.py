"""Modules layer by layer: against torch.func and Opacus, the bound on a patient, and which modules have such layers."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import nn

from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.models.resnet import tabular_resnet
from polyclinic.models.sequences import gru, transformer
from polyclinic.training.modules import structure
from polyclinic.training.stacked.batches import Batch
from polyclinic.training.stacked.engines import Engine, choose, sums
from polyclinic.training.stacked.layered import find_layers, same_as_alone
from polyclinic.training.stacked.trainer import train_stacked
from tests.training.test_engines import FEATURES, made, models
from tests.training.test_stacked import assert_equal, double, opacus, settings, start_of, work

Build = Callable[[], nn.Module]
LABEL = {"name": "died", "kind": "binary", "role": "label"}
TABLE = Schema.from_dict({"name": "table", "unit": "record", "columns": [
    *({"name": f"x{i}", "kind": "continuous", "bounds": [-1.0, 1.0]} for i in range(3)),
    {"name": "ward", "kind": "categorical", "categories": ["a", "b", "c"]}, LABEL,
]})  # fmt: skip
VISITS = Schema.from_dict({"name": "visits", "unit": "record", "columns": [
    {"name": "age", "kind": "continuous", "bounds": [0.0, 99.0]},
    {"name": "pulse", "kind": "trajectory", "steps": 3, "bounds": [-1.0, 1.0]},
    {"name": "lactate", "kind": "trajectory", "steps": 2, "bounds": [-1.0, 1.0]}, LABEL,
]})  # fmt: skip


class Others(nn.Module):
    """Layers without a closed form, some called twice, one written in place, and one that nothing calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.unused = nn.Linear(FEATURES, 4), nn.Linear(4, 4), nn.Linear(2, 2)
        self.pairs, self.norm, self.scale = nn.Bilinear(4, 4, 4), nn.GroupNorm(2, 4), nn.LayerNorm(4, bias=False)
        self.line, self.head = nn.Conv1d(1, 2, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu_(self.first(x))
        h = self.twice(torch.tanh(self.twice(h)))
        h = self.norm(self.pairs(h, self.scale(h)))
        out: torch.Tensor = self.head(torch.tanh(self.line(h[:, None])).flatten(1))
        return out


def pooled() -> nn.Module:
    """Pictures with a layer that the plan of stacks has not."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 8, 2), nn.AvgPool2d((1, 2)), nn.Conv2d(8, 3, 1), nn.Flatten()
    )


KINDS: dict[str, Build] = {
    "resnet": partial(tabular_resnet, FEATURES, 3, TABLE, (5,), 1),
    "gru": partial(gru, FEATURES, 3, VISITS, (4,)),
    "transformer": partial(transformer, FEATURES, 3, VISITS, (4,), 2),
    "others": Others,
    "pooled": pooled,
}  # fmt: skip


def moved(name: str, sites: int, dtype: torch.dtype) -> tuple[nn.Module, torch.Tensor]:
    """Models none of whose layers is zero, as the transformer's last is."""
    module, theta = models(KINDS[name], sites, dtype)
    return module, theta.detach() + 0.1


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 5e-5)])
def test_layers_give_the_clipped_sums_of_torch_func(name: str, rows: int, dtype: torch.dtype, tolerance: float) -> None:
    batch = made(3, 5, rows, dtype)
    module, theta = moved(name, 3, dtype)
    assert choose(module, FEATURES) == "layered"
    for max_norm in (0.1, 100.0, None):
        ours, theirs = (sums(module, engine, max_norm, 9)(theta, batch) for engine in ("layered", "functional"))
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", KINDS)
def test_training_equals_opacus_site_by_site(name: str) -> None:
    build, chosen = double(KINDS[name]), settings(local_steps=2)
    if name == "others":  # whose unused layer Opacus refuses to be without a gradient
        build = double(
            lambda: nn.Sequential(nn.Linear(FEATURES, 5), nn.LayerNorm(5), nn.GroupNorm(1, 5), nn.Linear(5, 3))
        )
    start = start_of(build)
    ours = train_stacked(build, start, work((1, 20, 9), 4), chosen, "layered")
    assert_equal(ours, opacus(build, start, work((1, 20, 9), 4), chosen), 1e-10)
    small = train_stacked(build, start, work((1, 20, 9), 4), chosen, "layered", 20_000)
    assert_equal(small, ours, 1e-11)


scale = st.integers(-25, 25).map(lambda power: 10.0**power)


@examples(max_examples=40)
@example(name="gru", inputs=1e20, weights=1.0, max_norm=1e-6, rows=2, opposed=True, seed=0)
@given(
    name=st.sampled_from([*KINDS]), inputs=scale, weights=st.sampled_from([1e-20, 1.0, 1e4, 1e20]),
    max_norm=st.sampled_from([1e-6, 1.0, 1e3]), rows=st.sampled_from([1, 2, 3]), opposed=st.booleans(),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_no_patient_adds_more_than_the_bound(
    name: str, inputs: float, weights: float, max_norm: float, rows: int, opposed: bool, seed: int
) -> None:
    batch = made(2, 1, rows, torch.float32, seed)
    batch.x.mul_(inputs)
    if opposed and rows > 1:  # two rows whose gradients nearly cancel
        batch.x[0, 1] = batch.x[0, 0] * (1 + 1e-6)
        batch.y[0, 1] = (batch.y[0, 0] + 1) % 3
    module, theta = moved(name, 2, torch.float32)
    gradient = sums(module, "layered", max_norm, 2)(theta * weights, batch)[0]
    assert torch.isfinite(gradient).all()
    assert bool((torch.linalg.vector_norm(gradient, dim=1, dtype=torch.float64) <= max_norm).all())


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("cell", [float("nan"), float("inf"), 1e38])
@pytest.mark.parametrize("name", KINDS)
def test_a_patient_whose_gradient_is_not_finite_leaves_the_others_alone(name: str, cell: float, rows: int) -> None:
    batch = made(2, 5, rows, torch.float32)
    module, theta = moved(name, 2, torch.float32)
    compute = sums(module, "layered", 0.2, 99)
    without = Batch(batch.x, batch.y, batch.weight.clone(), batch.member, batch.patients, batch.one_row)
    without.weight[0, :rows] = 0
    expected = compute(theta, without)[0]
    batch.x[0, :rows] = cell
    found = compute(theta, batch)[0]
    torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-6)
    assert float((found[0] - expected[0]).norm()) <= 0.2 * (1 + 1e-5)


def test_dropout_between_layers_follows_each_sites_own_seed() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.LayerNorm(8), nn.Dropout(0.5), nn.Linear(8, 3))

    module, theta = models(build, 3, torch.float64)
    batch, theta = made(3, 6, 2), theta.detach()
    assert choose(module, FEATURES) == "layered"

    def found(*sites: int) -> torch.Tensor:
        some = list(sites)
        part = Batch(batch.x[some], batch.y[some], batch.weight[some], batch.member[some], batch.patients, False)
        return sums(module, "layered", 0.2, 9, seeds=[5 + site for site in some])(theta[some], part)[0]

    together = found(0, 1, 2)
    for site in range(3):
        torch.testing.assert_close(found(site)[0], together[site], rtol=1e-12, atol=1e-13)
    assert not torch.allclose(together, sums(module, "layered", 0.2, 9, seeds=[1, 2, 3])(theta, batch)[0])


class Tied(nn.Module):
    """Uses a layer's weight by another way than the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(x) @ self.layer.weight)
        return out


class Turned(nn.Module):
    """Has time before rows where a layer takes both."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.head = nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.tanh(self.step(x.unflatten(1, (3, 2)).transpose(0, 1))).sum(0))
        return out


class Noisy(nn.Module):
    """Draws random numbers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(nn.functional.dropout(x, 0.5))
        return out


class Compared(nn.Module):
    """Shifts exponents by the largest of all rows, which changes nothing until one row is far from the others."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.head = nn.Linear(FEATURES, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(x)
        weight = torch.exp(h - h.max())
        out: torch.Tensor = self.head(self.norm(h) * weight / weight.sum(-1, keepdim=True))
        return out


class Joined(nn.Module):
    """Takes what is beyond two deviations on either side of all rows, one side's rows after the other's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.beyond = nn.Linear(FEATURES, 3), nn.Linear(FEATURES, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        above, below = self.beyond(torch.cat([torch.relu(x - 2), torch.relu(-2 - x)])).chunk(2)
        out: torch.Tensor = self.layer(x) + above - below
        return out


class Replaced(nn.Module):
    """Has a layer whose forward is not its class's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(FEATURES, 3), nn.Linear(3, 3)
        vars(self.layer)["forward"] = lambda x: 2 * nn.Linear.forward(self.layer, x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(x))
        return out


class Steps(nn.Module):
    """Drops out numbers of steps: those of all rows are rows to its layers, time after time where it is ``turned``."""

    def __init__(self, turned: bool = False) -> None:
        super().__init__()
        self.step, self.norm, self.drop, self.head = nn.Linear(1, 4), nn.LayerNorm(4), nn.Dropout(0.5), nn.Linear(4, 3)
        self.turned = turned

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.step(x[:, :, None]))
        h = self.drop(h.transpose(0, 1)).transpose(0, 1) if self.turned else self.drop(h.flatten(0, 1)).view_as(h)
        out: torch.Tensor = self.head(h.sum(1))
        return out


def test_steps_of_all_rows_may_drop_out_together() -> None:
    module, theta = models(Steps, 2, torch.float64)
    assert choose(module, FEATURES) == "layered"
    batch, theta = made(2, 5, 1), theta.detach()
    together = sums(module, "layered", 0.2, 9, seeds=[5, 6])(theta, batch)[0]
    one = Batch(batch.x[1:], batch.y[1:], batch.weight[1:], batch.member[1:], batch.patients, batch.one_row)
    torch.testing.assert_close(sums(module, "layered", 0.2, 9, seeds=[6])(theta[1:], one)[0][0], together[1])


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(FEATURES, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    return module


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (Tied, "used by more than the layers"),
        (Turned, "used by more than the layers"),
        (Noisy, "random numbers"),
        (Compared, "used by more than the layers"),
        (Joined, "used by more than the layers"),
        (Replaced, "forward"),
        (partial(Steps, turned=True), "used by more than the layers"),
        (frozen, "frozen"),
        (lambda: nn.Sequential(nn.Bilinear(1, 1, 1)), "none of its layers"),
    ],
)
def test_a_module_that_is_more_than_its_layers_goes_to_torch_func(build: Build, told: str) -> None:
    module = build()
    found = find_layers(module)
    assert told in str(found if isinstance(found, str) else same_as_alone(found, FEATURES))
    if told != "none of its layers":
        assert choose(module, FEATURES) == "functional"
        with pytest.raises(ConfigError, match="'layered' cannot take this model"):
            choose(module, FEATURES, "layered")


def test_what_was_tried_is_remembered_by_structure_not_by_likeness() -> None:
    def built(slope: float, shared: bool = False, after: object = None) -> nn.Module:
        first = nn.Linear(4, 4)
        module = nn.Sequential(first, nn.LeakyReLU(slope), first if shared else nn.Linear(4, 4))
        module.after = after  # type: ignore[assignment]
        return module

    assert structure(built(0.1)) == structure(built(0.1))
    others = [built(0.2), built(0.1, shared=True), built(0.1).eval(), built(0.1, after=print), built(0.1).double()]
    assert all(structure(other) != structure(built(0.1)) for other in others)
    one, engine = built(0.1, after=object()), choose(built(0.1), 4)
    assert structure(one) != structure(built(0.1, after=object())) and engine in Engine.__args__  # type: ignore[attr-defined]
