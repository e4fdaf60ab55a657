"""A privacy filter: the budget holds although every request is chosen after the answers before it were seen.

The accountants compose events that were fixed in advance. A coordinator may choose its next request by the answers, and
then their composition is no bound. Three rules hold all the same, for a budget (epsilon, delta) and any neighbouring
relation; docs/privacy/filter.md proves them.

1. *One plan.* A plan is declared before its first answer. Its requests, in any order and however many of them are made,
   are post-processing of one non-adaptive composition: the accountant's bound on the whole plan holds.
2. *Gaussian differential privacy.* Releases are mu_i-GDP up to a probability slack_i, each chosen adaptively. They cost at
   most epsilon while sum(mu_i^2) is at most what one Gaussian release may have at delta - sum(slack_i). Smith and Thakurta
   2022 (arXiv 2210.17520) and Koskela, Tobaben and Honkela 2023 (arXiv 2209.15596) for sums of mu^2; Rogers,
   Roth, Ullman and Vadhan 2016 (arXiv 1605.08294) for filters.
3. *Pure releases.* The sum of their epsilons bounds their loss with certainty, so that a part of epsilon may be kept for
   them and the rest for the others. Which part need not be said beforehand: each has its own share of delta.

A Gaussian's own mu is exact, so that rule 2 costs Gaussian releases only the share of delta that is kept for the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import dp_accounting as dpa
import numpy as np
from scipy import special

from polyclinic.privacy.accounting.bounds import quick_losses, rounding
from polyclinic.privacy.accounting.composition import gdp_epsilon
from polyclinic.privacy.accounting.renyi import for_one, own_deltas, rdp_epsilon
from polyclinic.privacy.events import MOVES, ApproximateDpEvent, Composition, Relation
from polyclinic.types import Reals

# Shares of delta that are kept, whatever is asked, for releases that are Gaussian up to a small probability only.
_OF_PLANS, _OF_SINGLES, _OF_OWN_DELTAS = 0.04, 0.01, 0.05
# Parts of epsilon that pure releases may have, and the share of delta of each such division; with the above they add up to 1.
_DIVISIONS = ((0.0, 0.75), (1 / 8, 0.05), (1 / 4, 0.05), (1 / 2, 0.05))
MOST_SINGLES = 1000  # releases beside any plan that a share is kept for
_GRID_POINTS = 2000
_LARGEST_MU = 50.0
_NO_PRIVACY = 1e4


@dataclass(frozen=True)
class Piece:
    """Events that were fixed together before the first of them was answered.

    ``composition``: the events with their counts, merged.
    ``place``: the plan's place among the ledger's runs, from 1 on; 0 for a single release beside any plan, of which there
    may be a thousand.

    Examples:
        >>> from polyclinic.privacy.events import gaussian_event, merge_events
        >>> first, single = Piece(merge_events(gaussian_event(4.0)), place=1), Piece(merge_events(gaussian_event(4.0)))
        >>> round(first.slack(1e-5), 9), round(single.slack(1e-5), 12)
        (2e-07, 1e-10)
    """

    composition: Composition
    place: int = 0

    def slack(self, delta: float) -> float:
        """The probability with which the piece may fail to be Gaussian; over all pieces it stays below what is kept."""
        share = _OF_PLANS / (self.place * (self.place + 1)) if self.place else _OF_SINGLES / MOST_SINGLES
        return share * delta


def filter_epsilon(pieces: Sequence[Piece], delta: float, relation: Relation) -> float:
    """The least epsilon for which the filter allows the pieces at ``delta``, however each was chosen by earlier answers.

    Args:
        pieces: All plans and single releases of one ledger.
        delta: Of the guarantee over all pieces together.
        relation: The neighbouring relation.

    Returns:
        Epsilon; infinite where a piece is Gaussian at no mu.

    Examples:
        >>> from polyclinic.privacy.events import gaussian_event, merge_events
        >>> answers = [Piece(merge_events(gaussian_event(4.0)), place) for place in (1, 2, 3)]  # three runs, one after the other
        >>> round(filter_epsilon(answers[:1], 1e-5, "add-remove"), 2), round(filter_epsilon(answers, 1e-5, "add-remove"), 2)
        (0.94, 1.73)
    """
    if any(isinstance(event, dpa.NonPrivateDpEvent) for piece in pieces for event, _ in piece.composition):
        return math.inf
    if sum(not piece.place and not is_gaussian(piece.composition) for piece in pieces) > MOST_SINGLES:
        return math.inf
    if sum(own_deltas(piece.composition, relation) for piece in pieces) > _OF_OWN_DELTAS * delta:
        return math.inf
    pure, others, pure_mu = 0.0, 0.0, 0.0
    for piece in pieces:
        squared = _mu_squared(piece.composition, piece.slack(delta), relation)
        epsilon = pure_epsilon(piece.composition, relation)
        if math.isfinite(epsilon):
            pure, pure_mu = pure + epsilon, pure_mu + squared
        else:
            others += squared
    bounds = [pure] if not others else []
    for part, share in _DIVISIONS:
        squared = others if part else others + pure_mu
        if math.isfinite(squared):
            gaussian = gdp_epsilon(math.sqrt(squared), share * delta) / (1 - part)
            bounds.append(max(gaussian, pure / part) if part else gaussian)
    return min(bounds, default=math.inf)


def pure_epsilon(composition: Composition, relation: Relation) -> float:
    """The sum of the events' epsilons where all are pure; else infinite.

    Examples:
        >>> from polyclinic.privacy.events import gaussian_event, merge_events, pure_event
        >>> pure_epsilon(((pure_event(0.5), 3),), "add-remove"), pure_epsilon(((pure_event(0.5), 3),), "replace-one")
        (1.5, 3.0)
        >>> pure_epsilon(merge_events(gaussian_event(4.0)), "add-remove")
        inf
    """
    total = 0.0
    for event, count in composition:
        match event:
            case ApproximateDpEvent() if event.delta == 0:
                total += count * for_one(event, relation)[0]
            case dpa.LaplaceDpEvent():
                total += count * MOVES[relation] / event.noise_multiplier
            case _:
                return math.inf
    return total


def is_gaussian(composition: Composition) -> bool:
    """Whether all events are sums with Gaussian noise, of which mu is exact and adds up one by one.

    Examples:
        >>> from polyclinic.privacy.events import dpsgd_event, gaussian_event, merge_events
        >>> is_gaussian(merge_events(gaussian_event(4.0))), is_gaussian(merge_events(dpsgd_event(0.1, 1.0, steps=10)))
        (True, False)
    """
    return all(isinstance(event, dpa.GaussianDpEvent) for event, _ in composition)


@lru_cache(maxsize=4096)
def _mu_squared(composition: Composition, slack: float, relation: Relation) -> float:
    gaussian = tuple(part for part in composition if isinstance(part[0], dpa.GaussianDpEvent))
    rest = tuple(part for part in composition if part not in gaussian)
    exact = float(sum(count * (MOVES[relation] / event.noise_multiplier) ** 2 for event, count in gaussian))
    return exact + (min(_pure(rest, relation), _numeric(rest, slack, relation)) if rest else 0.0)


def _pure(rest: Composition, relation: Relation) -> float:
    """The sum of mu^2 of pure releases.

    Randomised response with epsilon is mu-GDP at mu = 2 Phi^-1(1 / (1 + e^-epsilon)). Every pure release can be made from
    it (Dong, Roth and Su 2022, Proposition 3; Kairouz, Oh and Viswanath 2017).
    """
    total = 0.0
    for event, count in rest:
        epsilon = pure_epsilon(((event, 1),), relation)
        if not math.isfinite(epsilon):
            return math.inf
        total += count * (2 * float(special.ndtri(special.expit(-epsilon)))) ** 2
    return total


def _numeric(rest: Composition, slack: float, relation: Relation) -> float:
    """The least mu^2 with delta_rest(eps) <= p + (1 - p) delta_mu(eps) at every eps >= 0 and in both directions, where p is
    ``slack`` and the events' own deltas. Between two points of the grid the left end bounds the first, the right the other.
    """
    most = slack + own_deltas(rest, relation)
    rough = rdp_epsilon(rest, most, relation)
    if rough == 0 or rough > _NO_PRIVACY:
        return 0.0 if rough == 0 else math.inf
    distribution = quick_losses(rest, rough, relation)

    def deltas(eps: Reals) -> Reals:
        return np.asarray(distribution.get_delta_for_epsilon(eps), dtype=np.float64) + rounding(rest)

    top = 1.0
    while top < _NO_PRIVACY and deltas(np.array([top]))[0] > most:
        top *= 1.5
    grid = np.concatenate([[0.0], np.geomspace(1e-4 * top, top, _GRID_POINTS)])
    needed = (deltas(grid[:-1]) - most) / (1 - most)

    def enough(mu: float) -> bool:
        up = special.log_ndtr(mu / 2 - grid[1:] / mu)
        down = grid[1:] + special.log_ndtr(-mu / 2 - grid[1:] / mu)
        return bool((np.exp(up) * -np.expm1(np.minimum(down - up, 0.0)) >= needed).all())

    low, high = 0.0, _LARGEST_MU
    if not enough(high):
        return math.inf
    while high - low > 1e-9 + 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high**2
