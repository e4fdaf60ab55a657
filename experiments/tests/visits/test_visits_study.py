"""The study of visits over time: its cohorts hold what they say, its measure is right, and its targets need twelve draws."""

import re
from pathlib import Path

import numpy as np
import pytest

from polyclinic.ehr.encoding import encode
from polyclinic.ehr.schema import BEFORE_LATEST
from polyclinic.evaluation.synthetic.courses import Courses
from polyclinic.experiments import Asked
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.events import gaussian_event
from polyclinic_studies.visits import followed, followed_demos
from polyclinic_studies.visits.study import DELTA, noise_multiplier, run, transition_error


def courses(patients: int, seed: int) -> Courses:
    encoded = encode(followed.records(patients, seed), followed.SCHEMA)
    assert encoded.y is not None
    found = Courses.of(encoded.x, encoded.y, followed.SCHEMA)
    assert found is not None
    return found


def test_followed_patients_have_the_transition_that_is_stated() -> None:
    found = courses(8000, 0)
    error = transition_error(found)
    assert error is not None and error < 0.01
    mixed = Courses(
        {name: np.random.default_rng(1).permutation(cells.T).T for name, cells in found.measured.items()},
        found.times, found.own, found.y,
    )  # fmt: skip
    shuffled = transition_error(mixed)
    assert shuffled is not None and shuffled > 0.1
    np.testing.assert_array_equal(courses(50, 3).times, courses(50, 3).times)


def test_unstable_patients_are_seen_again_sooner() -> None:
    found = courses(4000, 1)
    assert found.times is not None
    gaps, before = -np.diff(found.times, axis=1), found.measured["pressure"][:, :-1]
    assert np.nanmean(gaps[before > 150]) < 0.4 * np.nanmean(gaps[before < 140])
    assert np.nanmin(gaps) >= 0


def test_the_noise_of_all_rounds_and_of_the_labels_costs_epsilon() -> None:
    noise = noise_multiplier(3.0, 2)
    # Three Gaussian releases are one of a root of three less noise.
    assert epsilon(gaussian_event(noise / 3**0.5), DELTA) == pytest.approx(3.0, rel=0.01)


def test_the_short_form_has_no_verdict(tmp_path: Path) -> None:
    found = run(Asked(tmp_path, quick=True, methods=("visits", "moments")), lambda line: None)
    judged = [target.judge() for target in found.targets]
    assert {target.met for target in judged} == {None} and {target.id for target in judged} == {"own"}
    assert {target.why for target in judged} == {"2 seeds; a verdict needs 12"}
    assert re.search(r"\| visits, ε = 3 \|", found.tables) and "independent" not in found.tables


@pytest.mark.slow
@pytest.mark.skipif(not followed_demos.EICU_FILES.available(), reason="the eICU demo's files are not there")
def test_cuff_pressures_are_an_hour_apart_within_the_first_day() -> None:
    table = followed_demos.eicu_records()
    encoded = encode(table, followed_demos.EICU)
    assert encoded.y is not None
    found = Courses.of(encoded.x, encoded.y, followed_demos.EICU)
    assert found is not None and found.times is not None
    assert len(table) == table["patient"].nunique() == 1707
    assert found.intervals.min() >= 1.0 - 1e-6 and np.nanmax(found.times) <= 24.0
    assert np.nanmax(table[f"{BEFORE_LATEST}_11"]) == 0.0
    assert 110 < np.nanmean(found.measured["systolic"]) < 130


@pytest.mark.skipif(not followed_demos.MIMIC_FILES.available(), reason="the MIMIC-III demo's files are not there")
def test_laboratory_values_are_by_day() -> None:
    table = followed_demos.mimic_records()
    encoded = encode(table, followed_demos.MIMIC)
    assert encoded.y is not None
    found = Courses.of(encoded.x, encoded.y, followed_demos.MIMIC)
    assert found is not None and len(table) == 100
    np.testing.assert_allclose(found.intervals, np.round(found.intervals), atol=1e-9)
    assert found.intervals.min() >= 1.0 - 1e-9
