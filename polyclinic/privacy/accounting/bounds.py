"""Upper bounds on epsilon for a merged composition by privacy loss distributions (PLD): Google's dp-accounting, rounded
to the safe side, on grids that suit what is composed. Choosing and checking is ``accounting``'s part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Any

import dp_accounting as dpa
import numpy as np
from dp_accounting import DpEvent
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.pld.pld_pmf import DensePLDPmf, create_pmf_pessimistic_connect_dots

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting.renyi import ORDERS, as_poisson, delta_of, divergence, for_one, rdp_epsilon, total
from polyclinic.privacy.events import (
    MOVES,
    ApproximateDpEvent,
    Composition,
    DiscreteGaussianDpEvent,
    Relation,
    SelectionDpEvent,
)
from polyclinic.types import Reals

Compose = Callable[[DpEvent, int, Relation, float], Any]

_COARSE_SHARE, _FINE_SHARE = 0.1, 0.02
_FINEST = 1e-6
_MANY_KEPT = 1e-4
_MANY_EVENTS = 4096  # beyond, cutting the tails of every doubling would add up
_VERY_MANY = 100_000
_NO_PRIVACY = 1e4  # beyond this RDP is as good a bound as any
_MOST_JOINED = 4000
_NO_TAIL = 1e-18  # a delta that no composition notices
_LARGE = 500.0  # where exp comes near to overflow
_MOST_POINTS = 1e5  # of a discrete Gaussian's deviation, or of a patient's weight; each takes hundreds of bytes
_NEIGHBOURS = {
    "add-remove": dpa.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace-one": dpa.NeighboringRelation.REPLACE_ONE,
}


def pld_epsilon(events: Composition, delta: float, relation: Relation) -> float:
    """Epsilon at ``delta`` by privacy loss distributions, on a grid refined until halving moves it < 0.3 %.

    Args:
        events: Merged, with the number of times that each occurs.
        delta: Of the guarantee.
        relation: The neighbouring relation.
    """
    return _refine(events, delta, relation)[0]


def losses(events: Composition, delta: float, relation: Relation) -> Any:
    """The privacy loss distribution of all events together, rounded to the safe side as ``pld_epsilon`` does at ``delta``.

    Args:
        events: Merged, with the number of times that each occurs.
        delta: Chooses the grid: the one on which ``pld_epsilon`` ends.
        relation: The neighbouring relation.
    """
    return compose_events(events, relation, _refine(events, delta, relation)[1])


def quick_losses(events: Composition, rough: float, relation: Relation) -> Any:
    """The privacy loss distribution of all events together on a coarse grid, in milliseconds, rounded to the safe side.

    Args:
        events: Merged, with the number of times that each occurs.
        rough: A bound on epsilon, which sets the grid's spacing.
        relation: The neighbouring relation.
    """
    return compose_events(events, relation, _interval(events, relation, rough, _COARSE_SHARE), _of_doublings)


def rounding(events: Composition) -> float:
    """By how much composing by Fourier transforms may err, up or down, in a delta: up to some 3e-17 for every event."""
    return 2.0**-54 * sum(count for _, count in events)


@lru_cache(maxsize=256)
def _refine(events: Composition, delta: float, relation: Relation) -> tuple[float, float]:
    """Epsilon, and the grid's spacing that gave it."""
    rough = rdp_epsilon(events, delta, relation)
    bounded = min(rough, _NO_PRIVACY)
    coarse, interval = (_interval(events, relation, bounded, share) for share in (_COARSE_SHARE, _FINE_SHARE))
    if rough > _NO_PRIVACY:
        return rough, coarse
    if rough == 0:
        # A grid for losses that are so much larger than epsilon would not fit into memory.
        return rough, interval
    before = pld_epsilon_at(events, delta, relation, coarse)
    now = pld_epsilon_at(events, delta, relation, interval)
    # The error shrinks with the spacing, so that a fivefold step that moves little stands for a halving that does too.
    while before - now > 0.003 * now and interval > _FINEST * _scale(rough):
        interval /= 2
        before, now = now, pld_epsilon_at(events, delta, relation, interval)
    # Beyond some fineness the rounding of probabilities, upwards as well, gains on that of losses.
    return min(before, now, rough), interval if now <= before else 2 * interval


def quick_epsilon(events: Composition, delta: float, relation: Relation) -> float:
    """The smaller of RDP and PLD on a coarse grid: milliseconds, sound, usually within 0.1 % of ``pld_epsilon``.

    Args:
        events: Merged, with the number of times that each occurs.
        delta: Of the guarantee.
        relation: The neighbouring relation.
    """
    rough = rdp_epsilon(events, delta, relation)
    if rough == 0 or rough > _NO_PRIVACY:
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
    return 2 * float(divergence(event, "add-remove" if sampled else relation)[0]) / float(ORDERS[0])


def _scale(rough: float) -> float:
    # A grid of fixed spacing would not fit into memory for a composition without any privacy to speak of, and would
    # be too coarse for one that hardly costs.
    return rough / 20 if rough > 20 else min(1.0, max(rough, 1e-4))


def pld_epsilon_at(
    events: Composition, delta: float, relation: Relation, interval: float, compose: Compose | None = None
) -> float:
    """Epsilon at ``delta`` with privacy losses rounded up to multiples of ``interval``.

    Args:
        events: Merged, with the number of times that each occurs.
        delta: Of the guarantee. What Fourier transforms may err is taken off it.
        relation: The neighbouring relation.
        interval: The grid's spacing, in units of epsilon.
        compose: Composes one event with itself; by default all its occurrences at once.
    """
    return _epsilon_of(compose_events(events, relation, interval, compose), delta - rounding(events))


def _epsilon_of(distribution: Any, delta: float) -> float:
    """The least epsilon with at most ``delta``."""
    directions = [distribution._pmf_remove] + ([] if distribution._symmetric else [distribution._pmf_add])
    least = max(_least_epsilon(direction.to_dense_pmf(), delta) for direction in directions)
    return least + 1e-10 * (1 + least) if least else 0.0


def _least_epsilon(losses: DensePLDPmf, delta: float) -> float:
    """The least epsilon at which the hockey-stick divergence of one direction is at most ``delta``.

    Let the grid have losses l_k with probabilities p_k, and let epsilon lie in [l_{k-1}, l_k]. The divergence is then

        sum_{i >= k} p_i - exp(epsilon - l_k) sum_{i >= k} p_i exp(l_k - l_i),

    which is solved for epsilon. dp-accounting's own sums over all losses for every epsilon that a search tries.
    """
    left = delta - losses._infinity_mass
    if left < 0:
        return math.inf
    interval, lowest = losses._discretization, losses._lower_loss
    probabilities = np.maximum(
        losses._probs[max(1 - lowest, 0) :], 0.0
    )  # of the losses above 0, without transforms' rounding
    first = max(lowest, 1)
    above = np.cumsum(probabilities[::-1])[::-1]
    # At epsilon the divergence is at most what lies above it, and at least 1 - 1/e of what lies above epsilon + 1.
    end = int(np.count_nonzero(above > left))
    if end == 0:
        return 0.0
    begin = int(np.count_nonzero(above > left / (1 - math.exp(-1)))) - 1 - math.ceil(1 / interval)
    begin = max(begin, end - int(_LARGE / interval), 0)
    points = interval * (first + np.arange(begin, len(above)))
    weights = np.exp(interval * (first + end) - points)
    weighted = np.cumsum((probabilities[begin:] * weights)[::-1])[::-1]
    # By how much the divergence is too large at each loss, where the loss itself no longer counts.
    few = slice(end - begin)
    excess = above[begin:][few] - weighted[few] / weights[few] - left
    place = int(np.count_nonzero(excess > 0))
    if place == 0 and begin > 0 or place == end - begin:
        return float(interval * (first + begin + place))
    share = (above[begin + place] - left) * weights[place] / weighted[place]
    return max(0.0, float(points[place] + math.log(share)))


@lru_cache(maxsize=2)
def compose_events(events: Composition, relation: Relation, interval: float, compose: Compose | None = None) -> Any:
    """The privacy loss distribution of all events together, losses rounded up to multiples of ``interval``.

    Events that only have a Renyi bound enter together, as the worst distribution which that bound allows.

    Args:
        events: Merged, with the number of times that each occurs.
        relation: The neighbouring relation.
        interval: The grid's spacing, in units of epsilon.
        compose: Composes one event with itself; by default all its occurrences at once.

    Raises:
        ConfigError: for so little noise that nearly all losses lie beyond any grid.
    """
    renyi = tuple((event, count) for event, count in events if _has_only_renyi(event, relation))
    # dp-accounting's own PLDAccountant forgets the count of randomised response; here every event is composed.
    try:
        parts = [(compose or _at_once)(event, count, relation, interval) for event, count in events
                 if (event, count) not in renyi]  # fmt: skip
        if renyi:
            parts.append(_worst_pld(total(renyi, relation), interval))
        return reduce(lambda first, second: first.compose(second), parts)
    except IndexError:  # of dp-accounting, where no loss is left after tails are cut
        raise ConfigError(
            "the noise would be so small that privacy losses cannot be composed; ask for a smaller epsilon, of some hundreds at "
            "most."
        ) from None


def _has_only_renyi(event: DpEvent, relation: Relation) -> bool:
    drawn = isinstance(event, dpa.SampledWithoutReplacementDpEvent) and relation == "replace-one"
    wide = isinstance(event, DiscreteGaussianDpEvent) and (
        max(event.noise_multiplier, 1.0) * event.sensitivity > _MOST_POINTS
    )
    return drawn or wide or isinstance(event, dpa.ZCDpEvent | SelectionDpEvent)


def _at_once(event: DpEvent, count: int, relation: Relation, interval: float) -> Any:
    single = _single(event, relation, interval)
    if count == 1:
        return single
    # A sparse one would first raise its size to the power of the count, as a whole number.
    directions = [single._pmf_remove] if single._symmetric else [single._pmf_remove, single._pmf_add]
    dense = pld.PrivacyLossDistribution(*(direction.to_dense_pmf() for direction in directions))
    if count < _VERY_MANY:
        return dense.self_compose(count)
    # In two stages: the library bounds the tails of very many short distributions many times too wide.
    several = math.isqrt(count)
    stages = dense.self_compose(several).self_compose(count // several)
    left = count % several
    return stages.compose(dense.self_compose(left)) if left else stages


def _of_doublings(event: DpEvent, count: int, relation: Relation, interval: float) -> Any:
    """The event composed ``count`` times: kept doublings put together, of which a run's next round needs few or no new."""
    if count >= _MANY_EVENTS:
        return _at_once(event, count, relation, interval)
    parts = [
        _compose_power(event, power, relation, interval) for power in range(count.bit_length()) if count >> power & 1
    ]
    return reduce(lambda first, second: first.compose(second), parts)


@lru_cache(maxsize=128)
def _compose_power(event: DpEvent, power: int, relation: Relation, interval: float) -> Any:
    """The event composed 2^power times."""
    if power == 0:
        return _single(event, relation, interval)
    half = _compose_power(event, power - 1, relation, interval)
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
            sampled = pld.from_gaussian_mechanism(
                event.event.noise_multiplier, value_discretization_interval=interval,
                sampling_prob=event.sampling_probability, neighboring_relation=neighbours,
            )  # fmt: skip
            return _accurate(sampled._pmf_remove.to_dense_pmf(), relation)
        case dpa.LaplaceDpEvent():
            # dp-accounting knows only add or remove; a replaced patient moves the sum by twice the clip norm.
            scale = event.noise_multiplier / MOVES[relation]
            return pld.from_laplace_mechanism(scale, value_discretization_interval=interval)
        case dpa.RandomizedResponseDpEvent():
            return pld.from_randomized_response(
                event.noise_parameter, event.num_buckets, value_discretization_interval=interval,
                neighboring_relation=neighbours,
            )  # fmt: skip
        case ApproximateDpEvent():
            terms = DifferentialPrivacyParameters(*for_one(event, relation))
            return pld.from_privacy_parameters(terms, value_discretization_interval=interval)
        case DiscreteGaussianDpEvent():
            return pld.from_discrete_gaussian_mechanism(
                event.noise_multiplier * event.sensitivity,
                sensitivity=event.sensitivity * MOVES[relation],
                value_discretization_interval=interval,
            )
        case dpa.SampledWithoutReplacementDpEvent():
            return _pld(as_poisson(event), relation, interval)
        case _:
            raise TypeError(f"{event!r} did not come from merge_events().")


def _accurate(removed: Any, relation: Relation) -> Any:
    """A sampled Gaussian's distribution without the rounding of probabilities, upwards, that millions of steps show.

    removed: the losses of a pair of neighbours, of which the positive ones are accurate. Those of the pair exchanged have
    the probabilities exp(-loss) times those of the opposite losses; where a patient is replaced the two are the same.
    """
    interval, below, probs = removed._discretization, -removed._lower_loss, removed._probs
    steps = np.arange(len(probs)) - below
    opposite = (probs * np.exp(-interval * steps))[::-1]
    if relation == "add-remove":
        added = DensePLDPmf(interval, 1 + below - len(probs), opposite, 0.0, True)
        return pld.PrivacyLossDistribution(removed, added)
    gains = probs[steps > 0]
    falls = opposite[: len(gains)]
    none = max(0.0, 1 - removed._infinity_mass - gains.sum() - falls.sum())
    both = np.concatenate([falls, [none], gains])
    return pld.PrivacyLossDistribution(DensePLDPmf(interval, -len(gains), both, removed._infinity_mass, True))


def _worst_pld(bound: Reals, interval: float) -> Any:
    """A privacy loss distribution that is no better than any with these Renyi divergences in both directions.

    Its delta at each of at most 8001 points of the grid is the bound's largest convex minorant. No real delta exceeds
    that, since a real delta is convex in e^epsilon. In between it is joined linearly (Doroshenko et al. 2022, Algorithm 1).
    """
    top = 2.0**-10
    while delta_of(bound, np.array([top]))[0] > _NO_TAIL and top < _LARGE:
        top *= 1.5
    stride = math.ceil(top / interval / _MOST_JOINED)
    eps = stride * interval * np.arange(math.ceil(top / interval / stride) + 1)
    above = delta_of(bound, eps)
    # By symmetry: what holds for the two neighbours holds for them exchanged.
    below = -np.expm1(-eps[:0:-1]) + np.exp(-eps[:0:-1]) * above[:0:-1]
    both = np.concatenate([-eps[:0:-1], eps])
    deltas = _convex(np.exp(both), np.concatenate([below, above]))
    joined = create_pmf_pessimistic_connect_dots(interval, np.rint(both / interval), deltas)
    return pld.PrivacyLossDistribution(joined)


def _convex(x: Reals, y: Reals) -> Reals:
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
