"""The ledger: every privacy event of a hospital's patients, over all runs, in one SQLite file.

Charge first, then touch data. A charge is one transaction that survives a crash of the process or the machine; a
refused charge changes nothing. A chain of hashes shows edits made outside; it does not stop someone who can write the
file and knows the rule. The ledger counts what was charged; that the mechanism did as charged is the trainer's part.

A hospital's file is its own. The hospitals of a simulation share one file, so that a round is one transaction.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from dp_accounting import ComposedDpEvent, DpEvent, SelfComposedDpEvent

from polyclinic.errors import BudgetRefused, ConfigError, DataError, several
from polyclinic.privacy.accounting import Accountant, Relation, check_terms, epsilon, event_from_json, event_to_json

_TABLES = (
    "CREATE TABLE sites (site TEXT PRIMARY KEY, delta REAL NOT NULL, relation TEXT NOT NULL, unit TEXT NOT NULL,"
    " budget REAL, accountant TEXT NOT NULL, head TEXT NOT NULL)",
    "CREATE TABLE events (site TEXT NOT NULL, seq INTEGER NOT NULL, time TEXT NOT NULL, run TEXT NOT NULL,"
    " round INTEGER NOT NULL, purpose TEXT NOT NULL, release TEXT NOT NULL, event TEXT NOT NULL,"
    " epsilon_after REAL NOT NULL, hash TEXT NOT NULL, PRIMARY KEY (site, seq))",
    "CREATE INDEX releases ON events (site, run, round)",
)
_TERMS = "site, delta, relation, unit, budget, accountant"
_COLUMNS = "seq, time, run, round, purpose, release, event, epsilon_after"
_EVENT = _COLUMNS.split(", ").index("event")
_FIXED = ("delta", "relation", "unit")
# Another process holds the lock while it computes epsilon.
_WAIT_SECONDS = 600.0

# Equal parts of a composition: an event's JSON and how often it was charged, in order of the first.
Spent = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Terms:
    """What a site's spending is measured by. ``budget`` is the lifetime epsilon that the policy allows now, None for
    unlimited (a simulation without privacy); budget and accountant may change later, the rest may not.

    Raises ConfigError naming the term that is impossible.
    """

    site: str
    delta: float
    relation: Relation = "add-remove"
    unit: str = "patient"
    budget: float | None = None
    accountant: Accountant = "pld"

    def __post_init__(self) -> None:
        check_terms(self.delta, self.accountant, self.relation)
        if self.budget is not None and not (math.isfinite(self.budget) and self.budget > 0):
            raise ConfigError(f"budget must be positive and finite, or None for unlimited, got {self.budget}.")


@dataclass(frozen=True)
class Charge:
    """One event of one round. ``release`` identifies what will leave: a release that was charged before, and can only
    leave again as the same numbers, is not charged twice. Empty means that every charge is a new release."""

    event: DpEvent
    purpose: str
    run: str
    round: int
    release: str = ""


@dataclass(frozen=True)
class Ledger:
    """One site's spending in the file ``path``. Holds no connection between calls; made by ``open`` or ``read``."""

    path: Path
    terms: Terms
    writable: bool

    @classmethod
    def open(cls, path: Path, terms: Terms) -> Ledger:
        """The ledger of a hospital, begun if there is none.

        Raises ConfigError if the file belongs to another site, delta, relation or unit; DataError if it is no ledger.
        """
        return cls.open_all(path, [terms], alone=True)[0]

    @classmethod
    def open_all(cls, path: Path, terms: Sequence[Terms], alone: bool = False) -> list[Ledger]:
        """The ledgers of a simulation's sites in their one file; ``alone`` allows no other site in it."""
        path = Path(path)
        if not path.exists():
            _create(path)
        with _connection(path) as db:
            known = {found.site: found for found in _sites(db)}
        wrong = [name for name in known if name != terms[0].site] if alone else []
        if wrong:
            raise ConfigError(
                f"The ledger {path} was begun with site {wrong[0]!r}; it must stay so, got {terms[0].site!r}."
            )
        for wanted in terms:
            for name in _FIXED if wanted.site in known else ():
                if (begun := getattr(known[wanted.site], name)) != getattr(wanted, name):
                    raise ConfigError(
                        f"The ledger {path} was begun with {name} {begun!r}; it must stay so, got {getattr(wanted, name)!r}."
                    )
        changed = [wanted for wanted in terms if known.get(wanted.site) != wanted]
        if changed:
            with _transaction(path) as db:
                db.executemany(
                    f"INSERT INTO sites ({_TERMS}, head) VALUES (?, ?, ?, ?, ?, ?, ?)"
                    " ON CONFLICT (site) DO UPDATE SET budget = excluded.budget, accountant = excluded.accountant",
                    [(*astuple(wanted), _genesis(wanted)) for wanted in changed],
                )
        return [cls(path, wanted, True) for wanted in terms]

    @classmethod
    def read(cls, path: Path, site: str | None = None) -> Ledger:
        """A site's ledger under its own terms, for looking only; ``site`` may be left out where there is just one.

        Raises DataError if the file is no ledger, ConfigError if it does not hold the site.
        """
        found = cls.read_all(path)
        if site is None and len(found) > 1:
            raise ConfigError(f"The ledger {path} holds {len(found)} sites; name one of {several(found)}.")
        if site is not None and site not in found:
            raise ConfigError(f"The ledger {path} does not hold the site {site!r}; it holds {several(found)}.")
        return found[site] if site is not None else next(iter(found.values()))

    @classmethod
    def read_all(cls, path: Path) -> dict[str, Ledger]:
        """The ledgers of all sites in a file, by site, for looking only. Raises DataError if the file is no ledger."""
        with _connection(Path(path)) as db:
            found = _sites(db)
            if not found:
                raise LookupError("it holds no site")
            return {terms.site: cls(Path(path), terms, False) for terms in found}

    @property
    def site(self) -> str:
        return self.terms.site

    @property
    def budget(self) -> float | None:
        return self.terms.budget

    @property
    def delta(self) -> float:
        return self.terms.delta

    def charge(self, event: DpEvent, purpose: str, run: str, round: int, release: str = "") -> float:
        """Record ``event`` before it happens; returns an upper bound on the epsilon spent with it.

        The bound comes from the quick accountant; the exact one decides only when that would refuse.
        Raises BudgetRefused, with the file unchanged, if the epsilon would exceed the budget.
        """
        after = charge_all([(self, Charge(event, purpose, run, round, release))])[0]
        if isinstance(after, BudgetRefused):
            raise after
        return after

    def spent(self, accountant: Accountant | None = None) -> float:
        """The epsilon of all events at the ledger's delta, by its own accountant unless another is named."""
        with _connection(self.path) as db:
            past = _past(db, self.site)
            return _epsilon(past, self.delta, accountant or self.terms.accountant, self.terms.relation, False)

    def events(self) -> list[dict[str, Any]]:
        """All charges in order: seq, time (UTC), run, round, purpose, release, event (JSON form), epsilon_after."""
        names = _COLUMNS.split(", ")
        with _connection(self.path) as db:
            rows = db.execute(f"SELECT {_COLUMNS} FROM events WHERE site = ? ORDER BY seq", (self.site,)).fetchall()
            return [
                found | {"event": json.loads(found["event"])}
                for found in (dict(zip(names, row, strict=True)) for row in rows)
            ]

    def verify(self) -> bool:
        """Whether every row and the fixed terms are as they were written, and none is missing."""
        with _connection(self.path) as db:
            begun = next(found for found in _sites(db) if found.site == self.site)
            return _is_intact(begun, _head(db, self.site), _charges(db, [self.site])[self.site])

    def statement(self) -> dict[str, Any]:
        """What ``polyclinic ledger show`` prints; an infinite epsilon is None, for JSON has no infinity."""
        return statements([self])[0]


def statements(ledgers: Sequence[Ledger]) -> list[dict[str, Any]]:
    """``Ledger.statement`` of several sites of one file, which is read once."""
    path = ledgers[0].path
    names = _COLUMNS.split(", ")
    with _connection(path) as db:
        begun = {terms.site: terms for terms in _sites(db)}
        heads = dict(db.execute("SELECT site, head FROM sites"))
        charges = _charges(db, [ledger.site for ledger in ledgers])
        found = []
        for ledger in ledgers:
            site, terms, rows = ledger.site, ledger.terms, charges[ledger.site]
            if site not in begun:
                raise LookupError(f"the site {site!r} is missing")
            spent = _epsilon(
                _counted(row[_EVENT] for row in rows), terms.delta, terms.accountant, terms.relation, False
            )
            events = [dict(zip(names, row, strict=False)) for row in rows]
            for event in events:
                event |= {"event": json.loads(event["event"]), "epsilon_after": _finite(event["epsilon_after"])}
            found.append({
                "site": site, "epsilon": _finite(spent), "delta": terms.delta, "budget": terms.budget, "unit": terms.unit,
                "relation": terms.relation, "accountant": terms.accountant, "events": events,
                "intact": _is_intact(begun[site], heads[site], rows),
            })  # fmt: skip
        return found


def _charges(db: sqlite3.Connection, sites: Sequence[str]) -> dict[str, list[tuple[Any, ...]]]:
    """Each site's charges in order, the hash last in each."""
    found: dict[str, list[tuple[Any, ...]]] = {site: [] for site in sites}
    one = " WHERE site = ?" if len(sites) == 1 else ""
    query = f"SELECT site, {_COLUMNS}, hash FROM events{one} ORDER BY site, seq"
    for site, *row in db.execute(query, sites if one else ()):
        if site in found:
            found[site].append(tuple(row))
    return found


def _is_intact(begun: Terms, head: str, rows: Sequence[tuple[Any, ...]]) -> bool:
    link = _genesis(begun)
    for number, (*row, stored) in enumerate(rows, start=1):
        link = _link(link, row)
        if row[0] != number or stored != link:
            return False
    return head == link


def _counted(entries: Iterable[str]) -> Spent:
    return tuple(sorted(Counter(entries).items()))


def statement_of(statements: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One site's statement as it is; several together: the largest epsilon, all events with their site, and each's own."""
    if len(statements) == 1:
        return statements[0]
    spent = [one["epsilon"] for one in statements]
    first = statements[0]
    return {
        "site": None, "epsilon": None if None in spent else max(spent), "delta": first["delta"], "budget": first["budget"],
        "unit": first["unit"], "relation": first["relation"], "accountant": first["accountant"],
        "events": [{"site": one["site"], **event} for one in statements for event in one["events"]],
        "intact": all(one["intact"] for one in statements), "sites": {one["site"]: one for one in statements},
    }  # fmt: skip


def charge_all(charges: Sequence[tuple[Ledger, Charge]]) -> list[float | BudgetRefused]:
    """Charge several sites of one file in one transaction; for each its new epsilon or its refusal."""
    path = charges[0][0].path
    if not all(ledger.writable and ledger.path == path for ledger, _ in charges):
        raise ConfigError(f"The ledger {path} was opened for reading, so it cannot be charged.")
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    results: list[float | BudgetRefused] = []
    rows: list[tuple[Any, ...]] = []
    with _transaction(path) as db:
        heads = dict(db.execute("SELECT site, head FROM sites"))
        for ledger, charge in charges:
            site = ledger.site
            before = _charged_before(db, site, charge) if charge.release else None
            if before is not None:
                results.append(before)
                continue
            past, entry = _past_of(db, path, site, heads.get(site, "")), _entry(charge.event)
            after = _afford(ledger.terms, past, entry, charge)
            results.append(after)
            if not isinstance(after, BudgetRefused):
                seq = 1 + sum(count for _, count in past)
                row = (seq, now, charge.run, int(charge.round), charge.purpose, charge.release, entry, after)
                rows.append((site, *row, _link(heads[site], row)))
                heads[site] = rows[-1][-1]
                _remember(path, site, heads[site], _with(past, entry))
        db.executemany(f"INSERT INTO events (site, {_COLUMNS}, hash) VALUES ({'?, ' * 9}?)", rows)
        db.executemany("UPDATE sites SET head = ? WHERE site = ?", [(row[-1], row[0]) for row in rows])
    return results


# What a chain of hashes stands for, by its head: read from the file once, and then known as long as nobody else charges.
_known: dict[tuple[Path, str], tuple[str, Spent]] = {}
_MOST_KNOWN = 100_000


def _past_of(db: sqlite3.Connection, path: Path, site: str, head: str) -> Spent:
    known = _known.get((path, site))
    if known is not None and known[0] == head:
        return known[1]
    past = _past(db, site)
    _remember(path, site, _head(db, site), past)
    return past


def _remember(path: Path, site: str, head: str, spent: Spent) -> None:
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[path, site] = head, spent


def _with(past: Spent, entry: str) -> Spent:
    counts = dict(past)
    return tuple(sorted((counts | {entry: counts.get(entry, 0) + 1}).items()))


def spent_all(ledgers: Sequence[Ledger]) -> list[float]:
    """``Ledger.spent`` of several sites of one file."""
    path = ledgers[0].path
    with _connection(path) as db:
        heads = dict(db.execute("SELECT site, head FROM sites"))
        return [
            _epsilon(_past_of(db, path, one.site, heads.get(one.site, "")), one.delta, one.terms.accountant,
                     one.terms.relation, False)
            for one in ledgers
        ]  # fmt: skip


@lru_cache(maxsize=256)
def _entry(event: DpEvent) -> str:
    return json.dumps(event_to_json(event), sort_keys=True)


def _charged_before(db: sqlite3.Connection, site: str, charge: Charge) -> float | None:
    """The site's epsilon now if this very release was charged; None if it was not."""
    same = "SELECT 1 FROM events WHERE site = ? AND run = ? AND round = ? AND purpose = ? AND release = ?"
    if not db.execute(same, (site, charge.run, charge.round, charge.purpose, charge.release)).fetchone():
        return None
    newest = "SELECT epsilon_after FROM events WHERE site = ? ORDER BY seq DESC LIMIT 1"
    return float(db.execute(newest, (site,)).fetchone()[0])


def _afford(terms: Terms, past: Spent, entry: str, charge: Charge) -> float | BudgetRefused:
    total = _with(past, entry)
    by = terms.delta, terms.accountant, terms.relation
    after = _epsilon(total, *by, True)
    if terms.budget is None or after <= terms.budget:
        return after
    after = _epsilon(total, *by, False)
    if after <= terms.budget:
        return after
    return BudgetRefused(
        f"The privacy budget of {terms.site!r} refuses {charge.purpose!r} of round {charge.round}: epsilon spent is"
        f" {_epsilon(past, *by, False):.4g}, it would become {after:.4g}, allowed is {terms.budget:.4g}."
    )


# Sites of a simulation mostly have spent the same.
@lru_cache(maxsize=4096)
def _epsilon(spent: Spent, delta: float, accountant: Accountant, relation: Relation, quick: bool) -> float:
    try:
        parts = [SelfComposedDpEvent(event_from_json(json.loads(entry)), count) for entry, count in spent]
    except ConfigError as error:
        raise LookupError(str(error)) from error
    return epsilon(ComposedDpEvent(parts), delta, accountant, relation, quick)


def _past(db: sqlite3.Connection, site: str) -> Spent:
    return tuple(db.execute("SELECT event, COUNT(*) FROM events WHERE site = ? GROUP BY event ORDER BY event", (site,)))


def _head(db: sqlite3.Connection, site: str) -> str:
    row = db.execute("SELECT head FROM sites WHERE site = ?", (site,)).fetchone()
    if row is None:
        raise LookupError(f"the site {site!r} is missing")
    return str(row[0])


def _sites(db: sqlite3.Connection) -> list[Terms]:
    try:
        return [
            Terms(str(site), float(delta), cast(Relation, relation), str(unit), budget, cast(Accountant, accountant))
            for site, delta, relation, unit, budget, accountant in db.execute(
                f"SELECT {_TERMS} FROM sites ORDER BY rowid"
            )
        ]
    except (ConfigError, ValueError) as error:
        raise LookupError(str(error)) from error


@contextmanager
def _connection(path: Path) -> Iterator[sqlite3.Connection]:
    if not path.is_file():
        raise DataError(f"There is no privacy ledger at {path}.")
    with _explained(path):
        # "rw" never creates a file, and rolls back what a killed process left half done.
        db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=_WAIT_SECONDS, isolation_level=None
        )
        try:
            db.execute("PRAGMA synchronous = EXTRA")
            yield db
        finally:
            db.close()


@contextmanager
def _transaction(path: Path) -> Iterator[sqlite3.Connection]:
    with _connection(path) as db:
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


def _create(path: Path) -> None:
    """Write a whole new file aside and link it into place, so that no half-made one is ever seen."""
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
                db.execute("COMMIT")
            finally:
                db.close()
        with suppress(FileExistsError):
            path.hardlink_to(aside)
    finally:
        aside.unlink(missing_ok=True)


def _genesis(terms: Terms) -> str:
    return sha256(json.dumps([terms.site, terms.delta, terms.relation, terms.unit]).encode()).hexdigest()


def _link(previous: str, row: Sequence[Any]) -> str:
    return sha256((previous + json.dumps(list(row))).encode()).hexdigest()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
