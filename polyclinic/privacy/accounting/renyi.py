"""Renyi divergences of events at many orders, and the upper bound on epsilon that they give (RDP).

Computed here, not in the libraries: docs/decisions/0006. Each function is a bound for both relations.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import dp_accounting as dpa
import numpy as np
from dp_accounting import DpEvent
from scipy import optimize, special

from polyclinic.privacy.events import (
    MOVES,
    ApproximateDpEvent,
    Composition,
    DiscreteGaussianDpEvent,
    Relation,
    SelectionDpEvent,
    merge_events,
)
from polyclinic.types import Reals

_LEAST_INTEGRATED = 0.05  # with less, the integrand needs millions of points, and epsilon is in the hundreds
_LARGE = 500.0  # where exp comes near to overflow, and a one beside it is nothing
# Opacus' orders, which lack 11 and stop at 63.
ORDERS = np.array([1 + x / 10 for x in range(1, 100)] + [*range(11, 64), 80, 96, 128, 192, 256, 384, 512, 768, 1024])
# An epsilon far below 0.1 is seen only by these.
_FAR_ORDERS = np.array([round(2 ** (k / 2)) for k in range(21, 33)], dtype=np.float64)


def rdp_epsilon(events: Composition, delta: float, relation: Relation) -> float:
    """Epsilon at ``delta`` by the best of the orders; Balle et al. 2020, Theorem 21.

    Args:
        events: Merged, with the number of times that each occurs.
        delta: Of the guarantee. The events' own deltas are taken off it; epsilon is infinite where nothing is left.
        relation: The neighbouring relation.
    """
    # A mechanism with a delta of its own is, but for that probability, one with epsilon alone.
    own = own_deltas(events, relation)
    left = (delta - own) / (1 - own) if own < 1 else 0.0
    if left <= 0:
        return math.inf

    def at(orders: Reals, far: bool) -> Reals:
        eps = total(events, relation, far) - (math.log(left) + np.log(orders)) / (orders - 1) + np.log1p(-1 / orders)
        return np.maximum(eps, 0.0)

    near = at(ORDERS, False)
    best = near.min()
    if near[-1] == best:
        best = min(best, at(_FAR_ORDERS, True).min())
    return float(best)


def delta_of(divergence: Reals, eps: Reals, orders: Reals = ORDERS) -> Reals:
    """The least delta at each ``eps`` that the divergences at ``orders`` allow; Balle et al. 2020, Theorem 21.

    Args:
        divergence: (orders,) Renyi divergences.
        eps: (n,) epsilons.
        orders: (orders,) above 1; those of ``divergence``, by default ``ORDERS``.
    """
    column = orders[:, None]
    log_delta = (column - 1) * (divergence[:, None] - eps + np.log1p(-1 / column)) - np.log(column)
    delta: Reals = np.exp(np.minimum(log_delta.min(axis=0), 0.0))
    return delta


def own_deltas(events: Composition, relation: Relation) -> float:
    """The probability with which any of the events may tell all."""
    return -math.expm1(sum(count * math.log1p(-own_delta(event, relation)) for event, count in events))


def own_delta(event: DpEvent, relation: Relation) -> float:
    """The probability with which an event may tell all."""
    return for_one(event, relation)[1] if isinstance(event, ApproximateDpEvent) else 0.0


def for_one(event: ApproximateDpEvent, relation: Relation) -> tuple[float, float]:
    """(epsilon, delta) under the relation; a replaced patient is a group of two (Dwork and Roth 2014, group privacy)."""
    if relation == "add-remove":
        return event.epsilon, event.delta
    return 2 * event.epsilon, min((1 + math.exp(event.epsilon)) * event.delta, 1 - 1e-16)


def as_poisson(event: Any) -> DpEvent:
    """The Poisson sampled Gaussian that stands for one on a sample without replacement, for a patient added or removed.

    The sample holds the patient with probability ``sample / patients``, and then in the place of another. Zhu, Dong and
    Wang 2022, Theorem 11.
    """
    halved = dpa.GaussianDpEvent(event.event.noise_multiplier / 2)
    return dpa.PoissonSampledDpEvent(event.sample_size / event.source_dataset_size, halved)


def total(events: Composition, relation: Relation, far: bool = False) -> Reals:
    """Renyi divergence of all events together at every order, but for their own deltas.

    Args:
        events: Merged, with the number of times that each occurs.
        relation: The neighbouring relation.
        far: Takes the far orders, which very small epsilons need, instead of ``ORDERS``.
    """
    return sum(
        (count * divergence(event, relation, far) for event, count in events),
        np.zeros_like(_FAR_ORDERS if far else ORDERS),
    )


@lru_cache(maxsize=1024)
def divergence(event: DpEvent, relation: Relation, far: bool = False) -> Reals:
    """Renyi divergence of one event at every order; infinite where the numerics fail.

    Args:
        event: As ``merge_events`` gives it.
        relation: The neighbouring relation.
        far: Takes the far orders, which very small epsilons need, instead of ``ORDERS``.

    Raises:
        TypeError: for an event that ``merge_events`` does not give.
    """
    orders = _FAR_ORDERS if far else ORDERS
    moves = MOVES[relation]
    bound: Reals
    match event:
        case dpa.GaussianDpEvent() | DiscreteGaussianDpEvent():
            # Canonne, Kamath and Steinke 2020: a discrete Gaussian's is at most that of the Gaussian.
            bound = orders * moves**2 / (2 * event.noise_multiplier**2)
        case dpa.PoissonSampledDpEvent():
            rate, noise = event.sampling_probability, event.event.noise_multiplier
            if moves == 1:
                bound = _sampled_gaussian(rate, noise, orders)
            else:
                # Remove, then add: the weak triangle inequality of Mironov 2017, with p = q = 2.
                first = _sampled_gaussian(rate, noise, 2 * orders)
                second = _sampled_gaussian(rate, noise, 2 * orders - 1)
                bound = (orders - 0.5) / (orders - 1) * first + second
        case dpa.LaplaceDpEvent():
            # Mironov 2017, Proposition 6.
            scale = event.noise_multiplier / moves
            up = np.log(orders / (2 * orders - 1)) + (orders - 1) / scale
            down = np.log((orders - 1) / (2 * orders - 1)) - orders / scale
            bound = np.logaddexp(up, down) / (orders - 1)
        case dpa.RandomizedResponseDpEvent():
            lie = event.noise_parameter / event.num_buckets
            truth, log_lie = math.log1p(lie - event.noise_parameter), math.log(lie)
            terms = [orders * truth + (1 - orders) * log_lie, orders * log_lie + (1 - orders) * truth]
            if event.num_buckets > 2:
                terms.append(np.full_like(orders, math.log((event.num_buckets - 2) * lie)))
            bound = np.logaddexp.reduce(terms) / (orders - 1)
        case ApproximateDpEvent():
            bound = _pure(for_one(event, relation)[0], orders)
        case dpa.ZCDpEvent():
            bound = orders * moves**2 * event.rho
        case dpa.SampledWithoutReplacementDpEvent():
            bound = _drawn_gaussian(event, relation, far)
        case SelectionDpEvent():
            bound = _selection_divergence(
                total(merge_events(event.event), relation, far), event.mean, event.shape, orders
            )
        case _:
            raise TypeError(f"{event!r} did not come from merge_events().")
    return bound


def _pure(eps: float, orders: Reals) -> Reals:
    """Renyi divergence of randomised response with ``eps``: log(cosh((order - 1/2) eps) / cosh(eps / 2)) / (order - 1).

    Any mechanism of that epsilon can be made from it (Kairouz, Oh and Viswanath 2017). Computed without cancelling.
    """
    if not eps:
        return 0 * orders
    above = np.log(-np.expm1(-orders * eps)) + np.log(-np.expm1(-(orders - 1) * eps)) - math.log1p(math.exp(-eps))
    divergence: Reals = np.logaddexp(0.0, (orders - 1) * eps + above) / (orders - 1)
    return divergence


def _drawn_gaussian(event: Any, relation: Relation, far: bool) -> Reals:
    """Renyi divergence of a Gaussian on a sample without replacement, by dp-accounting: Wang, Balle and Kasiviswanathan
    2019, Theorem 27 of the arXiv version.
    """
    if relation == "add-remove":
        return divergence(as_poisson(event), relation, far)
    # The library takes noise relative to the sensitivity, which is twice the clip norm.
    halved = dpa.GaussianDpEvent(event.event.noise_multiplier / 2)
    library = dpa.rdp.RdpAccountant(list(_FAR_ORDERS if far else ORDERS), dpa.NeighboringRelation.REPLACE_ONE)
    library.compose(dpa.SampledWithoutReplacementDpEvent(event.source_dataset_size, event.sample_size, halved))
    return np.array(library.rdp, dtype=np.float64)


def _selection_divergence(run_divergence: Reals, mean: float, shape: str, orders: Reals) -> Reals:
    """Renyi divergence of the best of K runs with divergence ``run_divergence`` each; Papernot and Steinke 2022.

    Theorem 6 where K is Poisson; Theorem 2 where it is geometric or logarithmic, with gamma its chance to stop.
    """
    if shape == "poisson":
        delta = delta_of(run_divergence, np.log1p(1 / (orders - 1)), orders)
        perhaps_none: Reals = run_divergence + mean * delta + math.log(mean) / (orders - 1)
        return perhaps_none
    gamma = 1 / mean if shape == "geometric" else _logarithmic_gamma(mean)
    worst = np.min((1 - 1 / orders) * run_divergence - math.log(gamma) / orders)
    divergence = run_divergence + math.log(mean) / (orders - 1) + (2 if shape == "geometric" else 1) * worst
    # Renyi divergence grows with its order, so that a higher order's bound is one for the lower as well.
    monotone: Reals = np.minimum.accumulate(divergence[::-1])[::-1]
    return monotone


def _logarithmic_gamma(mean: float) -> float:
    """The gamma with (1 / gamma - 1) / log(1 / gamma) = mean, from below: less is the safe side."""
    if mean == 1:
        return 1.0
    log_gamma = optimize.brentq(lambda log: math.expm1(log) / log - mean, 1e-12, 2 * math.log(mean) + 2, xtol=1e-12)
    return math.exp(-log_gamma * (1 + 1e-9))


def _sampled_gaussian(rate: float, noise: float, orders: Reals) -> Reals:
    """Renyi divergence of one Poisson sampled Gaussian at each order: log E[ratio^order] / (order - 1).

    The ratio is 1 + rate (exp((2x - 1) / (2 noise^2)) - 1), with a Gaussian x. Mironov, Talwar and Zhang 2019.
    """
    whole = orders == np.floor(orders)
    log_excess = np.zeros_like(orders)
    log_excess[whole] = [_whole_excess(rate, noise, order) for order in orders[whole]]
    if noise >= _LEAST_INTEGRATED and not whole.all():
        log_excess[~whole] = _fractional_excess(rate, noise, orders[~whole])
    divergence: Reals = np.logaddexp(0.0, log_excess) / (orders - 1)
    if noise < _LEAST_INTEGRATED:
        # Sampling never costs, and with so little noise hardly helps: the bound is that of the Gaussian itself.
        divergence[~whole] = orders[~whole] / (2 * noise**2)
    # Not a number must not pass for a small one.
    return np.where(np.isnan(divergence), math.inf, divergence)


def _whole_excess(rate: float, noise: float, order: float) -> float:
    """log(E[ratio^order] - 1): a binomial sum, less the probabilities, which add up to one; every term is positive."""
    k = np.arange(2, order + 1)
    log_choices = special.gammaln(order + 1) - special.gammaln(k + 1) - special.gammaln(order - k + 1)
    log_probability = log_choices + k * math.log(rate) + (order - k) * math.log1p(-rate)
    growth = (k * k - k) / (2 * noise**2)
    return _log_sum(log_probability + growth + np.log(-np.expm1(-growth)))


def _fractional_excess(rate: float, noise: float, orders: Reals) -> Reals:
    """log(E[ratio^order] - 1) by the trapezoidal rule on ratio^order - 1 - order (ratio - 1), which is never negative.

    The integrand is analytic within pi noise^2 of the real line, where the ratio has its zeros. Within a strip of half
    width w it is no more than e^(w^2 / (2 noise^2)) times larger. So at this spacing the relative error is about e^-40; a
    strip wider than sqrt(80) noise gains nothing. The integrand is bounded by Gaussians centred between 0 and the order.
    """
    strip = min(math.pi * noise**2, math.sqrt(80) * noise)
    spacing = min(noise / 2, 2 * math.pi * strip / (40 + strip**2 / (2 * noise**2)))
    x = np.arange(-10 * noise, orders.max() + 10 * noise, spacing)
    log_weight = math.log(spacing / (noise * math.sqrt(2 * math.pi))) - x**2 / (2 * noise**2)
    growth = (2 * x - 1) / (2 * noise**2)
    change = rate * np.expm1(np.minimum(growth, _LARGE))
    log_ratio = np.where(growth < _LARGE, np.log1p(change), math.log(rate) + growth)

    def excess(order: float) -> float:
        power = order * log_ratio
        gain = np.maximum(np.expm1(np.minimum(power, _LARGE)) - order * change, 1e-300)
        return _log_sum(log_weight + np.where(power < _LARGE, np.log(gain), power))

    return np.array([excess(order) for order in orders])


def _log_sum(logs: Reals) -> float:
    top = logs.max()
    return float(top + np.log(np.exp(logs - top).sum()))
