"""Paid statistics: exact without noise, bounded per patient, and usable however large the noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from polyclinic.privacy.statistics import Moments, moments, noisy_moments, patient_count, standardiser
from polyclinic.privacy.streams import generator, keyed_stream, system_stream


def _records(rows: int, columns: int, missing: float) -> np.ndarray:
    source = generator(4, "records", rows, columns)
    x = np.tanh(source.normal(size=(rows, columns)) * np.linspace(0.2, 1.5, columns))
    return np.where(source.random((rows, columns)) < missing, np.nan, x)


def test_exact_mean_and_std_equal_numpy_with_missing_cells():
    x = _records(300, 5, 0.2)
    x[:, 0] = np.nan_to_num(x[:, 0])
    nullable = np.array([False, True, True, True, True])
    total = moments(x, np.arange(300), 300, nullable).total
    mean, std = standardiser(total, nullable)
    np.testing.assert_allclose(mean, np.nanmean(x, axis=0), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(std, np.nanstd(x, axis=0), rtol=1e-9)
    assert patient_count(total, nullable) == pytest.approx(300)


def test_totals_of_sites_add_up_to_the_pooled_statistics():
    x, nullable = _records(200, 3, 0.1), np.ones(3, dtype=bool)
    parts = [moments(part, np.arange(len(part)), len(part), nullable).total for part in (x[:30], x[30:110], x[110:])]
    mean, std = standardiser(np.sum(parts, axis=0), nullable)
    np.testing.assert_allclose(mean, np.nanmean(x, axis=0))
    np.testing.assert_allclose(std, np.nanstd(x, axis=0))


def test_layout_holds_observed_counts_of_nullable_columns_only():
    x = np.array([[0.5, np.nan], [-0.5, 1.0], [1.0, np.nan]])
    exact = moments(x, np.arange(3), 3, np.array([False, True]))
    np.testing.assert_allclose(exact.total[1:], [1.0, 1.0, 1.0, 1.5, 1.0])
    assert len(exact.total) == 1 + 1 + 2 * 2


def test_a_patients_rows_count_once():
    one = moments(np.array([[0.5, -0.25]]), np.array([0]), 1)
    many = moments(np.tile([[0.5, -0.25]], (50, 1)), np.zeros(50, dtype=np.int64), 1)
    np.testing.assert_allclose(many.total, one.total)
    assert many.sensitivity == one.sensitivity


CELLS = st.one_of(st.floats(-1, 1), st.sampled_from([-1.0, 1.0, np.nan, np.inf, -np.inf, 1e300, -7.0]))


@settings(max_examples=200)
@given(st.data(), st.integers(1, 5), st.integers(1, 15))
def test_fault_21_one_patient_moves_the_total_by_at_most_the_sensitivity(data, columns, rows):
    x = data.draw(arrays(np.float64, (rows, columns), elements=CELLS))
    patient = data.draw(arrays(np.int64, rows, elements=st.integers(0, 3)))
    nullable = data.draw(arrays(np.bool_, columns))
    gone = data.draw(st.sampled_from(sorted(set(patient.tolist()))))
    kept = patient != gone
    whole, less = moments(x, patient, 4, nullable), moments(x[kept], patient[kept], 4, nullable)
    assert np.isfinite(whole.total).all()
    assert np.linalg.norm(whole.total - less.total) <= whole.sensitivity * (1 + 1e-12)
    assert whole.sensitivity == less.sensitivity


def test_sensitivity_is_reached_by_an_extreme_patient():
    for nullable in (np.array([True, False, True]), np.zeros(8, dtype=bool), np.ones(40, dtype=bool)):
        extreme = moments(np.ones((1, len(nullable))), np.array([0]), 1, nullable)
        assert np.linalg.norm(extreme.total) == pytest.approx(extreme.sensitivity)


@pytest.mark.parametrize("stream", [system_stream(), keyed_stream(1)], ids=["system", "keyed"])
def test_noise_over_sensitivity_is_the_multiplier(stream):
    exact = Moments(np.zeros(100_000), 3.5)
    assert noisy_moments(exact, 2.0, stream).std() / 3.5 == pytest.approx(2.0, rel=0.01)


def test_without_a_multiplier_the_total_is_exact():
    exact = moments(_records(10, 2, 0.3), np.arange(10), 10)
    assert np.array_equal(noisy_moments(exact, None, keyed_stream(0)), exact.total)


@pytest.mark.parametrize("multiplier", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_noise_is_refused(multiplier):
    with pytest.raises(ValueError, match="noise_multiplier"):
        noisy_moments(Moments(np.zeros(3), 1.0), multiplier, keyed_stream(0))


@pytest.mark.parametrize("patients", [0, 1, 3, 20])
@pytest.mark.parametrize("multiplier", [0.5, 20.0, 1e6])
def test_noisy_standardiser_is_usable_however_few_the_patients(patients, multiplier):
    x, nullable = _records(patients, 4, 0.3), np.array([True, False, True, False])
    exact = moments(x, np.arange(patients), patients, nullable)
    for turn in range(50):
        mean, std = standardiser(
            noisy_moments(exact, multiplier, keyed_stream(turn, "noise")), nullable, multiplier * exact.sensitivity
        )
        assert np.isfinite(mean).all() and (np.abs(mean) <= 1).all()
        assert np.isfinite(std).all() and (std >= 0.04 - 1e-12).all() and (std <= 1).all()


def test_little_noise_on_many_patients_changes_little():
    x, nullable = _records(20_000, 4, 0.1), np.ones(4, dtype=bool)
    exact = moments(x, np.arange(len(x)), len(x), nullable)
    mean, std = standardiser(noisy_moments(exact, 5.0, keyed_stream(0)), nullable, 5.0 * exact.sensitivity)
    np.testing.assert_allclose(mean, np.nanmean(x, axis=0), atol=0.02)
    np.testing.assert_allclose(std, np.nanstd(x, axis=0), atol=0.02)


def test_constant_and_never_observed_columns_are_left_unscaled():
    x = np.array([[0.3, np.nan, 0.1], [0.3, np.nan, 0.5]])
    nullable = np.ones(3, dtype=bool)
    mean, std = standardiser(moments(x, np.arange(2), 2, nullable).total, nullable)
    np.testing.assert_allclose(mean, [0.3, 0.0, 0.3])
    np.testing.assert_allclose(std, [1.0, 1.0, 0.2])


def test_noise_without_measure_leaves_the_usual_and_more_patients_their_own():
    """At a small epsilon the sums say hardly anything: no column may be blown up by a variance that is all noise."""
    x, nullable = np.full((50, 3), 0.6) + np.random.default_rng(0).normal(0, 0.2, (50, 3)), np.zeros(3, dtype=bool)
    exact = moments(x, np.arange(50), 50, nullable)
    drawn = [
        standardiser(noisy_moments(exact, 50.0, keyed_stream(turn)), nullable, 50.0 * exact.sensitivity)
        for turn in range(200)
    ]
    assert min(std.min() for _, std in drawn) > 0.25 and max(std.max() for _, std in drawn) < 0.4
    assert max(np.abs(mean).max() for mean, _ in drawn) < 0.5
