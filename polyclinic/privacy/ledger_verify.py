"""Whether a ledger is what it was, and true: the chain of hashes, and epsilon recomputed from the events.

A finding is one sentence on one charge or one site. That a chain is whole does not show that nobody who can write the file
and knows the rule made it anew; only a hash that was exported earlier, and kept elsewhere, does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from polyclinic.errors import ConfigError
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.ledger_file import Recorded, Row, damages, finite, read_sites, strays
from polyclinic.privacy.ledger_terms import History, Terms, epsilon_of, read_plan, risk_of, with_charge
from polyclinic.privacy.statements import Statement

# Two machines' arithmetic differs by far less, and an edit that matters by far more.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Finding:
    """What is wrong with a charge of a site, or with the site itself where ``seq`` is None."""

    site: str
    seq: int | None
    problem: str

    def __str__(self) -> str:
        return f"{self.site}{'' if self.seq is None else f', charge {self.seq}'}: {self.problem}."


def verify_all(path: Path, site: str | None = None) -> list[Statement]:
    """``verified`` of one site of a file, or of all; charges of sites whose terms are gone are findings of their own, and
    what SQLite finds wrong with the file is a finding of every site.

    Raises DataError if the file is no ledger, ConfigError if it does not hold the site.
    """
    ledgers = [Ledger.read(path, site)] if site is not None else [*Ledger.read_all(path).values()]
    found = read_sites(path, [ledger.site for ledger in ledgers])
    statements = [verified(ledger.terms, found[ledger.site]) for ledger in ledgers]
    damaged = [f"SQLite finds the file damaged ({problem})" for problem in damages(path)]
    for statement in statements:
        _add(statement, [Finding(statement["site"], None, problem) for problem in damaged])
    if site is None:
        lost = "charges are there, but the site's terms are gone"
        _add(statements[0], [Finding(name, None, lost) for name in strays(path)])
    return statements


def _add(statement: Statement, findings: Sequence[Finding]) -> None:
    statement["findings"] += [asdict(finding) for finding in findings]
    statement["intact"] = not statement["findings"]


def verified(terms: Terms, recorded: Recorded) -> Statement:
    """A site's statement with its ``findings``; ``intact`` only where there are none.

    Checked are the chain of hashes with the order of charges and the fixed terms; that every event can be accounted; that
    no charge's ``epsilon_after`` is below the recomputed epsilon of the charges up to it; and that the epsilon of all, by
    the exact accountant, is within the budget of now. Damaged charges are shown as they are; epsilon and risk are None where
    one cannot be accounted.
    """
    findings = [Finding(terms.site, seq, problem) for seq, problem in recorded.breaks()]
    unknown = list(_unaccountable(terms, recorded.rows))
    findings += unknown
    spent = None
    if not unknown:
        findings += _too_low(terms, recorded.rows)
        spent = epsilon_of(recorded.history, terms)
        if terms.budget is not None and spent > terms.budget:
            problem = f"epsilon spent is {spent:.6g}, more than the {terms.budget:g} that the budget of now allows"
            findings.append(Finding(terms.site, None, problem))
    return {
        "site": terms.site, "epsilon": finite(spent), "delta": terms.delta, "budget": terms.budget, "unit": terms.unit,
        "relation": terms.relation, "accountant": terms.accountant,
        "risk": None if unknown else risk_of(recorded.history, terms.relation).as_dict(),
        "events": [_legible(row) for row in recorded.rows],
        "intact": not findings, "findings": [asdict(one) for one in findings],
    }  # fmt: skip


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
        said = row.epsilon_after if isinstance(row.epsilon_after, (int, float)) else -math.inf
        least = epsilon_of(past, by, quick=True)
        # A coarse bound that is not above what was said settles it in milliseconds.
        if not _covers(said, least) and not _covers(said, least := epsilon_of(past, by)):
            problem = f"its epsilon_after is {row.epsilon_after}, below {least:.6g}, which the charges up to it cost"
            yield Finding(terms.site, row.seq, problem)


def _covers(said: float, least: float) -> bool:
    return said >= least * (1 - _ROUNDING)


def _legible(row: Row) -> dict[str, Any]:
    """A charge of a statement; an event that is no JSON, as text."""
    try:
        return row.shown()
    except (LookupError, ValueError):
        return row._replace(event=json.dumps(row.event, default=repr)).shown()
