"""The protocol of everything that hospitals are asked and answer with noise: question, price, answer, conclusion.

A question is public, and so are the schema and the terms of a hospital's ledger. From these alone a hospital plans its
answer. It charges what the plan costs, and only then reads a record. What follows from the answers of all hospitals is
post-processing, which costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from dp_accounting import ComposedDpEvent, DpEvent, SelfComposedDpEvent

from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Shard
from polyclinic.errors import ConfigError
from polyclinic.evaluation.privacy_text import composition
from polyclinic.privacy.accounting import Accountant, Relation, epsilon
from polyclinic.privacy.ledger.file import finite
from polyclinic.privacy.mechanisms import M, calibrated, gaussian
from polyclinic.privacy.streams import Stream
from polyclinic.types import Arrays, Ints, Reals

_LEAST_EPSILON, _MOST_EPSILON = 1e-4, 100


@dataclass(frozen=True)
class Pricing:
    """The terms by which a hospital's ledger measures what an event costs.

    Examples:
        >>> from polyclinic.privacy.events import gaussian_event
        >>> pricing = Pricing(delta=1e-5)
        >>> round(pricing.cost(gaussian_event(4.0)), 2), round(pricing.calibrate(gaussian, 1.0).event.noise_multiplier, 2)
        (0.93, 3.73)
    """

    delta: float
    accountant: Accountant = "pld"
    relation: Relation = "add-remove"

    def cost(self, event: DpEvent) -> float:
        """The epsilon of an event by itself."""
        return epsilon(event, self.delta, self.accountant, self.relation)

    def calibrate(self, make: Callable[[float], M], target: float, least: float = 0.0) -> M:
        """What ``make`` gives for the least noise multiplier whose event costs at most ``target``.

        Args:
            make: Makes what has an event of a noise multiplier.
            target: The largest epsilon.
            least: The noise multiplier is this or more.

        Raises:
            ConfigError: for an impossible target, or an event that has no epsilon under the relation.
        """
        return calibrated(make, target, self.delta, self.accountant, self.relation, least)


class Plan(Protocol):
    """How a hospital answers: decided before a record is read, as is the event that it costs."""

    @property
    def event(self) -> DpEvent: ...

    @property
    def policy_noise(self) -> float | None:
        """The noise multiplier that is compared with a policy's smallest one; None is exact."""


@dataclass(frozen=True)
class Answer:
    """What leaves a hospital: noised arrays, and public names of what they are of where the schema does not say.

    Examples:
        >>> Answer({"patients": np.array([41.0, 18.0])}, names=("I10", "E11")).names
        ('I10', 'E11')
    """

    arrays: Arrays
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class HospitalAnswer:
    """One hospital's answer with its bill.

    event: what the answer cost. spent, budget: the ledger's epsilon now, and what it may be (None is unlimited).
    elsewhere: in how many other hospitals one of its patients may also be, at most.

    Examples:
        >>> from polyclinic.privacy.events import gaussian_event
        >>> bill = HospitalAnswer("north", Answer({}), Pricing(1e-5), gaussian_event(4.0), spent=1.4, budget=3.0)
        >>> round(bill.cost, 2), bill.summary()["epsilon"], bill.summary()["budget"]
        (0.93, 1.4, 3.0)
    """

    site: str
    answer: Answer
    pricing: Pricing
    event: DpEvent
    spent: float
    budget: float | None
    elsewhere: int = 0

    @property
    def cost(self) -> float:
        """The epsilon of this answer by itself."""
        return self.pricing.cost(self.event)

    def summary(self) -> dict[str, Any]:
        return {
            "cost": finite(self.cost), "epsilon": finite(self.spent), "delta": self.pricing.delta, "budget": self.budget,
        }  # fmt: skip


@dataclass(frozen=True)
class Conclusion:
    """What follows from all answers, as plain values: ``figures`` of all hospitals together, ``by_site`` of each in order.

    product: objects that were made of the answers, by name.

    Examples:
        >>> count = Conclusion({"value": 61.0}, by_site=[{"value": 40.0}, {"value": 21.0}])
        >>> count.figures["value"], [site["value"] for site in count.by_site]
        (61.0, [40.0, 21.0])
    """

    figures: dict[str, Any]
    by_site: list[dict[str, Any]]
    product: dict[str, Any] = field(default_factory=dict)


class Question(Protocol):
    """One kind of question. Its fields are what travels to hospitals.

    task: the policy's word for it. everyone: held-out patients are asked too, and their ledger is charged as well.
    """

    task: ClassVar[str]
    everyone: ClassVar[bool]

    @property
    def epsilon(self) -> float | None:
        """What an answer may cost a hospital; None asks for exact numbers."""

    @property
    def purpose(self) -> str:
        """The ledger's word for an answer."""

    def plan(self, schema: Schema, pricing: Pricing) -> Any:
        """The ``Plan`` with the least noise whose event costs at most ``epsilon``.

        Raises ConfigError, before any charge, for a question that the schema cannot answer.
        """

    def answer(self, plan: Any, shard: Shard, stream: Stream) -> Answer:
        """The hospital's answer, to be called only after ``plan.event`` was charged.

        Args:
            plan: As the method ``plan`` gives it.
            shard: The hospital's records.
            stream: Draws the noise.
        """

    def conclude(self, schema: Schema, answers: Sequence[HospitalAnswer]) -> Conclusion:
        """What follows from the hospitals' answers together."""


def noisy(total: Ints, noise_multiplier: float | None, stream: Stream) -> Reals:
    """A sum with Gaussian noise.

    Args:
        total: In grid points, of which a patient has ``FINE`` at most in L2.
        noise_multiplier: Standard deviation of the noise over ``FINE``; None leaves the sum as it is.
        stream: Draws the noise.

    Examples:
        >>> from polyclinic.privacy.mechanisms import FINE
        >>> from polyclinic.privacy.streams import keyed_stream
        >>> total = np.array([40, 2]) * FINE
        >>> stream = keyed_stream(0, "noise")
        >>> (noisy(total, 4.0, stream) / FINE).round(1).tolist(), (noisy(total, None, stream) / FINE).tolist()
        ([37.1, -2.5], [40.0, 2.0])
    """
    given = total if noise_multiplier is None else gaussian(noise_multiplier).release(total, stream).value
    return np.asarray(given, dtype=np.float64)


def check_epsilon(epsilon: float | None) -> None:
    """Raises ConfigError unless a question may cost so much, or is exact (None).

    Examples:
        >>> check_epsilon(1.0), check_epsilon(None)
        (None, None)
        >>> check_epsilon(1000.0)
        Traceback (most recent call last):
            ...
        polyclinic.errors.ConfigError: epsilon must lie between 0.0001 and 100, got 1000.0.
    """
    if epsilon is not None and not _LEAST_EPSILON <= epsilon <= _MOST_EPSILON:
        raise ConfigError(f"epsilon must lie between {_LEAST_EPSILON} and {_MOST_EPSILON}, got {epsilon}.")


def statement(question: Question, schema: Schema, answers: Sequence[HospitalAnswer]) -> dict[str, Any]:
    """What was asked, what followed and what it cost, as plain values: the keys are a contract (docs/reference/json.md).

    Args:
        question: What was asked.
        schema: Of the hospitals.
        answers: Of each hospital, with its bill.

    Examples:
        >>> from polyclinic.ehr.schema import Column
        >>> from polyclinic.releases.statistics import Statistic
        >>> columns = Column(name="age", kind="integer", bounds=(0, 100)), Column(name="died", kind="binary", role="label")
        >>> schema = Schema(name="ward", unit="record", columns=columns)
        >>> question, cells = Statistic("count", epsilon=0.5), {"cells": np.array([61.0]), "errors": np.array([2.8])}
        >>> event = question.plan(schema, Pricing(1e-5)).event
        >>> answer = HospitalAnswer("north", Answer(cells), Pricing(1e-5), event, spent=0.5, budget=3.0)
        >>> statement(question, schema, [answer])["value"]
        61.0
    """
    conclusion = question.conclude(schema, answers)
    sites = {answer.site: own | answer.summary() for answer, own in zip(answers, conclusion.by_site, strict=True)}
    return {**conclusion.figures, **conclusion.product, "sites": sites, "privacy": cost_together(answers, schema.unit)}


def cost_together(answers: Sequence[HospitalAnswer], unit: str) -> dict[str, Any]:
    """What the answers cost a patient of as many hospitals as may be, at the largest of their deltas.

    Examples:
        >>> from polyclinic.privacy.events import gaussian_event
        >>> event = gaussian_event(4.0)
        >>> bill = HospitalAnswer("north", Answer({}), Pricing(1e-5), event, spent=1.0, budget=None, elsewhere=1)
        >>> together = cost_together([bill, bill], unit="patient")  # a patient may be at two of the hospitals
        >>> round(together["epsilon"], 2), together["overlap"]
        (1.36, 2)
    """
    first, delta = answers[0].pricing, max(answer.pricing.delta for answer in answers)
    cost = max(answer.cost for answer in answers)
    overlap = min(max(1 + answer.elsewhere for answer in answers), len(answers))
    if overlap > 1:
        # Every kind of event as often as a patient can have met it: never less than they did.
        counts = Counter(answer.event for answer in answers)
        events = [SelfComposedDpEvent(event, min(count, overlap)) for event, count in counts.items()]
        cost = max(cost, epsilon(ComposedDpEvent(events), delta, first.accountant, first.relation))
    return {
        "epsilon": finite(cost), "delta": delta, "overlap": overlap, "composition": composition(overlap, unit), "unit": unit,
        "relation": first.relation, "accountant": first.accountant,
    }  # fmt: skip
