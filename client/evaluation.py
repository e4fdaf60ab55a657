"""What a hospital says of a model's quality on its held-out patients.

These are exact metrics within the limits of its policy, or private metrics, which are charged to the held-out patients'
own ledger. A model is checked and tried on a made-up row before anything is written down, so that a refusal leaves no
trace.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from dp_accounting import ComposedDpEvent, DpEvent, NoOpDpEvent
from flwr.app import ConfigRecord, RecordDict

from polyclinic.client.calls import Answer, Call, each, reply
from polyclinic.client.charging import Release, charge_calls, check_same_records
from polyclinic.client.checks import (
    check_model_size,
    check_names,
    check_numbers,
    check_size,
    model_arrays,
    standardiser,
)
from polyclinic.client.home.hospital import (
    filled_rows,
    open_held_out,
    open_ledgers,
    own_imputer,
)
from polyclinic.client.home.releases import Reply, read_release
from polyclinic.client.home.state import read_state
from polyclinic.digests import digest
from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.shard import Rows
from polyclinic.errors import BudgetRefused, ConfigError
from polyclinic.evaluation.groups import group_numbers
from polyclinic.privacy.accounting import epsilon, event_from_json
from polyclinic.privacy.ledger import Charge, charge_all, past_all, spent_all
from polyclinic.privacy.ledger.terms import plan_text, to_text
from polyclinic.programs import program_of
from polyclinic.releases.errors import affordable_question, question_of
from polyclinic.releases.measured import Measured
from polyclinic.releases.question import Pricing
from polyclinic.training.preparation import standardised
from polyclinic.training.task import own_arrays
from polyclinic.types import Arrays
from polyclinic.wire.arrays import fill_record, to_record
from polyclinic.wire.messages import COUNTS, RECORD, EvaluateRequest

if TYPE_CHECKING:
    from polyclinic.objectives.objective import Objective

EXACT, PRIVATE = "held-out metrics", "private-metrics"
# Charges of a round whose outcome may be evaluated.
_OUTCOMES = ("train", "selection")
Kind = Literal["exact", "private", "none"]


def evaluate(calls: Sequence[Call[EvaluateRequest]]) -> list[Answer]:
    """Metrics of the messages' models, as far as policies and ledgers let them leave."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, call in enumerate(calls):
        records = tuple(id(record) for key, record in call.content.items() if key != RECORD)
        groups.setdefault((call.config, call.hospital.ledger_path, records, _kind(call)), []).append(index)
    answers: dict[int, Answer] = {}
    for indices in groups.values():
        some = [calls[index] for index in indices]
        spent = spent_all(open_ledgers([call.hospital for call in some]))
        answered = _ANSWERS[_kind(some[0])](some, dict(zip(map(id, some), spent, strict=True)))
        answers |= zip(indices, answered, strict=True)
    return [answers[index] for index in range(len(calls))]


def _kind(call: Call[EvaluateRequest]) -> Kind:
    epsilon = call.hospital.metrics_epsilon(call.config)
    if epsilon is None:
        return "exact"
    return "private" if epsilon and call.request.private_evaluations else "none"


def _objective(call: Call[EvaluateRequest]) -> Objective:
    return program_of(call.config).objective(call.hospital.schema)


def _withheld(call: Call[EvaluateRequest], spent: float, reason: str = "") -> RecordDict:
    """A reply without metrics, with the reason where a limit or a budget is the cause; the run goes on."""
    content = reply(call.hospital, {}, {"num-examples": 1.0}, spent)
    if reason:
        content[RECORD] = fill_record(ConfigRecord(), {**content[RECORD], "withheld": reason})
    return content


def _none(calls: Sequence[Call[EvaluateRequest]], spent: dict[int, float]) -> list[Answer]:
    return [_withheld(call, spent[id(call)]) for call in calls]


def _exact(calls: Sequence[Call[EvaluateRequest]], spent: dict[int, float]) -> list[Answer]:
    """Of one model at several hospitals, so that it is read once."""

    def held_out(call: Call[EvaluateRequest]) -> Rows | str:
        if not call.hospital.simulated:
            _check(call)
            if refused := _write_down(call):
                return refused
        return _held_out(call)

    rows = each(held_out, calls)
    shown = [(call, part) for call, part in zip(calls, rows, strict=True) if isinstance(part, Rows)]
    scores = iter(_scores(shown) if shown else ())

    def answer(call: Call[EvaluateRequest], rows: Rows | str) -> RecordDict:
        if isinstance(rows, str):
            return _withheld(call, spent[id(call)], rows)
        return _figures(call, rows, next(scores), spent[id(call)])

    return [part if isinstance(part, Exception) else answer(call, part) for call, part in zip(calls, rows, strict=True)]


def _figures(call: Call[EvaluateRequest], rows: Rows, scores: np.ndarray, spent: float) -> RecordDict:
    """The exact metrics, and the predictions where the policy lets them leave.

    The number of all patients, which is that of training patients too, leaves a simulation alone.
    """
    from polyclinic.evaluation.judges import judge_of  # a hospital that trains judges nothing

    hospital = call.hospital
    figures = judge_of(_objective(call)).exact(rows.y, scores)
    metrics = {name: float(value) for name, value in figures.items() if value is not None}
    metrics |= {"num-examples": float(len(rows.y)), "held-out-patients": float(rows.patients)}
    if hospital.simulated:
        metrics["patients"] = float(hospital.shard().patients)
    content = reply(hospital, {}, metrics, spent)
    if hospital.policy.release_predictions:
        predictions = {"scores": scores, "labels": rows.y, "patient": rows.patient}
        if _tells_groups(call):
            shard = hospital.shard()
            predictions["group"] = group_numbers(shard.test.x, shard.schema, call.config.evaluation.groups)
        content["predictions"] = to_record(predictions)
    return content


def _tells_groups(call: Call[EvaluateRequest]) -> bool:
    policy, wanted = call.hospital.policy, call.config.evaluation.groups
    return bool(wanted) and policy.release_predictions and wanted in policy.release_groups


def _write_down(call: Call[EvaluateRequest]) -> str:
    """Write a real hospital's exact evaluation into its ledger; returns why it is withheld instead, or "".

    An evaluation uses up one charge of its run's round. The same question again is the same row. All is counted from the
    ledger, so that no restart forgets it.
    """
    hospital, request = call.hospital, call.request
    ledger = open_ledgers([hospital])[0]
    rows, question = ledger.recorded().rows, _identity(call)
    exact = [row for row in rows if row.purpose.startswith(EXACT)]
    of_run = [row for row in exact if row.run == request.run]
    of_round = [row.release for row in of_run if row.round == request.round]
    if question in of_round:
        return ""
    paid = [row for row in rows if (row.run, row.round) == (request.run, request.round) and row.purpose in _OUTCOMES]
    if not paid:
        return f"this hospital was not charged for round {request.round}, so its model is not evaluated exactly"
    if len(of_round) >= len(paid):
        return f"another model of round {request.round} was evaluated already"
    for count, key in ((len(of_run), "most_evaluations_per_run"), (len(exact), "most_evaluations")):
        if count >= (most := getattr(hospital.policy, key)):
            return f"the policy's {key.replace('_', '-')} of {most} is used up"
    purpose = EXACT + (" and predictions" if hospital.policy.release_predictions else "")
    purpose += f" by {call.config.evaluation.groups}" if _tells_groups(call) else ""
    charge_all([(ledger, Charge(NoOpDpEvent(), purpose, request.run, request.round, question))])
    return ""


def _private(calls: Sequence[Call[EvaluateRequest]], spent: dict[int, float]) -> list[Answer]:
    """Noised counts of scores, charged to the held-out patients' ledger before a record is scored."""
    checked = each(lambda call: None if call.hospital.simulated else _check(call), calls)
    able = [call for call, problem in zip(calls, checked, strict=True) if problem is None]

    def answers_of(calls: Sequence[Call[EvaluateRequest]], quick: Sequence[float]) -> list[RecordDict]:
        # Shown beside what was asked for, so not the quick bound by which the charge was decided.
        exact = spent_all(open_held_out([call.hospital for call in calls]))
        return [_counts(call, spent[id(call)], held_out) for call, held_out in zip(calls, exact, strict=True)]

    number = calls[0].request.round
    release = Release(PRIVATE, number, _check_run, _event, _identity, answers_of, account=open_held_out, plan=_plan)
    answered = iter(charge_calls(able, release))
    answers = [next(answered) if problem is None else problem for problem in checked]
    return [
        _withheld(call, spent[id(call)], str(answer))
        if isinstance(answer, BudgetRefused) and problem is None
        else answer
        for call, answer, problem in zip(calls, answers, checked, strict=True)
    ]


def _check_run(call: Call[EvaluateRequest]) -> None:
    """Raises BudgetRefused where the run's private metrics would cost more than the policy's ``metrics-epsilon``, and where the
    objective has none.

    A reply that left before may leave again.
    """
    hospital, request = call.hospital, call.request
    if call.config.data.imputation == "mice":  # also where the policy allows work without privacy
        raise BudgetRefused("imputation 'mice' makes one patient's row depend on others', so that no epsilon holds")
    objective = _objective(call)
    if question_of(objective) is None:
        raise BudgetRefused(f"there are no private metrics of the objective {objective.name!r}")
    ledger, question = open_held_out([hospital])[0], _identity(call)
    rows = ledger.charges(PRIVATE, request.run)
    if hospital.simulated and question in {row.release for row in rows}:
        return
    if not hospital.simulated and read_release(Reply(hospital.home, request.run, PRIVATE, request.round), question):
        return
    events = [*(event_from_json(json.loads(row.event)) for row in rows), _event(call)]
    terms = ledger.terms
    after = epsilon(ComposedDpEvent(events), terms.delta, terms.accountant, terms.relation)
    if after > hospital.policy.metrics_epsilon:
        raise BudgetRefused(
            f"private metrics of this run have used up the policy's metrics-epsilon of {hospital.policy.metrics_epsilon:g}"
        )


def _asked_of(call: Call[EvaluateRequest]) -> Measured:
    """The question, with the noise with which the run's planned releases together cost what the policy allows one run."""
    policy, terms = call.hospital.policy, call.hospital.held_out_terms
    pricing, releases = Pricing(terms.delta, terms.accountant, terms.relation), call.request.private_evaluations or 1
    question = affordable_question(_objective(call), policy.metrics_epsilon, terms.budget, releases, pricing)
    assert question is not None  # ``_check_run`` refused it
    return question


def _plan(call: Call[EvaluateRequest]) -> str:
    """The run's releases, of which all have the same noise: the hospital plans them itself, from how many there are to be."""
    return plan_text([(_event(call), call.request.private_evaluations or 1)])


def _event(call: Call[EvaluateRequest]) -> DpEvent:
    return _asked_of(call).event


def _counts(call: Call[EvaluateRequest], spent: float, held_out: float) -> RecordDict:
    """The release. Rows are scored one by one: how scores round must not depend on who else is there."""
    hospital, question, columns = call.hospital, _asked_of(call), len(_objective(call).columns)
    rows = _held_out(call)
    parts = [Rows(rows.x[i : i + 1], rows.y[i : i + 1], np.zeros(1, dtype=np.int64), 1) for i in range(len(rows.y))]
    scores = np.concatenate([np.empty((0, columns)), *_score(call, parts)])
    # Not by the arrays, which differ a little between machines. Runs that shared their noise would tell exact differences.
    terms = digest(call.config.decisive(), hospital.policy.metrics_epsilon, call.request.private_evaluations)
    stream = hospital.stream(f"private-metrics-{terms}", call.request.round)
    noisy = question.answer(question.count(rows.y, scores, rows.patient), stream)
    content = reply(hospital, {"counts": noisy.counts}, {"num-examples": 1.0}, spent, key=COUNTS)
    figures: dict[str, str | float] = {"held-out-epsilon": held_out, "deviation": noisy.deviation}
    if not hospital.simulated:
        figures["held-out-charged"] = to_text(past_all(open_held_out([hospital]))[0])
    content[RECORD] = fill_record(ConfigRecord(), {**content[RECORD], **figures})
    return content


def _check(call: Call[EvaluateRequest]) -> None:
    """Raises PolyclinicError for a message that cannot be answered; computes nothing from a record.

    A made-up row tells whether the arrays are the model's. A model whose later outputs depend on earlier rows is refused as in
    training; the judge of synthetic rows is linear.
    """
    from polyclinic.objectives.objective import made_up_labels  # with torch

    hospital, config = call.hospital, call.config
    check_names(hospital, config)
    check_same_records(call)
    check_size(hospital, _arrays(call))
    check_model_size(hospital, config)
    check_numbers(hospital, model_arrays(call.content)[1])
    own_imputer(hospital, config.data.imputation)
    features, objective = len(feature_names(hospital.schema)), _objective(call)
    standardiser(call.content, features)
    made_up = Rows(np.zeros((1, features)), made_up_labels(objective.labels, 1), np.zeros(1, dtype=np.int64), 1)
    try:
        fits = _score(call, [made_up])[0].shape == (1, len(objective.columns))
    except (LookupError, ValueError, RuntimeError):
        fits = False
    if not fits:
        raise ConfigError(
            f"The message's arrays are no model of {features} features and {len(objective.columns)} predictions."
        )
    program_of(config).check_evaluated(hospital.schema, _arrays(call), config.privacy.dp or _kind(call) == "private")


def _identity(call: Call[EvaluateRequest]) -> str:
    """Tells a question from others by everything that decides the answer: the settings, the arrays that score, and the records.

    A message may carry more arrays than these, in any order; they must not make two questions one.
    """
    by = standardiser(call.content, len(feature_names(call.hospital.schema)))
    scale = by and {"mean": by[0], "std": by[1]}
    return digest(
        call.config.decisive(), call.config.evaluation.groups, _arrays(call), scale, call.hospital.began(False)
    )


def _held_out(call: Call[EvaluateRequest]) -> Rows:
    """The held-out rows, filled and standardised."""
    rows = filled_rows(call.hospital, call.config.data.imputation, held_out=True)
    return standardised(rows, standardiser(call.content, rows.x.shape[1]))


def _arrays(call: Call[EvaluateRequest]) -> Arrays:
    """The message's model, with the hospital's own arrays in it where it has some."""
    arrays = model_arrays(call.content)[1]
    if not call.request.own:
        return arrays
    return arrays | own_arrays(read_state(call.hospital.home, call.request.run, call.request.round + 1))


def _score(call: Call[EvaluateRequest], rows: Sequence[Rows]) -> list[np.ndarray]:
    return program_of(call.config).scores(call.hospital.schema, _arrays(call), rows)


def _scores(shown: Sequence[tuple[Call[EvaluateRequest], Rows]]) -> list[np.ndarray]:
    """Of each call's rows (rows, classes) probabilities; at once where all hospitals have one model."""
    if not shown[0][0].request.own:
        return _score(shown[0][0], [rows for _, rows in shown])
    return [_score(call, [rows])[0] for call, rows in shown]


_ANSWERS = {"exact": _exact, "private": _private, "none": _none}
