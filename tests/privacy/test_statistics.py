"""Paid statistics: counts without noise as they are, bounded per patient, and scales that are usable however large the noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from polyclinic.privacy.statistics import (
    BINS,
    EDGES,
    USUAL,
    PatientTotal,
    binned_patients,
    noisy_total,
    patient_count,
    standardiser,
)
from polyclinic.privacy.streams import generator, keyed_stream, system_stream


def _records(rows: int, columns: int, missing: float) -> np.ndarray:
    source = generator(4, "records", rows, columns)
    x = np.tanh(source.normal(size=(rows, columns)) * np.linspace(0.2, 1.5, columns))
    return np.where(source.random((rows, columns)) < missing, np.nan, x)


def _normal(patients: int, means: list[float], stds: list[float]) -> np.ndarray:
    return np.clip(generator(7, "normal").normal(means, stds, (patients, len(means))), -1.0, 1.0)


def _scale(x: np.ndarray, multiplier: float, turn: int = 0) -> tuple[np.ndarray, np.ndarray]:
    nullable = np.isnan(x).any(axis=0)
    exact = binned_patients(x, np.arange(len(x)), len(x), nullable)
    noisy = noisy_total(exact, multiplier or None, keyed_stream(turn, "noise"))
    return standardiser(noisy, nullable, multiplier * exact.sensitivity)


def test_counts_equal_numpy_with_missing_cells():
    x = _records(300, 3, 0.2)
    x[:, 0] = np.nan_to_num(x[:, 0])
    nullable = np.array([False, True, True])
    total = binned_patients(x, np.arange(300), 300, nullable).total
    np.testing.assert_allclose(total[1:3], np.isnan(x[:, 1:]).sum(axis=0))
    for column, counts in enumerate(total[3:].reshape(3, BINS)):
        np.testing.assert_allclose(counts, np.histogram(x[:, column][np.isfinite(x[:, column])], EDGES)[0])
    assert patient_count(total, nullable) == pytest.approx(300)


def test_totals_of_sites_add_up_to_the_pooled_total():
    x, nullable = _records(200, 3, 0.1), np.ones(3, dtype=bool)
    parts = [
        binned_patients(part, np.arange(len(part)), len(part), nullable).total for part in (x[:30], x[30:110], x[110:])
    ]
    np.testing.assert_allclose(np.sum(parts, axis=0), binned_patients(x, np.arange(200), 200, nullable).total)


def test_values_beyond_the_bounds_count_at_the_bound():
    total = binned_patients(np.array([[7.0], [-7.0]]), np.arange(2), 2, np.array([False])).total
    assert total[1] == 1.0 and total[-1] == 1.0 and total[2:-1].sum() == 0.0


def test_a_patients_rows_count_once():
    single = binned_patients(np.array([[0.5, -0.25]]), np.array([0]), 1)
    many = binned_patients(np.tile([[0.5, -0.25]], (50, 1)), np.zeros(50, dtype=np.int64), 1)
    np.testing.assert_allclose(many.total, single.total)
    assert many.sensitivity == single.sensitivity


CELLS = st.one_of(st.floats(-1, 1), st.sampled_from([-1.0, 1.0, np.nan, np.inf, -np.inf, 1e300, -7.0]))


@settings(max_examples=200)
@given(st.data(), st.integers(1, 5), st.integers(1, 15))
def test_fault_21_one_patient_moves_the_total_by_at_most_the_sensitivity(data, columns, rows):
    x = data.draw(arrays(np.float64, (rows, columns), elements=CELLS))
    patient = data.draw(arrays(np.int64, rows, elements=st.integers(0, 3)))
    nullable = data.draw(arrays(np.bool_, columns))
    gone = data.draw(st.sampled_from(sorted(set(patient.tolist()))))
    kept = patient != gone
    whole, less = binned_patients(x, patient, 4, nullable), binned_patients(x[kept], patient[kept], 4, nullable)
    assert np.isfinite(whole.total).all()
    assert np.linalg.norm(whole.total - less.total) <= whole.sensitivity * (1 + 1e-12)
    assert whole.sensitivity == less.sensitivity


def test_sensitivity_is_reached_by_any_patient_with_one_row():
    for nullable in (np.array([True, False, True]), np.zeros(8, dtype=bool), np.ones(40, dtype=bool)):
        single = binned_patients(np.full((1, len(nullable)), 0.3), np.array([0]), 1, nullable)
        assert np.linalg.norm(single.total) == pytest.approx(single.sensitivity)


@pytest.mark.parametrize("stream", [system_stream(), keyed_stream(1)], ids=["system", "keyed"])
def test_noise_over_sensitivity_is_the_multiplier(stream):
    exact = PatientTotal(np.zeros(100_000), 3.5)
    assert noisy_total(exact, 2.0, stream).std() / 3.5 == pytest.approx(2.0, rel=0.01)


def test_without_a_multiplier_the_total_is_exact():
    exact = binned_patients(_records(10, 2, 0.3), np.arange(10), 10)
    assert np.array_equal(noisy_total(exact, None, keyed_stream(0)), exact.total)


@pytest.mark.parametrize("multiplier", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_noise_is_refused(multiplier):
    with pytest.raises(ValueError, match="noise_multiplier"):
        noisy_total(PatientTotal(np.zeros(3), 1.0), multiplier, keyed_stream(0))


@pytest.mark.parametrize(("multiplier", "tolerance"), [(0.0, 0.15), (20.0, 0.15)])
def test_scales_of_normal_columns_are_their_means_and_deviations(multiplier, tolerance):
    means, stds = [0.0, -0.8, 0.5, -0.95], [0.3, 0.05, 0.1, 0.03]
    mean, std = _scale(_normal(20_000, means, stds), multiplier)
    assert (np.abs(mean - means) < tolerance * np.array(stds)).all()
    np.testing.assert_allclose(std, stds, rtol=tolerance)


def test_extreme_values_do_not_widen_a_column_much():
    x = _normal(5000, [-0.9], [0.02])
    narrow = _scale(x, 0.0)[1][0]
    x[:50] = 1.0
    assert _scale(x, 0.0)[1][0] < 2 * narrow


def test_a_column_that_most_have_none_of_is_scaled_by_the_others():
    """Four in five are at the bound: a scale of that one bin would blow the others up."""
    x = np.full((5000, 1), -1.0)
    x[:1000, 0] = generator(3, "some").uniform(0.0, 1.0, 1000)
    for multiplier in (0.0, 10.0):
        assert 0.4 < _scale(x, multiplier)[1][0] < 1.0
    few = x[500:3000]
    assert all(_scale(few, 120.0, turn)[1][0] > 0.2 for turn in range(40)), (
        "noise in the bins beside it tells no spread"
    )


def test_missing_cells_do_not_move_the_scale():
    x = _normal(20_000, [0.4], [0.1])
    mean, std = _scale(x, 0.0)
    x[::2] = np.nan
    np.testing.assert_allclose(_scale(x, 0.0), (mean, std), rtol=0.05)


@pytest.mark.parametrize("patients", [1, 3, 20, 500])
@pytest.mark.parametrize("multiplier", [0.5, 20.0, 1e6])
def test_noisy_standardiser_is_usable_however_few_the_patients(patients, multiplier):
    x = _records(patients, 4, 0.3)
    for turn in range(50):
        mean, std = _scale(x, multiplier, turn)
        assert np.isfinite(mean).all() and (np.abs(mean) <= 1).all()
        assert np.isfinite(std).all() and (std >= 1e-3).all() and (std <= 1).all()


def test_noise_without_measure_leaves_the_usual():
    """At a small epsilon the counts say hardly anything: no column may be blown up by an interval that is all noise."""
    x = np.full((50, 3), 0.6) + np.random.default_rng(0).normal(0, 0.2, (50, 3))
    for turn in range(200):
        mean, std = _scale(x, 50.0, turn)
        assert (mean == USUAL[0]).all() and (std == USUAL[1]).all()


def test_a_never_observed_column_has_the_usual_scale():
    mean, std = _scale(np.full((30, 1), np.nan), 0.0)
    assert (mean[0], std[0]) == USUAL
