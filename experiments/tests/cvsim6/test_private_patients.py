"""Synthetic patients from one noisy sum: right without noise, bounded for any patient, noisy as calibrated."""

import numpy as np
import pytest

from polyclinic.errors import ConfigError
from polyclinic.privacy.streams import generator
from polyclinic_studies.cvsim6.private_patients import synthetic_patients

LOW, HIGH = np.array([0.0, -10.0]), np.array([2.0, 10.0])


def cohort(n: int) -> np.ndarray:
    spread = np.array([[0.04, 0.2], [0.2, 4.0]])
    return generator(3, "cohort").multivariate_normal([1.2, -2.0], spread, n)


def test_without_noise_the_moments_are_the_patients() -> None:
    records = cohort(20_000)
    fresh = synthetic_patients(records, LOW, HIGH, 0.0, seed=1)
    assert fresh.shape == records.shape
    assert fresh.mean(0) == pytest.approx(records.mean(0), abs=0.06)
    assert np.cov(fresh.T) == pytest.approx(np.cov(records.T), rel=0.06)


def test_noise_moves_the_mean_as_much_as_it_should() -> None:
    records, noise = cohort(400), 20.0
    means = np.array([synthetic_patients(records, LOW, HIGH, noise, seed=s)[:, 0].mean() for s in range(60)])
    # noise over the unit 1 / sqrt(k/4 + (k/4)^2), over n, in half ranges of 1; the rows' own draws add to it
    assert means.std() >= 0.8 * noise * np.sqrt(0.5 + 0.25) / 400


def test_one_extreme_patient_moves_the_release_no_further_than_the_clip() -> None:
    records = cohort(50)
    extreme = np.concatenate([records[:-1], [[1e9, -1e9]]])
    # Without noise and of equal draws, the rows differ by what the clipped sum does.
    one, other = (synthetic_patients(r, LOW, HIGH, 0.0, seed=2) for r in (records, extreme))
    assert abs((one - other) / (HIGH - LOW)).max() < 1.5


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="low < high"):
        synthetic_patients(cohort(5), LOW, LOW, 1.0, seed=0)
