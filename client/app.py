"""The hospital's Flower ClientApp: messages in, answers out.

A simulation hands many sites' messages to ``call_stack`` at once; a real hospital gets one message at a time; both take
the same way. A hospital that refuses or fails answers with Flower's Error and one sentence; no patient's value is ever
in it.
"""

from __future__ import annotations

import errno
import sqlite3
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib import import_module
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, MessageType, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from safetensors import SafetensorError

from polyclinic.client import enrolment
from polyclinic.client.calls import Answer, Call
from polyclinic.client.home.hospital import Hospital, is_real, open_hospital
from polyclinic.client.home.journal import record_and_answer
from polyclinic.client.home.own_files import withheld
from polyclinic.client.home.state import alone
from polyclinic.config import RunConfig
from polyclinic.digests import digest
from polyclinic.errors import BudgetRefused, ConfigError, DataError, PolyclinicError, traceback_of, why
from polyclinic.wire.arrays import unreadable
from polyclinic.wire.messages import (
    ASK,
    ENROL,
    FAILED,
    REFUSED,
    SECURE_CONFIRM,
    SECURE_KEYS,
    SECURE_SHARES,
    SECURE_UNMASK,
    SELECT,
    STATISTICS,
    AskRequest,
    EnrolRequest,
    EvaluateRequest,
    Request,
    RoundRequest,
    SecureConfirmRequest,
    SecureKeysRequest,
    SecureSharesRequest,
    SecureUnmaskRequest,
    SelectRequest,
    StatisticsRequest,
    TrainRequest,
    answering,
    read_request,
)

# What each kind of message asks for, and which function answers it for a list of calls; loaded with the first such message.
_ANSWERS: dict[str, tuple[type[Request], str]] = {
    ENROL: (EnrolRequest, "enrolment:enrol"),
    STATISTICS: (StatisticsRequest, "answers:statistics"),
    ASK: (AskRequest, "questions:answer"),
    SELECT: (SelectRequest, "answers:select"),
    MessageType.TRAIN: (TrainRequest, "training:train"),
    SECURE_KEYS: (SecureKeysRequest, "secure:keys"),
    SECURE_SHARES: (SecureSharesRequest, "secure:shares"),
    SECURE_CONFIRM: (SecureConfirmRequest, "secure:confirm"),
    SECURE_UNMASK: (SecureUnmaskRequest, "secure:unmask"),
    MessageType.EVALUATE: (EvaluateRequest, "evaluation:evaluate"),
}


@lru_cache(maxsize=len(_ANSWERS))
def _answering(kind: str) -> Callable[[Sequence[Call[Any]]], list[Answer]]:
    module, _, name = _ANSWERS[kind][1].partition(":")
    function: Callable[[Sequence[Call[Any]]], list[Answer]] = getattr(
        import_module(f"polyclinic.client.{module}"), name
    )
    return function


class HospitalApp(ClientApp):
    """Flower's ClientApp with one method more, which a grid that knows it calls for many nodes at once."""

    def call_stack(self, messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message]:
        """A reply for each message, in order; the messages are of one type. Never raises for what one site does."""
        pairs = zip(messages, contexts, strict=True)
        if any(map(is_real, contexts)):
            return [record_and_answer(_in_mods, message, context) for message, context in pairs]
        # A mod is around one answer.
        if any(context.run_config.get("mods") for context in contexts):
            return [_in_mods(message, context) for message, context in pairs]
        return _stack(messages, contexts)


def _stack(messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message]:
    (kind, _), answer = _ANSWERS[messages[0].metadata.message_type], _answering(messages[0].metadata.message_type)
    # Contexts of one grid share their configuration, of which even the look into a cache takes a while.
    shared = {id(context.run_config): context.run_config for context in contexts}
    configs = {key: _config_or_error(run_config) for key, run_config in shared.items()}
    readings = [_read(kind, message, context, configs[id(context.run_config)])
                for message, context in zip(messages, contexts, strict=True)]  # fmt: skip
    calls = [call for call in readings if isinstance(call, Call)]
    given = iter([_with_traceback(call, reply, messages[0].metadata.message_type)
                  for call, reply in zip(calls, _answer_by_halves(answer, calls), strict=True)])  # fmt: skip
    return [_reply(message, context, next(given) if isinstance(call, Call) else call)
            for message, context, call in zip(messages, contexts, readings, strict=True)]  # fmt: skip


def _alone(message: Message, context: Context) -> Message:
    return _stack([message], [context])[0]


def _in_mods(message: Message, context: Context) -> Message:
    """The answer as the run's mods leave it."""
    if not context.run_config.get("mods"):
        return _alone(message, context)
    from polyclinic.client.mods import mods_of, through

    try:
        mods = mods_of(_config(tuple(context.run_config.items())), message.metadata.message_type, context)
    except Exception as error:
        # Who enrols says itself that its policy refuses the mods, or that the coordinator counts privacy differently.
        enrols = message.metadata.message_type == ENROL
        return _alone(message, context) if enrols and is_real(context) else _reply(message, context, error)
    return through(mods, _alone, message, context)


app = HospitalApp()


def _handle(message: Message, context: Context) -> Message:
    return app.call_stack([message], [context])[0]


for _query in _ANSWERS:
    if _query.startswith("query."):
        app.query(_query.removeprefix("query."))(_handle)
app.train()(_handle)
app.evaluate()(_handle)


def _read(kind: type[Request], message: Message, context: Context, given: RunConfig | Exception) -> Call[Any] | Answer:
    try:
        if kind is EnrolRequest and (refusal := enrolment.refuse_other_format(message.content, context)):
            return refusal
        if is_real(context) and (why := unreadable(message.content)):
            raise ConfigError(f"The message's {why}.")
        if isinstance(given, Exception):
            raise given
        config, request = given, read_request(kind, message.content)
        hospital = open_hospital(context, request, config)
        if refusal := _refused_submitter(hospital, request, config):
            return refusal
        config = config.for_schema(hospital.schema)
        if not config.privacy.delta:  # a run that names none has the policies'
            config = config.with_values({"privacy.delta": hospital.policy.delta})
        call = Call(message.content, hospital, request, config)
        _check_people(call)
        return call
    except Exception as error:
        return error


def _refused_submitter(hospital: Hospital, request: Request, config: RunConfig) -> RecordDict | None:
    """The answer to who asks the hospital to enrol for a run that no submitter of its policy signed, or None. Raises
    BudgetRefused for any other message of such a run."""
    if not hospital.under_control or not hospital.policy.submitters:
        return None
    if isinstance(request, EnrolRequest) and not (request.trains or request.question):  # who only asks for the schema
        return None
    try:
        import_module("polyclinic.client.home.submissions").check_submitter(hospital, request, config)
    except BudgetRefused as refusal:
        if not isinstance(request, EnrolRequest):
            raise
        return enrolment.refusal_answer(hospital.site, refusal)
    return None


def _check_people(call: Call[Any]) -> None:
    """Raises BudgetRefused where people at the hospital hold the run up; of who enrols the answer says so itself."""
    if call.hospital.under_control and not isinstance(call.request, EnrolRequest):
        import_module("polyclinic.client.home.approvals").check_approved(call.hospital, call.request, call.config)


def _config_or_error(run_config: UserConfig) -> RunConfig | Exception:
    try:
        return _config(tuple(run_config.items()))
    except Exception as error:
        return error


@lru_cache(maxsize=8)
def _config(items: tuple[tuple[str, Any], ...]) -> RunConfig:
    return RunConfig.from_flower(dict(items))


def _answer_by_halves(answer: Callable[[Sequence[Call[Any]]], list[Answer]], calls: list[Call[Any]]) -> list[Answer]:
    """The answers of all calls; where answering together fails, by halves, so that a site that fails does so alone."""
    if not calls:
        return []
    try:
        with _one_at_a_time(calls[0]):
            # Somebody may have paused or stopped the run while this message waited for its turn, or while it was worked on.
            for call in calls:
                _check_people(call)
            answers = answer(calls)
            for call in calls:
                _check_people(call)
            return answers
    except Exception as error:
        if len(calls) == 1:
            return [error]
    half = len(calls) // 2
    return _answer_by_halves(answer, calls[:half]) + _answer_by_halves(answer, calls[half:])


def _one_at_a_time(call: Call[Any]) -> AbstractContextManager[None]:
    """A real hospital's rounds, which go on from what it kept, wait for each other; a simulation has one process a site."""
    if call.hospital.simulated or not isinstance(call.request, RoundRequest | EvaluateRequest):
        return nullcontext()
    return alone(call.hospital.home)


def _with_traceback(call: Call[Any], answer: Answer, kind: str) -> Answer:
    """In a simulation, which has nothing to protect, what an unforeseen error was, and the file with its traceback."""
    if isinstance(answer, RecordDict | PolyclinicError) or not call.hospital.simulated:
        return answer
    path = _write_traceback(call, answer, kind.rpartition(".")[2])
    return PolyclinicError(
        f"{call.hospital.site}: {why(answer)}; the traceback is in {path.relative_to(path.parents[1])}"
    )


def _write_traceback(call: Call[Any], error: Exception, kind: str) -> Path:
    """The file in the run's folder, beside the sites': one for all hospitals that fail in the same place; says the first's."""
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    place = (
        f"failed-round-{getattr(call.request, 'round', 0):06d}-{kind}-{digest(type(error).__name__, frames)[:8]}.txt"
    )
    path = call.hospital.home.parent / place
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = "".join(traceback.format_exception(error))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(whole)
    except FileExistsError:
        return path
    # Not by Flower's logger: Opacus gives the root one of its own, so that everything would be said twice.
    getLogger(__name__).error("%s failed.\n%s", call.hospital.site, traceback_of(error) or whole)
    return path


def _reply(message: Message, context: Context, answer: Answer) -> Message:
    if isinstance(answer, RecordDict):
        return answering(message, answer)
    if _is_full_disk(answer):
        log(ERROR, "The disk of this hospital's ledger and the files beside it is full; make room.", exc_info=answer)
        return Message(
            Error(FAILED, "the hospital's disk is full; it can answer again when there is room"), reply_to=message
        )
    if isinstance(answer, DataError) and is_real(context):  # of the hospital's own files, whichever it was
        answer = withheld(answer)
    if isinstance(answer, PolyclinicError):
        code = REFUSED if isinstance(answer, BudgetRefused) else FAILED
        return Message(Error(code, str(answer)), reply_to=message)
    # The text, and even the type, of an unforeseen error may depend on a record.
    log(ERROR, "This hospital failed on a %s message.", message.metadata.message_type, exc_info=answer)
    return Message(Error(FAILED, "the hospital failed; its own log has the details"), reply_to=message)


def _is_full_disk(error: BaseException) -> bool:
    """Whether a write failed for want of room, whatever error was made of it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return True
        if isinstance(cause, SafetensorError) and f"os error {errno.ENOSPC}" in str(cause):
            return True
        # Never past ``from None``: after a charge all errors look alike.
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return False
