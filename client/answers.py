"""What a hospital answers: enrolment, statistics, training, evaluation, for one call or for a simulation's many.

The order is fixed: a request is checked, then the policy, then the ledger is charged, and only then is anything
computed from a record. Enrolling checks the records against schema and policy, and tells only whether they fit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from logging import ERROR
from typing import Generic, TypeVar

import numpy as np
from dp_accounting import DpEvent, NonPrivateDpEvent
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from flwr.common.logger import log
from torch import nn

from polyclinic.arrays import filled, size_of, to_record
from polyclinic.client.checks import (
    check_names,
    check_policy,
    check_size,
    model_arrays,
    standardiser,
    train_settings,
)
from polyclinic.client.hospital import Hospital, open_ledgers, simulated_sites
from polyclinic.client.merging import join
from polyclinic.client.releases import digest, read_release, write_release
from polyclinic.client.state import read_state, write_state
from polyclinic.compression import decode, encode
from polyclinic.config import RunConfig, compression
from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Rows
from polyclinic.errors import BudgetRefused, ConfigError, PolyclinicError
from polyclinic.evaluation.metrics import classification_metrics
from polyclinic.messages import RECORD, EnrolRequest, EvaluateRequest, R, StatisticsRequest, TrainRequest
from polyclinic.plugins import build_model, task_named
from polyclinic.privacy.accounting import gaussian_event
from polyclinic.privacy.ledger import Charge, charge_all, spent_all
from polyclinic.privacy.statistics import noisy_moments
from polyclinic.training.modules import load
from polyclinic.training.preparation import Standardiser, contributions, standardised
from polyclinic.training.task import Arrays, SiteWork, Task

Answer = RecordDict | Exception
T = TypeVar("T")

# What compression left out of a site's last upload, among what the site keeps.
RESIDUAL = "upload-residual"
STACK_BYTES = 1 << 31


@dataclass(frozen=True)
class Call(Generic[R]):
    """One message to one hospital, read."""

    content: RecordDict
    hospital: Hospital
    request: R
    config: RunConfig


def enrol(calls: Sequence[Call[EnrolRequest]]) -> list[Answer]:
    """The hospital's name, public schema and policy. Checks that its records fit them, so that no later charge is lost."""
    schemas = cache(lambda schema: json.dumps(schema.as_dict()))

    def answer(call: Call[EnrolRequest]) -> RecordDict:
        hospital, policy = call.hospital, call.hospital.policy
        hospital.shard()
        return RecordDict({RECORD: ConfigRecord({
            "site": hospital.site, "index": call.request.site, "simulated": hospital.simulated,
            "sites": len(simulated_sites(call.config)) if hospital.simulated else 1,
            "schema": schemas(hospital.schema), "delta": policy.delta, "budget": policy.budget or 0.0,
            "relation": policy.relation, "accountant": policy.accountant,
        })})  # fmt: skip

    return _each(answer, calls)


def statistics(calls: Sequence[Call[StatisticsRequest]]) -> list[Answer]:
    """Sums over training patients that standardise features, noised by the Gaussian mechanism under privacy."""
    noise = calls[0].request.noise_multiplier
    event = NonPrivateDpEvent() if noise is None else gaussian_event(noise)

    def allow(call: Call[StatisticsRequest]) -> None:
        check_policy(call.hospital, "statistics", call.request.noise_multiplier)

    def release(calls: Sequence[Call[StatisticsRequest]], spent: Sequence[float]) -> list[RecordDict]:
        answers = []
        for call, epsilon in zip(calls, spent, strict=True):
            sums = contributions(call.hospital.shard())
            total = noisy_moments(sums, noise, call.hospital.stream("statistics-noise", 0))
            answers.append(_reply(call.hospital, {"sums": total}, {}, epsilon))
        return answers

    return _released(calls, allow, event, "statistics", 0,
                     lambda call: digest(call.config.decisive(), noise, call.hospital.shard().digest), release)  # fmt: skip


def train(calls: Sequence[Call[TrainRequest]]) -> list[Answer]:
    """One round of local training from the messages' arrays; calls that ask for the same are trained together."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, call in enumerate(calls):
        groups.setdefault(_alike(call), []).append(index)
    answers: dict[int, Answer] = {}
    for indices in groups.values():
        # Each site's model, its noise and what its optimizer keeps are in memory until the sites' mean is made.
        at_once = max(1, STACK_BYTES // (4 * size_of(calls[indices[0]].content) + 1))
        for begin in range(0, len(indices), at_once):
            some = indices[begin : begin + at_once]
            answers |= zip(some, _train_alike([calls[index] for index in some]), strict=True)
    return [answers[index] for index in range(len(calls))]


def _alike(call: Call[TrainRequest]) -> tuple[object, ...]:
    records = tuple(id(record) for key, record in call.content.items() if key != RECORD)
    request = call.request
    return call.config, call.hospital.ledger_path, request.run, request.round, request.noise_multiplier, records


def _train_alike(calls: Sequence[Call[TrainRequest]]) -> list[Answer]:
    config, request, content, schema = calls[0].config, calls[0].request, calls[0].content, calls[0].hospital.schema
    settings = train_settings(config, request.noise_multiplier, content, not calls[0].hospital.simulated)
    features = len(feature_names(schema))
    key, arrays = model_arrays(content)
    scale = standardiser(content, features)
    common = digest(config.decisive(), repr(settings), arrays, scale and {"mean": scale[0], "std": scale[1]})

    def allow(call: Call[TrainRequest]) -> None:
        check_names(call.hospital, config)
        check_policy(call.hospital, config.task, request.noise_multiplier, settings.local_steps)
        check_size(call.hospital, arrays)
        if request.noise_multiplier is not None and call.request.public_patients is None:
            raise ConfigError("Message field 'public_patients' is missing: a private batch sum needs a public divisor.")

    first = next((call for call in calls if _passes(allow, call)), None)
    if first is None:
        return _each(allow, calls)  # type: ignore[arg-type]
    task, build = task_named(config.task), build_model(config, schema)
    _check(config, schema, task, build, arrays)

    how = compression(config)
    states = {id(call): read_state(call.hospital.home, request.run, request.round) for call in calls}

    def identify(call: Call[TrainRequest]) -> str:
        """By everything that decides the numbers; only the streams are known from site and round."""
        return digest(common, call.request.public_patients, call.hospital.shard().digest, states[id(call)])

    def release(calls: Sequence[Call[TrainRequest]], spent: Sequence[float]) -> list[RecordDict]:
        work = [_work(call, scale, states[id(call)]) for call in calls]
        updates = task.train(build, arrays, work, settings)
        uploads, figures = [], []
        for call, site, update in zip(calls, work, updates, strict=True):
            hospital, upload, kept = call.hospital, update.arrays, update.optimizer_state
            if how.active:
                residual = states[id(call)].get(RESIDUAL)
                upload, left_out = encode(
                    update.arrays, arrays, how, hospital.stream("rounding", request.round), residual
                )
                kept = kept if left_out is None else kept | {RESIDUAL: left_out}
            write_state(hospital.home, request.run, request.round, kept, config.checkpoint_every)
            divisor = site.rows.patients if request.noise_multiplier is None else call.request.public_patients or 1.0
            metrics = {"steps": float(update.steps), "num-examples": float(divisor)}
            # Never in a private run: the loss is computed on the patients that epsilon protects.
            if request.noise_multiplier is None and hospital.policy.release_metrics and math.isfinite(update.loss):
                metrics["train-loss"] = update.loss
            uploads.append(upload)
            figures.append(metrics)
        if not calls[0].hospital.simulated or request.merge_by not in figures[0]:
            return [_reply(call.hospital, upload, metrics, epsilon, key)
                    for call, upload, metrics, epsilon in zip(calls, uploads, figures, spent, strict=True)]  # fmt: skip
        replies = [_reply(call.hospital, {}, metrics, epsilon)
                   for call, metrics, epsilon in zip(calls, figures, spent, strict=True)]  # fmt: skip
        models = [decode(upload, arrays, how) for upload in uploads] if how.active else uploads
        join(replies, key, uploads, models, [metrics[request.merge_by] for metrics in figures])
        return replies

    return _released(calls, allow, task.event(settings), "train", request.round,
                     identify, release)  # fmt: skip


# By run configuration and schema: a module's code does not change between rounds, and probing it takes milliseconds.
_checked: set[tuple[str, str]] = set()


def _check(config: RunConfig, schema: Schema, task: Task, build: Callable[[], nn.Module], arrays: Arrays) -> None:
    key = digest(config.decisive()), schema.digest()
    if key in _checked:
        load(build, arrays)
        return
    task.check(build, arrays, len(feature_names(schema)), config.engine)
    _checked.add(key)


def _work(call: Call[TrainRequest], scale: Standardiser | None, state: Arrays) -> SiteWork:
    hospital, request = call.hospital, call.request
    return SiteWork(
        rows=standardised(hospital.shard().train, scale),
        sampling=hospital.stream("batches", request.round),
        noise=hospital.stream("gradient-noise", request.round),
        public_patients=request.public_patients,
        optimizer_state={name: value for name, value in state.items() if name != RESIDUAL},
        layers=hospital.stream("layers", request.round),
    )


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


def _evaluate_alike(calls: Sequence[Call[EvaluateRequest]]) -> list[Answer]:
    """Of one model at several hospitals, so that it is read once."""
    config, content = calls[0].config, calls[0].content
    spent = dict(zip((id(call) for call in calls), spent_all(open_ledgers([c.hospital for c in calls])), strict=True))

    def held_out(call: Call[EvaluateRequest]) -> Rows | None:
        if not call.hospital.policy.release_metrics:
            return None
        check_names(call.hospital, config)
        shard = call.hospital.shard()
        return standardised(shard.test, standardiser(content, shard.x.shape[1]))

    rows = _each(held_out, calls)
    shown = [part for part in rows if isinstance(part, Rows)]
    scores: Iterator[np.ndarray] = iter(())
    if shown:
        build = build_model(config, calls[0].hospital.schema)
        scores = iter(task_named(config.task).evaluate(build, model_arrays(content)[1], shown))

    def answer(call: Call[EvaluateRequest], rows: Rows | None, scores: np.ndarray | None) -> RecordDict:
        hospital = call.hospital
        if rows is None or scores is None:
            return _reply(hospital, {}, {"num-examples": 1.0}, spent[id(call)])
        found = classification_metrics(rows.y, scores)
        metrics = {name: float(value) for name, value in found.items() if value is not None}
        metrics |= {"num-examples": float(len(rows.y)), "patients": float(hospital.shard().patients)}
        reply = _reply(hospital, {}, metrics, spent[id(call)])
        if hospital.policy.release_predictions:
            reply["predictions"] = to_record({"scores": scores, "labels": rows.y})
        return reply

    return [
        part if isinstance(part, Exception) else answer(call, part, next(scores) if isinstance(part, Rows) else None)
        for call, part in zip(calls, rows, strict=True)
    ]


def _released(
    calls: Sequence[Call[R]], allow: Callable[[Call[R]], None], event: DpEvent, purpose: str, round: int,
    identify: Callable[[Call[R]], str], release: Callable[[Sequence[Call[R]], Sequence[float]], list[RecordDict]],
) -> list[Answer]:  # fmt: skip
    """Check, charge, and only then compute; what was released before is given again and costs nothing.

    A simulated site's streams make the same numbers again, so its charge is recognised by the release's digest. A real
    hospital's would make others: it keeps its last replies and sends those.
    """
    answers: dict[int, Answer] = {}
    open_calls: list[int] = []
    for index, call in enumerate(calls):
        hospital = call.hospital
        try:
            allow(call)
        except PolyclinicError as error:
            answers[index] = error
            continue
        kept = None if hospital.simulated else _kept(call, purpose, round, identify(call))
        if kept is None:
            open_calls.append(index)
        else:
            answers[index] = kept
    if open_calls:
        charged = charge_all([
            (ledger, Charge(event, purpose, calls[index].request.run, round,
                            identify(calls[index]) if calls[index].hospital.simulated else ""))
            for index, ledger in zip(open_calls, open_ledgers([calls[i].hospital for i in open_calls]), strict=True)
        ])  # fmt: skip
        answers |= {i: after for i, after in zip(open_calls, charged, strict=True) if isinstance(after, BudgetRefused)}
        paid = [
            (i, after) for i, after in zip(open_calls, charged, strict=True) if not isinstance(after, BudgetRefused)
        ]
        working = [calls[index] for index, _ in paid]
        with _sealed(working):
            replies = release(working, [after for _, after in paid]) if paid else []
            for call, reply in zip(working, replies, strict=True):
                if not call.hospital.simulated:
                    write_release(call.hospital.home, call.request.run, purpose, round, identify(call), reply,
                                  call.config.checkpoint_every)  # fmt: skip
        answers |= {index: reply for (index, _), reply in zip(paid, replies, strict=True)}
    return [answers[index] for index in range(len(calls))]


def _kept(call: Call[R], purpose: str, round: int, identity: str) -> RecordDict | None:
    """The reply that left before, with the ledger's epsilon of now."""
    hospital = call.hospital
    kept = read_release(hospital.home, call.request.run, purpose, round, identity)
    if kept is not None:
        kept[RECORD] = ConfigRecord({**kept[RECORD], "epsilon": spent_all(open_ledgers([hospital]))[0]})  # type: ignore[dict-item]
    return kept


@contextmanager
def _sealed(calls: Sequence[Call[R]]) -> Iterator[None]:
    """After the charge, even which error a real hospital has may depend on a record: all get one constant sentence."""
    try:
        yield
    except Exception as error:
        if all(call.hospital.simulated for call in calls):
            raise
        log(ERROR, "This hospital failed after its ledger was charged.", exc_info=error)
        raise PolyclinicError("the hospital failed; its own log has the details") from None


def _passes(allow: Callable[[Call[R]], None], call: Call[R]) -> bool:
    try:
        allow(call)
    except PolyclinicError:
        return False
    return True


def _each(answer: Callable[[Call[R]], T], calls: Sequence[Call[R]]) -> list[T | Exception]:
    """An answer or an error for each call, where calls do not depend on each other."""
    answers: list[T | Exception] = []
    for call in calls:
        try:
            answers.append(answer(call))
        except Exception as error:
            answers.append(error)
    return answers


def _reply(
    hospital: Hospital, arrays: Arrays, metrics: dict[str, float], spent: float, key: str = "arrays"
) -> RecordDict:
    """``spent`` is the ledger's epsilon after this call, in its own record so that strategies do not average it."""
    content = filled(RecordDict(), {
        "metrics": filled(MetricRecord(), metrics),
        RECORD: filled(ConfigRecord(), {"site": hospital.site, "epsilon": spent, "delta": hospital.policy.delta}),
    })  # fmt: skip
    if arrays:
        content[key] = to_record(arrays)
    return content
