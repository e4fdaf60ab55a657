"""Measures of visits over time give the numbers that made-up courses were made with."""

import numpy as np
import pytest

from polyclinic.ehr.schema import BEFORE_LATEST, Column, Schema
from polyclinic.evaluation.synthetic.courses import (
    Courses,
    autocorrelation,
    carried_forward,
    compare_courses,
    next_visit,
)
from polyclinic.types import Floats

STEPS = 6
SCHEMA = Schema(
    name="visits", unit="record",
    columns=(
        Column(name="age", kind="continuous", bounds=(-1.0, 1.0)),
        Column(name="level", kind="trajectory", steps=STEPS, bounds=(-10.0, 10.0), nullable=True),
        Column(name=BEFORE_LATEST, kind="trajectory", steps=STEPS, bounds=(0.0, 600.0), nullable=True),
        Column(name="died", kind="binary", role="label"),
    ),
)  # fmt: skip


def courses(patients: int, seed: int, kept: float = 0.8, gap: float = 20.0, fewest: int = 2) -> Courses:
    """A stationary autoregression of variance 1, its last visit at the last step; every ``gap`` days."""
    rng = np.random.default_rng(seed)
    level = np.empty((patients, STEPS))
    level[:, 0] = rng.standard_normal(patients)
    for step in range(1, STEPS):
        level[:, step] = kept * level[:, step - 1] + np.sqrt(1 - kept**2) * rng.standard_normal(patients)
    visits = rng.integers(fewest, STEPS + 1, patients)
    there = np.arange(STEPS) >= STEPS - visits[:, None]
    times = gap * (STEPS - 1 - np.arange(STEPS)) * np.ones((patients, 1))
    x = np.concatenate(
        [
            rng.uniform(-1, 1, (patients, 1)),
            np.where(there, level / 10, np.nan),
            np.where(there, times / 300 - 1, np.nan),
        ],
        axis=1,
    )
    found = Courses.of(x, rng.integers(0, 2, patients), SCHEMA)
    assert found is not None
    return found


def test_autocorrelations_and_predictions_are_those_of_the_process() -> None:
    train, test = courses(4000, 0), courses(4000, 1)
    level = test.measured["level"]
    for lag in (1, 2, 3):
        assert autocorrelation(level, lag) == pytest.approx(0.8**lag, abs=0.03)
    assert autocorrelation(level, STEPS) is None
    # R² of the best prediction is the square of the correlation; carried forward it is 1 - 2 (1 - r).
    assert next_visit(train, test)["level"] == pytest.approx(0.64, abs=0.03)
    assert carried_forward(test)["level"] == pytest.approx(0.6, abs=0.03)


def test_other_patients_of_the_same_process_are_alike() -> None:
    found = compare_courses(courses(3000, 2), courses(3000, 3))
    assert found.mean is not None and found.mean < 0.08
    assert found.band is not None and found.band < 0.15
    assert found.autocorrelation is not None and found.autocorrelation < 0.03
    assert found.visits < 0.1
    assert found.next_visit == pytest.approx(0.64, abs=0.04)


def test_what_is_unlike_is_measured_in_its_unit() -> None:
    real, other = courses(2000, 4), courses(2000, 5, kept=0.0, fewest=STEPS)
    found = compare_courses(real, other)
    assert found.autocorrelation == pytest.approx((0.8 + 0.64 + 0.512) / 3, abs=0.05)
    assert found.visits == pytest.approx(STEPS - (2 + STEPS) / 2, abs=0.1)
    assert found.next_visit == pytest.approx(0.0, abs=0.05)  # they teach nothing of what follows
    shifted = Courses({"level": real.measured["level"] + 0.5}, real.times, real.own, real.y)
    moved = compare_courses(real, shifted)
    assert moved.mean == pytest.approx(0.5, rel=0.05) and moved.band == pytest.approx(0.5, rel=0.05)


def test_intervals_are_apart_by_their_distance() -> None:
    rng = np.random.default_rng(6)

    def with_gaps(mean: float) -> Courses:
        gaps = mean + rng.standard_normal((500, STEPS))
        times: Floats = np.cumsum(gaps[:, ::-1], axis=1)[:, ::-1]
        return Courses({"level": np.zeros((500, STEPS))}, times, np.zeros((500, 0)), np.zeros(500, dtype=np.int64))

    real = with_gaps(20.0)
    assert len(real.intervals) == 500 * (STEPS - 1)
    assert compare_courses(real, with_gaps(23.0)).interval == pytest.approx(3.0, rel=0.05)
    regular = courses(100, 7)
    assert np.ptp(regular.intervals) < 1e-9
    assert compare_courses(regular, regular).interval is None  # they do not vary


def test_too_few_patients_define_nothing() -> None:
    few = compare_courses(courses(4, 8), courses(4, 9))
    assert few.mean is None and few.next_visit is None
    flat = Schema(name="flat", unit="record", columns=tuple(c for c in SCHEMA.columns if c.kind != "trajectory"))
    assert Courses.of(np.zeros((3, 1)), np.zeros(3, dtype=np.int64), flat) is None
