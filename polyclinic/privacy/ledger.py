"""A hospital's ledger: every privacy event of its patients' records, over all runs, in one SQLite file.

Charge first, then touch data. A charge is one transaction that survives a crash of the process or the machine; a
refused charge changes nothing. A chain of hashes shows edits made outside; it does not stop someone who can write the
file and knows the rule. The ledger counts what was charged; that the mechanism did as charged is the trainer's part.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from dp_accounting import ComposedDpEvent, DpEvent, SelfComposedDpEvent

from polyclinic.errors import BudgetRefused, ConfigError, DataError
from polyclinic.privacy.accounting import Accountant, Relation, check_terms, epsilon, event_from_json, event_to_json

_TABLES = (
    "CREATE TABLE terms (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE events (seq INTEGER PRIMARY KEY, time TEXT NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL,"
    " purpose TEXT NOT NULL, event TEXT NOT NULL, epsilon_after REAL NOT NULL, hash TEXT NOT NULL)",
)
_COLUMNS = "seq, time, run, round, purpose, event, epsilon_after"
_FIXED = ("site", "delta", "relation", "unit")
# Another process holds the lock while it computes epsilon.
_WAIT_SECONDS = 600.0


class Ledger:
    """The spending of one site's shard; opens ``path`` or creates it. Holds no connection between calls.

    ``budget`` is the lifetime epsilon that the policy allows now, None for unlimited (a simulation without privacy).
    Raises ConfigError if the file belongs to another site, delta, relation or unit; DataError if it is no ledger.
    """

    def __init__(
        self, path: Path, site: str, budget: float | None, delta: float, accountant: Accountant = "pld",
        relation: Relation = "add-remove", unit: str = "patient",
    ) -> None:  # fmt: skip
        check_terms(delta, accountant, relation)
        if budget is not None and not (math.isfinite(budget) and budget > 0):
            raise ConfigError(f"budget must be positive and finite, or None for unlimited, got {budget}.")
        self.path, self.site, self.budget, self.delta = Path(path), site, budget, float(delta)
        self.accountant, self.relation, self.unit, self._writable = accountant, relation, unit, True
        fixed = {"site": site, "delta": self.delta, "relation": relation, "unit": unit}
        terms = {**fixed, "budget": budget, "accountant": accountant}
        if not self.path.exists():
            _create(self.path, terms)
        found = self._terms()
        for name, value in fixed.items():
            if found[name] != value:
                raise ConfigError(
                    f"The ledger {self.path} was begun with {name} {found[name]!r}; it must stay so, got {value!r}."
                )
        if any(found[name] != value for name, value in terms.items()):
            with self._transaction() as db:
                for name in ("budget", "accountant"):
                    db.execute("UPDATE terms SET value = ? WHERE name = ?", (json.dumps(terms[name]), name))

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """The ledger at ``path`` under its own terms, for looking only. Raises DataError if it is no ledger."""
        ledger = cls.__new__(cls)
        ledger.path, ledger._writable = Path(path), False
        terms = ledger._terms()
        ledger.site, ledger.unit = str(terms["site"]), str(terms["unit"])
        ledger.budget, ledger.delta = terms["budget"], float(terms["delta"])
        ledger.accountant, ledger.relation = cast(Accountant, terms["accountant"]), cast(Relation, terms["relation"])
        return ledger

    def charge(self, event: DpEvent, purpose: str, run: str, round: int) -> float:
        """Record ``event`` before it happens; returns an upper bound on the epsilon spent with it.

        The bound comes from the quick accountant; the exact one decides only when that would refuse.
        Raises BudgetRefused, with the file unchanged, if the epsilon would exceed the budget.
        """
        if not self._writable:
            raise ConfigError(f"The ledger {self.path} was opened for reading, so it cannot be charged.")
        entry = json.dumps(event_to_json(event), sort_keys=True)
        with self._transaction() as db:
            past = _past(db)
            total = ComposedDpEvent([past, event])
            after = self._epsilon(total, quick=True)
            if self.budget is not None and after > self.budget:
                after = self._epsilon(total)
                if after > self.budget:
                    raise BudgetRefused(
                        f"The privacy budget of {self.site!r} refuses {purpose!r} of round {round}: epsilon spent is"
                        f" {self._epsilon(past):.4g}, it would become {after:.4g}, allowed is {self.budget:.4g}."
                    )
            seq = db.execute("SELECT COALESCE(MAX(seq), 0) + 1 FROM events").fetchone()[0]
            now = datetime.now(UTC).isoformat(timespec="microseconds")
            row = (seq, now, run, int(round), purpose, entry, after)
            link = _link(_head(db), row)
            db.execute(f"INSERT INTO events ({_COLUMNS}, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, link))
            db.execute("UPDATE terms SET value = ? WHERE name = 'head'", (json.dumps(link),))
        return after

    def spent(self, accountant: Accountant | None = None) -> float:
        """The epsilon of all events at the ledger's delta, by its own accountant unless another is named."""
        with self._connection() as db:
            past = _past(db)
        return epsilon(past, self.delta, accountant or self.accountant, self.relation)

    def events(self) -> list[dict[str, Any]]:
        """All charges in order: seq, time (UTC), run, round, purpose, event (JSON form), epsilon_after."""
        with self._connection() as db:
            rows = db.execute(f"SELECT {_COLUMNS} FROM events ORDER BY seq").fetchall()
        names = _COLUMNS.split(", ")
        return [{**dict(zip(names, row, strict=True)), "event": json.loads(row[5])} for row in rows]

    def verify(self) -> bool:
        """Whether every row and the fixed terms are as they were written, and none is missing."""
        with self._connection() as db:
            terms = _read_terms(db)
            link = _genesis(terms)
            rows = db.execute(f"SELECT {_COLUMNS}, hash FROM events ORDER BY seq").fetchall()
        for number, (*row, stored) in enumerate(rows, start=1):
            link = _link(link, tuple(row))
            if row[0] != number or stored != link:
                return False
        return bool(terms["head"] == link)

    def statement(self) -> dict[str, Any]:
        """What ``polyclinic ledger show`` prints; an infinite epsilon is None, for JSON has no infinity."""
        spent = self.spent()
        events = self.events()
        for event in events:
            event["epsilon_after"] = _finite(event["epsilon_after"])
        return {
            "site": self.site, "epsilon": _finite(spent), "delta": self.delta, "budget": self.budget, "unit": self.unit,
            "relation": self.relation, "accountant": self.accountant, "events": events, "intact": self.verify(),
        }  # fmt: skip

    def _epsilon(self, event: DpEvent, quick: bool = False) -> float:
        return epsilon(event, self.delta, self.accountant, self.relation, quick)

    def _terms(self) -> dict[str, Any]:
        with self._connection() as db:
            return _read_terms(db)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with _explained(self.path):
            # "rw" never creates a file, and rolls back what a killed process left half done.
            address = f"{self.path.absolute().as_uri()}?mode=rw"
            db = sqlite3.connect(address, uri=True, timeout=_WAIT_SECONDS, isolation_level=None)
            try:
                db.execute("PRAGMA synchronous = EXTRA")
                yield db
            finally:
                db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._connection() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, LookupError, json.JSONDecodeError) as error:
        raise DataError(
            f"{path} cannot be used as a privacy ledger ({error}); if it is damaged, restore it from a backup."
        ) from error


def _create(path: Path, terms: dict[str, Any]) -> None:
    """Write a whole new ledger aside and link it into place, so that no half-made one is ever seen."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        with _explained(path):
            db = sqlite3.connect(aside, isolation_level=None)
            try:
                db.execute("PRAGMA synchronous = EXTRA")
                db.execute("BEGIN")
                for table in _TABLES:
                    db.execute(table)
                rows = {**terms, "head": _genesis(terms)}
                db.executemany("INSERT INTO terms VALUES (?, ?)", [(k, json.dumps(v)) for k, v in rows.items()])
                db.execute("COMMIT")
            finally:
                db.close()
        with suppress(FileExistsError):
            path.hardlink_to(aside)
    finally:
        aside.unlink(missing_ok=True)


def _read_terms(db: sqlite3.Connection) -> dict[str, Any]:
    terms = {name: json.loads(value) for name, value in db.execute("SELECT name, value FROM terms")}
    for name in (*_FIXED, "budget", "accountant", "head"):
        if name not in terms:
            raise LookupError(f"the term {name!r} is missing")
    return terms


def _past(db: sqlite3.Connection) -> DpEvent:
    rows = db.execute("SELECT event, COUNT(*) FROM events GROUP BY event ORDER BY MIN(seq)").fetchall()
    try:
        return ComposedDpEvent([SelfComposedDpEvent(event_from_json(json.loads(event)), n) for event, n in rows])
    except ConfigError as error:
        raise LookupError(str(error)) from error


def _head(db: sqlite3.Connection) -> str:
    return str(json.loads(db.execute("SELECT value FROM terms WHERE name = 'head'").fetchone()[0]))


def _genesis(terms: dict[str, Any]) -> str:
    return sha256(json.dumps([terms[name] for name in _FIXED]).encode()).hexdigest()


def _link(previous: str, row: tuple[Any, ...]) -> str:
    return sha256((previous + json.dumps(row)).encode()).hexdigest()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
