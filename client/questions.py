"""What a hospital answers to a question outside a run: noised, and charged before a record is looked at."""

from __future__ import annotations

import json
from collections.abc import Sequence

from flwr.app import ConfigRecord, RecordDict

from polyclinic.client.calls import Answer, Call, reply
from polyclinic.client.charging import Release, charge_calls
from polyclinic.client.checks import check_policy, check_task
from polyclinic.client.home.hospital import open_ledgers
from polyclinic.digests import digest
from polyclinic.errors import PolyclinicError
from polyclinic.privacy.accounting import event_to_json
from polyclinic.privacy.ledger import spent_all
from polyclinic.releases.kinds import decisive, read_question
from polyclinic.releases.question import Plan, Pricing, Question
from polyclinic.wire.messages import AskRequest

_SITES_OWN = {"site", "home", "ledger", "budget"}


def answer(calls: Sequence[Call[AskRequest]]) -> list[Answer]:
    """Each hospital's answer, charged first; the record "query" says what it cost and by which policy."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, call in enumerate(calls):
        asked = call.request.model_dump(exclude=_SITES_OWN)
        terms = (_pricing(call), id(call.hospital.schema), call.hospital.ledger_path)
        groups.setdefault((*asked.values(), *terms), []).append(index)
    answers: dict[int, Answer] = {}
    for indices in groups.values():
        answers |= zip(indices, _answer_alike([calls[index] for index in indices]), strict=True)
    return [answers[index] for index in range(len(calls))]


def _answer_alike(calls: Sequence[Call[AskRequest]]) -> list[Answer]:
    """Of one question at hospitals with the same terms, so that it is planned once and charged in one transaction."""
    first = calls[0]
    try:
        question: Question = read_question(first.request.question)
        check_task(first.hospital, question.task, private=question.epsilon is not None)
        plan: Plan = question.plan(first.hospital.schema, _pricing(first))
    except PolyclinicError as error:
        return [error] * len(calls)
    event = plan.event
    price = json.dumps(event_to_json(event))

    def allow(call: Call[AskRequest]) -> None:
        check_policy(call.hospital, question.task, plan.policy_noise)

    def identify(call: Call[AskRequest]) -> str:
        asked = call.request.model_dump(exclude=_SITES_OWN | {"question"}) | decisive(question)
        return digest(asked, call.config.seed, price, call.hospital.began(True))

    def compute(calls: Sequence[Call[AskRequest]], quick: Sequence[float]) -> list[RecordDict]:
        replies = []
        # Shown beside the epsilon that was asked for, so not the quick bound by which the charge was decided.
        exact = spent_all(open_ledgers([call.hospital for call in calls]))
        for call, epsilon in zip(calls, exact, strict=True):
            # A stream of its own for every question: the same noise on two would cancel in their difference.
            stream = call.hospital.stream(f"{question.task}-{identify(call)}", 0)
            answer = question.answer(plan, call.hospital.shard(), stream)
            content, policy = reply(call.hospital, answer.arrays, {}, epsilon), call.hospital.policy
            content["query"] = ConfigRecord({
                "event": price, "budget": policy.budget or 0.0, "relation": policy.relation,
                "accountant": policy.accountant, "names": list(answer.names),
            })  # fmt: skip
            replies.append(content)
        return replies

    release = Release(question.purpose, 0, allow, lambda call: event, identify, compute, everyone=question.everyone)
    return charge_calls(calls, release)


def _pricing(call: Call[AskRequest]) -> Pricing:
    policy = call.hospital.policy
    return Pricing(policy.delta, policy.accountant, policy.relation)
