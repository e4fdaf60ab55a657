"""What an attacker can learn at most, in words that need no epsilon: told from the privacy loss of all that was released.

The attacker knows everybody else's records and all that was released, and guesses of one patient: there or not (under
"add-remove"), or this record or that one (under "replace-one"). Both numbers are upper bounds over all ways to guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from dp_accounting import DpEvent, NonPrivateDpEvent
from scipy import optimize

from polyclinic.privacy.accounting import composition_of
from polyclinic.privacy.accounting.bounds import losses, rounding
from polyclinic.privacy.accounting.renyi import own_deltas, rdp_epsilon
from polyclinic.privacy.events import Relation

FALSE_POSITIVE_RATE = 0.01
_USUAL_DELTA = 1e-5
_NO_PRIVACY = 600.0  # an epsilon beyond which losses would say nothing, take minutes, and might not fit into memory
_LEAST_SLOPE = 1e-4  # of true positives over false ones; beyond, an attacker finds all but one in ten thousand


@dataclass(frozen=True)
class Risk:
    """advantage: the most by which the rate of true guesses exceeds that of false alarms; 0 learns nothing, 1 all.
    tpr_at_1_percent_fpr: the share of patients found by one who is wrong about 1 in 100 others; 0.01 learns nothing.

    Examples:
        >>> Risk(advantage=0.1, tpr_at_1_percent_fpr=0.02).as_dict()
        {'advantage': 0.1, 'tpr_at_1_percent_fpr': 0.02}
    """

    advantage: float
    tpr_at_1_percent_fpr: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


NO_RISK, CERTAINTY = Risk(0.0, FALSE_POSITIVE_RATE), Risk(1.0, 1.0)


def worst(risks: Iterable[Risk]) -> Risk:
    """The larger of each number over all ``risks``, of which there is at least one.

    Examples:
        >>> worst([Risk(0.1, 0.05), Risk(0.2, 0.03)])
        Risk(advantage=0.2, tpr_at_1_percent_fpr=0.05)
    """
    advantages, true_positives = zip(*((risk.advantage, risk.tpr_at_1_percent_fpr) for risk in risks), strict=True)
    return Risk(max(advantages), max(true_positives))


def risk(event: DpEvent, relation: Relation = "add-remove") -> Risk:
    """The risk of one patient after ``event``; both neighbours of a pair are the attacker's null hypothesis, the worse counts.

    Raises ConfigError for events that cannot be accounted under the relation.

    Examples:
        >>> from polyclinic.privacy.events import gaussian_event
        >>> strong, weak = risk(gaussian_event(4.0)), risk(gaussian_event(0.5))
        >>> round(strong.advantage, 2), round(weak.advantage, 2), round(weak.tpr_at_1_percent_fpr, 2)
        (0.1, 0.68, 0.37)
    """
    events = composition_of(event, relation)
    if not events:
        return NO_RISK
    # Losses are looked at where epsilon is finite: above the probability with which the events may tell all.
    delta = own_deltas(events, relation) + _USUAL_DELTA
    if any(isinstance(part, NonPrivateDpEvent) for part, _ in events) or delta >= 1:
        return CERTAINTY
    eps = rdp_epsilon(events, delta, relation)
    if eps > _NO_PRIVACY:
        return CERTAINTY
    if eps == 0:  # a grid for losses that are so much larger than epsilon might not fit into memory
        return Risk(delta, FALSE_POSITIVE_RATE + delta)
    distribution, error = losses(events, delta, relation), rounding(events)

    def curve(eps: float) -> float:
        return float(distribution.get_delta_for_epsilon(eps)) + error

    return Risk(min(1.0, curve(0.0)), _true_positives(curve, FALSE_POSITIVE_RATE))


def _true_positives(curve: Callable[[float], float], false_positives: float) -> float:
    """The least e^epsilon false_positives + delta(epsilon): Wasserman and Zhou 2010, on tests of one patient.

    Exact at the best epsilon (Dong, Roth and Su, arXiv 1905.02383, Proposition 2.12), where e^epsilon is the slope, at most
    1 / false_positives. Any epsilon gives a bound, so that the search need not be perfect.
    """
    slopes = _LEAST_SLOPE, 1 / false_positives
    minimum = optimize.minimize_scalar(
        lambda log: math.exp(log) * false_positives + curve(float(log)),
        bounds=(math.log(slopes[0]), math.log(slopes[1])),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return min(1.0, float(minimum.fun))
