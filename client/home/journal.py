"""The hospital's journal: a line of JSON for every message that comes, and one for its answer before it leaves.

Lines are only ever appended, each on the disk before anything goes on. A line holds a digest of all lines before it, so
that one that was changed, taken out or put in shows. Lines cut off at the end show only to who noted the newest digest.
No line has a patient's value: it says what was asked, what left, and what the ledger said. Each line holds also what
was charged since the one before (``marks``), so that a ledger that lost a charge shows, and can be brought forward.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import reduce
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message
from flwr.common.logger import log

from polyclinic.client.home.marks import charges_since
from polyclinic.client.home.policy import HospitalFile
from polyclinic.errors import DataError, PolyclinicError
from polyclinic.wire.arrays import bytes_of
from polyclinic.wire.messages import FAILED, RECORD, REFUSED

NAME = "journal.jsonl"
FIRST = "0" * 64
#: Of the lines; raised when an older version could misread one. Lines without a number, of 0.1, have no charges.
FORMAT = 1
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
        append(home, entry)
        # Quoted, so that nobody's words make a second line of the log.
        details = (f"{name} {entry[name]!r}" for name in ("round", "run", "why") if name in entry)
        level = INFO if entry["event"] in ("answered", "waits") else WARNING
        log(level, "Polyclinic: %s", ", ".join((f"{entry['event']} {entry['kind']!r}", *details)))
    except (OSError, DataError) as error:
        log(ERROR, "The journal %s cannot be written: %s", home / NAME, error)
        return Message(Error(FAILED, _UNWRITTEN), reply_to=message)
    return reply


def append(home: Path, entry: dict[str, Any], name: str = NAME) -> str:
    """Writes one line, with the time, the charges since the newest line and a digest of all before it, to the disk.

    Args:
        home: The hospital's home folder, made where it is missing.
        entry: The line's own fields.
        name: The journal's file name.

    Returns:
        Why nothing may be charged until a restore, and an empty string where it may.

    Raises:
        OSError: The line cannot be written whole.
        DataError: The journal has a newer format.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(home / name) as file:
        newest, before = _newest(file)
        if newest.get("format", 0) > FORMAT:
            format = newest["format"]
            raise DataError(
                f"{home / name} has format {format}; this version of Polyclinic reads formats up to {FORMAT}."
            )
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        charges, refusal = charges_since(home, newest.get("ledgers", {}))
        line = {"time": now, **entry, **charges, "format": FORMAT, "before": before}
        # A line that a crash tore stays as it is, ended here.
        ended = b"" if _ends(file) else b"\n"
        written = ended + json.dumps(line, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
        if os.write(file, written) != len(written):
            raise OSError("the disk took only a part of the line")
        os.fsync(file)
    return refusal


def entry_of(line: bytes) -> dict[str, Any] | None:
    """What a line says, None of one that was cut short."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


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


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _ends(file: int) -> bool:
    size = os.fstat(file).st_size
    return size == 0 or os.pread(file, 1, size - 1) == b"\n"


def _newest(file: int) -> tuple[dict[str, Any], str]:
    """The newest whole line, and the digest that the next one holds: from that line on, whatever a crash left after it."""
    size, length = os.fstat(file).st_size, 4096
    while size:
        length = min(size, length)
        lines = os.pread(file, length, size - length).removesuffix(b"\n").split(b"\n")
        lines = lines if length == size else lines[1:]
        whole = max((at for at, line in enumerate(lines) if entry_of(line)), default=None)
        if whole is not None or length == size:
            entry = entry_of(lines[whole or 0]) or {}
            return entry, reduce(follow, lines[whole or 0 :], str(entry.get("before", FIRST)))
        length *= 4
    return {}, FIRST


def follow(digest: str, line: bytes) -> str:
    return hashlib.sha256(digest.encode() + line).hexdigest()
