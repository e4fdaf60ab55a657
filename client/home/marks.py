"""What the journal holds of a hospital's ledgers: each charge again, and after each line how far every ledger was.

A ledger that lacks a charge of the journal is older than it: an answer left that the ledger has forgotten. Command
``restore`` brings it forward by the charges in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any

from polyclinic.client.home.own_files import LEDGER
from polyclinic.errors import DataError
from polyclinic.privacy.ledger.file import COLUMNS, connection, terms_in

LEDGERS = (LEDGER, "held-out.sqlite")
_BEHIND = (
    "the hospital's ledger lacks charges that its journal holds, so nothing is answered until the hospital's staff restore it "
    "(`polyclinic hospital restore`)"
)


def charges_since(home: Path, marks: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The fields of a line that follows one with these ``marks``, and why nothing may be charged, if so.

    ``ledgers``: by the ledger's name how many charges it holds, and the newest one's hash; ``charged``: by the same the terms
    and all charges since ``marks``. Both stay as they were where a ledger lacks one of ``marks``. A ledger that cannot be
    read is no reason here: nothing can be charged to it.
    """
    now, charged = dict(marks), {}
    for name in LEDGERS:
        count, head = marks.get(name, (0, ""))
        if not (home / name).exists():
            if count:
                return {"ledgers": dict(marks)}, _BEHIND
            continue
        with suppress(DataError), connection(home / name) as db:
            rows = db.execute(f"SELECT {COLUMNS} FROM events WHERE seq >= ? ORDER BY seq", (count,)).fetchall()
            if count and (not rows or (rows[0][0], rows[0][-1]) != (count, head)):
                return {"ledgers": dict(marks)}, _BEHIND
            if new := rows[1:] if count else rows:
                now[name] = [new[-1][0], new[-1][-1]]
                charged[name] = {"terms": astuple(terms_in(db)[0]), "rows": new}
    return {"ledgers": now} | ({"charged": charged} if charged else {}), ""
