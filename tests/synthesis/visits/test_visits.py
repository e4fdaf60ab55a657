"""Visits over time come out of two sums as they went in: transitions, how many visits, the time between them, missing cells."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.ehr.encoding import column_cells, encode
from polyclinic.ehr.schema import BEFORE_LATEST, Column, Schema
from polyclinic.errors import ConfigError
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.sums import clipped_total, fit_centrally
from polyclinic.synthesis.synthesizer import load, save
from polyclinic.synthesis.visits.method import VisitByVisit
from polyclinic.types import Arrays, Floats, Ints

STEPS = 8
#: Of the next visit's two numbers, in standard deviations, by those of the visit before: the second follows the first.
TRANSITION = np.array([[0.8, 0.0], [0.4, 0.5]])


def schema(time: str = BEFORE_LATEST, **options: object) -> Schema:
    cells = {"kind": "trajectory", "steps": STEPS, "nullable": True} | options
    trajectories = {"pressure": (40.0, 220.0), "glucose": (0.0, 20.0)} | ({time: (0.0, 4000.0)} if time else {})
    return Schema(
        name="visits", unit="record",
        columns=(
            Column(name="male", kind="binary", nullable=True),
            *(Column.model_validate({"name": name, "bounds": bounds} | cells) for name, bounds in trajectories.items()),
            Column(name="ward", kind="categorical", categories=("icu", "med", "surg")),
            Column(name="died", kind="binary", role="label"),
        ),
    )  # fmt: skip


def cohort(patients: int, seed: int, time: str = BEFORE_LATEST, missing: float = 0.0) -> pd.DataFrame:
    """Those who died have fewer visits, closer together. Visits end at the last step, or with another time begin at the first.

    Pressure and glucose follow ``TRANSITION`` from their stationary distribution.
    """
    rng = np.random.default_rng(seed)
    left = np.eye(2) - TRANSITION @ TRANSITION.T  # their covariance is then the identity at each visit
    root = np.linalg.cholesky(left)
    cells = np.empty((patients, STEPS, 2))
    cells[:, 0] = rng.standard_normal((patients, 2))
    for step in range(1, STEPS):
        cells[:, step] = cells[:, step - 1] @ TRANSITION.T + rng.standard_normal((patients, 2)) @ root.T
    died = rng.random(patients) < 0.3
    visits = 1 + rng.binomial(STEPS - 1, np.where(died, 0.4, 0.8))
    gaps = rng.gamma(2.0, np.where(died, 10.0, 40.0)[:, None], (patients, STEPS))
    steps = np.arange(STEPS)
    if time == BEFORE_LATEST:
        here = steps >= STEPS - visits[:, None]
        times = np.cumsum(gaps[:, ::-1], axis=1)[:, ::-1] - gaps
    else:
        here, times = steps < visits[:, None], np.cumsum(gaps, axis=1) - gaps[:, :1]
    there = here & (rng.random((patients, STEPS)) >= missing)
    values = {
        "pressure": np.where(there, 120 + 15 * cells[:, :, 0], np.nan),
        "glucose": np.where(here, 8 + 1.5 * cells[:, :, 1], np.nan),
    } | ({time: np.where(here, times, np.nan)} if time else {})
    table: dict[str, object] = {"male": rng.integers(0, 2, patients), "ward": rng.choice(["icu", "med", "surg"], patients),
                                "died": died.astype(int)}  # fmt: skip
    columns = {f"{name}_{step:02d}": row[:, step] for name, row in values.items() for step in range(STEPS)}
    return pd.DataFrame(table | columns)


def rows(layout: Layout, records: pd.DataFrame) -> Floats:
    encoded = encode(records, layout.schema)
    assert encoded.y is not None
    return layout.rows(encoded.x, encoded.y)


def fitted(
    layout: Layout, records: pd.DataFrame, noise: float = 0.0, count: int = 6000
) -> tuple[dict[str, Floats], Ints]:
    z = rows(layout, records)
    synthesizer = fit_centrally(VisitByVisit(layout), z, np.arange(len(z)), len(z), noise, np.random.default_rng(0))
    return cells_of(layout, synthesizer.sample(count, np.random.default_rng(1)))


def cells_of(layout: Layout, z: Floats) -> tuple[dict[str, Floats], Ints]:
    x, y = layout.features_and_labels(z)
    return {c.name: column_cells(x, layout.schema, c.name) for c in layout.schema.features}, y


def regression(cells: dict[str, Floats]) -> Floats:
    """(2, 2) coefficients of a visit's pressure and glucose, in standard deviations, on those of the visit before."""
    both = np.stack([(cells["pressure"] - 120) / 15, (cells["glucose"] - 8) / 1.5], axis=2)
    before, now = both[:, :-1].reshape(-1, 2), both[:, 1:].reshape(-1, 2)
    there = ~np.isnan(before).any(axis=1) & ~np.isnan(now).any(axis=1)
    design = np.column_stack([np.ones(there.sum()), before[there]])
    return np.asarray(np.linalg.lstsq(design, now[there], rcond=None)[0][1:].T)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_without_noise_transitions_are_those_of_the_patients(missing: float) -> None:
    layout = Layout.of(schema())
    found, _ = fitted(layout, cohort(4000, 0, missing=missing), count=4000)
    np.testing.assert_allclose(regression(found), TRANSITION, atol=0.06)
    seen = ~np.isnan(found["glucose"])
    assert np.nanstd(found["glucose"]) == pytest.approx(1.5, rel=0.06)
    assert np.isnan(found["pressure"][seen]).mean() == pytest.approx(missing, abs=0.02)


@pytest.mark.parametrize("time", [BEFORE_LATEST, "since first", ""])
def test_numbers_of_visits_and_the_time_between_them_are_those_of_each_class(time: str) -> None:
    layout = Layout.of(schema(time))
    records = cohort(4000, 1, time)
    method = VisitByVisit(layout, time=time)
    z = rows(layout, records)
    drawn = fit_centrally(method, z, np.arange(len(z)), len(z), 0.0, np.random.default_rng(0))
    tables = [cells_of(layout, z), cells_of(layout, drawn.sample(4000, np.random.default_rng(1)))]
    for label in (0, 1):
        visits = [(~np.isnan(cells["glucose"][y == label])).sum(axis=1) for cells, y in tables]
        assert visits[1].mean() == pytest.approx(visits[0].mean(), abs=0.3)
        assert visits[1].std() == pytest.approx(visits[0].std(), rel=0.25)
        if time:
            gaps = [np.diff(cells[time][y == label], axis=1) for cells, y in tables]
            sign = -1.0 if time == BEFORE_LATEST else 1.0
            assert np.nanmin(sign * gaps[1]) >= -1e-9
            assert np.nanmean(gaps[1]) == pytest.approx(np.nanmean(gaps[0]), rel=0.12)
    last = STEPS - 1 if time == BEFORE_LATEST else 0
    assert not np.isnan(tables[1][0]["glucose"][:, last]).any()
    if time:
        assert np.nanmax(np.abs(tables[1][0][time][:, last])) == 0.0
        np.testing.assert_array_equal(np.isnan(tables[1][0][time]), np.isnan(tables[1][0]["glucose"]))


def test_cells_that_are_never_missing_have_no_gaps_under_noise() -> None:
    layout = Layout.of(schema())
    found, _ = fitted(layout, cohort(2000, 2), noise=1.0)
    there = ~np.isnan(found[BEFORE_LATEST])
    assert there.sum(axis=1).std() > 1.0
    for name in ("pressure", "glucose"):
        np.testing.assert_array_equal(~np.isnan(found[name]), there)


def test_trajectories_that_cannot_be_missing_are_whole() -> None:
    layout = Layout.of(schema("", nullable=False))
    records = cohort(300, 3, "")
    measured = [name for name in records if name[-3] == "_"]
    records[measured] = records[measured].fillna({name: 100.0 if name[0] == "p" else 10.0 for name in measured})
    found, _ = fitted(layout, records, noise=5.0, count=500)
    assert not np.isnan(found["pressure"]).any() and not np.isnan(found["glucose"]).any()


def test_patients_without_a_visit_stay_without() -> None:
    layout = Layout.of(schema())
    records = cohort(1500, 4)
    measured = [name for name in records if name[-3] == "_"]
    records.loc[:449, measured] = np.nan
    found, _ = fitted(layout, records)
    none = np.isnan(np.concatenate([found[name] for name in ("pressure", "glucose", BEFORE_LATEST)], axis=1)).all(
        axis=1
    )
    assert none.mean() == pytest.approx(0.3, abs=0.03)


def test_noise_costs_less_than_all_steps_together() -> None:
    """What the method is for: the transition survives a noise that ``moments``, with its sum for each pair of steps, does not."""
    from polyclinic.synthesis.methods.moments import Moments

    layout = Layout.of(schema())
    z = rows(layout, cohort(2000, 5))
    errors = []
    for method in (VisitByVisit(layout), Moments(layout, rounds=2)):
        drawn = fit_centrally(method, z, np.arange(len(z)), len(z), 2.0, np.random.default_rng(3))
        found, _ = cells_of(layout, drawn.sample(2000, np.random.default_rng(1)))
        errors.append(np.abs(regression(found) - TRANSITION).mean())
    assert errors[0] < 0.5 * errors[1]


def _state(method: VisitByVisit, z: Floats) -> Arrays:
    state: Arrays = {"classes": np.full(2, 0.5)}
    patients = len(z)
    total = clipped_total(method, 1, {}, z, np.arange(patients), patients)
    return method.absorb(1, state, total / patients, 0.1)


LAYOUT = Layout.of(schema())
METHOD = VisitByVisit(LAYOUT)
ROWS = rows(LAYOUT, cohort(60, 6, missing=0.2))
STATE = _state(METHOD, ROWS)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5), st.sampled_from([1.0, 40.0]))
def test_adding_a_patient_moves_a_sum_by_at_most_one(seed: int, own_rows: int, scale: float) -> None:
    """Whatever its rows hold, and however many it has."""
    rng = np.random.default_rng(seed)
    strange = scale * rng.standard_normal((own_rows, LAYOUT.width))
    z = np.concatenate([ROWS, strange])
    patient = np.concatenate([np.arange(60), np.full(own_rows, 60)])
    for round in (1, 2):
        question = METHOD.question(round, STATE)
        with_it = clipped_total(METHOD, round, question, z, patient, 61)
        without = clipped_total(METHOD, round, question, ROWS, np.arange(60), 60)
        assert np.linalg.norm(with_it - without) <= 1.0 + 1e-9
        vector = METHOD.contributions(round, question, z, patient, 61)
        assert np.linalg.norm(vector, axis=1).max() <= 1.0 + 1e-9  # so that clipping changes nothing
        np.testing.assert_allclose(with_it - without, vector[-1], atol=1e-9)


def test_a_long_course_weighs_no_more_than_a_short_one() -> None:
    """A patient's vector is a mean over its visits: two rows of the same visits are as one."""
    once = METHOD.contributions(2, METHOD.question(2, STATE), ROWS[:1], np.zeros(1, dtype=np.int64), 1)
    twice = METHOD.contributions(2, METHOD.question(2, STATE), ROWS[[0, 0]], np.zeros(2, dtype=np.int64), 1)
    np.testing.assert_allclose(twice, once, atol=1e-12)


def test_the_sums_do_not_grow_with_the_steps() -> None:
    sizes = [VisitByVisit(Layout.of(schema(steps=steps))).size(2, {}) for steps in (3, 30)]
    assert sizes[0] == sizes[1]


def test_the_same_seed_gives_the_same_rows_from_the_file_too(tmp_path: Path) -> None:
    layout = Layout.of(schema())
    z = rows(layout, cohort(400, 7))
    drawn = fit_centrally(VisitByVisit(layout), z, np.arange(400), 400, 1.0, np.random.default_rng(0))
    first = drawn.sample(50, np.random.default_rng(2))
    np.testing.assert_array_equal(first, drawn.sample(50, np.random.default_rng(2)))
    save(drawn, tmp_path / "synthesizer.safetensors")
    again = load(tmp_path / "synthesizer.safetensors", layout)
    np.testing.assert_array_equal(first, again.sample(50, np.random.default_rng(2)))
    labels = np.repeat([0, 1], 25)
    np.testing.assert_array_equal(layout.labels(drawn.sample(50, np.random.default_rng(2), labels)), labels)


def _without_trajectories() -> Schema:
    whole = schema()
    return whole.model_copy(update={"columns": tuple(c for c in whole.columns if c.kind != "trajectory")})


def _of_other_steps() -> Schema:
    whole = schema()
    changed = [c.model_copy(update={"steps": 3}) if c.name == "glucose" else c for c in whole.columns]
    return whole.model_copy(update={"columns": tuple(changed)})


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (_without_trajectories, {}, "no trajectory of measurements"),
        (_of_other_steps, {}, "pressure 8, glucose 3"),
        (schema, {"time": "befor latest"}, "Did you mean 'before latest'"),
        (schema, {"bins": 1}, "from 2 to 1000"),
        (schema, {"radius": 0.0}, "'radius' of method 'visits' is 0.0"),
    ],
)  # fmt: skip
def test_a_schema_or_an_option_that_cannot_be_is_refused(
    make: Callable[[], Schema], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        VisitByVisit(Layout.of(make()), **options)  # type: ignore[arg-type]


def test_a_question_of_another_shape_is_refused() -> None:
    question = METHOD.question(2, STATE)
    with pytest.raises(ConfigError, match="between must have shape"):
        METHOD.contributions(2, question | {"between": np.ones((1, 3))}, ROWS, np.arange(60), 60)


def test_a_fit_to_visits_that_are_all_alike_can_be_read_again(tmp_path: Path) -> None:
    """Without noise its correlations with the step were a little above 1, and the run's file was refused."""
    columns = (
        Column(name="a", kind="trajectory", steps=4, bounds=(0.0, 1.0)),
        Column(name="b", kind="trajectory", steps=4, bounds=(0.0, 1.0), nullable=True),
        Column(name="died", kind="binary", role="label"),
    )
    layout = Layout.of(Schema(name="few", unit="record", columns=columns))
    z = layout.rows(np.random.default_rng(0).uniform(-1, 1, (1, layout.features)), layout.some_labels(1))
    found = fit_centrally(VisitByVisit(layout), z, np.zeros(1, dtype=np.int64), 1, 0.0, np.random.default_rng(1))
    save(found, tmp_path / "s.safetensors")
    assert load(tmp_path / "s.safetensors", layout).layout is layout


def test_a_patient_without_rows_adds_nothing() -> None:
    layout = Layout.of(schema())
    method, nobody = VisitByVisit(layout), np.zeros((0, layout.width))
    for round in (1, 2):
        given = {} if round == 1 else {name: bins.used / 4.0 for name, bins in method._histograms.items()}
        assert not method.contributions(round, given, nobody, np.zeros(0, dtype=np.int64), 2).any()
