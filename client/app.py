"""The hospital's Flower ClientApp: message in, policy, ledger, shard, task, reply out.

The order is fixed: a message is checked, then the policy, then the ledger is charged, and only then is anything
computed from a record. Enrolling checks the records against schema and policy, and tells only whether they fit.
A hospital that refuses or fails answers with Flower's Error and one sentence; no patient's value is ever in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import wraps
from logging import ERROR

import numpy as np
from dp_accounting import NonPrivateDpEvent
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log

from polyclinic.client.hospital import Hospital, open_hospital, simulated_sites
from polyclinic.client.state import read_state, write_state
from polyclinic.config import RunConfig
from polyclinic.ehr.encoding import feature_names
from polyclinic.errors import BudgetRefused, ConfigError, DataError, PolyclinicError
from polyclinic.evaluation.metrics import classification_metrics
from polyclinic.messages import (
    FAILED,
    RECORD,
    REFUSED,
    EnrolRequest,
    EvaluateRequest,
    R,
    StatisticsRequest,
    TrainRequest,
    read_request,
)
from polyclinic.plugins import build_model, task_named
from polyclinic.privacy.accounting import gaussian_event
from polyclinic.privacy.statistics import noisy_moments
from polyclinic.training.preparation import contributions, standardised
from polyclinic.training.task import Arrays, SiteWork, TrainSettings

app = ClientApp()
Answer = Callable[[Message, Hospital, R, RunConfig], RecordDict]


def _answers(kind: type[R]) -> Callable[[Answer[R]], Callable[[Message, Context], Message]]:
    """Read the request, open the hospital, and turn every failure into one clear Error reply."""

    def decorate(answer: Answer[R]) -> Callable[[Message, Context], Message]:
        @wraps(answer)
        def handle(message: Message, context: Context) -> Message:
            try:
                config = RunConfig.build(context.run_config)
                request = read_request(kind, message.content)
                return Message(
                    answer(message, open_hospital(context, request, config), request, config), reply_to=message
                )
            except DataError as error:
                # Place and kind of a bad cell are the hospital's business; a simulation has none to protect.
                log(ERROR, "%s", error)
                real = "hospital" in context.node_config
                reason = (
                    "the hospital's records do not fit its schema; its own log names the place" if real else str(error)
                )
                return Message(Error(FAILED, reason), reply_to=message)
            except PolyclinicError as error:
                code = REFUSED if isinstance(error, BudgetRefused) else FAILED
                return Message(Error(code, str(error)), reply_to=message)
            except Exception as error:
                # The text of an unforeseen error may quote a record, so only its type leaves the hospital.
                log(ERROR, "This hospital failed on a %s message.", message.metadata.message_type, exc_info=error)
                return Message(Error(FAILED, f"the hospital failed with {type(error).__name__}; its own log has the details"),
                               reply_to=message)  # fmt: skip

        return handle

    return decorate


@app.query("enrol")
@_answers(EnrolRequest)
def enrol(message: Message, hospital: Hospital, request: EnrolRequest, config: RunConfig) -> RecordDict:
    """The hospital's name, public schema and policy. Checks that its records fit them, so that no later charge is lost."""
    policy = hospital.policy
    hospital.shard()
    return RecordDict({RECORD: ConfigRecord({
        "site": hospital.site, "index": request.site, "simulated": hospital.seed is not None,
        "sites": len(simulated_sites(config)) if hospital.seed is not None else 1,
        "schema": json.dumps(hospital.schema.as_dict()), "delta": policy.delta, "budget": policy.budget or 0.0,
        "relation": policy.relation, "accountant": policy.accountant,
    })})  # fmt: skip


@app.query("statistics")
@_answers(StatisticsRequest)
def statistics(message: Message, hospital: Hospital, request: StatisticsRequest, config: RunConfig) -> RecordDict:
    """Sums over training patients that standardise features, noised by the Gaussian mechanism under privacy."""
    _check_policy(hospital, "statistics", request.noise_multiplier)
    event = NonPrivateDpEvent() if request.noise_multiplier is None else gaussian_event(request.noise_multiplier)
    spent = hospital.ledger().charge(event, "statistics", request.run, 0)
    sums = contributions(hospital.shard())
    total = noisy_moments(sums, request.noise_multiplier, hospital.stream("statistics-noise", 0))
    return _reply(hospital, {"sums": total}, {}, spent)


@app.train()
@_answers(TrainRequest)
def train(message: Message, hospital: Hospital, request: TrainRequest, config: RunConfig) -> RecordDict:
    """One round of local training from the message's arrays."""
    _check_names(hospital, config)
    _check_policy(hospital, config.task, request.noise_multiplier)
    task = task_named(config.task)
    settings = train_settings(config, request.noise_multiplier, message.content)
    key, arrays = _arrays(message.content)
    build = build_model(config, hospital.schema)
    scale = _standardiser(message.content, len(feature_names(hospital.schema)))
    task.check(build, arrays, len(feature_names(hospital.schema)))
    if request.noise_multiplier is not None and request.public_patients is None:
        raise ConfigError("Message field 'public_patients' is missing: a private batch sum needs a public divisor.")
    spent = hospital.ledger().charge(task.event(settings), "train", request.run, request.round)
    rows = standardised(hospital.shard().train, scale)
    work = SiteWork(
        rows=rows,
        sampling=hospital.stream("batches", request.round),
        noise=hospital.stream("gradient-noise", request.round),
        public_patients=request.public_patients,
        optimizer_state=read_state(hospital.home, request.run, request.round),
    )
    update = task.train(build, arrays, [work], settings)[0]
    write_state(hospital.home, request.run, request.round, update.optimizer_state)
    metrics: dict[str, float] = {"steps": update.steps}
    if request.noise_multiplier is None and hospital.policy.release_metrics and math.isfinite(update.loss):
        metrics["train-loss"] = (
            update.loss
        )  # never in a private run: it is computed on the patients that epsilon protects
    metrics["num-examples"] = float(
        rows.patients if request.noise_multiplier is None else request.public_patients or 1.0
    )
    return _reply(hospital, update.arrays, metrics, spent, key)


@app.evaluate()
@_answers(EvaluateRequest)
def evaluate(message: Message, hospital: Hospital, request: EvaluateRequest, config: RunConfig) -> RecordDict:
    """Unperturbed metrics on held-out patients, as far as the policy lets them leave; they are outside epsilon."""
    if not hospital.policy.release_metrics:
        return _reply(hospital, {}, {"num-examples": 1.0}, hospital.ledger().spent())
    _check_names(hospital, config)
    _, arrays = _arrays(message.content)
    shard = hospital.shard()
    build = build_model(config, hospital.schema)
    rows = standardised(shard.test, _standardiser(message.content, shard.x.shape[1]))
    scores = task_named(config.task).evaluate(build, arrays, [rows])[0]
    found = classification_metrics(rows.y, scores)
    metrics = {name: float(value) for name, value in found.items() if value is not None}
    metrics |= {"num-examples": float(len(rows.y)), "patients": float(shard.patients)}
    reply = _reply(hospital, {}, metrics, hospital.ledger().spent())
    if hospital.policy.release_predictions:
        reply["predictions"] = _record({"scores": scores, "labels": rows.y})
    return reply


def train_settings(config: RunConfig, noise_multiplier: float | None, content: RecordDict) -> TrainSettings:
    """The run's settings; a strategy may set ``proximal-mu`` in its own ConfigRecord, as Flower's FedProx does."""
    told = content.get("config")
    mu = told.get("proximal-mu", config.proximal_mu) if isinstance(told, ConfigRecord) else config.proximal_mu
    return TrainSettings(
        sample_rate=config.sample_rate, local_steps=config.local_steps, learning_rate=config.learning_rate,
        max_grad_norm=config.max_grad_norm, noise_multiplier=noise_multiplier, optimizer=config.optimizer,
        momentum=config.momentum, weight_decay=config.weight_decay, proximal_mu=float(mu),  # type: ignore[arg-type]
    )  # fmt: skip


def _check_names(hospital: Hospital, config: RunConfig) -> None:
    """Raises BudgetRefused before a name in the run's configuration can load code that the policy does not allow."""
    for key, name, allowed in (
        ("task", config.task, hospital.policy.allowed_tasks),
        ("model", config.model, hospital.policy.allowed_models),
    ):
        if name not in allowed:
            raise BudgetRefused(f"{hospital.site}: the policy allows the {key}s {', '.join(allowed)}, not {name!r}.")


def _check_policy(hospital: Hospital, task: str, noise_multiplier: float | None) -> None:
    """Raises BudgetRefused when the policy does not allow the task, its noise, or work without privacy."""
    policy = hospital.policy
    if task not in policy.allowed_tasks:
        raise BudgetRefused(f"{hospital.site}: the policy allows {', '.join(policy.allowed_tasks)}, not {task!r}.")
    if noise_multiplier is None and not policy.allow_without_privacy:
        raise BudgetRefused(f"{hospital.site}: the policy does not allow training or statistics without privacy.")
    if noise_multiplier is not None and noise_multiplier < policy.smallest_noise_multiplier:
        raise BudgetRefused(
            f"{hospital.site}: noise_multiplier {noise_multiplier:.4g} is below the policy's "
            f"smallest-noise-multiplier {policy.smallest_noise_multiplier:g}."
        )


def _arrays(content: RecordDict) -> tuple[str, Arrays]:
    """The strategy's ArrayRecord, under whatever key it uses."""
    for key, record in content.array_records.items():
        if key != "standardiser":
            return key, {name: value.numpy() for name, value in record.items()}
    raise ConfigError("The message carries no ArrayRecord with the model.")


def _standardiser(content: RecordDict, features: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Mean and std, (features,) each. Raises ConfigError for any other shape: one fitted to rows would ask how many there are."""
    record = content.array_records.get("standardiser")
    if record is None:
        return None
    if set(record) != {"mean", "std"}:
        raise ConfigError("The message's standardiser must hold exactly 'mean' and 'std'.")
    mean, std = record["mean"].numpy(), record["std"].numpy()
    if mean.shape != (features,) or std.shape != (features,) or not np.isfinite(mean).all() or not (std >= 1e-6).all():
        raise ConfigError(
            f"The message's standardiser must hold {features} finite means and {features} stds of at least 1e-6."
        )
    return mean, std


def _record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in arrays.items()})


def _reply(
    hospital: Hospital, arrays: Arrays, metrics: dict[str, float], spent: float, key: str = "arrays"
) -> RecordDict:
    """``spent`` is the ledger's epsilon after this call, in its own record so that strategies do not average it."""
    content = RecordDict({
        "metrics": MetricRecord({**metrics}),
        RECORD: ConfigRecord({"site": hospital.site, "epsilon": spent, "delta": hospital.policy.delta}),
    })  # fmt: skip
    if arrays:
        content[key] = _record(arrays)
    return content
