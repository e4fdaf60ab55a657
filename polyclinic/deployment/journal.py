"""A hospital's whole journal, read for people and for a restore; ``client.home.journal`` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyclinic.client.home.journal import FIRST, NAME, entry_of, follow
from polyclinic.errors import DataError


@dataclass(frozen=True)
class Journal:
    """What a journal holds. intact: every line follows the one before it; torn: lines that a crash cut short;
    head: digest of all lines, to be noted elsewhere."""

    entries: tuple[dict[str, Any], ...]
    intact: bool
    torn: int
    head: str


def read_journal(home: Path, name: str = NAME) -> Journal:
    """The journal of a hospital's home; empty where none was begun. Raises DataError for a file that cannot be read."""
    try:
        text = (home / name).read_bytes()
    except FileNotFoundError:
        return Journal((), True, 0, FIRST)
    except OSError as error:
        raise DataError(f"The journal {home / name} cannot be read: {error.strerror}.") from None
    entries, torn, intact, before = [], 0, True, FIRST
    for line in text.removesuffix(b"\n").split(b"\n"):
        entry = entry_of(line)
        if entry is None:
            torn += 1
        else:
            intact &= entry.get("before") == before
            entries.append(entry)
        before = follow(before, line)
    return Journal(tuple(entries), intact, torn, before)
