"""Upper bounds on epsilon for a merged composition: Renyi (RDP, at Opacus' orders) and privacy loss distributions (PLD,
Google's dp-accounting, pessimistic rounding). Each is sound by itself. Choosing and checking is ``accounting``'s part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Any, Literal

import dp_accounting as dpa
import numpy as np
from dp_accounting import DpEvent
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
from scipy import optimize, special

from polyclinic.privacy.events import (
    ApproximateDpEvent,
    Composition,
    DiscreteGaussianDpEvent,
    SelectionDpEvent,
    merged,
)
from polyclinic.privacy.streams import Floats

Relation = Literal["add-remove", "replace-one"]
Compose = Callable[[DpEvent, int, Relation, float], Any]

_COARSE_SHARE, _FINE_SHARE = 0.1, 0.02
_FINEST = 1e-6
_MANY_KEPT = 1e-4
_MANY_EVENTS = 4096  # beyond, cutting the tails of every doubling would add up
_NO_PRIVACY = 1e4  # beyond this RDP is as good a bound as any
_LEAST_INTEGRATED = 0.05  # with less, the integrand needs millions of points, and epsilon is in the hundreds
_NO_TAIL = 1e-18  # a delta that no composition notices
_LARGE = 500.0  # where exp comes near to overflow, and a one beside it is nothing
# Opacus' orders, which lack 11 and stop at 63.
_ORDERS = np.array([1 + x / 10 for x in range(1, 100)] + [*range(11, 64), 80, 96, 128, 192, 256, 384, 512, 768, 1024])
_NEIGHBOURS = {
    "add-remove": dpa.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace-one": dpa.NeighboringRelation.REPLACE_ONE,
}


def rdp_epsilon(events: Composition, delta: float, relation: Relation) -> float:
    """Epsilon at ``delta`` by the best of the Renyi orders; Balle et al. 2020, Theorem 21."""
    # A mechanism with a delta of its own is, but for that probability, one with epsilon alone.
    log_kept = sum(count * math.log1p(-_own_delta(event, relation)) for event, count in events)
    left = (delta + math.expm1(log_kept)) / math.exp(log_kept)
    if left <= 0:
        return math.inf
    eps = _rdp_of(events, relation) - (np.log(left) + np.log(_ORDERS)) / (_ORDERS - 1) + np.log1p(-1 / _ORDERS)
    return max(0.0, float(np.min(eps)))


def _rdp_of(events: Composition, relation: Relation) -> Floats:
    return sum((count * _rdp(event, relation) for event, count in events), np.zeros_like(_ORDERS))


def _own_delta(event: DpEvent, relation: Relation) -> float:
    return _for_one(event, relation)[1] if isinstance(event, ApproximateDpEvent) else 0.0


def _for_one(event: ApproximateDpEvent, relation: Relation) -> tuple[float, float]:
    """(epsilon, delta) under the relation; a replaced patient is a group of two (Dwork and Roth 2014, Theorem 2.2)."""
    if relation == "add-remove":
        return event.epsilon, event.delta
    return 2 * event.epsilon, min((1 + math.exp(event.epsilon)) * event.delta, 1 - 1e-16)


@lru_cache(maxsize=1024)
def _rdp(event: DpEvent, relation: Relation) -> Floats:
    """Renyi divergence of one event at every order; infinite where the numerics fail."""
    replaced = relation == "replace-one"
    divergence: Floats
    match event:
        case dpa.GaussianDpEvent():
            # A replaced patient moves the sum by twice the clip norm.
            divergence = _ORDERS * (4 if replaced else 1) / (2 * event.noise_multiplier**2)
        case dpa.PoissonSampledDpEvent():
            rate, noise = event.sampling_probability, event.event.noise_multiplier
            if not replaced:
                divergence = _sampled_gaussian(rate, noise, _ORDERS)
            else:
                # Remove, then add: the weak triangle inequality of Mironov 2017, Proposition 11, with p = q = 2.
                first = _sampled_gaussian(rate, noise, 2 * _ORDERS)
                second = _sampled_gaussian(rate, noise, 2 * _ORDERS - 1)
                divergence = (_ORDERS - 0.5) / (_ORDERS - 1) * first + second
        case dpa.LaplaceDpEvent():
            # Mironov 2017, Proposition 6.
            scale = event.noise_multiplier / (2 if replaced else 1)
            up = np.log(_ORDERS / (2 * _ORDERS - 1)) + (_ORDERS - 1) / scale
            down = np.log((_ORDERS - 1) / (2 * _ORDERS - 1)) - _ORDERS / scale
            divergence = np.logaddexp(up, down) / (_ORDERS - 1)
        case dpa.RandomizedResponseDpEvent():
            lie = event.noise_parameter / event.num_buckets
            truth, log_lie = math.log1p(lie - event.noise_parameter), math.log(lie)
            terms = [_ORDERS * truth + (1 - _ORDERS) * log_lie, _ORDERS * log_lie + (1 - _ORDERS) * truth]
            if event.num_buckets > 2:
                terms.append(np.full_like(_ORDERS, math.log((event.num_buckets - 2) * lie)))
            divergence = np.logaddexp.reduce(terms) / (_ORDERS - 1)
        case ApproximateDpEvent():
            divergence = _pure(_for_one(event, relation)[0])
        case DiscreteGaussianDpEvent():
            # Canonne, Kamath and Steinke 2020, Theorem 4: at most that of the Gaussian.
            divergence = _ORDERS * (4 if replaced else 1) / (2 * event.noise_multiplier**2)
        case dpa.ZCDpEvent():
            divergence = _ORDERS * (4 if replaced else 1) * event.rho
        case dpa.SampledWithoutReplacementDpEvent():
            divergence = _drawn_gaussian(event, relation)
        case SelectionDpEvent():
            divergence = _selected(_rdp_of(merged(event.event), relation), event.mean, event.shape)
        case _:
            raise TypeError(f"{event!r} did not come from merged().")
    return divergence


def _pure(eps: float) -> Floats:
    """Renyi divergence of randomised response with ``eps``, which any mechanism of that epsilon can be made from (Kairouz,
    Oh and Viswanath 2017, Theorem 2.1): log(cosh((order - 1/2) eps) / cosh(eps / 2)) / (order - 1), without cancelling.
    """
    above = np.log(-np.expm1(-_ORDERS * eps)) + np.log(-np.expm1(-(_ORDERS - 1) * eps)) - math.log1p(math.exp(-eps))
    divergence: Floats = np.logaddexp(0.0, (_ORDERS - 1) * eps + above) / (_ORDERS - 1) if eps else 0 * _ORDERS
    return divergence


def _drawn_gaussian(event: Any, relation: Relation) -> Floats:
    """Renyi divergence of one Gaussian on a sample without replacement, whose neighbour has one patient exchanged."""
    halved = dpa.GaussianDpEvent(event.event.noise_multiplier / 2)
    if relation == "add-remove":
        return _rdp(_as_poisson(event), relation)
    # Wang, Balle and Kasiviswanathan 2019, Theorem 9; the library takes noise relative to the sensitivity.
    library = dpa.rdp.RdpAccountant(list(_ORDERS), dpa.NeighboringRelation.REPLACE_ONE)
    library.compose(dpa.SampledWithoutReplacementDpEvent(event.source_dataset_size, event.sample_size, halved))
    return np.array(library.rdp, dtype=np.float64)


def _as_poisson(event: Any) -> DpEvent:
    """What a sample without replacement is for a patient added or removed: the sample holds the patient with probability
    ``sample / patients``, and then in the place of another. Zhu, Dong and Wang 2022, Theorem 11.
    """
    halved = dpa.GaussianDpEvent(event.event.noise_multiplier / 2)
    return dpa.PoissonSampledDpEvent(event.sample_size / event.source_dataset_size, halved)


def _selected(one: Floats, mean: float, shape: str) -> Floats:
    """Renyi divergence of the best of K runs with divergence ``one`` each; Papernot and Steinke 2022.

    Theorem 6 where K is Poisson; Theorem 2 where it is geometric or logarithmic, with gamma its chance to stop.
    """
    if shape == "poisson":
        delta = _delta_of_rdp(one, np.log1p(1 / (_ORDERS - 1)))
        return one + mean * delta + math.log(mean) / (_ORDERS - 1)
    gamma = 1 / mean if shape == "geometric" else _logarithmic_gamma(mean)
    worst = np.min((1 - 1 / _ORDERS) * one - math.log(gamma) / _ORDERS)
    divergence = one + math.log(mean) / (_ORDERS - 1) + (2 if shape == "geometric" else 1) * worst
    # Renyi divergence grows with its order, so that a higher order's bound is one for the lower as well.
    monotone: Floats = np.minimum.accumulate(divergence[::-1])[::-1]
    return monotone


def _logarithmic_gamma(mean: float) -> float:
    """The gamma with (1 / gamma - 1) / log(1 / gamma) = mean, from below: less is the safe side."""
    if mean == 1:
        return 1.0
    found = optimize.brentq(lambda log: math.expm1(log) / log - mean, 1e-12, 2 * math.log(mean) + 2, xtol=1e-12)
    return math.exp(-found * (1 + 1e-9))


def _delta_of_rdp(divergence: Floats, eps: Floats) -> Floats:
    """The least delta at each ``eps`` that Renyi divergences at the orders allow; Balle et al. 2020, Theorem 21."""
    orders = _ORDERS[:, None]
    log_delta = (orders - 1) * (divergence[:, None] - eps + np.log1p(-1 / orders)) - np.log(orders)
    delta: Floats = np.exp(np.minimum(log_delta.min(axis=0), 0.0))
    return delta


def _sampled_gaussian(rate: float, noise: float, orders: Floats) -> Floats:
    """Renyi divergence of one Poisson sampled Gaussian at each order: log E[ratio^order] / (order - 1), where the ratio is
    1 + rate (exp((2x - 1) / (2 noise^2)) - 1) and x is Gaussian. Mironov, Talwar and Zhang 2019, Section 3.3.
    """
    whole = orders == np.floor(orders)
    log_excess = np.zeros_like(orders)
    log_excess[whole] = [_whole_excess(rate, noise, order) for order in orders[whole]]
    if noise >= _LEAST_INTEGRATED:
        log_excess[~whole] = _fractional_excess(rate, noise, orders[~whole])
    divergence: Floats = np.logaddexp(0.0, log_excess) / (orders - 1)
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


def _fractional_excess(rate: float, noise: float, orders: Floats) -> Floats:
    """log(E[ratio^order] - 1) by the trapezoidal rule on ratio^order - 1 - order (ratio - 1), which is never negative.

    The integrand is analytic within pi noise^2 of the real line, where the ratio has its zeros, and within a strip of
    half width w no more than e^(w^2 / (2 noise^2)) times larger, so that at this spacing the relative error is about
    e^-40; a strip wider than sqrt(80) noise gains nothing. It is bounded by Gaussians centred between 0 and the order.
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


def _log_sum(logs: Floats) -> float:
    top = logs.max()
    return float(top + np.log(np.exp(logs - top).sum()))


def pld_epsilon(events: Composition, delta: float, relation: Relation) -> float:
    """Epsilon at ``delta`` by privacy loss distributions, on a grid refined until halving moves it < 0.3 %."""
    rough = rdp_epsilon(events, delta, relation)
    if rough > _NO_PRIVACY:
        return rough
    coarse, interval = (_interval(events, relation, rough, share) for share in (_COARSE_SHARE, _FINE_SHARE))
    before = pld_epsilon_at(events, delta, relation, coarse)
    now = pld_epsilon_at(events, delta, relation, interval)
    # The error shrinks with the spacing, so that a fivefold step that moves little stands for a halving that does too.
    while before - now > max(0.003 * now, 1e-6) and interval > _FINEST * _scale(rough):
        interval /= 2
        before, now = now, pld_epsilon_at(events, delta, relation, interval)
    return min(before, now, rough)


def quick_epsilon(events: Composition, delta: float, relation: Relation) -> float:
    """The smaller of RDP and PLD on a coarse grid: milliseconds, sound, usually within 0.1 % of ``pld_epsilon``."""
    rough = rdp_epsilon(events, delta, relation)
    if rough > _NO_PRIVACY:
        return rough
    interval = _interval(events, relation, rough, _COARSE_SHARE)
    return min(rough, pld_epsilon_at(events, delta, relation, interval, _of_doublings))


def _interval(events: Composition, relation: Relation, rough: float, share: float) -> float:
    """The grid's spacing as a share of one event's privacy loss: its standard deviation, the mean over all events.

    Rounding a smooth loss to the grid adds about spacing^2 / 6 to its variance, so epsilon grows by share^2 / 12 of itself.
    Where that is finer than memory and time allow, or a loss is not smooth, the spacing is ``share`` percent.
    """
    variance = 0.0
    if all(isinstance(event, dpa.GaussianDpEvent | dpa.PoissonSampledDpEvent) for event, _ in events):
        total = sum(count * _variance(event, relation) for event, count in events)
        variance = total / sum(count for _, count in events)
    return share * max(math.sqrt(variance), 0.01 * _scale(rough))


def _variance(event: DpEvent, relation: Relation) -> float:
    """About the variance of an event's privacy loss, or less: a Renyi divergence of an order near 1 is order / 2 times it."""
    # A replaced patient's samples have two to four times the variance, but a Renyi bound several times above that.
    sampled = isinstance(event, dpa.PoissonSampledDpEvent)
    return 2 * float(_rdp(event, "add-remove" if sampled else relation)[0]) / float(_ORDERS[0])


def _scale(rough: float) -> float:
    # A grid of fixed spacing would not fit into memory for a composition without any privacy to speak of.
    return max(1.0, rough / 20)


def pld_epsilon_at(
    events: Composition, delta: float, relation: Relation, interval: float, compose: Compose | None = None
) -> float:
    """Epsilon at ``delta`` with privacy losses rounded up to multiples of ``interval``.

    Events that only have a Renyi bound enter together, as the worst distribution which that bound allows.
    """
    total = pld.identity(value_discretization_interval=interval)
    renyi = tuple((event, count) for event, count in events if _has_only_renyi(event, relation))
    if renyi:
        total = _worst_pld(_rdp_of(renyi, relation), interval)
    for event, count in events:
        if (event, count) in renyi:
            continue
        # dp-accounting's own PLDAccountant forgets the count of randomised response; here every event is composed.
        total = total.compose((compose or _at_once)(event, count, relation, interval))
    return max(0.0, float(total.get_epsilon_for_delta(delta)))


def _has_only_renyi(event: DpEvent, relation: Relation) -> bool:
    drawn = isinstance(event, dpa.SampledWithoutReplacementDpEvent) and relation == "replace-one"
    return drawn or isinstance(event, dpa.ZCDpEvent | SelectionDpEvent)


def _at_once(event: DpEvent, count: int, relation: Relation, interval: float) -> Any:
    return _single(event, relation, interval).self_compose(count)


def _of_doublings(event: DpEvent, count: int, relation: Relation, interval: float) -> Any:
    """The event composed ``count`` times: kept doublings put together, of which a run's next round needs few or no new."""
    if count >= _MANY_EVENTS:
        return _at_once(event, count, relation, interval)
    parts = [_doubled(event, power, relation, interval) for power in range(count.bit_length()) if count >> power & 1]
    return reduce(lambda one, other: one.compose(other), parts)


@lru_cache(maxsize=128)
def _doubled(event: DpEvent, power: int, relation: Relation, interval: float) -> Any:
    """The event composed 2^power times."""
    if power == 0:
        return _single(event, relation, interval)
    half = _doubled(event, power - 1, relation, interval)
    return half.compose(half)


def _single(event: DpEvent, relation: Relation, interval: float) -> Any:
    return (_coarse_pld if interval >= _MANY_KEPT else _fine_pld)(event, relation, interval)


def _pld(event: DpEvent, relation: Relation, interval: float) -> Any:
    neighbours = _NEIGHBOURS[relation]
    match event:
        case dpa.GaussianDpEvent():
            return pld.from_gaussian_mechanism(
                event.noise_multiplier, value_discretization_interval=interval, neighboring_relation=neighbours
            )
        case dpa.PoissonSampledDpEvent():
            return pld.from_gaussian_mechanism(
                event.event.noise_multiplier, value_discretization_interval=interval,
                sampling_prob=event.sampling_probability, neighboring_relation=neighbours,
            )  # fmt: skip
        case dpa.LaplaceDpEvent():
            # dp-accounting knows only add or remove; a replaced patient moves the sum by twice the clip norm.
            scale = event.noise_multiplier / (2 if relation == "replace-one" else 1)
            return pld.from_laplace_mechanism(scale, value_discretization_interval=interval)
        case dpa.RandomizedResponseDpEvent():
            return pld.from_randomized_response(
                event.noise_parameter, event.num_buckets, value_discretization_interval=interval,
                neighboring_relation=neighbours,
            )  # fmt: skip
        case ApproximateDpEvent():
            terms = DifferentialPrivacyParameters(*_for_one(event, relation))
            return pld.from_privacy_parameters(terms, value_discretization_interval=interval)
        case DiscreteGaussianDpEvent():
            return pld.from_discrete_gaussian_mechanism(
                event.noise_multiplier * event.sensitivity,
                sensitivity=event.sensitivity * (2 if relation == "replace-one" else 1),
                value_discretization_interval=interval,
            )
        case dpa.SampledWithoutReplacementDpEvent():
            return _pld(_as_poisson(event), relation, interval)
        case _:
            raise TypeError(f"{event!r} did not come from merged().")


def _worst_pld(divergence: Floats, interval: float) -> Any:
    """A privacy loss distribution that is no better than any with these Renyi divergences in both directions.

    Its delta at each grid point is the bound's largest convex minorant, which no real delta exceeds, convex in e^epsilon
    as it is; in between it is joined linearly (Doroshenko et al. 2022, Algorithm 1).
    """
    top = 1.0
    while _delta_of_rdp(divergence, np.array([top]))[0] > _NO_TAIL and top < _LARGE:
        top *= 1.5
    steps = math.ceil(top / interval)
    eps = interval * np.arange(steps + 1)
    above = _delta_of_rdp(divergence, eps)
    # By symmetry: what holds for the two neighbours holds for them exchanged.
    below = -np.expm1(-eps[:0:-1]) + np.exp(-eps[:0:-1]) * above[:0:-1]
    deltas = _convex(np.exp(interval * np.arange(-steps, steps + 1)), np.concatenate([below, above]))
    return pld.PrivacyLossDistribution(create_pmf_pessimistic_connect_dots_fixed_gap(interval, -steps, steps, deltas))


def _convex(x: Floats, y: Floats) -> Floats:
    """The largest convex function below the points, at each ``x`` (ascending)."""
    hull: list[int] = []
    for i in range(len(x)):
        while len(hull) > 1:
            before, last = hull[-2], hull[-1]
            if (y[last] - y[before]) * (x[i] - x[before]) < (y[i] - y[before]) * (x[last] - x[before]):
                break
            hull.pop()
        hull.append(i)
    return np.interp(x, x[hull], y[hull])


# A run composes the same few events again and again; fine distributions are large, so fewer of them are kept.
_coarse_pld = lru_cache(maxsize=32)(_pld)
_fine_pld = lru_cache(maxsize=6)(_pld)
