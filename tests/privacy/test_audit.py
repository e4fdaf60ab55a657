"""The bound of an audit: golden numbers, how often it errs, and the scores against the laws that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from polyclinic.privacy.accounting import epsilon, gaussian_event
from polyclinic.privacy.audit import (
    correct_guesses,
    correlation_limit,
    cyclic_scores,
    epsilon_lower,
    largest_lower,
    mean_square_interval,
    p_value,
    poisson_scores,
)
from polyclinic.privacy.streams import generator

# canaries, guesses, correct, bound at 95 % and delta 1e-5; agreed on with jax_privacy to 2e-6
GOLDEN = [
    (1000, 1000, 1000, 5.782283),
    (1000, 100, 100, 3.465376),
    (1000, 100, 95, 2.165176),
    (1000, 100, 80, 0.955319),
    (1000, 1000, 600, 0.297227),
    (200, 200, 150, 0.821113),
    (100, 50, 45, 1.392793),
]


@pytest.mark.parametrize(("canaries", "guesses", "correct", "bound"), GOLDEN)
def test_golden_bounds(canaries: int, guesses: int, correct: int, bound: float) -> None:
    assert epsilon_lower(canaries, guesses, correct, 1e-5) == pytest.approx(bound, abs=1e-5)


@settings(max_examples=60)
@given(st.integers(1, 300), st.data())
def test_the_bound_is_where_the_p_value_reaches_what_is_left_of_confidence(canaries: int, data: st.DataObject) -> None:
    guesses = data.draw(st.integers(1, canaries))
    correct = data.draw(st.integers(0, guesses))
    delta = data.draw(st.sampled_from([0.0, 1e-6, 1e-3]))
    bound = epsilon_lower(canaries, guesses, correct, delta)
    if bound > 0:
        assert p_value(canaries, guesses, correct, bound, delta) == pytest.approx(0.05, abs=1e-6)
    else:
        assert p_value(canaries, guesses, correct, 0.0, delta) >= 0.05


def test_without_delta_all_right_is_the_exact_binomial_bound() -> None:
    right = 0.05 ** (1 / 50)
    assert epsilon_lower(80, 50, 50, 0.0) == pytest.approx(np.log(right / (1 - right)), rel=1e-6)


def test_guesses_no_better_than_chance_refute_nothing() -> None:
    assert epsilon_lower(1000, 1000, 500, 1e-5) == 0.0
    assert epsilon_lower(1000, 0, 0, 1e-5) == 0.0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((10, 11, 5, 1e-5), "guesses"),
        ((10, 5, 6, 1e-5), "correct"),
        ((10, 5, -1, 1e-5), "correct"),
        ((10, 5, 5, 1.0), "delta"),
        ((10, 5, 5, 1e-5, 1.0), "confidence"),
    ],
)
def test_impossible_counts_are_refused(arguments: tuple[float, ...], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        epsilon_lower(*arguments)  # type: ignore[arg-type]


def test_choosing_among_numbers_of_guesses_costs_confidence() -> None:
    assert largest_lower(1000, {100: 95}, 1e-5) == (epsilon_lower(1000, 100, 95, 1e-5), 100)
    bound, guesses = largest_lower(1000, {100: 95, 1000: 600}, 1e-5)
    assert guesses == 100
    assert bound == epsilon_lower(1000, 100, 95, 1e-5, 0.975) < epsilon_lower(1000, 100, 95, 1e-5)


def test_the_surest_guesses_are_made_first() -> None:
    scores, included = np.array([9.0, -8.0, 1.0, -1.0, 0.5, -1.5]), np.array([1, 0, 0, 1, 1, 0], dtype=bool)
    assert [correct_guesses(scores, included, n) for n in (0, 1, 2, 3, 6)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="guesses"):
        correct_guesses(scores, included, 7)


def test_a_true_epsilon_is_rarely_refuted_and_a_false_one_is() -> None:
    """The Gaussian mechanism itself on 400 coins: mu = 1 spends 4.38 at 1e-5; without noise that is refuted each time."""
    true = epsilon(gaussian_event(1.0), 1e-5)
    draw, refuted, bounds = generator(0, "test", "audit"), 0, []
    for _ in range(200):
        included = draw.random(400) < 0.5
        scores = included + draw.normal(size=400)
        bounds.append(epsilon_lower(400, 100, correct_guesses(scores, included, 100), 1e-5))
        refuted += bounds[-1] > true
    assert refuted == 0 and np.median(bounds) > 1.0
    assert epsilon_lower(400, 400, correct_guesses(included * 1.0, included, 400), 1e-5) > true


def test_poisson_scores_are_likelihood_ratios_of_the_subsampled_gaussian() -> None:
    draw = generator(1, "test", "audit")
    sums, noise = draw.normal(size=(7, 5)) * 2, np.array([0.5, 0.8, 1.0, 2.0, 3.0])
    for rate, steps in ((0.2, 1), (0.05, 4), (1.0, 3)):
        spread = np.sqrt(steps) * noise
        there = sum(
            stats.binom.pmf(count, steps, rate) * stats.norm.pdf(sums, count, spread) for count in range(steps + 1)
        )
        direct = np.log(there / stats.norm.pdf(sums, 0.0, spread)).sum(axis=0)
        np.testing.assert_allclose(poisson_scores(sums, noise, rate, steps), direct, rtol=1e-8, atol=1e-8)


def test_cyclic_scores_are_likelihood_ratios_of_correlated_noise() -> None:
    draw = generator(2, "test", "audit")
    mixing = draw.normal(size=(4, 4)) + 2 * np.eye(4)
    sums, noise, turns = draw.normal(size=(4, 3)), np.array([0.7, 1.0, 2.0]), draw.integers(0, 3, (2, 4)).astype(float)
    scores = cyclic_scores(sums, noise, turns, mixing @ mixing.T)
    for canary, size in enumerate(noise):
        covariance = size**2 * mixing @ mixing.T
        there = [stats.multivariate_normal.logpdf(sums[:, canary], mean, covariance) for mean in turns]
        nobody = stats.multivariate_normal.logpdf(sums[:, canary], np.zeros(4), covariance)
        # Up to the constant of equally likely batches, which ranks no canary before another.
        assert scores[canary] == pytest.approx(special.logsumexp(there) - nobody, rel=1e-8)


def test_intervals_hold_what_they_say() -> None:
    draw = generator(3, "test", "audit")
    low, high = mean_square_interval(500, 0.1)
    inside = np.mean([low <= np.mean(draw.normal(size=500) ** 2) <= high for _ in range(2000)])
    assert inside == pytest.approx(0.9, abs=0.03)
    pairs = np.triu_indices(10, k=1)
    largest = [np.abs(np.corrcoef(draw.normal(size=(10, 400)))[pairs]).max() for _ in range(1000)]
    assert np.mean(np.array(largest) > correlation_limit(400, 45, 0.2)) == pytest.approx(0.18, abs=0.05)
