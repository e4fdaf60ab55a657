"""Mechanisms for single releases: what each adds or flips, and the privacy event that it costs.

A mechanism is made from public numbers, so its event can be charged before any record is read. It works on whole numbers,
of which one patient changes a declared number at most, and draws exactly (``sampling``). Where contributions are real,
``to_grid`` rounds each patient's to a public grid before they are added. Noise is relative to one patient added or removed;
the accountants know what a replaced patient costs on top.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, TypeVar

import dp_accounting as dpa
import numpy as np
from dp_accounting import DpEvent

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import Accountant, Relation, calibrate_noise_multiplier, check_terms, epsilon
from polyclinic.privacy.events import discrete_gaussian_event, gaussian_event, pure_event, zcdp_event
from polyclinic.privacy.sampling import Coins, Shape, noise, whole_below
from polyclinic.privacy.streams import Stream
from polyclinic.types import Ints, Reals

#: Grid points of one patient's contribution where noise is to count as continuous.
FINE = 2**32
_FINE_ENOUGH = 2**20
_WIDEST = 2.0**54  # 400 times that is still within 64 bits


@dataclass(frozen=True)
class Release:
    """What left: ``value``, the standard error that the mechanism gave it (None where it has none), what it cost.

    Examples:
        >>> from polyclinic.privacy.streams import keyed_stream
        >>> left = laplace(2.0).release(np.array([40]), keyed_stream(0, "noise"))
        >>> left.value.tolist(), left.standard_error.round(2).tolist(), left.event
        ([39], [2.8], ApproximateDpEvent(epsilon=0.5, delta=0.0))
    """

    value: Any
    standard_error: Any
    event: DpEvent


class Mechanism(Protocol):
    """What every mechanism states, before a record is read."""

    @property
    def event(self) -> DpEvent: ...


M = TypeVar("M", bound=Mechanism)


def to_grid(values: Reals, bound: float, points: int = FINE) -> Ints:
    """Contributions as whole numbers in [-points, points].

    Each is rounded by itself, so that sums are exact whatever their order and one patient's part in them is declared.

    Args:
        values: Contributions. Beyond the bound is clipped, not finite gives 0.
        bound: The largest absolute value, which becomes ``points``.
        points: Points of the grid from 0 to the bound.

    Examples:
        >>> to_grid(np.array([0.5, -3.0, np.nan]), bound=1.0, points=100).tolist()
        [50, -100, 0]
    """
    finite = np.where(np.isfinite(values), values, 0.0)
    return np.rint(np.clip(finite / bound, -1.0, 1.0) * points).astype(np.int64)


@dataclass(frozen=True)
class Additive:
    """Whole numbers plus independent noise: discrete Laplace or discrete Gaussian of the parameter ``scale``.

    Examples:
        >>> from polyclinic.privacy.streams import keyed_stream
        >>> noisy = laplace(2.0).release(np.array([40, 2]), keyed_stream(0, "noise"))
        >>> noisy.value.tolist(), noisy.standard_error.round(2).tolist()
        ([39, 0], [2.8, 2.8])
    """

    event: DpEvent
    shape: Shape
    scale: float

    @property
    def standard_deviation(self) -> float:
        """Of the noise on one number, in its whole units; a Gaussian's is at most this, and this from scale 1 on."""
        if self.shape == "gaussian":
            return self.scale
        return 1.0 / (math.sqrt(2.0) * math.sinh(0.5 / self.scale))

    def release(self, total: Ints, stream: Stream) -> Release:
        """``total``, (d,) whole numbers, plus noise."""
        drawn = noise(self.shape, self.scale, len(total), stream)
        noisy = np.array([int(exact) + more for exact, more in zip(total, drawn, strict=True)], dtype=np.int64)
        return Release(noisy, np.full(len(total), self.standard_deviation), self.event)


def laplace(noise_multiplier: float, sensitivity: int = 1, entries: int = 1) -> Additive:
    """Discrete Laplace noise of scale ``noise_multiplier * sensitivity``: pure epsilon = 1 / noise_multiplier.

    For one number on a fine grid the event is continuous Laplace noise's, which composes better. The noise is then for one
    grid point more, because the discrete noise's privacy loss lies up to one point above.
    Dwork et al. 2006; Canonne, Kamath and Steinke 2020, Section 5.2.

    Args:
        noise_multiplier: Scale of the noise over the sensitivity.
        sensitivity: The most by which one patient added or removed changes the numbers in L1.
        entries: How many of them one patient may change.

    Raises:
        ConfigError: for noise or a sensitivity that is out of range.

    Examples:
        >>> laplace(noise_multiplier=2.0).event
        ApproximateDpEvent(epsilon=0.5, delta=0.0)
        >>> round(laplace(noise_multiplier=2.0).standard_deviation, 2)
        2.8
    """
    _check_noise(noise_multiplier, sensitivity)
    scale = _up(noise_multiplier * (sensitivity + 1 if sensitivity > 1 else 1))
    continuous = entries == 1 and _is_fine(noise_multiplier, sensitivity)
    event = dpa.LaplaceDpEvent(float(noise_multiplier)) if continuous else pure_event(1.0 / noise_multiplier)
    return Additive(event, "laplace", scale)


def gaussian(noise_multiplier: float, sensitivity: int = FINE) -> Additive:
    """Gaussian noise of deviation ``noise_multiplier * sensitivity`` on a grid so fine that it costs what continuous noise does.

    A continuous Gaussian, rounded, is as near as 1 / (40 scale^2) < 2^-45 in total variation. The multiplier for an epsilon
    comes from ``calibrate``, which is right for any epsilon. The rule sqrt(2 ln(1.25 / delta)) / epsilon gives too little
    noise for large ones, and too much for small ones (Balle and Wang 2018).

    sensitivity: the most by which one patient added or removed changes the numbers in L2.

    Raises ConfigError for a grid that is too coarse.

    Examples:
        >>> gaussian(4.0).event
        GaussianDpEvent(noise_multiplier=4.0)
    """
    _check_noise(noise_multiplier, sensitivity)
    if not _is_fine(noise_multiplier, sensitivity):
        raise ConfigError(
            f"Gaussian noise of noise_multiplier {noise_multiplier:g} needs a grid on which one patient weighs more than "
            f"{sensitivity} points; discrete_gaussian takes any."
        )
    return Additive(gaussian_event(noise_multiplier), "gaussian", _up(noise_multiplier * sensitivity))


def discrete_gaussian(noise_multiplier: float, sensitivity: int = 1, entries: int = 1) -> Additive:
    """Discrete Gaussian noise of parameter ``noise_multiplier * sensitivity`` on whole numbers, for any grid.

    Args:
        noise_multiplier: Parameter of the noise over the sensitivity.
        sensitivity: The most by which one patient added or removed changes the numbers in L2.
        entries: How many of them one patient may change; several are accounted as zCDP (Canonne, Kamath and Steinke 2020).

    Raises:
        ConfigError: for noise or a sensitivity that is out of range.

    Examples:
        >>> discrete_gaussian(4.0).event
        DiscreteGaussianDpEvent(noise_multiplier=4.0, sensitivity=1)
        >>> discrete_gaussian(4.0, entries=10).event  # a patient may change ten numbers
        ZCDpEvent(rho=0.03125, xi=0.0)
    """
    _check_noise(noise_multiplier, sensitivity)
    event = zcdp_event(0.5 / noise_multiplier**2)
    if entries == 1:
        event = discrete_gaussian_event(noise_multiplier, sensitivity)
    return Additive(event, "gaussian", _up(noise_multiplier * sensitivity))


def _is_fine(noise_multiplier: float, sensitivity: int) -> bool:
    return min(noise_multiplier, 1.0) * sensitivity >= _FINE_ENOUGH


def _up(value: float) -> float:
    """A little more, so that rounding never makes noise smaller than its event says."""
    return value * (1.0 + 2.0**-50)


def _check_noise(noise_multiplier: float, sensitivity: int) -> None:
    if not (math.isfinite(noise_multiplier) and noise_multiplier > 0):
        raise ConfigError(f"noise_multiplier must be positive and finite, got {noise_multiplier}.")
    if sensitivity < 1:
        raise ConfigError(f"sensitivity must be a whole number of at least 1, got {sensitivity}.")
    if noise_multiplier * sensitivity > _WIDEST:
        raise ConfigError(f"noise_multiplier {noise_multiplier:g} is too large to be added on this grid.")


@dataclass(frozen=True)
class RandomisedResponse:
    """Each patient's category, with probability ``noise_parameter`` replaced by a uniform one of ``categories``.

    Answers for a patient who is there: how many answer is not hidden, so neighbours are "replace-one" only.
    Warner 1965; Kairouz, Bonawitz and Ramage 2016 for more than two categories.

    Examples:
        >>> from polyclinic.privacy.streams import keyed_stream
        >>> survey = RandomisedResponse(noise_parameter=0.5, categories=2)
        >>> answers = survey.answers(np.array([0] * 600 + [1] * 400), keyed_stream(0, "answers"))
        >>> survey.truth, survey.counts(answers).value.tolist()
        (0.75, [578.0, 422.0])
    """

    noise_parameter: float
    categories: int

    @property
    def event(self) -> DpEvent:
        return dpa.RandomizedResponseDpEvent(self.noise_parameter, self.categories)

    @property
    def truth(self) -> float:
        """The probability that an answer is the true category."""
        return 1.0 - self.noise_parameter * (self.categories - 1) / self.categories

    def answers(self, truths: Ints, stream: Stream) -> Ints:
        """(n,) answers to (n,) true categories in 0..categories-1."""
        # A uniform draw has 53 bits: the chance of a flip is the noise parameter, or up to 2^-53 more.
        flipped = stream.uniform(len(truths)) < self.noise_parameter
        return np.where(flipped, whole_below(self.categories, len(truths), stream), truths)

    def counts(self, answers: Ints) -> Release:
        """Unbiased estimates of how many patients are truly of each category, (categories,), with standard errors.

        The errors are those of the lies alone: these patients are not taken for a sample of others.
        """
        patients, lie = len(answers), self.noise_parameter / self.categories
        answered = np.bincount(answers, minlength=self.categories)
        value = (answered - patients * lie) / (1.0 - self.noise_parameter)
        likely = np.clip(value, 0, patients)
        variance = likely * self.truth * (1.0 - self.truth) + (patients - likely) * lie * (1.0 - lie)
        return Release(value, np.sqrt(variance) / (1.0 - self.noise_parameter), self.event)

    def variance(self, share: float, patients: int) -> float:
        """Of the estimated share of a category, for a sample of ``patients`` of whom each is of it with chance ``share``."""
        chance = self.noise_parameter / self.categories + share * (1.0 - self.noise_parameter)
        return chance * (1.0 - chance) / (patients * (1.0 - self.noise_parameter) ** 2)


def randomised_response(epsilon: float, categories: int = 2) -> RandomisedResponse:
    """Truth has probability e^epsilon / (e^epsilon + categories - 1), every other category an equal share of the rest.

    Pure ``epsilon`` under "replace-one". Raises ConfigError for one category or an epsilon not positive and finite.

    Examples:
        >>> round(randomised_response(epsilon=1.0).truth, 2), round(randomised_response(epsilon=1.0, categories=5).truth, 2)
        (0.73, 0.4)
    """
    _check_epsilon(epsilon)
    if categories < 2:
        raise ConfigError(f"Randomised response needs at least 2 categories, got {categories}.")
    odds = math.expm1(epsilon) / categories
    return RandomisedResponse(min(_up(1.0 / (1.0 + odds)), 1.0), categories)


@dataclass(frozen=True)
class Selection:
    """One of several candidates by whole-number scores, better ones likelier: exp(``rate`` * score) decides.

    Examples:
        >>> from polyclinic.privacy.streams import keyed_stream
        >>> choice = exponential(epsilon=1.0, monotone=True).choose(np.array([10, 50, 12]), keyed_stream(0, "choice"))
        >>> choice.value, choice.event
        (1, ApproximateDpEvent(epsilon=1.0, delta=0.0))
    """

    epsilon: float
    rate: Fraction
    noisy_max: bool

    @property
    def event(self) -> DpEvent:
        return pure_event(self.epsilon)

    def choose(self, scores: Ints, stream: Stream) -> Release:
        """The index of a candidate; ``scores``: (candidates,) whole numbers."""
        coins, best = Coins(stream), int(scores.max())
        order = list(range(len(scores)))
        while True:
            place = coins.below(len(order))
            if coins.flip_exp(self.rate * (best - int(scores[order[place]]))):
                return Release(order[place], None, self.event)
            if self.noisy_max:
                order.pop(place)


def exponential(epsilon: float, sensitivity: int = 1, monotone: bool = False) -> Selection:
    """The exponential mechanism: candidate i with probability proportional to exp(rate * score_i).

    Args:
        epsilon: What a choice costs, at delta 0.
        sensitivity: The most by which one patient added or removed changes any score.
        monotone: An added patient lowers no score, as with counts. The rate is then epsilon / sensitivity instead of half that
            (McSherry and Talwar 2007).

    Raises:
        ConfigError: for an epsilon that is not positive and finite, or a sensitivity below 1.

    Examples:
        >>> exponential(1.0).rate, exponential(1.0, monotone=True).rate, exponential(1.0, sensitivity=2).rate
        (Fraction(1, 2), Fraction(1, 1), Fraction(1, 4))
    """
    return Selection(epsilon, _rate(epsilon, sensitivity, monotone), False)


def report_noisy_max(epsilon: float, sensitivity: int = 1, monotone: bool = False) -> Selection:
    """The index of the largest score plus exponential noise of scale 1 / rate, the rate as in ``exponential``.

    Drawn as permute-and-flip, which is the same distribution without ties (McKenna and Sheldon 2020; Ding et al. 2021),
    and never worse than the exponential mechanism.

    Args:
        epsilon: What a choice costs, at delta 0.
        sensitivity: The most by which one patient added or removed changes any score.
        monotone: An added patient lowers no score, as with counts.

    Raises:
        ConfigError: for an epsilon that is not positive and finite, or a sensitivity below 1.

    Examples:
        >>> from polyclinic.privacy.streams import keyed_stream
        >>> report_noisy_max(epsilon=1.0, monotone=True).choose(np.array([10, 50, 12]), keyed_stream(0, "choice")).value
        1
    """
    return Selection(epsilon, _rate(epsilon, sensitivity, monotone), True)


def _rate(epsilon: float, sensitivity: int, monotone: bool) -> Fraction:
    _check_epsilon(epsilon)
    if sensitivity < 1:
        raise ConfigError(f"sensitivity must be a whole number of at least 1, got {sensitivity}.")
    return Fraction(epsilon) / (sensitivity if monotone else 2 * sensitivity)


def _check_epsilon(value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"epsilon must be positive and finite, got {value}.")


def calibrate(
    make: Callable[[float], M],
    target_epsilon: float,
    delta: float,
    accountant: Accountant = "pld",
    relation: Relation = "add-remove",
    least: float = 0.0,
) -> M:
    """The mechanism ``make(noise)`` with about the least noise that costs at most ``target_epsilon`` at ``delta``.

    Args:
        make: Makes the mechanism of a noise multiplier.
        target_epsilon: The most that it may cost.
        delta: Of the guarantee.
        accountant: "pld" is the tight one that is reported; "rdp" is Opacus' Renyi bound.
        relation: The neighbouring relation, "add-remove" or "replace-one".
        least: Noise that it has in any case, such as the 1 / epsilon of a mechanism whose epsilon is to hold at delta 0 too.

    Raises:
        ConfigError: for an impossible target, or an event that has no epsilon under the relation.

    Examples:
        >>> mechanism = calibrate(gaussian, target_epsilon=1.0, delta=1e-5)
        >>> round(mechanism.event.noise_multiplier, 2)
        3.73
    """
    check_terms(delta, accountant, relation)
    _check_epsilon(target_epsilon)
    # The accountant rounds up, and its word decides what a ledger allows.
    if least and epsilon(make(least).event, delta, accountant, relation) <= target_epsilon:
        return make(least)
    noise = calibrate_noise_multiplier(target_epsilon, delta, lambda z: make(z).event, accountant, relation)
    return make(max(noise, least))
