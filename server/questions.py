"""A question to all hospitals, and what follows from their answers. What each answers is already noised and paid for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from logging import INFO
from typing import Any, cast

from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp import Grid

from polyclinic.config import RunConfig
from polyclinic.errors import BudgetRefused, ConfigError, PolyclinicError, whose
from polyclinic.files import write_file
from polyclinic.privacy.accounting import Accountant, Relation, event_from_json
from polyclinic.releases.kinds import answer_as_json, question_of_key, write_question
from polyclinic.releases.question import Answer, HospitalAnswer, Pricing, Question, statement
from polyclinic.releases.survey import Survey
from polyclinic.runs.folder import RESULTS, Run
from polyclinic.runs.json_text import json_text
from polyclinic.server.exchange.sites import Site, put
from polyclinic.server.phases.enrolment import NO_WAIT, ApprovalWait, enrol, enrol_request
from polyclinic.wire.arrays import from_record
from polyclinic.wire.messages import ASK, RECORD, AskRequest


def ask(
    grid: Grid, question: Question, request: AskRequest, timeout: float, approval: ApprovalWait = NO_WAIT
) -> dict[str, Any]:
    """The answer of all hospitals behind ``grid`` to a question, as ``releases.question.statement`` has it.

    A hospital that refuses is left out and named among the ``dropouts``, as is one where nobody approved the question
    in time.

    Args:
        grid: Flower's grid.
        question: The question.
        request: Holds the question, and goes to every hospital with its own ``site``.
        timeout: For how many seconds replies are waited for.
        approval: For how long hospitals where a person must approve the question are asked again.

    Raises:
        ConfigError: The question is impossible.
        BudgetRefused: Every hospital's policy or budget refuses.
        PolyclinicError: None answers for another reason.
    """
    sites, absent = enrol(grid, enrol_request(request.run, request.home, trains=False), 1, timeout)
    _check_alike(sites)
    schema = sites[0].schema
    if isinstance(question, Survey) and not question.columns:
        question = question.of(schema)
        request = request.model_copy(update={"question": write_question(question)})
    for pricing in {_pricing(site, request) for site in sites}:
        question.plan(schema, pricing)
    if any(site.asks_people for site in sites):
        asked = enrol_request(request.run, request.home, trains=False, question=request.question)
        sites, absent = enrol(grid, asked, 1, timeout, approval=approval)
    exchange = put(grid, sites, ASK, request, timeout)
    if not exchange.replies:
        reasons = whose(((site.name, reason) for site, reason in exchange.dropped), between=" ")
        raise (BudgetRefused if exchange.refused == len(exchange.dropped) else PolyclinicError)(reasons)
    dropped = absent + [(site.name, reason) for site, reason in exchange.dropped]
    return statement(question, schema, [_read(site, reply) for site, reply in exchange.replies]) | {
        "dropouts": [{"site": site, "reason": reason} for site, reason in dropped]
    }


def answer_run(grid: Grid, config: RunConfig, folder: Run) -> None:
    """Asks the hospitals behind ``grid`` the question that ``config`` holds, and writes the answer into the run's folder.

    Args:
        grid: Flower's grid.
        config: The run's configuration, with the question.
        folder: The run's folder.

    Raises:
        ConfigError: As ``ask``, and for a configuration that holds none.
    """
    question = question_of_key(config.question)
    request = AskRequest(run=folder.name, site=0, home=str(folder.sites), question=write_question(question))
    with folder.held():
        log(INFO, "%s%s", RESULTS, folder.path)
        wait = ApprovalWait(config.participation.approval_wait, folder.waiting_file)
        answer = ask(grid, question, request, config.timeout, wait)
        write_file(folder.answer_file, json_text(answer_as_json(answer)))


def _pricing(site: Site, request: AskRequest) -> Pricing:
    relation = request.relation if site.simulated else site.relation
    return Pricing(site.delta, site.accountant, relation)


def _check_alike(sites: Sequence[Site]) -> None:
    for site in sites:
        if site.relation != sites[0].relation:
            raise ConfigError(
                f"Hospitals {sites[0].name!r} and {site.name!r} have different relations, {sites[0].relation!r} and "
                f"{site.relation!r}, so one epsilon cannot hold for both; ask them apart."
            )


def _read(site: Site, reply: Message) -> HospitalAnswer:
    """One hospital's answer, and what it says of its cost."""
    arrays = from_record(reply.content.array_records["arrays"])
    terms: Any = reply.content.config_records["query"]
    spent: Any = reply.content.config_records[RECORD]
    pricing = Pricing(float(spent["delta"]), cast(Accountant, terms["accountant"]), cast(Relation, terms["relation"]))
    return HospitalAnswer(
        site.name, Answer(arrays, tuple(terms["names"])), pricing, event_from_json(json.loads(str(terms["event"]))),
        float(spent["epsilon"]), float(terms["budget"]) or None, site.elsewhere,
    )  # fmt: skip
