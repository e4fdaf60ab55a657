"""The ledger's file: tables, transactions, and the chain of hashes that shows edits.

Each site's chain begins with its fixed terms; every charge's hash covers the hash before it and the row as it was
written; the site's head is the newest. The chain does not stop someone who can write the file and knows the rule.
"""

from __future__ import annotations

import errno
import json
import math
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from polyclinic.errors import ConfigError, DataError
from polyclinic.files import SECRET, flush, write_file
from polyclinic.privacy.ledger.terms import History, Terms, accountable, read_plan, with_charge

_TABLES = (
    "CREATE TABLE sites (site TEXT PRIMARY KEY, delta REAL NOT NULL, relation TEXT NOT NULL, unit TEXT NOT NULL,"
    " budget REAL, accountant TEXT NOT NULL, records TEXT NOT NULL, head TEXT NOT NULL)",
    "CREATE TABLE events (site TEXT NOT NULL, seq INTEGER NOT NULL, time TEXT NOT NULL, run TEXT NOT NULL,"
    " round INTEGER NOT NULL, purpose TEXT NOT NULL, release TEXT NOT NULL, plan TEXT NOT NULL, event TEXT NOT NULL,"
    " epsilon_after REAL NOT NULL, hash TEXT NOT NULL, PRIMARY KEY (site, seq))",
    "CREATE INDEX releases ON events (site, run, round)",
)
#: Of the tables, in the file's ``user_version``; raised when an older version could misread them. 0 is the same, from before
#: there were numbers.
FORMAT = 1
TERMS = "site, delta, relation, unit, budget, accountant, records"
COLUMNS = "seq, time, run, round, purpose, release, plan, event, epsilon_after, hash"
# Another process holds the lock while it computes epsilon.
_WAIT_SECONDS = 600.0
_FULL = (
    "The disk that holds the privacy ledger is full, so that nothing was charged: free some space on it, then ask again; the "
    "ledger itself is intact."
)
_MOST_DAMAGES = 5
_ELSE = "it is something else; name the ledger's own file, or restore it from a backup"
_OF_0_1 = (
    "it is of Polyclinic 0.1, which this version does not read, but what it holds is spent: keep it elsewhere, and begin a new "
    "ledger with a budget that is lower by the epsilon that `polyclinic ledger show` of 0.1 finds in it"
)


class Row(NamedTuple):
    """One charge as it is recorded: ``time`` in UTC, ``plan`` what its run declared with its first charge, ``event`` its
    entry, ``hash`` that of the chain up to here."""

    seq: int
    time: str
    run: str
    round: int
    purpose: str
    release: str
    plan: str
    event: str
    epsilon_after: float
    hash: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The charge without its hash, its event as JSON rather than text, its plan where there is one.

        What damage made no value of JSON is text.

        Raises LookupError if the event is not text, JSONDecodeError if it is no JSON.
        """
        if not isinstance(self.event, str):
            raise LookupError(f"the event of charge {self.seq} is not text")
        shown = {name: _as_json(value) for name, value in zip(self._fields, self, strict=True)}
        del shown["hash"]
        if not self.plan:
            del shown["plan"]
        return shown | {"event": json.loads(self.event), "epsilon_after": finite(self.epsilon_after)}


def finite(value: Any) -> float | None:
    """The number for JSON, which has no infinity; None for anything else."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def _as_json(value: Any) -> Any:
    return value if value is None or isinstance(value, str) or finite(value) is not None else repr(value)


@dataclass(frozen=True)
class Recorded:
    """All that a file holds of one site: the terms it was begun with, its newest hash, and its charges in order."""

    terms: Terms
    head: str
    rows: tuple[Row, ...]

    @property
    def history(self) -> History:
        return history_of(self.rows)

    def breaks(self) -> Iterator[tuple[int | None, str]]:
        """Where the chain does not hold: a charge's seq (None: the site itself) and what is wrong; nothing if intact."""
        previous, number = genesis(self.terms), 0
        for row in self.rows:
            number += 1
            if row.seq != number:
                yield row.seq, f"the charge before it is missing: {number} was expected here"
                number = row.seq if isinstance(row.seq, int) else number
            elif row.hash != link(previous, row):
                terms = ", or the site's delta, relation or unit is not" if number == 1 else ""
                yield row.seq, f"the charge is not as it was written{terms}"
            previous = str(row.hash)
        if self.head != previous:
            what = "charges at the end are missing or were added" if self.rows else "all charges are missing"
            yield None, f"{what}, or the newest hash was changed: the chain does not end where the site says"

    @property
    def intact(self) -> bool:
        """Whether every row and the fixed terms are as they were written, and none is missing."""
        return next(self.breaks(), None) is None


def read_sites(path: Path, sites: Sequence[str]) -> dict[str, Recorded]:
    """What the file holds of ``sites``, read in one pass and as of one moment. Raises DataError if one is missing."""
    with connection(path) as db:
        db.execute("BEGIN")  # several questions about one moment, though another process charges meanwhile
        begun = {terms.site: terms for terms in terms_in(db)}
        heads = heads_in(db)
        rows: dict[str, list[Row]] = {site: [] for site in sites}
        condition = " WHERE site = ?" if len(rows) == 1 else ""
        query = f"SELECT site, {COLUMNS} FROM events{condition} ORDER BY site, seq"
        for site, *row in db.execute(query, sites if condition else ()):
            if site in rows:
                rows[site].append(Row._make(row))
        for site in sites:
            if site not in begun:
                raise LookupError(f"the site {site!r} is missing")
        return {site: Recorded(begun[site], heads[site], tuple(site_rows)) for site, site_rows in rows.items()}


def strays(path: Path) -> list[str]:
    """Sites of which the file holds charges but no terms."""
    with connection(path) as db:
        lost = "SELECT DISTINCT site FROM events WHERE site NOT IN (SELECT site FROM sites) ORDER BY site"
        return [str(site) for (site,) in db.execute(lost)]


def past_in(db: sqlite3.Connection, site: str) -> tuple[int, History]:
    """The number of a site's charges, and what they have spent."""
    charges = db.execute(f"SELECT {COLUMNS} FROM events WHERE site = ? ORDER BY seq", (site,)).fetchall()
    return len(charges), history_of(map(Row._make, charges))


@accountable()
def history_of(rows: Iterable[Row]) -> History:
    """What charges in order have spent. Raises LookupError for a plan that cannot be read."""
    history: History = ()
    for row in rows:
        if not isinstance(row.event, str):
            raise LookupError(f"the event of charge {row.seq} is not text")
        history = with_charge(history, str(row.run), row.event, read_plan(row.plan))
    return history


def damages(path: Path) -> list[str]:
    """What SQLite itself finds wrong with the file, such as an index that disagrees with its table; nothing if intact."""
    with connection(path) as db:
        return [str(line) for (line,) in db.execute(f"PRAGMA integrity_check({_MOST_DAMAGES})") if line != "ok"]


def heads_in(db: sqlite3.Connection) -> dict[str, str]:
    """Every site's newest hash."""
    return {str(site): str(head) for site, head in db.execute("SELECT site, head FROM sites")}


def terms_in(db: sqlite3.Connection) -> list[Terms]:
    """The terms of all sites in the order they were begun. Raises LookupError for impossible ones."""
    rows = db.execute(f"SELECT {TERMS} FROM sites ORDER BY rowid")
    try:
        return [
            Terms(str(site), float(delta), relation, str(unit), budget, accountant, str(records))
            for site, delta, relation, unit, budget, accountant, records in rows
        ]
    except (ConfigError, ValueError, TypeError) as error:
        raise LookupError(str(error)) from error


_encoded = json.JSONEncoder(default=repr).encode


def charge_text(row: Row) -> str:
    """A charge as the text that its hash covers."""
    return _encoded(row[:-1])


def link(previous: str, row: Row) -> str:
    """The hash of ``row`` after the hash ``previous``: SHA-256, in hexadecimal, of the two texts one after the other."""
    return sha256((previous + charge_text(row)).encode()).hexdigest()


def beginning(terms: Terms) -> str:
    """A site's fixed terms as the text whose hash begins its chain."""
    return json.dumps([terms.site, terms.delta, terms.relation, terms.unit, terms.records])


def genesis(terms: Terms) -> str:
    """The hash with which a site's chain begins."""
    return sha256(beginning(terms).encode()).hexdigest()


@contextmanager
def connection(path: Path, durable: bool = True) -> Iterator[sqlite3.Connection]:
    """The open file. Raises DataError if it is missing, is no ledger, or has a newer format.

    What is written and not ``durable`` survives a crash of the process; one of the machine only after ``on_disk``.
    """
    if not path.is_file():
        raise DataError(f"There is no privacy ledger at {path}.")
    with explained(path), closing(_connect(path, "EXTRA")) if durable else _newest.of(path) as db:
        _check_format(db, path)
        yield db


def _connect(path: Path, synchronous: str) -> sqlite3.Connection:
    # "rw" never creates a file, and rolls back what a killed process left half done.
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=_WAIT_SECONDS, isolation_level=None)
    db.execute(f"PRAGMA synchronous = {synchronous}")
    return db


def _check_format(db: sqlite3.Connection, path: Path) -> int:
    [format] = db.execute("PRAGMA user_version").fetchone()
    if not 0 <= format <= FORMAT:
        raise DataError(
            f"The privacy ledger {path} has format {format}; this version of Polyclinic reads formats up to {FORMAT}: install "
            "the version that wrote it, or a newer one."
        )
    return int(format)


class _Newest(threading.local):
    """The connection that a thread used last for a simulation's rounds: to open it takes as long as to charge a few hospitals."""

    def __init__(self) -> None:
        self._db: sqlite3.Connection | None = None
        self._file: tuple[int, ...] = ()

    @contextmanager
    def of(self, path: Path) -> Iterator[sqlite3.Connection]:
        """A connection to the file, opened anew where another process, or anything but this connection, wrote it."""
        if self._db is None or self._file != _stamp(path) or self._db.in_transaction:
            self.forget()
            self._db = _connect(path, "OFF")
        try:
            yield self._db
        finally:
            with suppress(FileNotFoundError):
                self._file = _stamp(path)

    def forget(self) -> None:
        if self._db is not None and self._file[:1] == (os.getpid(),):
            self._db.close()
        elif self._db is not None:
            _inherited.append(self._db)  # a forked process must not close its parent's
        self._db = None


def _stamp(path: Path) -> tuple[int, ...]:
    """This process, and the very file as it is now: while it is open, no other one has its number."""
    status = path.stat()
    return os.getpid(), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


_newest, _inherited = _Newest(), list[sqlite3.Connection]()


@contextmanager
def transaction(path: Path, durable: bool = True) -> Iterator[sqlite3.Connection]:
    """All of it or nothing; other processes wait. ``durable`` as in ``connection``."""
    with connection(path, durable) as db:
        db.execute("BEGIN IMMEDIATE")
        try:
            if _check_format(db, path) < FORMAT:
                db.execute(f"PRAGMA user_version = {FORMAT}")
            yield db
        except BaseException:
            if db.in_transaction:  # of itself SQLite rolls back when the disk is full
                db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")


def on_disk(path: Path) -> None:
    """Wait until all charges in the file would survive a crash of the machine.

    Examples:
        >>> import tempfile
        >>> from polyclinic.privacy.accounting import gaussian_event
        >>> from polyclinic.privacy.ledger import Charge, Ledger, Terms, charge_all
        >>> ledger = Ledger.open(Path(tempfile.mkdtemp()) / "ledger.sqlite", Terms("north", delta=1e-5))
        >>> after = charge_all([(ledger, Charge(gaussian_event(4.0), "train", "run-1", 1))], durable=False)
        >>> on_disk(ledger.path)  # from here on the charge survives a power cut
    """
    flush(path)
    flush(path.parent)  # the journal of the last charge is gone, which would take it back


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns what SQLite and a damaged file raise into DataError: what is wrong, and what to do about it.

    Python's own errors are among them: a damaged file has text that is not UTF-8, also in SQLite's messages.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise DataError(_FULL) from error
    except (sqlite3.Error, LookupError, json.JSONDecodeError, UnicodeDecodeError) as error:
        if _code(error) == sqlite3.SQLITE_FULL:
            raise DataError(_FULL) from error
        if what := _strange(path):
            raise DataError(f"{path} cannot be used as a privacy ledger: {what}.") from error
        message = "its text is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        what = "".join(char if char.isprintable() else "?" for char in message)  # SQLite quotes what the file holds
        raise DataError(
            f"{path} cannot be used as a privacy ledger ({what}); if it is damaged, restore it from a backup."
        ) from error


def _code(error: Exception) -> int | None:
    """SQLite's primary result code; None of an error that is not SQLite's own."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _strange(path: Path) -> str:
    """What a file is that is no SQLite database at all, one of something else, or a ledger of 0.1; empty for a damaged ledger."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            columns = {str(column[1]) for column in db.execute("PRAGMA table_info(sites)")}
    except (sqlite3.Error, UnicodeDecodeError) as error:
        return _ELSE if _code(error) == sqlite3.SQLITE_NOTADB else ""
    terms = set(TERMS.split(", "))
    return "" if columns >= terms else _OF_0_1 if columns == terms - {"records"} | {"head"} else _ELSE


def create(path: Path, terms: Sequence[Terms]) -> None:
    """Make a ledger of these sites where there is none, whole and never half-made. Its owner alone reads it."""

    def write(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("PRAGMA synchronous = EXTRA")
            db.execute("BEGIN")
            for table in _TABLES:
                db.execute(table)
            db.execute(f"PRAGMA user_version = {FORMAT}")
            write_terms(db, terms)
            db.execute("COMMIT")

    path.parent.mkdir(parents=True, exist_ok=True)
    with explained(path), suppress(FileExistsError):
        write_file(path, write, mode=SECRET, exclusive=True)


def write_terms(db: sqlite3.Connection, terms: Sequence[Terms]) -> None:
    """Begin the sites that the file lacks; of the others, write the budget and the accountant alone."""
    db.executemany(
        f"INSERT INTO sites ({TERMS}, head) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (site) DO UPDATE SET budget = excluded.budget, accountant = excluded.accountant",
        [(*astuple(site_terms), genesis(site_terms)) for site_terms in terms],
    )
