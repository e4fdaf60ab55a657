"""Files of JSON lines that only grow: a hospital's journal, and a coordinator's audit log.

Each line is on the disk before anything goes on. It holds a digest of all lines before it, so that one that was changed,
taken out or put in before the newest line shows. A change of the newest line, and lines cut off at the end, show only to who
noted the newest digest.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any

from polyclinic.errors import DataError

_FIRST = "0" * 64
#: Of the lines; raised when an older version could misread one. Lines without a number, of 0.1, have no charges.
FORMAT = 1


@dataclass(frozen=True)
class Lines:
    """What a file holds.

    ``intact``: every line follows the one before it; ``torn``: how many a crash cut short; ``head``: the digest of all
    lines, to be noted elsewhere.
    """

    entries: tuple[dict[str, Any], ...]
    intact: bool
    torn: int
    head: str


def append_line(
    path: Path,
    entry: Mapping[str, Any],
    more: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda newest: {},
) -> None:
    """Write one line, with the time and a digest of all before it, to the disk.

    Args:
        path: The file, made with its folder where it is missing.
        entry: The line's own fields.
        more: Further fields, from the newest line; nobody else writes meanwhile.

    Raises:
        OSError: The line cannot be written whole.
        DataError: The file has a newer format.

    Examples:
        >>> from tempfile import mkdtemp
        >>> path = Path(mkdtemp()) / "log.jsonl"
        >>> for event in ("asked", "answered"):
        ...     append_line(path, {"event": event})
        >>> lines = read_lines(path)
        >>> [entry["event"] for entry in lines.entries], lines.intact
        (['asked', 'answered'], True)
        >>> _ = path.write_text(path.read_text().replace("asked", "asKed"))
        >>> read_lines(path).intact
        False
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(path) as file:
        newest, before = _newest(file)
        if isinstance(format := newest.get("format", 0), bool) or format not in range(FORMAT + 1):
            raise DataError(f"{path} has format {format!r}; this version of Polyclinic reads formats up to {FORMAT}.")
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"time": now, **entry, **more(newest), "format": FORMAT, "before": before}
        # A line that a crash tore stays as it is, ended here.
        ended = b"" if _ends(file) else b"\n"
        written = ended + json.dumps(line, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
        if os.write(file, written) != len(written):
            raise OSError("the disk took only a part of the line")
        os.fsync(file)


def read_lines(path: Path) -> Lines:
    """All lines of a file; none where there is no file. Raises DataError for one that cannot be read."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return Lines((), True, 0, _FIRST)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    entries, torn, intact, before = [], 0, True, _FIRST
    for line in text.removesuffix(b"\n").split(b"\n"):
        entry = entry_of(line)
        if entry is None:
            torn += 1
        else:
            intact &= entry.get("before") == before
            entries.append(entry)
        before = _follow(before, line)
    return Lines(tuple(entries), intact, torn, before)


def entry_of(line: bytes) -> dict[str, Any] | None:
    """What a line says, None of one that was cut short."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


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
            return entry, reduce(_follow, lines[whole or 0 :], str(entry.get("before", _FIRST)))
        length *= 4
    return {}, _FIRST


def _follow(digest: str, line: bytes) -> str:
    return hashlib.sha256(digest.encode() + line).hexdigest()
