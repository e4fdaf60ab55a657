"""What a hospital answers beside training: enrolment, statistics, evaluation, for one call or for a simulation's many.

Enrolling checks the records against schema and policy, and tells only whether they fit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from dp_accounting import NonPrivateDpEvent, NoOpDpEvent
from flwr.app import ConfigRecord, RecordDict

from polyclinic.arrays import to_record
from polyclinic.client.calls import Answer, Call, each, reply
from polyclinic.client.charging import charged
from polyclinic.client.checks import check_names, check_policy, model_arrays, standardiser
from polyclinic.client.hospital import filled_rows, open_ledgers, own_imputer, simulated_sites
from polyclinic.client.releases import digest
from polyclinic.client.state import read_state
from polyclinic.ehr.shard import Rows
from polyclinic.evaluation.groups import group_numbers
from polyclinic.evaluation.metrics import classification_metrics
from polyclinic.messages import RECORD, EnrolRequest, EvaluateRequest, StatisticsRequest
from polyclinic.plugins import build_model, task_named
from polyclinic.privacy.accounting import gaussian_event
from polyclinic.privacy.ledger import Charge, charge_all, spent_all
from polyclinic.privacy.statistics import noisy_moments
from polyclinic.training.preparation import class_contributions, contributions, standardised
from polyclinic.training.task import own_arrays


def enrol(calls: Sequence[Call[EnrolRequest]]) -> list[Answer]:
    """The hospital's name, public schema and policy. Checks that its records fit them, so that no later charge is lost."""
    schemas = cache(lambda schema: json.dumps(schema.as_dict()))

    def answer(call: Call[EnrolRequest]) -> RecordDict:
        hospital, policy = call.hospital, call.hospital.policy
        hospital.shard()
        own_imputer(hospital, call.config.imputation)
        return RecordDict({RECORD: ConfigRecord({
            "site": hospital.site, "index": call.request.site, "simulated": hospital.simulated,
            "sites": len(simulated_sites(call.config)) if hospital.simulated else 1,
            "schema": schemas(hospital.schema), "delta": policy.delta, "budget": policy.budget or 0.0,
            "relation": policy.relation, "accountant": policy.accountant, "elsewhere": policy.patients_elsewhere,
            "knows_others": bool(policy.known_hospitals),
        })})  # fmt: skip

    return each(answer, calls)


def statistics(calls: Sequence[Call[StatisticsRequest]]) -> list[Answer]:
    """The number of training patients, and sums that standardise features where the run measures them.

    Under privacy noised by the Gaussian mechanism.
    """
    noise = calls[0].request.noise_multiplier
    event = NonPrivateDpEvent() if noise is None else gaussian_event(noise)

    def allow(call: Call[StatisticsRequest]) -> None:
        check_policy(call.hospital, "statistics", call.request.noise_multiplier)

    def release(calls: Sequence[Call[StatisticsRequest]], spent: Sequence[float]) -> list[RecordDict]:
        answers = []
        for call, epsilon in zip(calls, spent, strict=True):
            shard = call.hospital.shard()
            if call.config.synthesis:
                sums = class_contributions(shard)
            else:
                sums = contributions(shard, call.config.standardise == "measured")
            total = noisy_moments(sums, noise, call.hospital.stream("statistics-noise", 0))
            answers.append(reply(call.hospital, {"sums": total}, {}, epsilon))
        return answers

    return charged(calls, allow, lambda call: event, "statistics", 0,
                     lambda call: digest(call.config.decisive(), noise, call.hospital.shard().digest), release)  # fmt: skip


def evaluate(calls: Sequence[Call[EvaluateRequest]]) -> list[Answer]:
    """Unperturbed metrics on held-out patients, as far as the policy lets them leave; they are outside epsilon."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, call in enumerate(calls):
        records = tuple(id(record) for key, record in call.content.items() if key != RECORD)
        groups.setdefault((call.config, call.hospital.ledger_path, records), []).append(index)
    answers: dict[int, Answer] = {}
    for indices in groups.values():
        answers |= zip(indices, _evaluate_alike([calls[index] for index in indices]), strict=True)
    return [answers[index] for index in range(len(calls))]


def _write_down(call: Call[EvaluateRequest]) -> None:
    """Figures of held-out patients cost the others nothing, but a real hospital's ledger says that they left."""
    hospital = call.hospital
    if not hospital.simulated:
        purpose = "held-out metrics" + (" and predictions" if hospital.policy.release_predictions else "")
        purpose += f" by {call.config.groups}" if _tells_groups(call) else ""
        charge_all([
            (open_ledgers([hospital])[0], Charge(NoOpDpEvent(), purpose, call.request.run, call.request.round))
        ])  # fmt: skip


def _tells_groups(call: Call[EvaluateRequest]) -> bool:
    policy, wanted = call.hospital.policy, call.config.groups
    return bool(wanted) and policy.release_predictions and wanted in policy.release_groups


def _scores(calls: Sequence[Call[EvaluateRequest]], rows: Sequence[Rows | Exception | None]) -> list[np.ndarray]:
    """Of the calls that have rows: their probabilities under the message's model, or under it with the hospital's own arrays."""
    config, (_, arrays) = calls[0].config, model_arrays(calls[0].content)
    task, build = task_named(config.task), build_model(config, calls[0].hospital.schema)
    shown = [(call, part) for call, part in zip(calls, rows, strict=True) if isinstance(part, Rows)]
    if not config.evaluates_own:
        return list(task.evaluate(build, arrays, [part for _, part in shown]))
    found = []
    for call, part in shown:
        kept = read_state(call.hospital.home, call.request.run, call.request.round + 1)
        found += task.evaluate(build, arrays | own_arrays(kept), [part])
    return found


def _evaluate_alike(calls: Sequence[Call[EvaluateRequest]]) -> list[Answer]:
    """Of one model at several hospitals, so that it is read once."""
    config, content = calls[0].config, calls[0].content
    spent = dict(zip((id(call) for call in calls), spent_all(open_ledgers([c.hospital for c in calls])), strict=True))

    def held_out(call: Call[EvaluateRequest]) -> Rows | None:
        if not call.hospital.policy.release_metrics:
            return None
        check_names(call.hospital, config)
        shard = call.hospital.shard()
        held_out = filled_rows(call.hospital, config.imputation)[1]
        _write_down(call)
        return standardised(held_out, standardiser(content, shard.x.shape[1]))

    rows = each(held_out, calls)
    scores: Iterator[np.ndarray] = iter(())
    if any(isinstance(part, Rows) for part in rows):
        scores = iter(_scores(calls, rows))

    def answer(call: Call[EvaluateRequest], rows: Rows | None, scores: np.ndarray | None) -> RecordDict:
        hospital = call.hospital
        if rows is None or scores is None:
            return reply(hospital, {}, {"num-examples": 1.0}, spent[id(call)])
        found = classification_metrics(rows.y, scores)
        metrics = {name: float(value) for name, value in found.items() if value is not None}
        metrics |= {"num-examples": float(len(rows.y)), "patients": float(hospital.shard().patients)}
        content = reply(hospital, {}, metrics, spent[id(call)])
        if hospital.policy.release_predictions:
            told = {"scores": scores, "labels": rows.y, "patient": rows.patient}
            if _tells_groups(call):
                shard = hospital.shard()
                told["group"] = group_numbers(shard.test.x, shard.schema, call.config.groups)
            content["predictions"] = to_record(told)
        return content

    return [
        part if isinstance(part, Exception) else answer(call, part, next(scores) if isinstance(part, Rows) else None)
        for call, part in zip(calls, rows, strict=True)
    ]
