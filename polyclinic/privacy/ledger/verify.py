"""Whether a ledger is what it was, and true: the chain of hashes, and epsilon recomputed from the events.

A finding is one sentence on one charge or one site. Whoever can write the file and knows the rule could make a whole chain
anew. Only a hash that was exported earlier, and kept elsewhere, shows that nobody did. An export is a file for an
auditor, who needs neither Polyclinic nor the ledger to check its chain. JSON holds everything, to the letter; CSV is the
table of charges, for spreadsheets. An export appears whole or not at all.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from polyclinic.errors import ConfigError
from polyclinic.files import as_text, write_file
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.ledger.file import (
    COLUMNS,
    Recorded,
    Row,
    beginning,
    charge_text,
    damages,
    genesis,
    read_sites,
    strays,
)
from polyclinic.privacy.ledger.statements import Statement, statement, with_details
from polyclinic.privacy.ledger.terms import History, Terms, epsilon_of, read_plan, with_charge

# Two machines' arithmetic differs by far less, and an edit that matters by far more.
_ROUNDING = 1e-6
_RULE = (
    "A hash is the SHA-256, in hexadecimal, of UTF-8 text: a site's genesis of its 'begun'; a charge's hash of the hash "
    "before it followed by the charge's 'recorded'; head is the newest."
)


@dataclass(frozen=True)
class Finding:
    """What is wrong with a charge of a site, or with the site itself where ``seq`` is None.

    Examples:
        >>> print(Finding("north", 3, "its hash is not that of what it records"))
        north, charge 3: its hash is not that of what it records.
    """

    site: str
    seq: int | None
    problem: str

    def __str__(self) -> str:
        return f"{self.site}{'' if self.seq is None else f', charge {self.seq}'}: {self.problem}."


def verify_all(path: Path, site: str | None = None) -> list[Statement]:
    """``verify_site`` of one site of a file, or of all.

    Charges of sites whose terms are gone are findings of their own. What SQLite finds wrong with the file is a finding of
    every site.

    Raises DataError if the file is no ledger, ConfigError if it does not hold the site.

    Examples:
        >>> import tempfile
        >>> from polyclinic.privacy.accounting import gaussian_event
        >>> ledger = Ledger.open(Path(tempfile.mkdtemp()) / "ledger.sqlite", Terms("north", delta=1e-5))
        >>> after = ledger.charge(gaussian_event(4.0), "train", "run-1", round=1)
        >>> [(site["site"], site["intact"], site["findings"]) for site in verify_all(ledger.path)]
        [('north', True, [])]
    """
    ledgers = [Ledger.read(path, site)] if site is not None else [*Ledger.read_all(path).values()]
    by_site = read_sites(path, [ledger.site for ledger in ledgers])
    statements = [verify_site(ledger.terms, by_site[ledger.site]) for ledger in ledgers]
    damaged = [f"SQLite finds the file damaged ({problem})" for problem in damages(path)]
    for stated in statements:
        _add(stated, [Finding(stated["site"], None, problem) for problem in damaged])
    if site is None:
        lost = "charges are there, but the site's terms are gone"
        _add(statements[0], [Finding(name, None, lost) for name in strays(path)])
    return statements


def _add(site: Statement, findings: Sequence[Finding]) -> None:
    site["findings"] += [asdict(finding) for finding in findings]
    site["intact"] = not site["findings"]


def verify_site(terms: Terms, recorded: Recorded) -> Statement:
    """A site's statement with its ``findings``; ``intact`` only where there are none.

    It checks

    - the chain of hashes with the order of charges and the fixed terms;
    - that every event can be accounted;
    - that no charge's ``epsilon_after`` is below the recomputed epsilon of the charges up to it;
    - that the epsilon of all, by the exact accountant, is within the budget of now.

    Damaged charges are shown as they are; epsilon and risk are None where one cannot be accounted.

    Examples:
        >>> import tempfile
        >>> ledger = Ledger.open(Path(tempfile.mkdtemp()) / "ledger.sqlite", Terms("north", delta=1e-5, budget=3.0))
        >>> site = verify_site(ledger.terms, ledger.read_site())
        >>> site["epsilon"], site["budget"], site["intact"]
        (0.0, 3.0, True)
    """
    findings = [Finding(terms.site, seq, problem) for seq, problem in recorded.breaks()]
    unknown = list(_unaccountable(terms, recorded.rows))
    findings += unknown
    if not unknown:
        findings += _too_low(terms, recorded.rows)
        spent = epsilon_of(recorded.history, terms)
        if terms.budget is not None and spent > terms.budget:
            problem = f"epsilon spent is {spent:.6g}, more than the {terms.budget:g} that the budget of now allows"
            findings.append(Finding(terms.site, None, problem))
    history = None if unknown else recorded.history
    stated = statement(terms, history, [_legible(row) for row in recorded.rows], not findings)
    return stated | {"findings": [asdict(finding) for finding in findings]}


def _unaccountable(terms: Terms, rows: Sequence[Row]) -> Iterator[Finding]:
    first: dict[str, int] = {}
    for row in rows:
        first.setdefault(row.event, row.seq)
    for entry, seq in first.items():
        try:
            epsilon_of(with_charge((), "", entry), terms, quick=True)
        except (LookupError, TypeError) as error:
            yield Finding(terms.site, seq, f"its event cannot be accounted ({str(error).rstrip('.')})")
    for row in rows:
        try:
            read_plan(row.plan)
        except (ConfigError, TypeError) as error:
            yield Finding(terms.site, row.seq, str(error).rstrip("."))


def _too_low(terms: Terms, rows: Sequence[Row]) -> Iterator[Finding]:
    """The tightest accountant tells, whichever decided the charge: a bound by any other is above it."""
    by = replace(terms, accountant="pld")
    past: History = ()
    for row in rows:
        past = with_charge(past, row.run, row.event, read_plan(row.plan))
        recorded = row.epsilon_after if isinstance(row.epsilon_after, (int, float)) else -math.inf
        least = epsilon_of(past, by, quick=True)
        # A coarse bound that is not above what was said settles it in milliseconds.
        if not _covers(recorded, least) and not _covers(recorded, least := epsilon_of(past, by)):
            problem = f"its epsilon_after is {row.epsilon_after}, below {least:.6g}, which the charges up to it cost"
            yield Finding(terms.site, row.seq, problem)


def _covers(recorded: float, least: float) -> bool:
    return recorded >= least * (1 - _ROUNDING)


def _legible(row: Row) -> dict[str, Any]:
    """A charge of a statement; an event that is no JSON, as text."""
    try:
        return row.as_dict()
    except (LookupError, ValueError):
        return row._replace(event=json.dumps(row.event, default=repr)).as_dict()


def export(ledgers: Sequence[Ledger], out: Path, force: bool = False) -> list[Statement]:
    """Write the statements of several sites of one file to ``out``, by its suffix: .json or .csv; returns them.

    Args:
        ledgers: Of the sites, at least one, all in one file.
        out: The file to write, whose folder is there.
        force: Overwrites a file that is there already.

    Raises:
        ConfigError: with nothing written, for another suffix, a folder that is not there, or a file that is there already,
            unless ``force``.
        DataError: if the ledger is none.

    Examples:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> ledger = Ledger.open(folder / "ledger.sqlite", Terms("north", delta=1e-5))
        >>> statements = export([ledger], folder / "statement.json")
        >>> list(json.loads((folder / "statement.json").read_text()))
        ['hashes', 'sites']
    """
    formats: dict[str, Callable[..., str]] = {".json": _as_json, ".csv": _as_csv}
    if out.suffix not in formats:
        raise ConfigError(f"--out must end in .json or .csv, got {str(out)!r}.")
    if not out.parent.is_dir():
        raise ConfigError(f"--out names the folder {out.parent}, which does not exist.")
    sites = read_sites(ledgers[0].path, [ledger.site for ledger in ledgers])
    statements = [verify_site(ledger.terms, sites[ledger.site]) for ledger in ledgers]
    _write(out, formats[out.suffix](statements, sites), force)
    return statements


def _as_json(statements: Sequence[Statement], by_site: dict[str, Recorded]) -> str:
    sites = []
    for stated in statements:
        recorded = by_site[stated["site"]]
        events = [
            {**event, "recorded": charge_text(row), "hash": str(row.hash)}
            for event, row in zip(stated["events"], recorded.rows, strict=True)
        ]
        more = with_details(stated) if stated["epsilon"] is not None else stated
        chain = {"begun": beginning(recorded.terms), "genesis": genesis(recorded.terms), "head": recorded.head}
        sites.append({**more, **chain, "events": events})
    return json.dumps({"hashes": _RULE, "sites": sites}, indent=1, allow_nan=False) + "\n"


def _as_csv(statements: Sequence[Statement], by_site: dict[str, Recorded]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["site", *COLUMNS.split(", ")])
    for site in (stated["site"] for stated in statements):
        table.writerows(map(as_text, (site, *row)) for row in by_site[site].rows)
    return text.getvalue()


def _write(out: Path, text: str, force: bool) -> None:
    try:
        write_file(out, text, exclusive=not force)
    except FileExistsError:
        raise ConfigError(f"--out names {out}, which exists; --force replaces it.") from None
    except OSError as error:
        raise ConfigError(f"--out names {out}, which cannot be written: {error.strerror}.") from None
