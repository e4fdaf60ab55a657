"""What a hospital answers to a query: a statistic of one column, noised, and charged before a record is looked at."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dp_accounting import DpEvent
from flwr.app import ConfigRecord, RecordDict

from polyclinic.client.calls import Answer, Call, reply
from polyclinic.client.charging import Release, charged
from polyclinic.client.checks import check_policy, check_task
from polyclinic.client.hospital import open_ledgers
from polyclinic.digests import digest
from polyclinic.errors import PolyclinicError
from polyclinic.messages import AskRequest, QueryRequest
from polyclinic.privacy.accounting import event_to_json
from polyclinic.privacy.ledger import spent_all
from polyclinic.privacy.streams import Stream
from polyclinic.training.queries import Plan, answer, plan
from polyclinic.training.question import Question
from polyclinic.types import Arrays

_SITES_OWN = {"site", "home", "ledger", "budget"}
A = TypeVar("A", bound=AskRequest)


@dataclass(frozen=True)
class Way(Generic[A]):
    """How one kind of question is answered, once the policy knows its task.

    planned: from public numbers, what the hospital will do. event, noise: of a plan, what it costs and its noise
    multiplier (None is exact). purpose: the ledger's word for it. answer: arrays, and plain values told beside them.
    everyone: held-out patients are asked too, and their ledger is charged as well.
    """

    planned: Callable[[Call[A]], Any]
    event: Callable[[Any], DpEvent]
    noise: Callable[[Any], float | None]
    purpose: Callable[[A], str]
    answer: Callable[[Any, Call[A], Stream], tuple[Arrays, dict[str, Any]]]
    everyone: bool = False


def query(calls: Sequence[Call[QueryRequest]]) -> list[Answer]:
    """Each hospital's cells and their errors, and by which event and policy it gave them."""
    return asked(calls, _QUERY)


def asked(calls: Sequence[Call[A]], way: Way[A]) -> list[Answer]:
    """Each hospital's answer, charged first; the record "query" says what it cost and by which policy."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, call in enumerate(calls):
        policy, question = call.hospital.policy, call.request.model_dump(exclude=_SITES_OWN)
        terms = (policy.delta, policy.accountant, policy.relation, id(call.hospital.schema))
        groups.setdefault((*question.values(), *terms, call.hospital.ledger_path), []).append(index)
    answers: dict[int, Answer] = {}
    for indices in groups.values():
        answers |= zip(indices, _asked_alike([calls[index] for index in indices], way), strict=True)
    return [answers[index] for index in range(len(calls))]


def _asked_alike(calls: Sequence[Call[A]], way: Way[A]) -> list[Answer]:
    """Of one question at hospitals with the same terms, so that it is planned once and charged in one transaction."""
    task, first = calls[0].request.asks, calls[0]
    try:
        check_task(first.hospital, task, private=first.request.epsilon is not None)
        planned = way.planned(first)
    except PolyclinicError as error:
        return [error] * len(calls)
    event = way.event(planned)
    told = json.dumps(event_to_json(event))

    def allow(call: Call[A]) -> None:
        check_policy(call.hospital, task, way.noise(planned))

    def identify(call: Call[A]) -> str:
        question = call.request.model_dump(exclude=_SITES_OWN)
        return digest(question, call.config.seed, told, call.hospital.shard().digest)

    def compute(calls: Sequence[Call[A]], quick: Sequence[float]) -> list[RecordDict]:
        replies = []
        # Shown beside the epsilon that was asked for, so not the quick bound by which the charge was decided.
        exact = spent_all(open_ledgers([call.hospital for call in calls]))
        for call, epsilon in zip(calls, exact, strict=True):
            # A stream of its own for every question: the same noise on two would cancel in their difference.
            stream = call.hospital.stream(f"{task}-{identify(call)}", 0)
            arrays, more = way.answer(planned, call, stream)
            content = reply(call.hospital, arrays, {}, epsilon)
            policy = call.hospital.policy
            content["query"] = ConfigRecord({
                "event": told, "budget": policy.budget or 0.0, "relation": policy.relation,
                "accountant": policy.accountant, **more,
            })  # fmt: skip
            replies.append(content)
        return replies

    purpose = way.purpose(first.request)
    return charged(calls, Release(purpose, 0, allow, lambda call: event, identify, compute, everyone=way.everyone))


def _plan(call: Call[QueryRequest]) -> Plan:
    """Raises ConfigError for a question that cannot be answered."""
    request, policy = call.request, call.hospital.policy
    question = Question(
        request.statistic, request.column, tuple(request.where.splitlines()), request.bins, request.quantile
    )
    return plan(
        question,
        call.hospital.schema,
        request.mechanism,
        request.epsilon,
        policy.delta,
        policy.accountant,
        policy.relation,
    )


def _answer(planned: Plan, call: Call[QueryRequest], stream: Stream) -> tuple[Arrays, dict[str, Any]]:
    found = answer(planned, call.hospital.shard(), stream)
    return {"cells": found.cells, "errors": found.errors}, {}


_QUERY: Way[QueryRequest] = Way(
    _plan, lambda planned: planned.event, lambda planned: planned.noise_multiplier,
    lambda request: f"query-{request.statistic}", _answer, everyone=True,
)  # fmt: skip
