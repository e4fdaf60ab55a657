"""What guesses about canaries say of epsilon: a lower bound, at a stated confidence, from one training run.

A canary is a made-up patient who took part or not by a fair coin of its own. Whoever guesses the coins from what was
released, better than epsilon and delta allow, has shown that epsilon is larger. A coin decides whether a patient is
there, so the relation is "add-remove". Nothing here trains. Steinke, Nasr and Jagielski 2023.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy import optimize, special, stats

from polyclinic.types import Bools, Reals

# Numbers of sampled steps less likely than exp of this do not show in a likelihood.
_SMALLEST_LOG_WEIGHT = -60.0


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The most that (epsilon, delta)-DP allows for the probability of at least ``correct`` right guesses.

    Steinke et al. 2023: their bound for (epsilon, delta) and the p-value of their code.

    Args:
        canaries: Number of canaries.
        guesses: Of how many of the canaries the coin was guessed; the others are left out.
        correct: Number of right guesses.
        epsilon: Of the guarantee that is tested.
        delta: Of the guarantee that is tested.

    Examples:
        >>> round(p_value(canaries=100, guesses=100, correct=60, epsilon=0.0, delta=0.0), 3)
        0.028
    """
    right = 1.0 / (1.0 + math.exp(-epsilon))
    tail = float(stats.binom.sf(correct - 1, guesses, right))
    below = np.cumsum(stats.binom.pmf(np.arange(correct - 1, -1, -1), guesses, right))
    slope = float(np.max(below / np.arange(1, correct + 1), initial=0.0))
    return min(1.0, tail + 2.0 * canaries * delta * slope)


def epsilon_lower(canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon that ``correct`` right ones of ``guesses`` refute at ``delta``; 0 when they refute none.

    Steinke et al. 2023: their bound for (epsilon, delta) and the p-value of their code.

    Args:
        canaries: Number of canaries.
        guesses: Number of canaries whose coin was guessed, fixed before.
        correct: Number of right guesses.
        delta: Of the guarantee that is tested, in [0, 1).
        confidence: Probability over coins and training with which the bound holds, whatever the attack is; in (0, 1).

    Raises:
        ValueError: unless 0 <= correct <= guesses <= canaries, delta lies in [0, 1) and confidence in (0, 1).

    Examples:
        >>> round(epsilon_lower(canaries=1000, guesses=100, correct=90, delta=1e-5), 2)
        1.63
        >>> epsilon_lower(canaries=1000, guesses=100, correct=55, delta=1e-5)  # as good as chance
        0.0
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"0 <= correct <= guesses <= canaries must hold, got {correct}, {guesses} and {canaries}.")
    if not 0 <= delta < 1:
        raise ValueError(f"delta must lie in [0, 1), got {delta}.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie in (0, 1), got {confidence}.")

    def excess(epsilon: float) -> float:
        return p_value(canaries, guesses, correct, epsilon, delta) - (1.0 - confidence)

    if excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:
        high *= 2.0
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-9))


def largest_lower(
    canaries: int, correct: Mapping[int, int], delta: float, confidence: float = 0.95
) -> tuple[float, int]:
    """The largest bound over several numbers of guesses, all fixed before, and the number that gives it.

    Args:
        canaries: Number of canaries.
        correct: Right guesses by number of guesses.
        delta: Of the guarantee that is tested, in [0, 1).
        confidence: Probability with which all bounds hold together. Each fails with an equal share of 1 - confidence
            (Bonferroni).

    Raises:
        ValueError: as ``epsilon_lower`` does.

    Examples:
        >>> bound, guesses = largest_lower(canaries=1000, correct={50: 50, 100: 90, 500: 320}, delta=1e-5)
        >>> round(bound, 2), guesses
        (2.41, 50)
    """
    each = 1.0 - (1.0 - confidence) / len(correct)
    return max((epsilon_lower(canaries, guesses, right, delta, each), guesses) for guesses, right in correct.items())


def correct_guesses(scores: Reals, included: Bools, guesses: int) -> int:
    """How many of ``guesses`` guesses are right: those of the scores farthest from their mean, above it "in", below "out".

    Args:
        scores: (canaries,). Ties keep their order, which must know nothing of the coins.
        included: (canaries,) whether each canary took part.
        guesses: Number of canaries whose coin is guessed.

    Raises:
        ValueError: for more guesses than canaries.

    Examples:
        >>> scores, included = np.array([3.0, 0.1, -0.2, -2.9]), np.array([True, False, True, False])
        >>> correct_guesses(scores, included, guesses=2), correct_guesses(scores, included, guesses=4)
        (2, 2)
    """
    if not 0 <= guesses <= len(scores):
        raise ValueError(f"guesses must lie between 0 and {len(scores)}, the number of canaries, got {guesses}.")
    apart = scores - scores.mean()
    surest = np.argsort(-np.abs(apart), kind="stable")[:guesses]
    return int(np.sum((apart[surest] > 0) == included[surest]))


def poisson_scores(sums: Reals, noise: Reals, sample_rate: float, steps: int) -> Reals:
    """(canaries,) log likelihood ratios of having been there, in batches that are Poisson samples, with independent noise.

    The best scores when contributions do not overlap (Neyman and Pearson 1933).

    Args:
        sums: (rounds, canaries), how many steps' worth of each canary a round shows.
        noise: (canaries,) standard deviation of one step's noise, in the same unit.
        sample_rate: Probability with which a canary that takes part is in a step.
        steps: Number of steps in a round.

    Examples:
        >>> sums = np.array([[1.0, 0.0], [2.0, -0.5]])  # two rounds, two canaries
        >>> poisson_scores(sums, noise=np.array([1.0, 1.0]), sample_rate=0.5, steps=2).round(2).tolist()
        [0.82, -0.81]
    """
    counts = np.arange(steps + 1)
    weights = stats.binom.logpmf(counts, steps, sample_rate)
    variance = steps * noise**2
    ratio = np.full(sums.shape, -np.inf)
    for count, weight in zip(counts, weights, strict=True):
        if weight > _SMALLEST_LOG_WEIGHT:
            ratio = np.logaddexp(ratio, weight + (count * sums - count**2 / 2.0) / variance)
    return np.asarray(ratio.sum(axis=0))


def cyclic_scores(sums: Reals, noise: Reals, turns: Reals, covariance: Reals) -> Reals:
    """(canaries,) log likelihood ratios of having been there, in batches that take turns, with noise correlated over rounds.

    Each patient is in one of the batches for good, and all batches are equally likely.

    Args:
        sums: (rounds, canaries), how many steps' worth of each canary a round shows.
        noise: (canaries,) unit of the noise, in the same unit as ``sums``.
        turns: (batches, rounds), how often a batch is in a round.
        covariance: (rounds, rounds) of the noise in units of ``noise``.

    Examples:
        >>> turns = np.array([[1.0, 0.0], [0.0, 1.0]])  # a batch in the first round, the other in the second
        >>> sums = np.array([[1.2, 0.1], [0.0, -0.3]])
        >>> cyclic_scores(sums, np.array([0.5, 0.5]), turns, covariance=np.eye(2)).round(2).tolist()
        [2.81, -1.42]
    """
    weighed = np.linalg.solve(covariance, turns.T)
    energy = np.einsum("br,rb->b", turns, weighed)[:, None]
    return np.asarray(special.logsumexp((weighed.T @ sums - energy / 2.0) / noise**2, axis=0))


def mean_square_interval(draws: int, significance: float) -> tuple[float, float]:
    """Where the mean square of ``draws`` standard normal draws lies, but for a probability of ``significance``.

    Examples:
        >>> low, high = mean_square_interval(draws=1000, significance=0.01)
        >>> round(low, 2), round(high, 2)
        (0.89, 1.12)
    """
    law = stats.chi2(draws)
    return float(law.ppf(significance / 2) / draws), float(law.isf(significance / 2) / draws)


def mean_length_interval(draws: int, significance: float) -> tuple[float, float]:
    """The same for the mean of ``draws`` standard exponential draws, of which the length of gamma noise is a sum.

    Examples:
        >>> low, high = mean_length_interval(draws=1000, significance=0.01)
        >>> round(low, 2), round(high, 2)
        (0.92, 1.08)
    """
    law = stats.gamma(draws)
    return float(law.ppf(significance / 2) / draws), float(law.isf(significance / 2) / draws)


def correlation_limit(draws: int, pairs: int, significance: float) -> float:
    """The correlation that no pair of independent series passes, but with probability ``significance``.

    By the normal approximation of a correlation, and Bonferroni over the pairs.

    Args:
        draws: Length of each series.
        pairs: Number of pairs.
        significance: Probability that any pair passes the limit, in absolute value.

    Examples:
        >>> round(correlation_limit(draws=10_000, pairs=45, significance=0.01), 3)
        0.037
    """
    return float(stats.norm.isf(significance / (2.0 * max(pairs, 1))) / math.sqrt(draws))
