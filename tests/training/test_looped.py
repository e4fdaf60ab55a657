"""Compiled loops over hospitals against the torch engine that they stand for, and against what privacy needs of clipping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import nn

from polyclinic.config import RunConfig, train_settings
from polyclinic.ehr.shard import Rows
from polyclinic.models.tabular import initialise, logistic, mlp
from polyclinic.privacy.streams import keyed_stream
from polyclinic.training.modules import flat_parameters
from polyclinic.training.stacked.batches import batch_parts, build_table
from polyclinic.training.stacked.layers import plan
from polyclinic.training.stacked.linear import linear_sums
from polyclinic.training.stacked.looped import loop_layers, looped_sums, takes
from polyclinic.training.stacked.trainer import train_stacked
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays

Build = Callable[[], nn.Module]
SETTINGS = TrainSettings(0.3, 4, 0.2, 0.4, 0.7, compiled=True)
SIZES = (1, 40, 7, 900)  # the last has batches of more rows than the loops take at a time
MODULES: dict[str, Build] = {
    "logistic": lambda: logistic(6, 3),
    "tanh": lambda: mlp(6, 3, (8, 5)),
    "relu": lambda: nn.Sequential(nn.Linear(6, 9, bias=False), nn.ReLU(), nn.Linear(9, 3)),
    "sigmoid": lambda: nn.Sequential(
        nn.Sequential(nn.Linear(6, 4), nn.Identity(), nn.Sigmoid()), nn.Linear(4, 70), nn.Linear(70, 3, bias=False)
    ),
    "one logit": lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)),
}


def rows(patients: int, seed: int, classes: int = 3) -> Rows:
    rng = np.random.default_rng(seed)
    x = 2 * rng.normal(size=(patients, 6))
    x[rng.random(x.shape) < 0.02] = np.nan
    return Rows(x, rng.integers(0, classes, patients), rng.permutation(patients), patients)


def work(sizes: Sequence[int], classes: int = 3) -> list[SiteWork]:
    return [
        SiteWork(rows(size, site, classes), keyed_stream(0, "b", site), keyed_stream(0, "n", site), size + 0.5)
        for site, size in enumerate(sizes)
    ]


def start_of(build: Build) -> Arrays:
    return {name: value.numpy() for name, value in initialise(build, 3).items()}


def both(build: Build, settings: TrainSettings, sizes: Sequence[int] = SIZES) -> list[list[SiteUpdate]]:
    classes = 2 if build is MODULES["one logit"] else 3
    return [
        train_stacked(build, start_of(build), work(sizes, classes), replace(settings, compiled=how), "linear")
        for how in (True, False)
    ]


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_the_loops_train_as_torch_does(name: str, private: bool) -> None:
    changed = replace(SETTINGS, noise_multiplier=0.7 if private else None)
    ours, theirs = both(MODULES[name], changed)
    for one, other in zip(ours, theirs, strict=True):
        for key, value in other.arrays.items():
            assert value.dtype == one.arrays[key].dtype == np.float32
            np.testing.assert_allclose(one.arrays[key], value, rtol=0, atol=3e-6)
        assert one.loss == pytest.approx(other.loss, rel=1e-5, nan_ok=True) and one.steps == other.steps
    assert any(
        np.any(one.arrays[key] != other.arrays[key])
        for one, other in zip(ours, theirs, strict=True)
        for key in one.arrays
    )


@pytest.mark.parametrize("changes", [{"optimizer": "adam"}, {"momentum": 0.9, "weight_decay": 0.1}])
def test_they_go_with_every_optimizer(changes: dict[str, object]) -> None:
    ours, theirs = both(MODULES["tanh"], replace(SETTINGS, **changes))  # type: ignore[arg-type]
    for one, other in zip(ours, theirs, strict=True):
        for key, value in (other.arrays | other.state).items():
            np.testing.assert_allclose((one.arrays | one.state)[key], value, rtol=1e-4, atol=2e-5)


def test_a_hospital_is_the_same_bit_for_bit_whatever_is_stacked_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    build = MODULES["tanh"]
    together = train_stacked(build, start_of(build), work(SIZES), SETTINGS, "linear")
    monkeypatch.setattr("polyclinic.training.stacked.looped._CACHE", 1)
    apart = train_stacked(build, start_of(build), work(SIZES), SETTINGS, "linear")
    for one, other in zip(together, apart, strict=True):
        assert all(np.array_equal(one.arrays[key], other.arrays[key]) for key in one.arrays)


def test_a_hospital_whose_patients_have_several_rows_changes_nobody_elses_update() -> None:
    build, sites = MODULES["tanh"], work(SIZES)
    alone = train_stacked(build, start_of(build), sites, SETTINGS, "linear")
    rows = sites[0].rows
    patient = np.repeat(np.arange(-(-len(rows.y) // 2)), 2)[: len(rows.y)]
    other = replace(sites[0], rows=Rows(rows.x, rows.y, patient, int(patient[-1]) + 1))
    together = train_stacked(build, start_of(build), [other, *work(SIZES)[1:]], SETTINGS, "linear")
    for one, another in zip(alone[1:], together[1:], strict=True):
        assert all(np.array_equal(one.arrays[key], another.arrays[key]) for key in one.arrays)


def sums(
    build: Build, x: np.ndarray, max_norm: float | None, scale: float = 1.0
) -> tuple[np.ndarray, np.ndarray, bool]:
    """(P,) sums of one hospital's patients with these rows, by the loops and by torch, and whether the loops leave them."""
    module, everybody = build(), np.ones(len(x), dtype=bool)
    layers = loop_layers(plan(module), SETTINGS, torch.float32)
    site = SiteWork(Rows(x, np.arange(len(x)) % 2, np.arange(len(x)), len(x)), keyed_stream(0), keyed_stream(0), 1.0)
    table = build_table([site], torch.float32)
    theta = flat_parameters(module, start_of(build))[None] * scale
    assert layers is not None and takes(site.rows, layers) and not takes(replace(site.rows, x=x[:, 1:]), layers)
    ours, _, left = looped_sums(layers, theta, table, np.flatnonzero(everybody), max_norm)
    theirs, _ = linear_sums(plan(module), theta, next(batch_parts(table, everybody, len(x))), max_norm)  # type: ignore[arg-type]
    return ours[0].numpy(), theirs[0].numpy(), bool(left[0])


LENGTHS = st.sampled_from([0.0, 1e-38, 1e-20, 1e-3, 1.0, 1e6, 1e15, 1e17, 1e25, 3e38, 1e300, np.inf, np.nan])


@given(st.lists(st.lists(LENGTHS, min_size=6, max_size=6), min_size=1, max_size=4), st.sampled_from([1e-3, 1.0, 1e4]),
       st.sampled_from([1e-3, 1.0, 1e8, 1e30]), st.sampled_from(sorted(MODULES)))  # fmt: skip
@hypothesis_settings(max_examples=120)
def test_whatever_a_patient_has_the_sum_is_torchs_and_nobody_adds_more_than_the_bound(
    cells: list[list[float]], bound: float, scale: float, name: str
) -> None:
    x = np.array(cells)
    ours, theirs, left = sums(MODULES[name], x, bound, scale)
    if not left:
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e-5 * bound)
    for row in x:
        alone, _, left = sums(MODULES[name], row[None], bound, scale)
        assert left or np.linalg.norm(alone.astype(np.float64)) <= bound


def test_a_hospital_with_a_row_too_long_for_the_closed_form_is_torchs() -> None:
    build, data = MODULES["tanh"], rows(9, 0)
    data.x[2, 3] = 1e20
    assert sums(build, data.x, 1.0)[2] and not sums(build, data.x[:2], 1.0)[2]
    ours, theirs = (
        train_stacked(
            build, start_of(build), [SiteWork(data, keyed_stream(1), keyed_stream(2), 9.0)],
            replace(SETTINGS, sample_rate=1.0, noise_multiplier=1e-30, compiled=how), "linear",
        )[0] for how in (True, False)
    )  # fmt: skip
    assert all(np.array_equal(ours.arrays[key], theirs.arrays[key]) for key in ours.arrays)


def test_without_privacy_numbers_that_are_not_finite_stay_so() -> None:
    ours, theirs, left = sums(MODULES["relu"], np.full((2, 6), 1e300), None)
    assert not left and np.array_equal(np.isfinite(ours), np.isfinite(theirs)) and not np.isfinite(ours).all()


@pytest.mark.parametrize(
    ("build", "changes"),
    [
        (lambda: mlp(6, 3, (8,)), {"apart": True}),
        (lambda: mlp(6, 3, (8,)), {"compiled": False}),
        (lambda: mlp(6, 3, (8,)), {"loss": "auxiliary"}),
        (lambda: mlp(6, 3, (8,)).double(), {}),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.GELU(), nn.Linear(3, 3)), {}),
        (lambda: nn.Sequential(nn.Tanh(), nn.Linear(6, 3)), {}),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.Linear(4, 3)), {}),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.Tanh()), {}),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.ReLU(), nn.Linear(3, 3)), {}),
    ],
)
def test_the_rest_is_left_to_torch(build: Build, changes: dict[str, object]) -> None:
    module = build()
    dtype = next(module.parameters()).dtype
    assert loop_layers(plan(module), replace(SETTINGS, **changes), dtype) is None  # type: ignore[arg-type]


def test_several_rows_of_a_patient_are_left_to_torch() -> None:
    build = MODULES["tanh"]
    ours, theirs = (
        train_stacked(
            build, start_of(build),
            [replace(one, rows=replace(one.rows, patient=one.rows.patient // 2, patients=20)) for one in work((40,))],
            replace(SETTINGS, compiled=how), "linear",
        )[0] for how in (True, False)
    )  # fmt: skip
    assert all(np.array_equal(ours.arrays[key], theirs.arrays[key]) for key in ours.arrays)


def test_loops_are_for_runs_that_are_long_enough_to_load_them() -> None:
    long, short = (
        train_settings(RunConfig.model_validate({"dataset": "toy", "sites": sites, "rounds": 20}), 1.0)
        for sites in (500, 4)
    )
    assert long.compiled and not short.compiled
