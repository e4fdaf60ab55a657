"""A question to all hospitals, and their answers added up. What each answers is already noised and paid for."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from dp_accounting import ComposedDpEvent, DpEvent, SelfComposedDpEvent
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from polyclinic.arrays import from_record
from polyclinic.ehr.schema import Schema
from polyclinic.errors import BudgetRefused, ConfigError, PolyclinicError, whose
from polyclinic.evaluation.privacy_text import composition
from polyclinic.messages import QUERY, RECORD, AskRequest, QueryRequest
from polyclinic.privacy.accounting import Accountant, Relation, epsilon, event_from_json, event_to_json
from polyclinic.privacy.ledger_file import finite
from polyclinic.server.enrolment import enrol, enrol_request
from polyclinic.server.sites import Dropped, Site, SiteGrid
from polyclinic.training.queries import Plan, plan
from polyclinic.training.question import Question, conclude
from polyclinic.types import Reals


@dataclass(frozen=True)
class Bill:
    """What one hospital's answer cost, and its ledger's terms and ``spent`` epsilon now."""

    site: Site
    event: DpEvent
    spent: float
    delta: float
    budget: float | None
    relation: Relation
    accountant: Accountant

    @property
    def cost(self) -> float:
        """The epsilon of this answer by itself."""
        return epsilon(self.event, self.delta, self.accountant, self.relation)

    def summary(self) -> dict[str, Any]:
        return {"cost": finite(self.cost), "epsilon": finite(self.spent), "delta": self.delta, "budget": self.budget}


@dataclass(frozen=True, kw_only=True)
class Asked(ABC):
    """What hospitals are asked, in messages of type ``message``.

    ``ledger``, ``budget`` and ``relation`` are those of simulated hospitals; real ones have their own.
    """

    message: ClassVar[str]
    kind: ClassVar[type[AskRequest]]

    ledger: str = ""
    budget: float | None = None
    relation: Relation = "add-remove"

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """The request's own fields."""

    @abstractmethod
    def planned(self, schema: Schema, delta: float, accountant: Accountant, relation: Relation) -> Any:
        """How a hospital answers. Raises ConfigError for what it would refuse as impossible."""

    def request(self, site: Site, run: str, home: str) -> AskRequest:
        return self.kind(
            run=run, site=site.index, home=home, ledger=self.ledger, budget=self.budget, relation=self.relation,
            **self.content(),
        )  # fmt: skip

    def plan(self, site: Site) -> Any:
        """How the hospital answers, by its own terms; raises as ``planned``, before anything is charged."""
        relation = self.relation if site.simulated else cast(Relation, site.relation)
        return self.planned(site.schema, site.delta, cast(Accountant, site.accountant), relation)


@dataclass(frozen=True)
class SiteAnswer:
    """One hospital's cells with their standard errors, and what they cost."""

    bill: Bill
    cells: Reals
    errors: Reals

    @property
    def site(self) -> Site:
        return self.bill.site


@dataclass(frozen=True)
class Inquiry(Asked):
    """A question with its mechanism and the epsilon it may cost."""

    message = QUERY
    kind = QueryRequest

    question: Question
    mechanism: str
    epsilon: float

    def content(self) -> dict[str, Any]:
        asked = self.question
        return {
            "statistic": asked.statistic, "column": asked.column, "where": "\n".join(asked.where), "bins": asked.bins,
            "quantile": asked.quantile, "mechanism": self.mechanism, "epsilon": self.epsilon,
        }  # fmt: skip

    def planned(self, schema: Schema, delta: float, accountant: Accountant, relation: Relation) -> Plan:
        return plan(self.question, schema, self.mechanism, self.epsilon, delta, accountant, relation)


def ask(grid: Grid, inquiry: Inquiry, run: str, home: str | Path, timeout: float) -> dict[str, Any]:
    """The answer of all hospitals behind ``grid``, as plain values: the keys are a contract (docs/reference/json.md).

    A hospital that refuses is left out and said to be. Raises ConfigError for an impossible question, BudgetRefused when
    every hospital's policy or budget refuses, PolyclinicError when none answers for another reason.
    """
    replies, absent = replies_to(grid, inquiry, run, home, timeout)
    answers = [_read(site, reply) for site, reply in replies]
    return _summary(inquiry, answers[0].site.schema, answers, absent)


def replies_to(
    grid: Grid, asked: Asked, run: str, home: str | Path, timeout: float
) -> tuple[list[tuple[Site, Message]], Dropped]:
    """The replies of all hospitals behind ``grid`` in order, and who gave none and why. Raises as ``ask`` does."""
    sites, absent = enrol(grid, enrol_request(run, str(home), trains=False), 1, timeout)
    _check_alike(sites)
    for site in {(site.delta, site.relation, site.accountant): site for site in sites}.values():
        asked.plan(site)
    view = SiteGrid(grid, sites, lambda site: asked.request(site, run, str(home)), {})
    exchange = view.exchange([Message(RecordDict(), site.id, asked.message) for site in sites], timeout)
    if not exchange.replies:
        reasons = whose(((site.name, reason) for site, reason in exchange.dropped), between=" ")
        raise (BudgetRefused if exchange.refused == len(exchange.dropped) else PolyclinicError)(reasons)
    return exchange.replies, absent + [(site.name, reason) for site, reason in exchange.dropped]


def _check_alike(sites: Sequence[Site]) -> None:
    for site in sites:
        if site.relation != sites[0].relation:
            raise ConfigError(
                f"Hospitals {sites[0].name!r} and {site.name!r} have different relations, {sites[0].relation!r} and "
                f"{site.relation!r}, so one epsilon cannot hold for both; ask them apart."
            )


def _read(site: Site, reply: Message) -> SiteAnswer:
    arrays = from_record(reply.content.array_records["arrays"])
    return SiteAnswer(bill_of(site, reply), arrays["cells"], arrays["errors"])


def bill_of(site: Site, reply: Message) -> Bill:
    """What an answer says of its cost."""
    told = reply.content.config_records["query"]
    spent: Any = reply.content.config_records[RECORD]
    return Bill(
        site, event_from_json(json.loads(str(told["event"]))),
        float(spent["epsilon"]), float(spent["delta"]), float(cast(float, told["budget"])) or None,
        cast(Relation, told["relation"]), cast(Accountant, told["accountant"]),
    )  # fmt: skip


def _summary(inquiry: Inquiry, schema: Schema, answers: Sequence[SiteAnswer], absent: Dropped) -> dict[str, Any]:
    question = inquiry.question
    value, error = _statistic(question, schema, answers)
    return {
        "statistic": question.statistic, "column": question.column or None, "where": list(question.where),
        "quantile": question.quantile if question.statistic == "quantile" else None,
        "value": value, "standard_error": error, "mechanism": inquiry.mechanism, "event": event_to_json(answers[0].bill.event),
        "sites": {answer.site.name: _site_summary(question, schema, answer) for answer in answers},
        "privacy": together([answer.bill for answer in answers], schema.unit),
        "dropouts": [{"site": site, "reason": reason} for site, reason in absent],
    }  # fmt: skip


def together(answers: Sequence[Bill], unit: str) -> dict[str, Any]:
    """What the answers cost a patient of as many hospitals as may be, at the largest of their deltas."""
    first, delta = answers[0], max(answer.delta for answer in answers)
    cost = max(answer.cost for answer in answers)
    overlap = min(max(1 + answer.site.elsewhere for answer in answers), len(answers))
    if overlap > 1:
        # Every kind of event as often as a patient can have met it: never less than they did.
        counts = Counter(answer.event for answer in answers)
        events = [SelfComposedDpEvent(event, min(count, overlap)) for event, count in counts.items()]
        cost = max(cost, epsilon(ComposedDpEvent(events), delta, first.accountant, first.relation))
    return {
        "epsilon": finite(cost), "delta": delta, "overlap": overlap, "composition": composition(overlap, unit), "unit": unit,
        "relation": first.relation, "accountant": first.accountant,
    }  # fmt: skip


def _site_summary(question: Question, schema: Schema, answer: SiteAnswer) -> dict[str, Any]:
    value, error = _statistic(question, schema, [answer])
    return {"value": value, "standard_error": error, **answer.bill.summary()}


def _statistic(question: Question, schema: Schema, answers: Sequence[SiteAnswer]) -> tuple[Any, Any]:
    """The statistic of all; of values that hospitals chose each for itself, their median."""
    cells, errors = (np.array([getattr(answer, name) for answer in answers]) for name in ("cells", "errors"))
    if np.isnan(errors).all():
        return float(np.median(cells)), None
    return conclude(question, schema, cells.sum(axis=0), np.sqrt((errors**2).sum(axis=0)))
