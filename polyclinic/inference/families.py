"""Families of regressions: likelihoods of an outcome by its linear predictor, and scores of bounded length for noisy sums.

A family knows no design and no record: it takes outcomes y (n,) and linear predictors eta (n,), and one further parameter where
it has one. Links are the identity, the logit and the logarithm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy import special

from polyclinic.types import Floats

#: Outcomes count up to so many standard deviations from their mean in a private sum.
FARTHEST = 2.0
# Predictors beyond it are as good as infinite, and their exponentials would be.
_STEEPEST = 30.0


@dataclass(frozen=True, eq=False)
class Pieces:
    """What n outcomes say of their linear predictors.

    loglik: (n,) log likelihoods.
    score, weight: (n,) first derivatives of them, and second ones with the sign changed.
    further: (3, n) of a further parameter: score, weight, and the mixed second derivative with the sign changed; (0, n) without
    one.
    """

    loglik: Floats
    score: Floats
    weight: Floats
    further: Floats


class Family(ABC):
    """One family.

    name: As an option.
    ratio: What an exponential of a coefficient is called, empty where it is none.
    further: The name of its further parameter, of which a fit finds the logarithm.
    counts: Whether outcomes must not be negative.
    """

    name: ClassVar[str]
    ratio: ClassVar[str] = ""
    further: ClassVar[str] = ""
    counts: ClassVar[bool] = True

    @abstractmethod
    def start(self, y: Floats) -> Floats:
        """(n,) linear predictors near the outcomes, from which Newton's method begins."""

    @abstractmethod
    def pieces(self, y: Floats, eta: Floats, further: float = 0.0) -> Pieces:
        """The likelihood's pieces.

        Args:
            y: (n,) outcomes.
            eta: (n,) linear predictors.
            further: The logarithm of the further parameter.
        """


class PrivateFamily(Family):
    """One with bounded scores, whose mean is zero under the family whatever the bound (Cantoni and Ronchetti 2001, section 2).

    Let a bounded statistic of the outcome have mean m and variance b, and let a be the derivative of its mean by eta. The score
    is (statistic - m) a / b and the weight a**2 / b, which is also the score's variance (Godambe 1960).
    """

    #: The name of a further parameter of private fits.
    spread: ClassVar[str] = ""

    @abstractmethod
    def extremes(self, eta: Floats, spread: float) -> list[Floats]:
        """Outcomes (n,) among which is one with the longest score."""

    @abstractmethod
    def score_and_weight(self, y: Floats, eta: Floats, spread: float) -> Floats:
        """(4, m, n) score and weight of eta, then of the logarithm of ``spread``; these are 0 without one.

        Args:
            y: Outcomes, broadcast with ``eta`` to (m, n).
            eta: Linear predictors.
            spread: The logarithm of the further parameter of private fits.
        """


class Linear(PrivateFamily):
    """A number, normal around its linear predictor. ``pieces`` are those of standard deviation 1."""

    name, counts, spread = "linear", False, "residual standard deviation"

    def start(self, y: Floats) -> Floats:
        return np.zeros_like(y)

    def pieces(self, y: Floats, eta: Floats, further: float = 0.0) -> Pieces:
        residual = y - eta
        return Pieces(-(residual**2) / 2, residual, np.ones_like(y), np.empty((0, len(y))))

    def extremes(self, eta: Floats, spread: float) -> list[Floats]:
        return [eta, eta - FARTHEST * np.exp(spread), eta + FARTHEST * np.exp(spread)]

    def score_and_weight(self, y: Floats, eta: Floats, spread: float) -> Floats:
        """Score and weight as of ``PrivateFamily``; residuals are cut at ``FARTHEST`` deviations (Huber 1964, proposal 2).

        Args:
            y: Outcomes, broadcast with ``eta`` to (m, n).
            eta: Linear predictors.
            spread: The logarithm of the residuals' standard deviation.
        """
        deviation = float(np.exp(np.clip(spread, -_STEEPEST, _STEEPEST)))
        residual = np.clip((y - eta) / deviation, -FARTHEST, FARTHEST)
        tail, density = special.ndtr(-FARTHEST), np.exp(-(FARTHEST**2) / 2) / np.sqrt(2 * np.pi)
        inside = 1 - 2 * tail
        second = inside - 2 * FARTHEST * density
        square = second + 2 * FARTHEST**2 * tail
        fourth = 3 * second - 2 * FARTHEST**3 * density + 2 * FARTHEST**4 * tail
        slope, steep = inside / square / deviation, 2 * second / (fourth - square**2)
        level = np.ones_like(residual)
        weights = slope * inside / deviation, 2 * second * steep
        return _stack(residual * slope, level * weights[0], (residual**2 - square) * steep, level * weights[1])


class Logistic(PrivateFamily):
    """0 or 1, of which the predictor is the logit."""

    name, ratio = "logistic", "Odds ratio"

    def start(self, y: Floats) -> Floats:
        return np.asarray(special.logit((y + 0.5) / 2))

    def pieces(self, y: Floats, eta: Floats, further: float = 0.0) -> Pieces:
        chance = special.expit(eta)
        loglik = y * eta - np.logaddexp(0.0, eta)
        return Pieces(loglik, y - chance, chance * (1 - chance), np.empty((0, len(y))))

    def extremes(self, eta: Floats, spread: float) -> list[Floats]:
        return [np.zeros_like(eta), np.ones_like(eta)]

    def score_and_weight(self, y: Floats, eta: Floats, spread: float) -> Floats:
        chance = special.expit(eta)
        nothing = np.zeros_like(eta)
        return _stack(np.clip(y, 0.0, 1.0) - chance, chance * (1 - chance), nothing, nothing)


class Poisson(PrivateFamily):
    """A count, of whose mean the predictor is the logarithm."""

    name, ratio = "poisson", "Rate ratio"

    def start(self, y: Floats) -> Floats:
        return np.log(y + 0.5)

    def pieces(self, y: Floats, eta: Floats, further: float = 0.0) -> Pieces:
        mean = np.exp(np.minimum(eta, 2 * _STEEPEST))
        loglik = y * eta - mean - special.gammaln(y + 1)
        return Pieces(loglik, y - mean, mean, np.empty((0, len(y))))

    def extremes(self, eta: Floats, spread: float) -> list[Floats]:
        return list(self._ends(np.exp(np.clip(eta, -_STEEPEST, _STEEPEST))))

    def score_and_weight(self, y: Floats, eta: Floats, spread: float) -> Floats:
        """Score and weight as of ``PrivateFamily``; counts are cut at ``FARTHEST`` standard deviations around their mean.

        Args:
            y: Counts, broadcast with ``eta`` to (m, n).
            eta: Linear predictors.
            spread: Not used.
        """
        mean = np.exp(np.clip(eta, -_STEEPEST, _STEEPEST))
        low, high = self._ends(mean)
        cut = np.clip(y, low, high)
        # Moments of the count cut above less those of what is cut below; sums of probabilities are in closed form.
        first = _cut_mean(high, mean) - _cut_mean(low, mean) + low
        second = _cut_square(high, mean) - _cut_square(low, mean) + low**2
        slope = mean * (_step_mean(high, mean) - _step_mean(low, mean))
        variance = np.maximum(second - first**2, 1e-12 * mean)
        nothing = np.zeros_like(eta)
        return _stack((cut - first) * slope / variance, slope**2 / variance, nothing, nothing)

    def _ends(self, mean: Floats) -> tuple[Floats, Floats]:
        far = FARTHEST * np.sqrt(mean)
        return np.maximum(mean - far, 0.0), mean + far


def _stack(*parts: Floats) -> Floats:
    return np.stack(np.broadcast_arrays(*parts))


def _below(count: Floats, mean: Floats) -> Floats:
    """Probability of a count of at most ``count``, a whole number or -1 and less."""
    return np.where(count < 0, 0.0, special.pdtr(np.maximum(count, 0.0), mean))


def _cut_mean(cut: Floats, mean: Floats) -> Floats:
    """E min(Y, cut) of a Poisson count Y."""
    whole = np.floor(cut)
    return mean * _below(whole - 1, mean) + cut * (1 - _below(whole, mean))


def _cut_square(cut: Floats, mean: Floats) -> Floats:
    """E min(Y, cut)**2."""
    whole = np.floor(cut)
    squares = mean**2 * _below(whole - 2, mean) + mean * _below(whole - 1, mean)
    return squares + cut**2 * (1 - _below(whole, mean))


def _step_mean(cut: Floats, mean: Floats) -> Floats:
    """E min(Y + 1, cut) - min(Y, cut), the derivative of E min(Y, cut) by the mean."""
    whole = np.floor(cut)
    at = np.exp(special.xlogy(whole, mean) - mean - special.gammaln(whole + 1))
    return np.asarray(_below(whole - 1, mean) + (cut - whole) * at)


class NegativeBinomial(Family):
    """A count of variance mean + dispersion mean**2, of whose mean the predictor is the logarithm (NB2)."""

    name, ratio, further = "negative-binomial", "Rate ratio", "dispersion"

    def start(self, y: Floats) -> Floats:
        return np.log(y + 0.5)

    def pieces(self, y: Floats, eta: Floats, further: float = 0.0) -> Pieces:
        mean, r = np.exp(np.minimum(eta, 2 * _STEEPEST)), float(np.exp(-np.clip(further, -_STEEPEST, _STEEPEST)))
        whole = r + mean
        loglik = special.gammaln(y + r) - special.gammaln(r) - special.gammaln(y + 1)
        loglik += -r * np.log1p(mean / r) + special.xlogy(y, mean / whole)
        by_r = special.digamma(y + r) - special.digamma(r) - np.log1p(mean / r) + (mean - y) / whole
        twice = special.polygamma(1, y + r) - special.polygamma(1, r) + 1 / r - 1 / whole - (mean - y) / whole**2
        mixed = r * (y - mean) * mean / whole**2
        return Pieces(
            loglik, r * (y - mean) / whole, r * mean * (r + y) / whole**2,
            np.stack([-r * by_r, -(r**2 * twice + r * by_r), mixed]),
        )  # fmt: skip


FAMILIES: dict[str, Family] = {family.name: family for family in (Linear(), Logistic(), Poisson(), NegativeBinomial())}
