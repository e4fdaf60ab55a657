"""What releases cost: epsilon of a composition, the noise for a target, and the plan of a whole run.

Every epsilon is an upper bound for one patient's protection, under a stated delta and neighbouring relation.
"add-remove" hides whether a patient is there. "replace-one" hides a patient's records among all records that could have
stood in their place, and costs about twice as much. Events' noise is relative to the clip norm in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_DOWN, Context, Decimal
from functools import lru_cache
from typing import Any, Literal, get_args

import dp_accounting as dpa
from dp_accounting import DpEvent

from polyclinic.errors import ConfigError, nearest
from polyclinic.privacy.accounting.bounds import pld_epsilon, quick_epsilon
from polyclinic.privacy.accounting.renyi import rdp_epsilon
from polyclinic.privacy.events import (
    Composition,
    Relation,
    dpsgd_event,
    event_from_json,
    event_to_json,
    gaussian_event,
    merge_events,
)
from polyclinic.privacy.streams import LEAST_DELTA

__all__ = [
    "ACCOUNTANTS", "RELATIONS", "Accountant", "Charges", "PrivacyPlan", "Relation", "calibrate_noise_multiplier", "check_terms",
    "composition_of", "dpsgd_event", "epsilon", "event_from_json", "event_to_json", "gaussian_event", "plan",
    "usual_delta",
]  # fmt: skip

Accountant = Literal["pld", "rdp"]
# Events and how often each is charged.
Charges = tuple[tuple[DpEvent, int], ...]
ACCOUNTANTS: tuple[str, ...] = get_args(Accountant)
RELATIONS: tuple[str, ...] = get_args(Relation)
_NEAR, _CLOSE = 0.02, 0.002  # how far below its target a calibrated epsilon may lie: on the way, and in the end
_SMALLEST_NOISE, _LARGEST_NOISE = 1e-2, 1e6
_LEAST_DELTA = 1e-100
_SHOWN_ONLY = {
    "gdp": "accountant 'gdp' is an approximation that can understate epsilon",
    "prv": "accountant 'prv' is a check of 'pld'",
    **dict.fromkeys(("basic", "advanced", "zcdp"), "accountant {!r} overstates epsilon many times"),
}


def usual_delta(patients: int) -> float:
    """A tenth of one over ``patients``, rounded down to one digit, and at least the least that is enforced (1e-12).

    A mechanism that hands out one patient's record outright with probability delta then does so once in ten runs at most.
    Rounding leaves next to nothing of the number in it.

    Examples:
        >>> usual_delta(569), usual_delta(1000), usual_delta(40_000)
        (0.0001, 0.0001, 2e-06)
    """
    digit = Context(prec=1, rounding=ROUND_DOWN).divide(Decimal(1), Decimal(10 * max(patients, 1)))
    return max(float(digit), LEAST_DELTA)


def check_terms(delta: float, accountant: str, relation: str) -> None:
    """Check delta, accountant and relation.

    Args:
        delta: Of the guarantee, in [1e-100, 1).
        accountant: Name of an accountant that enforces budgets, "pld" or "rdp".
        relation: The neighbouring relation, "add-remove" or "replace-one".

    Raises:
        ConfigError: if ``delta`` is out of range, or the accountant or the relation is unknown.

    Examples:
        >>> check_terms(1e-5, "pld", "add-remove")
        >>> check_terms(1.0, "pld", "add-remove")
        Traceback (most recent call last):
            ...
        polyclinic.errors.ConfigError: delta must lie in (0, 1) and be at least 1e-100, got 1.0.
    """
    if not _LEAST_DELTA <= delta < 1:
        raise ConfigError(f"delta must lie in (0, 1) and be at least {_LEAST_DELTA:g}, got {delta}.")
    if accountant in _SHOWN_ONLY:
        raise ConfigError(
            f"{_SHOWN_ONLY[accountant].format(accountant)}: `polyclinic account` shows it, but only "
            f"{' and '.join(ACCOUNTANTS)} enforce."
        )
    if accountant not in ACCOUNTANTS:
        hint = nearest(accountant, ACCOUNTANTS)
        raise ConfigError(f"accountant must be one of {', '.join(ACCOUNTANTS)}, got {accountant!r}.{hint}")
    if relation not in RELATIONS:
        raise ConfigError(
            f"relation must be one of {', '.join(RELATIONS)}, got {relation!r}.{nearest(relation, RELATIONS)}"
        )


def epsilon(
    event: DpEvent, delta: float, accountant: Accountant = "pld", relation: Relation = "add-remove", quick: bool = False
) -> float:
    """An upper bound on the epsilon that ``event`` spends at ``delta``; infinite if any part has no noise.

    Args:
        event: A release, or a composition of releases that were fixed in advance.
        delta: Of the guarantee, in [1e-100, 1).
        accountant: "pld" is the tight one that is reported; "rdp" is Opacus' Renyi bound.
        relation: The neighbouring relation, "add-remove" or "replace-one".
        quick: Lets "pld" round on a coarse grid or answer with RDP, whichever is smaller. It is still an upper bound, for
            decisions made often.

    Raises:
        ConfigError: for bad terms and for events that cannot be accounted under the relation.

    Examples:
        >>> round(epsilon(gaussian_event(4.0), delta=1e-5), 2)
        0.93
        >>> round(epsilon(gaussian_event(4.0), delta=1e-5, relation="replace-one"), 2)
        1.99
        >>> round(epsilon(dpsgd_event(sample_rate=0.01, noise_multiplier=1.0, steps=1000), delta=1e-5), 2)
        1.83
    """
    check_terms(delta, accountant, relation)
    events = composition_of(event, relation)
    if any(isinstance(part, dpa.NonPrivateDpEvent) for part, _ in events):
        return math.inf
    return _epsilon(events, delta, accountant, relation, quick) if events else 0.0


def composition_of(event: DpEvent, relation: Relation) -> Composition:
    """``merge_events(event)``; raises ConfigError for what cannot be accounted at all, or not under the relation.

    Examples:
        >>> composition_of(gaussian_event(2.0, count=4), "add-remove")
        ((GaussianDpEvent(noise_multiplier=1.0), 1),)
    """
    events = merge_events(event)
    if relation == "add-remove" and any(isinstance(part, dpa.RandomizedResponseDpEvent) for part, _ in events):
        raise ConfigError("Randomised response answers for a patient who is there: relation must be 'replace-one'.")
    return events


@lru_cache(maxsize=4096)
def _epsilon(events: Composition, delta: float, accountant: Accountant, relation: Relation, quick: bool) -> float:
    if accountant == "rdp":
        return rdp_epsilon(events, delta, relation)
    return (quick_epsilon if quick else pld_epsilon)(events, delta, relation)


def calibrate_noise_multiplier(
    target_epsilon: float,
    delta: float,
    event_of: Callable[[float], DpEvent],
    accountant: Accountant = "pld",
    relation: Relation = "add-remove",
) -> float:
    """The smallest noise multiplier whose ``event_of(noise)`` spends at most ``target_epsilon``, and at least 0.995 of it.

    It may spend less where even the smallest noise, 0.01, does, or where cost jumps.

    Args:
        target_epsilon: The most that the event may spend, positive and finite.
        delta: Of the guarantee, in [1e-100, 1).
        event_of: Makes the event of a noise multiplier. More noise must not cost more.
        accountant: "pld" is the tight one that is reported; "rdp" is Opacus' Renyi bound.
        relation: The neighbouring relation, "add-remove" or "replace-one".

    Raises:
        ConfigError: if the target is not positive and finite, or no noise reaches it.

    Examples:
        >>> noise = calibrate_noise_multiplier(1.0, 1e-5, gaussian_event)
        >>> round(noise, 2), epsilon(gaussian_event(noise), 1e-5) <= 1.0
        (3.73, True)
    """
    check_terms(delta, accountant, relation)
    if not (math.isfinite(target_epsilon) and target_epsilon > 0):
        raise ConfigError(f"target_epsilon must be positive and finite, got {target_epsilon}.")

    def cost(by: Accountant, quick: bool = False) -> Callable[[float], float]:
        return lambda noise: epsilon(event_of(noise), delta, by, relation, quick)

    # The cheap bounds find the neighbourhood, so that the dear one is asked only a few times.
    near = _boundary(cost("rdp"), target_epsilon, 1.0, 2.0, _CLOSE if accountant == "rdp" else _NEAR)
    if accountant == "rdp":
        return near
    near = _boundary(cost("pld", quick=True), target_epsilon, near, 1.1, _CLOSE)
    return _boundary(cost("pld"), target_epsilon, near, 1 + _CLOSE, _CLOSE)


def _boundary(cost: Callable[[float], float], target: float, start: float, step: float, close: float) -> float:
    """A noise with ``(1 - close) * target < cost(noise) <= target``; ``start`` is off by about ``step``."""
    enough = (1 - close) * target
    low = high = start
    low_cost = high_cost = cost(start)
    while high_cost > target:
        if high >= _LARGEST_NOISE:
            raise ConfigError(
                f"target_epsilon {target} cannot be reached: with a noise_multiplier of {high:.3g} the accountant's bound is "
                f"still {high_cost:.3g}; ask for more than that, or for fewer or other steps."
            )
        low, low_cost, high, step = high, high_cost, high * step, step**2
        high_cost = cost(high)
    while low_cost <= enough:
        if low <= _SMALLEST_NOISE:
            return low
        high, high_cost, low, step = low, low_cost, low / step, step**2
        low_cost = cost(low)
    if enough < low_cost <= target:
        return low
    tries = 0
    while high_cost <= enough and high / low > 1 + 1e-6:
        # Epsilon is nearly a power of the noise: interpolate between logarithms, and halve now and then.
        span, share = math.log(high / low), 0.5
        if math.isfinite(low_cost) and high_cost > 0 and span < 1 and tries % 3 < 2:
            share = math.log(low_cost / target / (1 - close / 2)) / math.log(low_cost / high_cost)
        noise = low * math.exp(min(max(share, 0.02), 0.98) * span)
        spent, tries = cost(noise), tries + 1
        if spent <= target:
            high, high_cost = noise, spent
        else:
            low, low_cost = noise, spent
    return high


@dataclass(frozen=True)
class PrivacyPlan:
    """One hospital's spending over a run: at most ``epsilon`` at ``delta`` for each patient.

    Noise multipliers are relative to one patient's clipped contribution; None means that no statistics are released.
    ``training``: the charges of all rounds with ``noise_multiplier``, each with how often it is made.

    Examples:
        >>> training = ((dpsgd_event(0.1, 1.0, 10), 5),)  # five rounds of ten steps
        >>> hospital = PrivacyPlan(6.5, 1e-5, "pld", "add-remove", 1.0, None, training)
        >>> hospital.statement()["epsilon"], round(epsilon(hospital.total_event, hospital.delta), 2)
        (6.5, 5.15)
    """

    epsilon: float
    delta: float
    accountant: Accountant
    relation: Relation
    noise_multiplier: float
    statistics_noise_multiplier: float | None
    training: Charges

    @property
    def statistics_event(self) -> DpEvent:
        """What the statistics before training spend."""
        noise = self.statistics_noise_multiplier
        return dpa.NoOpDpEvent() if noise is None else gaussian_event(noise)

    @property
    def charges(self) -> Charges:
        """All charges of the run, each with how often it is made."""
        return (
            self.training if self.statistics_noise_multiplier is None else ((self.statistics_event, 1), *self.training)
        )

    @property
    def total_event(self) -> DpEvent:
        """What the whole run spends."""
        return dpa.ComposedDpEvent([dpa.SelfComposedDpEvent(event, count) for event, count in self.charges])

    def statement(self) -> dict[str, Any]:
        """The promise in the words that go into reports."""
        return {
            "epsilon": self.epsilon, "delta": self.delta, "unit": "patient", "relation": self.relation,
            "accountant": self.accountant,
        }  # fmt: skip


def plan(
    *,
    epsilon: float,
    delta: float,
    training: Callable[[float], Charges],
    statistics_share: float = 0.0,
    accountant: Accountant = "pld",
    relation: Relation = "add-remove",
) -> PrivacyPlan:
    """The plan with the least training noise whose statistics and training together spend at most ``epsilon``.

    Args:
        epsilon: The most that the run may spend, positive and finite.
        delta: Of the guarantee, in [1e-100, 1).
        training: Gives the charges of all rounds with a noise multiplier.
        statistics_share: The statistics alone would spend this fraction of ``epsilon``; 0 means that none are released.
        accountant: "pld" is the tight one that is reported; "rdp" is Opacus' Renyi bound.
        relation: The neighbouring relation, "add-remove" or "replace-one".

    Raises:
        ConfigError: naming the value that is out of range.

    Examples:
        >>> run = plan(epsilon=3.0, delta=1e-5, training=lambda noise: ((gaussian_event(noise), 5),), statistics_share=0.1)
        >>> round(run.noise_multiplier, 2), round(run.statistics_noise_multiplier, 2)
        (3.14, 11.25)
        >>> round(epsilon(run.total_event, run.delta), 1)
        3.0
    """
    if not 0 <= statistics_share < 1:
        raise ConfigError(f"statistics_share must lie in [0, 1), got {statistics_share}.")
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ConfigError(f"epsilon must be positive and finite, got {epsilon}.")
    statistics_noise = None
    if statistics_share > 0:
        statistics_noise = calibrate_noise_multiplier(
            statistics_share * epsilon, delta, gaussian_event, accountant, relation
        )

    def with_noise(noise: float) -> PrivacyPlan:
        return PrivacyPlan(epsilon, delta, accountant, relation, noise, statistics_noise, training(noise))

    return with_noise(
        calibrate_noise_multiplier(epsilon, delta, lambda z: with_noise(z).total_event, accountant, relation)
    )
