"""Updates on the integers, each hospital's share of the noise, and what the sum costs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyclinic.privacy.accounting import epsilon, gaussian_event
from polyclinic.privacy.secure.distributed import SumTerms, gaussian_gap, sum_rho
from polyclinic.privacy.streams import keyed_stream


def terms(**changes: object) -> SumTerms:
    return SumTerms(**{"size": 50, "clip_norm": 1.0, "bits": 10, "parties": 10, "threshold": 6} | changes)  # type: ignore[arg-type]


@given(
    size=st.integers(1, 200),
    bits=st.integers(8, 28),
    scale=st.floats(0, 1e6),
    weight=st.floats(0.01, 1),
    seed=st.integers(0),
)
@settings(max_examples=100)
def test_rounded_updates_are_within_the_sensitivity_and_a_step_of_the_clipped(
    size: int, bits: int, scale: float, weight: float, seed: int
) -> None:
    agreed = terms(size=size, bits=bits)
    update = scale * keyed_stream(seed, "update").normal(size)
    found = agreed.round_update(update, weight, keyed_stream(seed, "rounding"))
    assert int(found @ found) <= agreed.sensitivity**2
    clipped = weight * update * min(1.0, 1.0 / max(float(np.linalg.norm(update.astype(np.float64))), 1e-300))
    assert np.abs(found * agreed.step - clipped).max() <= agreed.step * (1 + 1e-6) + 1e-7


def test_rounding_keeps_the_mean() -> None:
    agreed = terms(size=3, bits=8)
    update = np.array([0.1234, -0.4321, 0.0001])
    stream = keyed_stream(0, "rounding")
    mean = np.mean([agreed.round_update(update, 1.0, stream) * agreed.step for _ in range(4000)], axis=0)
    np.testing.assert_allclose(mean, update, atol=4 * agreed.step / math.sqrt(4000))


def test_an_update_that_is_not_finite_counts_as_zero() -> None:
    for bad in (math.nan, math.inf):
        assert not terms(size=2).round_update(np.array([1.0, bad]), 1.0, keyed_stream(0)).any()


def test_a_weight_above_one_or_another_size_is_refused() -> None:
    for update, weight in ((np.zeros(50), 1.1), (np.zeros(50), 0.0), (np.zeros(49), 1.0)):
        with pytest.raises(ValueError, match="weight"):
            terms().round_update(update, weight, keyed_stream(0))


@given(bits=st.integers(8, 28), parties=st.integers(2, 5000), noise=st.floats(0, 1000))
def test_the_word_holds_the_sum_of_all(bits: int, parties: int, noise: float) -> None:
    """Every hospital at its largest, and noise eight deviations out."""
    threshold = parties // 2 + 1
    agreed = terms(
        bits=bits, parties=parties, threshold=threshold, noise_multiplier=noise if noise * 2**bits > 1000 else 0
    )
    largest = math.floor(parties * agreed.sensitivity + 8 * math.sqrt(parties) * agreed.scale)
    for total in (largest, -largest):
        words = agreed.words(np.array([total], dtype=np.int64))
        assert agreed.total(words)[0] == pytest.approx(total * agreed.step)


def test_the_gap_of_a_sum_of_discrete_gaussians_is_golden() -> None:
    assert [gaussian_gap(scale, 10) for scale in (0.5, 1, 2)] == pytest.approx([2.35, 5.4e-4, 7e-17], rel=0.03)
    assert gaussian_gap(1.0, 1) == 0


def test_rho_is_the_gaussians_where_the_grid_is_fine_and_more_where_it_is_coarse() -> None:
    assert sum_rho(100.0, 50.0, 16, 1000) == pytest.approx(0.5 * (100 / 200) ** 2, rel=1e-12)
    assert sum_rho(1.0, 0.5, 16, 1000) > 100
    with pytest.raises(ValueError, match=r"0\.5"):
        sum_rho(1.0, 0.4, 16, 1000)
    with pytest.raises(ValueError, match="coarse"):
        terms(bits=8, noise_multiplier=1e-3)


def test_the_sum_costs_no_less_than_the_same_gaussian_and_little_more() -> None:
    """golden 2.19: shares of z=2 among ten of whom 0, 2, 5 are missing, had nobody added more for them."""
    left = [epsilon(gaussian_event(2 * math.sqrt((10 - gone) / 10)), 1e-5) for gone in (0, 2, 5)]
    assert left == pytest.approx([1.993, 2.258, 2.943], abs=2e-3)
    agreed = terms(size=5000, bits=22, noise_multiplier=2.0)
    for arrived in (6, 8, 10):
        exact = epsilon(gaussian_event(2 * math.sqrt(arrived / 6)), 1e-5)
        assert exact <= epsilon(agreed.event(arrived), 1e-5) <= 1.12 * exact


def test_the_noise_of_the_sum_has_the_size_that_was_agreed() -> None:
    agreed = terms(size=2000, bits=12, noise_multiplier=1.5)
    stream = keyed_stream(1, "noise")
    zero = np.zeros(2000, dtype=np.int64)
    total = sum((agreed.add_noise(zero, stream) for _ in range(6)), zero)
    assert total.std() == pytest.approx(1.5 * agreed.sensitivity, rel=0.06)
    assert not terms().add_noise(np.zeros(50, dtype=np.int64), stream).any()
