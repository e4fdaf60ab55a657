"""One round of local training: calls that ask for the same are checked, charged and trained together.

Noise over time goes on only from a process whose next steps the ledger knows to be unused. Simulated hospitals that were
trained together answer with one mean of their models, for strategies that allow it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from logging import WARNING
from typing import cast

import numpy as np
from dp_accounting import DpEvent
from flwr.app import ConfigRecord, RecordDict
from flwr.common.logger import log
from torch import nn

from polyclinic.client.calls import Answer, Call, each, reply
from polyclinic.client.charging import Release, behind, charge_calls
from polyclinic.client.checks import (
    beside,
    check_model_size,
    check_numbers,
    check_size,
    check_terms,
    local_half,
    model_arrays,
    standardiser,
    told_numbers,
    train_settings,
)
from polyclinic.client.home.hospital import Hospital, filled_by, filled_rows, open_ledgers, own_imputer
from polyclinic.client.home.state import read_state, write_state
from polyclinic.client.secure import check_upload, mask_update
from polyclinic.config import RunConfig, compression
from polyclinic.digests import digest
from polyclinic.ehr.encoding import Standardiser, feature_names
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError, PolyclinicError, several
from polyclinic.plugins import BUILT_IN
from polyclinic.programs import program_of
from polyclinic.training.local import BESIDE
from polyclinic.training.modules import check_fit
from polyclinic.training.preparation import standardise
from polyclinic.training.sites.draws import has_begun, without_draws
from polyclinic.training.task import OWN, SiteUpdate, SiteWork, Task, TrainSettings, own_arrays
from polyclinic.types import Arrays
from polyclinic.wire.arrays import MERGED, WEIGHT, fill_record, from_record, size_of, to_record, weighted_mean
from polyclinic.wire.compression import decode, encode
from polyclinic.wire.messages import LOCAL, QUESTION, RECORD, TrainRequest

# What compression left out of a site's last upload, among what the site keeps.
RESIDUAL = "upload-residual"
STACK_BYTES = 1 << 31

# What is kept beside a noise process: the ledger's charge under which it was last used.
_CHARGE = "charge"
# Of a question's arrays.
_FORMS = ("int64", "float32", "float64")


@dataclass(frozen=True, eq=False)
class _Question:
    """What calls that are trained together have in common. ``key`` names the model's record; ``digest`` tells it from others.

    ``arrays``: the whole model; ``local``: those of its arrays that stay at hospitals; ``beside``: what came with it;
    ``numbers``: what the strategy told its half; ``asked``: what the program asks beside a model, or in place of one.
    """

    config: RunConfig
    request: TrainRequest
    schema: Schema
    settings: TrainSettings
    key: str
    arrays: Arrays
    local: tuple[str, ...]
    beside: Mapping[str, Arrays]
    numbers: Mapping[str, float]
    scale: Standardiser | None
    asked: Arrays
    digest: str

    @cached_property
    def task(self) -> Task:
        """Only after the policy was found to allow the names in the configuration, for to make it may load their code."""
        return program_of(self.config).task(self.schema, self.asked)

    @cached_property
    def origin(self) -> Arrays:
        """From which what leaves is a difference. Raises ConfigError as ``task``, which checks the question."""
        program, _ = program_of(self.config), self.task
        return self.shared_arrays(program.origin(self.schema, self.arrays, self.asked))

    def shared_arrays(self, arrays: Arrays) -> Arrays:
        """Of a model's arrays those that leave."""
        return {name: value for name, value in arrays.items() if name not in self.local}


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
    asked = request.run, request.round, request.noise_multiplier, request.learning_rate, request.local_half
    return call.config, call.hospital.ledger_path, asked, records


def _train_alike(calls: Sequence[Call[TrainRequest]]) -> list[Answer]:
    question = _question(calls[0])
    config, request = question.config, question.request

    allowed: set[int] = set()

    def allow(call: Call[TrainRequest]) -> None:
        # The hospitals of a simulation share one policy and one schema, which are asked once.
        if not call.hospital.simulated or id(call.hospital.policy) not in allowed:
            _allow(question, call.hospital)
            allowed.add(id(call.hospital.policy))
        if question.request.noise_multiplier is not None and call.request.public_patients is None:
            raise ConfigError("Message field 'public_patients' is missing: a private batch sum needs a public divisor.")
        if question.config.secure.aggregation:
            check_upload(call, question.origin)

    if not any(_passes(allow, call) for call in calls):
        return each(allow, calls)  # type: ignore[arg-type]
    program, task = program_of(config), question.task
    settings = replace(question.settings, momentum=program.momentum(question.schema))
    build = program.builder(question.schema)
    _check(question, build, settings)
    states = {id(call): read_state(call.hospital.home, request.run, request.round) for call in calls}
    # What each goes on from is told apart from what identifies the release: an earlier answer must be recognised.
    continued_states = {id(call): usable(call, states[id(call)], question.settings) for call in calls}

    def identify(call: Call[TrainRequest]) -> str:
        """By everything that decides the numbers; only the streams are known from site and round."""
        request = call.request
        asked = question.digest, request.public_patients, request.secure_parties
        filling = filled_by(call.hospital, question.config.data.imputation)
        return digest(*asked, call.hospital.began(True), filling, states[id(call)])

    def compute(calls: Sequence[Call[TrainRequest]], spent: Sequence[float]) -> list[RecordDict]:
        work = [_work(question, call, continued_states[id(call)]) for call in calls]
        updates = task.train(build, question.arrays, work, settings)
        uploads = [
            _upload(question, call, update, states[id(call)]) for call, update in zip(calls, updates, strict=True)
        ]
        figures = [_figures(call, site, update) for call, site, update in zip(calls, work, updates, strict=True)]
        return _replies(question, calls, uploads, [update.beside for update in updates], figures, spent)

    @cache
    def price(goes_on: bool) -> DpEvent:
        return program.price(question.settings, goes_on)

    def event(call: Call[TrainRequest]) -> DpEvent:
        had_begun, goes_on = (has_begun(by_call[id(call)], question.settings) for by_call in (states, continued_states))
        if had_begun and not goes_on:
            log(WARNING, "Round %d: the noise kept before was used already; a new process is paid for.", request.round)
        return price(goes_on)

    once = config.secure.aggregation
    return charge_calls(calls, Release("train", request.round, allow, event, identify, compute, once=once))


def _question(call: Call[TrainRequest]) -> _Question:
    config, schema = call.config, call.hospital.schema
    half = local_half(call.hospital, config, call.request.local_half)
    settings = train_settings(config, call.request, call.content, not call.hospital.simulated, half)
    key, arrays = model_arrays(call.content)
    scale = standardiser(call.content, len(feature_names(schema)))
    local = tuple(call.content.array_records.get(LOCAL, ()))
    sent, numbers = beside(call.content, settings.local, arrays), told_numbers(call.content, settings.local)
    asked = _read_question(call)
    by = scale and {"mean": scale[0], "std": scale[1]}
    told_apart = digest(config.decided, repr(settings), arrays, local, _flat(sent), repr(numbers), by, asked)
    return _Question(
        config, call.request, schema, settings, key, arrays, local, sent, numbers, scale, asked, told_apart
    )


def _flat(beside: Mapping[str, Arrays]) -> Arrays:
    return {f"{BESIDE}{name}/{label}": value for name, part in beside.items() for label, value in part.items()}


def _read_question(call: Call[TrainRequest]) -> Arrays:
    """What the program asks beside a model or in place of one; a message of most programs has nothing of the kind."""
    record = call.content.array_records.get(QUESTION)
    asked = {} if record is None else from_record(record)
    for name, value in asked.items():
        # Narrower ones wrap round or overflow, and what a question fails by could then be one patient.
        if value.dtype not in _FORMS:
            raise ConfigError(
                f"{call.hospital.site}: array {name!r} of the question is of {value.dtype}; it must be of {several(_FORMS)}."
            )
    return asked


def _allow(question: _Question, hospital: Hospital) -> None:
    noise = question.request.noise_multiplier
    check_terms(hospital, question.config, question.settings)
    sent = question.arrays | {f"{QUESTION}/{name}": value for name, value in question.asked.items()}
    check_size(hospital, sent)
    check_model_size(hospital, question.config)
    check_numbers(hospital, sent | _flat(question.beside))
    check_size(hospital, sent | question.origin)  # a sum may be larger than what asks for it
    own_imputer(hospital, question.config.data.imputation)
    # Also where the policy allows work without privacy.
    if noise is not None and question.config.data.imputation == "mice":
        raise ConfigError(
            f"{hospital.site}: imputation 'mice' makes one patient's row depend on others', so that no epsilon holds."
        )
    if not question.settings.learning_rate:
        raise ConfigError(
            "Message field 'learning_rate' is missing: the run's training.learning-rate of 0 leaves it to the server."
        )
    if question.config.secure.shared_noise and question.local:
        raise ConfigError(
            f"{hospital.site}: the message has arrays stay at hospitals, where shared noise does not reach them."
        )


def _passes(allow: Callable[[Call[TrainRequest]], None], call: Call[TrainRequest]) -> bool:
    try:
        allow(call)
    except PolyclinicError:
        return False
    return True


# By run configuration, schema and local half, the shapes of the module's arrays: its code does not change between rounds, and
# probing it takes milliseconds. What others wrote a real hospital looks at each time: the first arrays might show nothing of
# what it does.
_checked: dict[tuple[str, str, str], dict[str, tuple[int, ...]]] = {}


def _check(question: _Question, build: Callable[[], nn.Module], settings: TrainSettings) -> None:
    config, schema = question.config, question.schema
    half = question.settings.local
    # A coordinator may ask for the half in some rounds only.
    key = config.decided, schema.digest(), repr(half)
    program = program_of(config)
    if key in _checked and program.checked_once:
        check_fit(_checked[key], question.arrays)
        return
    program.check_training(question.task, schema, build, question.arrays, settings)
    if config.model in BUILT_IN["models"] or not question.settings.apart:
        _checked[key] = {name: value.shape for name, value in question.arrays.items()}


def _work(question: _Question, call: Call[TrainRequest], state: Arrays) -> SiteWork:
    hospital, request = call.hospital, call.request
    return SiteWork(
        rows=standardise(filled_rows(hospital, question.config.data.imputation), question.scale),
        sampling=hospital.stream("batches", request.round),
        noise=hospital.stream("gradient-noise", request.round),
        public_patients=request.public_patients,
        state={name: value for name, value in state.items() if name not in (RESIDUAL, _CHARGE)},
        layers=hospital.stream("layers", request.round),
        own={name: value for name, value in own_arrays(state).items() if name in question.local},
        beside=question.beside,
        config=question.numbers,
        number=request.site,
        round=request.round,
    )


def _upload(question: _Question, call: Call[TrainRequest], update: SiteUpdate, state: Arrays) -> Arrays:
    """What leaves of the site's update; writes what the site keeps for its next round."""
    config, number, hospital = question.config, question.request.round, call.hospital
    trained, origin = question.shared_arrays(update.arrays), question.origin
    how, upload, state_after = compression(config), trained, update.state
    own = {OWN + name: update.arrays[name] for name in question.local}
    if all(np.isfinite(value).all() for value in own.values()):  # otherwise it begins again from what it is sent
        state_after = state_after | own
    if has_begun(state_after, question.settings):
        state_after = state_after | marks(call)
    if how.active:
        upload, left_out = encode(trained, origin, how, hospital.stream("rounding", number), state.get(RESIDUAL))
        state_after = state_after if left_out is None else state_after | {RESIDUAL: left_out}
    if config.secure.aggregation:
        upload = mask_update(call, trained, origin, question.digest)
    # A simulation has thousands of them a round, and notices on resume that one is lost.
    run, rounds = question.request.run, config.checkpoints.rounds_kept
    write_state(hospital.home, run, number, state_after, rounds, durable=not hospital.simulated)
    return upload


def _figures(call: Call[TrainRequest], site: SiteWork, update: SiteUpdate) -> dict[str, float]:
    if call.config.secure.aggregation:
        return {"num-examples": 1.0}  # the weight is in the sum, and says nothing here
    private = call.request.noise_multiplier is not None
    divisor = call.request.public_patients or 1.0 if private else site.rows.patients
    figures = {**update.metrics, "steps": float(update.steps), "num-examples": float(divisor)}
    # Never in a private run: the loss is computed on the patients that epsilon protects.
    if not private and call.hospital.policy.release_metrics and math.isfinite(update.loss):
        figures["train_loss"] = update.loss
    return figures


def _replies(
    question: _Question, calls: Sequence[Call[TrainRequest]], uploads: Sequence[Arrays],
    besides: Sequence[Mapping[str, Arrays]], figures: Sequence[dict[str, float]], spent: Sequence[float],
) -> list[RecordDict]:  # fmt: skip
    """Each site's reply with its model; or of simulated sites, where the server allows it, one with the mean of all."""
    merge_by, how = question.request.merge_by, compression(question.config)
    merging = bool(calls) and calls[0].hospital.simulated and all(merge_by in metrics for metrics in figures)
    replies = [
        reply(call.hospital, {} if merging else upload, metrics, epsilon, question.key)
        for call, upload, metrics, epsilon in zip(calls, uploads, figures, spent, strict=True)
    ]
    for content, sent in zip(replies, besides, strict=True):
        for name, part in sent.items():
            content[BESIDE + name] = to_record(part)
    if merging:
        models = [decode(upload, question.origin, how) for upload in uploads] if how.active else uploads
        join(replies, question.key, uploads, models, [metrics[merge_by] for metrics in figures])
    return replies


def usable(call: Call[TrainRequest], state: Arrays, settings: TrainSettings) -> Arrays:
    """What the hospital kept before this round; of a noise process only where its next steps were never used.

    The ledger knows, whatever files were lost or restored: the run's newest charge must be that under which the state
    was written. A simulation makes the same noise again, and so the same release.

    Args:
        call: The request to train.
        state: What was read of the hospital's files, by name.
        settings: The round's settings, with the noise process if there is one.

    Raises:
        DataError: The ledger is older than the state.
    """
    if not has_begun(state, settings):
        return state
    if not call.hospital.simulated:
        charges, written = _charges(call), state[_CHARGE].tobytes().decode() if _CHARGE in state else ""
        if written not in charges:
            raise behind(call.hospital, f"the noise of run {call.request.run!r}")
        if written != charges[-1]:
            return without_draws(state)
    return state


def marks(call: Call[TrainRequest]) -> Arrays:
    """What is kept beside a noise process, written in a round that was just charged, so that ``usable`` knows it again."""
    if call.hospital.simulated:
        return {}
    return {_CHARGE: np.frombuffer(_charges(call)[-1].encode(), dtype=np.uint8)}


def _charges(call: Call[TrainRequest]) -> list[str]:
    """The hashes of the ledger's charges for training in the run, in order."""
    return [row.hash for row in open_ledgers([call.hospital])[0].charges("train", call.request.run)]


def join(
    replies: Sequence[RecordDict], key: str, uploads: Sequence[Arrays], models: Sequence[Arrays],
    weights: Sequence[float],
) -> None:  # fmt: skip
    """Puts the mean of the ``models`` that ``uploads`` stand for into one reply, and marks all whose model is in it.

    A model that is not finite stays alone, so that the server drops its site only.

    Args:
        replies: The hospitals' replies, which are changed.
        key: The name of the ArrayRecord in a reply.
        uploads: What each hospital would send, in the order of ``replies``.
        models: The model that each upload stands for.
        weights: The weight of each model in the mean.
    """
    mean, joined = weighted_mean(models, weights), list(range(len(models)))
    if not _finite(mean):
        joined = [index for index, model in enumerate(models) if _finite(model)]
        for index in set(range(len(models))) - set(joined):
            replies[index][key] = to_record(uploads[index])
        if not joined:
            return
        mean = weighted_mean([models[index] for index in joined], [weights[index] for index in joined])
    replies[joined[0]][key] = to_record(mean)
    _record_of(replies[joined[0]])[WEIGHT] = math.fsum(weights[index] for index in joined)
    size = sum(
        value.nbytes for value in uploads[joined[0]].values()
    )  # of uploads that were asked for together, of each
    for index in joined:
        fill_record(_record_of(replies[index]), {MERGED: size})


def _record_of(reply: RecordDict) -> ConfigRecord:
    return cast(ConfigRecord, reply[RECORD])


def _finite(arrays: Arrays) -> bool:
    return all(bool(np.isfinite(value).all()) for value in arrays.values())
