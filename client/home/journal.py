"""The hospital's journal: a line of JSON for every message that comes, and one for its answer before it leaves.

No line has a patient's value: it says what was asked, what left, and what the ledger said. Each line holds also what
was charged since the one before (``marks``), so that a ledger that lost a charge shows, and can be brought forward.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message
from flwr.common.logger import log

from polyclinic.client.home.marks import charges_since
from polyclinic.client.home.own_files import JOURNAL
from polyclinic.client.home.policy import HospitalFile
from polyclinic.errors import DataError, PolyclinicError
from polyclinic.lines import append_line
from polyclinic.wire.arrays import bytes_of
from polyclinic.wire.messages import FAILED, RECORD, REFUSED

NAME = JOURNAL
_LONGEST = 300
_UNWRITTEN = "the hospital's journal cannot be written, so nothing is answered"


def record_and_answer(answer: Callable[[Message, Context], Message], message: Message, context: Context) -> Message:
    """The answer of a real hospital, with a line before it is worked on and one before it leaves.

    Where a line cannot be written nothing is answered; what was charged stays charged. Nothing is answered either while
    a ledger lacks a charge that the journal holds.

    Args:
        answer: What answers the message.
        message: The message that came.
        context: Flower's context, whose node-config names the hospital's file.
    """
    try:
        home = _home(context)
    except PolyclinicError:
        return answer(message, context)  # the answer says what is wrong with the hospital's file
    begun = time.monotonic()
    try:
        why = append(home, {"event": "asked", **_message_entry(message), "bytes": sum(map(len, bytes_of(message)))})
        reply = Message(Error(FAILED, why), reply_to=message) if why else answer(message, context)
        entry = {
            **_outcome(reply),
            **_message_entry(message),
            "bytes": sum(map(len, bytes_of(reply))),
            **_digest(reply),
            "seconds": round(time.monotonic() - begun, 3),
        }
        if (why := append(home, entry)) and entry["event"] == "answered":
            reply = Message(Error(FAILED, why), reply_to=message)
            entry = {**entry, **_outcome(reply)}
        # Quoted, so that nobody's words make a second line of the log.
        details = (f"{name} {entry[name]!r}" for name in ("round", "run", "why") if name in entry)
        level = INFO if entry["event"] in ("answered", "waits") else WARNING
        log(level, "Polyclinic: %s", ", ".join((f"{entry['event']} {entry['kind']!r}", *details)))
    except (OSError, DataError) as error:
        log(ERROR, "The journal %s cannot be written: %s", home / NAME, error)
        return Message(Error(FAILED, _UNWRITTEN), reply_to=message)
    return reply


def append(home: Path, entry: Mapping[str, Any]) -> str:
    """Write one line of the journal, with the charges since the newest line; of an answer that may not leave, that it failed.

    Args:
        home: The hospital's home folder, made where it is missing.
        entry: The line's own fields.

    Returns:
        Why nothing may be charged until a restore, and an empty string where it may.

    Raises:
        OSError: The line cannot be written whole.
        DataError: The journal has a newer format.
    """
    refusal = ""

    def charges(newest: Mapping[str, Any]) -> Mapping[str, Any]:
        nonlocal refusal
        fields, refusal = charges_since(home, newest.get("ledgers", {}))
        stays = refusal and entry["event"] == "answered"
        return fields | ({"event": "failed", "why": refusal, "digest": ""} if stays else {})

    append_line(home / NAME, entry, charges)
    return refusal


def _home(context: Context) -> Path:
    path = Path(str(context.node_config["hospital"]))
    return path.resolve().parent / HospitalFile.read(path).home


def _message_entry(message: Message) -> dict[str, Any]:
    """What the message says of itself, unchecked: it may be anyone's."""
    fields: Any = message.content.get(RECORD, {}) if message.has_content() else {}
    entry: dict[str, Any] = {"kind": message.metadata.message_type[:_LONGEST], "message": message.metadata.message_id}
    for name in ("run", "round", "version", "privacy_format"):
        value = fields.get(name) if hasattr(fields, "get") else None
        if isinstance(value, str | int):
            entry[name] = value[:_LONGEST] if isinstance(value, str) else value
    return entry


def _outcome(reply: Message) -> dict[str, Any]:
    if reply.has_error():
        event = "refused" if reply.error.code == REFUSED else "failed"
        return {"event": event, "why": str(reply.error.reason)[:_LONGEST]}
    fields: Any = reply.content.get(RECORD, {})
    if hasattr(fields, "get") and fields.get("refusal"):
        return {"event": "waits" if fields.get("waits") else "refused", "why": str(fields["refusal"])[:_LONGEST]}
    epsilon = fields.get("epsilon") if hasattr(fields, "get") else None
    return {"event": "answered", **({"epsilon": epsilon} if isinstance(epsilon, float) else {})}


def _digest(reply: Message) -> dict[str, str]:
    """What tells one answer from another: that the same numbers left again, or that others did."""
    arrays = bytes_of(reply)
    return {"digest": hashlib.sha256(b"".join(arrays)).hexdigest()} if arrays else {}
