"""Missing cells of a flow: draws by a normal law given the rest of a record, training on what is there, and complete patients."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm

from polyclinic.ehr.imputation import Imputer
from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import Rows
from polyclinic.models.tabular import initialise
from polyclinic.privacy.streams import keyed_stream
from polyclinic.synthesis.flows.fills import Law, fill_rows, law_of
from polyclinic.synthesis.flows.recipe import Recipe, make
from polyclinic.synthesis.flows.synthesizer import FlowRows
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.synthesizer import load, save
from polyclinic.training.density import DensityTask, spread
from polyclinic.training.task import SiteWork, TrainSettings
from polyclinic.types import Arrays, Bools, Floats
from tests.synthesis.tables import MIXED, mixed, rows_of

SCHEMA = Schema(
    name="pressures",
    unit="record",
    columns=(
        *(
            Column(name=name, kind="continuous", bounds=(-6.0, 6.0), centre=0.0, spread=1.0, nullable=True)
            for name in ("wedge", "systolic", "mean")
        ),
        Column(name="ill", kind="binary", role="label"),
    ),
)
LAYOUT = Layout.of(SCHEMA)
WIDE = (np.full(3, -60.0), np.full(3, 60.0))
LAW = Law(np.array([0.5, -1.0, 0.2]), np.array([[1.0, 0.6, 0.3], [0.6, 2.0, -0.4], [0.3, -0.4, 1.5]]))


def begun(recipe: Recipe) -> Arrays:
    return {name: value.numpy() for name, value in initialise(recipe.module, 0).items()}


def patterns(rng: np.random.Generator, rows: int) -> tuple[Floats, Bools]:
    return rng.standard_normal((rows, 3)), rng.random((rows, 3)) < 0.5


def test_a_law_is_that_of_an_affine_flow() -> None:
    root = np.linalg.cholesky(LAW.covariance)
    found = law_of(lambda base: base @ root.T + LAW.mean, 3, *WIDE)
    np.testing.assert_allclose(found.mean, LAW.mean, atol=1e-12)
    np.testing.assert_allclose(
        found.covariance, LAW.covariance + np.diag(1e-3 * np.maximum(np.diag(LAW.covariance), 1.0)), atol=1e-12
    )
    near = law_of(lambda base: 1e9 * base, 3, -np.ones(3), np.ones(3))
    assert np.isfinite(near.covariance).all() and near.covariance.max() < 1.1


def test_draws_are_those_of_the_conditional_law() -> None:
    """Means against the imputer of records; densities against the joint law over that of the cells that are there."""
    rng = np.random.default_rng(0)
    v, absent = patterns(rng, 40)
    labels = np.zeros(40, dtype=np.int64)
    means, _ = fill_rows(v, absent, labels, {0: LAW}, np.zeros((40, 3)), *WIDE)
    scaled = Imputer(("wedge", "systolic", "mean"), LAW.mean / 6, LAW.covariance / 36)
    np.testing.assert_allclose(means, 6 * scaled.fill(np.where(absent, np.nan, v / 6), SCHEMA), atol=1e-9)
    out, log_density = fill_rows(v, absent, labels, {0: LAW}, rng.standard_normal((40, 3)), *WIDE)
    np.testing.assert_array_equal(out[~absent], v[~absent])
    for row, gone, given in zip(out, absent, log_density, strict=True):
        here = ~gone
        joint = multivariate_normal.logpdf(row, LAW.mean, LAW.covariance)
        there = (
            multivariate_normal.logpdf(row[here], LAW.mean[here], LAW.covariance[np.ix_(here, here)])
            if here.any()
            else 0
        )
        assert given == pytest.approx(joint - there, abs=1e-9)
    many, _ = fill_rows(np.tile(v[:1], (20_000, 1)), np.tile([True, True, False], (20_000, 1)), np.zeros(20_000, dtype=np.int64),
                     {0: LAW}, rng.standard_normal((20_000, 3)), *WIDE)  # fmt: skip
    left = LAW.covariance[:2, :2] - np.outer(LAW.covariance[:2, 2], LAW.covariance[:2, 2]) / LAW.covariance[2, 2]
    np.testing.assert_allclose(np.cov(many[:, :2].T), left, atol=0.05)


def test_a_records_draw_does_not_depend_on_other_records() -> None:
    rng = np.random.default_rng(1)
    (v, absent), normal = patterns(rng, 1100), rng.standard_normal((1100, 3))
    labels = rng.integers(0, 2, 1100)
    laws = {0: LAW, 1: Law(np.zeros(3), np.eye(3))}
    whole, _ = fill_rows(v, absent, labels, laws, normal, *WIDE)
    for at in (0, 7, 1099):
        one = slice(at, at + 1)
        alone, _ = fill_rows(v[one], absent[one], labels[one], laws, normal[one], *WIDE)
        np.testing.assert_array_equal(alone[0], whole[at])


def cohort(rows: int, seed: int = 0) -> tuple[Rows, Floats]:
    """Numbers that go together, of which four in ten cells are missing; and the numbers before."""
    rng = np.random.default_rng(seed)
    whole = rng.multivariate_normal([0.8, -0.4, 0.0], [[1.0, 0.8, 0.6], [0.8, 1.0, 0.7], [0.6, 0.7, 1.0]], rows)
    x = np.where(rng.random(whole.shape) < 0.4, np.nan, whole) / 6
    return Rows(x, (whole[:, 0] > 0.8).astype(np.int64) * 0, np.arange(rows), rows), whole


def trained(recipe: Recipe, records: Rows, rounds: int = 12, steps: int = 25) -> Arrays:
    arrays, kept = begun(recipe), {}
    usual = TrainSettings(0.5, steps, 2e-2, 1.0, None, optimizer="adam")
    for round in range(rounds):
        streams = [keyed_stream(0, name, round) for name in ("batches", "noise", "layers")]
        site = SiteWork(records, streams[0], streams[1], None, kept, streams[2])
        update = DensityTask(recipe).train(recipe.module, arrays, [site], usual)[0]
        arrays, kept = update.arrays, dict(update.state)
    return arrays


@pytest.mark.parametrize("complete", [True, False])
def test_a_flow_learns_what_cells_that_are_missing_at_random_would_have_said(complete: bool) -> None:
    """A fill that looks away from the rest of the record would leave correlations of .8 at about .3."""
    table, whole = cohort(500)
    recipe = make(LAYOUT, transforms=1, hidden=16, complete=complete)
    rows = FlowRows(recipe, trained(recipe, table), np.array([1.0, 0.0]))
    z = rows.sample(6000, np.random.default_rng(0))
    gone = z[:, LAYOUT.missing] > 0.5
    assert gone.mean() == pytest.approx(0.0 if complete else 0.4, abs=0.06)
    v = np.where(gone, np.nan, z[:, :3])
    for i, j in ((0, 1), (1, 2), (0, 2)):
        both = ~np.isnan(v[:, [i, j]]).any(1)
        found = np.corrcoef(v[both][:, [i, j]].T)[0, 1]
        assert found == pytest.approx(np.corrcoef(whole[:, [i, j]].T)[0, 1], abs=0.1)
    np.testing.assert_allclose(np.nanmean(v, 0), whole.mean(0), atol=0.2)


def test_complete_patients_have_a_density_of_the_cells_that_are_there(tmp_path: Path) -> None:
    recipe = make(LAYOUT, transforms=1, hidden=4, complete="true")
    assert recipe.width == 3 + 2 and make(LAYOUT).width == LAYOUT.width == 6 + 2
    rows = FlowRows(recipe, begun(recipe), np.array([1.0, 3.0]))
    z = LAYOUT.rows(np.array([[0.1, np.nan, np.nan], [0.0, -0.2, 0.5]]), np.array([0, 1]))
    expected = [norm.logpdf(0.6) + np.log(0.25), norm.logpdf([0.0, -1.2, 3.0]).sum() + np.log(0.75)]
    many = rows.log_density(np.repeat(z, 4000, axis=0), np.random.default_rng(0), draws=1)
    np.testing.assert_allclose(np.log(np.exp(many).reshape(2, 4000).mean(1)), expected, atol=0.01)
    save(rows, tmp_path / "s.safetensors")
    drawn = load(tmp_path / "s.safetensors", LAYOUT).sample(50, np.random.default_rng(0))
    assert drawn.shape == (50, LAYOUT.width) and not LAYOUT.decode(drawn).isna().any().any()


@pytest.mark.parametrize("complete", [True, False])
def test_mixed_records_lead_there_and_back(complete: bool) -> None:
    layout = Layout.of(MIXED)
    recipe = make(layout, transforms=1, hidden=4, complete=complete)
    z = rows_of(layout, mixed(60, 3))
    laws = recipe.laws(recipe.flow_of(begun(recipe)).double(), range(layout.classes))
    v, _ = recipe.coordinates.draw(z, np.random.default_rng(0), laws)
    assert v.shape[1] == recipe.width
    back, there = recipe.coordinates.rows(v), ~recipe.coordinates.missing(z)
    np.testing.assert_allclose(back[there] if complete else back, z[there] if complete else z, atol=1e-9)
    assert recipe.module()(torch.from_numpy(v).float()).shape == (60, 1)


def test_a_hospital_fills_cells_by_what_the_round_begins_with_and_no_patient_moves_anothers_row() -> None:
    recipe = make(LAYOUT, transforms=1, hidden=4)
    arrays = {name: value + 0.4 for name, value in begun(recipe).items()}
    table, _ = cohort(30)
    task = DensityTask(recipe)

    def seen(x: Floats, given: Arrays, own: Arrays | None = None) -> Floats:
        streams = [keyed_stream(0, name) for name in ("batches", "noise", "layers")]
        site = SiteWork(
            Rows(x, table.y, table.patient, 30), streams[0], streams[1], 30.0, {}, streams[2], own=own or {}
        )
        return task.show_rows(recipe.module, given, [site])[0].rows.x

    base = seen(table.x, arrays)
    other = table.x.copy()
    other[-1] = 0.9
    np.testing.assert_array_equal(seen(other, arrays)[:-1], base[:-1])
    assert not np.array_equal(seen(table.x, begun(recipe)), base)
    np.testing.assert_array_equal(seen(table.x, begun(recipe), arrays), base)
    plain = spread(recipe, table, np.random.default_rng(0)).x[:, :3][np.isnan(table.x)]
    assert plain.std() == pytest.approx(1.0, abs=0.35)
