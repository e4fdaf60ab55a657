"""Families: their derivatives, and bounded scores that have mean zero and the variance that they state."""

import numpy as np
import pytest
from scipy import stats

from polyclinic.inference.families import FAMILIES, Family, Linear, Logistic, NegativeBinomial, Poisson, PrivateFamily

ETA = np.array([-2.0, -0.3, 0.4, 1.7])


@pytest.mark.parametrize("family", FAMILIES.values(), ids=list(FAMILIES))
def test_pieces_are_derivatives_of_the_likelihood(family: Family) -> None:
    y, further, h = np.array([0.0, 1.0, 1.0, 0.0]), 0.3, 1e-5
    pieces = family.pieces(y, ETA, further)

    def at(eta: np.ndarray, more: float) -> np.ndarray:
        return family.pieces(y, eta, more).loglik

    assert pieces.score == pytest.approx((at(ETA + h, further) - at(ETA - h, further)) / (2 * h), rel=1e-6, abs=1e-8)
    slopes = [family.pieces(y, ETA + step, further).score for step in (h, -h)]
    assert pieces.weight == pytest.approx(-(slopes[0] - slopes[1]) / (2 * h), rel=1e-5, abs=1e-7)
    if family.further:
        score, weight, mixed = pieces.further
        assert score == pytest.approx((at(ETA, further + h) - at(ETA, further - h)) / (2 * h), rel=1e-5, abs=1e-7)
        beside = [family.pieces(y, ETA, further + step) for step in (h, -h)]
        assert weight == pytest.approx(-(beside[0].further[0] - beside[1].further[0]) / (2 * h), rel=1e-4, abs=1e-6)
        assert mixed == pytest.approx(-(beside[0].score - beside[1].score) / (2 * h), rel=1e-4, abs=1e-6)


def test_likelihoods_are_those_of_scipy() -> None:
    counts = np.array([0.0, 3.0, 1.0, 9.0])
    assert Poisson().pieces(counts, ETA).loglik == pytest.approx(stats.poisson.logpmf(counts, np.exp(ETA)))
    r = np.exp(-0.3)
    expected = stats.nbinom.logpmf(counts, r, r / (r + np.exp(ETA)))
    assert NegativeBinomial().pieces(counts, ETA, 0.3).loglik == pytest.approx(expected)


@pytest.mark.parametrize("mean", [0.02, 0.4, 1.0, 3.7, 9.0, 40.0])
def test_a_bounded_count_has_a_score_of_mean_zero_and_of_the_variance_that_it_states(mean: float) -> None:
    counts = np.arange(0.0, 400.0)
    chance = stats.poisson.pmf(counts, mean)
    eta = np.full_like(counts, np.log(mean))
    score, weight, *_ = Poisson().score_and_weight(counts, eta, 0.0)
    assert chance @ score == pytest.approx(0.0, abs=1e-10) and chance @ score**2 == pytest.approx(weight[0], rel=1e-6)
    # Nearly as much as the unbounded score says, and never more.
    assert 0.85 * mean < weight[0] <= mean * (1 + 1e-9)
    longest = max(np.abs(Poisson().score_and_weight(y, eta, 0.0)[0]).max() for y in Poisson().extremes(eta, 0.0))
    assert np.abs(score).max() <= longest * (1 + 1e-12)


def test_a_bounded_residual_has_scores_of_mean_zero_for_mean_and_deviation() -> None:
    family, spread = Linear(), 0.4
    y = np.linspace(-12, 12, 200_001) * np.exp(spread)
    chance = stats.norm.pdf(y, 0, np.exp(spread)) * (y[1] - y[0])
    score, weight, own, own_weight = family.score_and_weight(y, np.zeros_like(y), spread)
    for value, stated in ((score, weight), (own, own_weight)):
        assert chance @ value == pytest.approx(0.0, abs=1e-6) and chance @ value**2 == pytest.approx(
            stated[0], rel=1e-5
        )
    assert chance @ (score * own) == pytest.approx(0.0, abs=1e-9)
    assert 0.98 < weight[0] * np.exp(2 * spread) <= 1 and 1.7 < own_weight[0] <= 2


@pytest.mark.parametrize("family", [Linear(), Logistic(), Poisson()], ids=lambda family: family.name)
def test_bounded_scores_are_finite_for_any_outcome_and_predictor(family: PrivateFamily) -> None:
    y, eta = np.array([0.0, 1e12, 1.0, -1e12]), np.array([-1e3, 1e3, 0.0, 40.0])
    assert np.isfinite(family.score_and_weight(y, eta, 0.0)).all()
