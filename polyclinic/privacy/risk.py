"""What an attacker can learn at most, in words that need no epsilon: told from the privacy loss of all that was released.

The attacker knows everybody else's records and all that was released, and guesses of one patient: there or not (under
"add-remove"), or this record or that one (under "replace-one"). Both numbers are upper bounds over all ways to guess.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from dp_accounting import DpEvent, NonPrivateDpEvent
from scipy import optimize

from polyclinic.privacy.accounting import composition_of
from polyclinic.privacy.bounds import losses, without_privacy
from polyclinic.privacy.events import Relation

FALSE_POSITIVE_RATE = 0.01
_LEAST_SLOPE = 1e-4  # of true positives over false ones; beyond, an attacker finds all but one in ten thousand


@dataclass(frozen=True)
class Risk:
    """advantage: the most by which the rate of true guesses exceeds that of false alarms; 0 learns nothing, 1 all.
    tpr_at_1_percent_fpr: the share of patients found by one who is wrong about 1 in 100 others; 0.01 learns nothing.
    """

    advantage: float
    tpr_at_1_percent_fpr: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def risk(event: DpEvent, relation: Relation = "add-remove") -> Risk:
    """The risk of one patient after ``event``; both neighbours of a pair are the attacker's null hypothesis, the worse counts.

    Raises ConfigError for events that cannot be accounted under the relation.
    """
    events = composition_of(event, relation)
    if not events:
        return Risk(0.0, FALSE_POSITIVE_RATE)
    if any(isinstance(part, NonPrivateDpEvent) for part, _ in events) or without_privacy(events, relation):
        return Risk(1.0, 1.0)
    distribution = losses(events, relation)
    return Risk(min(1.0, _delta(distribution, 0.0)), _true_positives(distribution, FALSE_POSITIVE_RATE))


def _true_positives(distribution: object, false_positives: float) -> float:
    """The least e^epsilon false_positives + delta(epsilon): Wasserman and Zhou 2010, Theorem 2.4.

    Exact at the best epsilon (Dong, Roth and Su 2022, Proposition 2.12), where e^epsilon is the slope, at most
    1 / false_positives. Any epsilon gives a bound, so that the search need not be perfect.
    """
    slopes = _LEAST_SLOPE, 1 / false_positives
    found = optimize.minimize_scalar(
        lambda log: math.exp(log) * false_positives + _delta(distribution, log),
        bounds=(math.log(slopes[0]), math.log(slopes[1])),
        method="bounded",
        options={"xatol": 1e-6},
    )
    return min(1.0, float(found.fun))


def _delta(distribution: object, epsilon: float) -> float:
    return float(distribution.get_delta_for_epsilon(float(epsilon)))  # type: ignore[attr-defined]
