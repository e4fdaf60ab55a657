"""A flow's base: a Gaussian before any step, corrected by a sum that no patient moves far, and rows drawn again."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError, DataError
from polyclinic.privacy.streams import keyed_stream
from polyclinic.synthesis.flows.recipe import make
from polyclinic.synthesis.flows.synthesizer import FlowRows
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.sums import clipped_total
from polyclinic.synthesis.synthesizer import load, save
from polyclinic.training.density import DensityTask
from polyclinic.training.pooled import Pooled
from polyclinic.training.task import SiteWork, TrainSettings
from polyclinic.types import Floats
from polyclinic_studies.flows.base import BaseMoments, corrected, whitened
from polyclinic_studies.flows.central import begun, train_centrally
from tests.synthesis.tables import MIXED

LAYOUT = Layout.of(
    Schema(
        name="two", unit="record",
        columns=(
            *(Column(name=name, kind="continuous", bounds=(-2.0, 2.0), centre=0.0, spread=1.0, clip=True) for name in "ab"),
            Column(name="half", kind="binary", role="label"),
        ),
    )
)  # fmt: skip
CLASSES = np.array([0.5, 0.5])
ROOT = np.array([[0.5, 0.0], [0.3, 0.2]])
MEAN = np.array([0.3, -0.2])


def flow(**options: object) -> FlowRows:
    return begun(make(LAYOUT, "maf", transforms=2, hidden=8, **options), CLASSES)


def z_of(rows: int, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    features = np.clip(MEAN + rng.standard_normal((rows, 2)) @ ROOT.T, -2, 2)
    return np.concatenate([features, np.eye(2)[np.arange(rows) % 2]], axis=1)


def records(z: Floats) -> Rows:
    return Rows(z[:, :2] * LAYOUT.std + LAYOUT.mean, np.argmax(z[:, 2:], 1), np.arange(len(z)), len(z))


def test_a_flow_begins_as_the_gaussian_of_its_base(tmp_path: Path) -> None:
    rows = flow()
    rows = replace(rows, recipe=replace(rows.recipe, base=(MEAN, ROOT)))
    z, rng = z_of(5), np.random.default_rng(0)
    expected = multivariate_normal(MEAN, ROOT @ ROOT.T).logpdf(z[:, :2]) + np.log(0.5)
    np.testing.assert_allclose(rows.log_density(z, rng), expected, atol=1e-5)
    drawn = rows.sample(20_000, rng)[:, :2]
    np.testing.assert_allclose(np.cov(drawn.T), ROOT @ ROOT.T, atol=0.02)
    save(rows, tmp_path / "flow")
    np.testing.assert_allclose(load(tmp_path / "flow", LAYOUT).sample(3, np.random.default_rng(1)),
                               rows.sample(3, np.random.default_rng(1)), atol=1e-6)  # fmt: skip


def test_the_correction_finds_mean_and_covariance_also_of_a_trained_flow() -> None:
    z = z_of(4000)
    table = records(z)
    rows = corrected(flow(), z, table.patient, len(z), 0.0, np.random.default_rng(0), reach=50.0)
    mean, root = rows.recipe.base_or_standard
    np.testing.assert_allclose(mean, z[:, :2].mean(0), atol=1e-6)
    np.testing.assert_allclose(root @ root.T, np.cov(z[:, :2].T, bias=True), atol=1e-6)
    # Steps whose clipping makes it too narrow: what records stand for is far from standard until the base is corrected again.
    steps = TrainSettings(1.0, 10, 0.05, 0.5, 0.0, optimizer="adam")
    trained = train_centrally(rows, table, steps, 2, public_patients=len(z))
    mended = corrected(trained, z, table.patient, len(z), 0.0, np.random.default_rng(0), reach=50.0)
    assert abs(np.cov(whitened(trained, z).T) - np.eye(2)).max() > 0.05
    np.testing.assert_allclose(np.cov(whitened(mended, z).T, bias=True), np.eye(2), atol=1e-4)


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), far=st.floats(0.1, 1e6), patient=st.integers(0, 19))
def test_no_patient_moves_the_sum_by_more_than_one(seed: int, far: float, patient: int) -> None:
    z = z_of(20, seed)
    z[:, :2] *= far
    method = BaseMoments(flow())
    kept = np.arange(20) != patient
    whole = clipped_total(method, 1, {}, z, np.arange(20), 20)
    without = clipped_total(method, 1, {}, z[kept], np.arange(19), 19)
    assert np.linalg.norm(whole - without) <= 1 + 1e-9


def test_a_base_is_of_continuous_columns_alone() -> None:
    layout = Layout.of(MIXED)
    with pytest.raises(ConfigError, match="continuous columns"):
        BaseMoments(begun(make(layout), np.ones(layout.classes)))


def test_rows_beyond_the_bounds_are_drawn_again() -> None:
    wide = (np.zeros(2), 2.0 * np.eye(2))
    plain, again = (replace(flow(redraw=redraw), recipe=replace(make(LAYOUT, redraw=redraw, transforms=2, hidden=8), base=wide))
                    for redraw in (False, True))  # fmt: skip
    rng = np.random.default_rng(0)
    assert (abs(plain.sample(500, rng)[:, :2]) == 2).any()
    drawn = again.sample(4000, rng)[:, :2]
    assert abs(drawn).max() < 2
    # A normal of standard deviation 2 cut at 1 standard deviation: 0.291 of its variance is left, and 0.683 of its mass.
    np.testing.assert_allclose(drawn.var(0), 4 * 0.291, atol=0.06)
    z = z_of(4)
    more = again.log_density(z, rng) - plain.log_density(z, rng)
    np.testing.assert_allclose(more, -2 * np.log(0.6827), atol=0.05)
    lost = replace(again, recipe=replace(again.recipe, base=(np.full(2, 100.0), np.eye(2))))
    with pytest.raises(DataError, match="public bounds"):
        lost.sample(3, rng)


def test_hospitals_with_one_noise_take_the_step_of_one_table() -> None:
    z = z_of(60)
    rows = flow()
    recipe = replace(rows.recipe, base=(MEAN, ROOT))
    task, steps = Pooled(cast(Any, DensityTask(recipe))), TrainSettings(1.0, 1, 0.1, 0.3, 1.0)

    def moved(parts: list[Floats]) -> Floats:
        work = [SiteWork(records(part), keyed_stream(0, "b"), keyed_stream(0, "n"), 1.0) for part in parts]
        found = task.train(recipe.module, rows.flow, work, steps)
        return sum(
            (np.concatenate([(rows.flow[n] - one.arrays[n]).ravel() for n in rows.flow]) for one in found), np.zeros(())
        )

    np.testing.assert_allclose(moved(np.array_split(z, 3)), moved([z]), atol=1e-9)
