"""The ledger: every privacy event of a hospital's patients, over all runs, in one SQLite file.

Charge first, then touch data. A charge is one transaction that survives a crash of the process or the machine. The releases
of a simulation's rounds stay on the machine: their charges survive a crash of the machine only once a checkpoint is about to
count on them. A refused charge changes nothing. The ledger counts what was charged; that the mechanism did as charged is the
trainer's part. What stands in it is read by ``statements``, checked by ``verify``.

A hospital's file is its own. The hospitals of a simulation share one file, so that a round is one transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from dp_accounting import DpEvent

from polyclinic.errors import BudgetRefused, ConfigError, several
from polyclinic.privacy.accounting import Accountant
from polyclinic.privacy.ledger.file import (
    COLUMNS,
    Recorded,
    Row,
    connection,
    create,
    explained,
    heads_in,
    link,
    on_disk,
    past_in,
    read_sites,
    terms_in,
    transaction,
    write_terms,
)
from polyclinic.privacy.ledger.terms import (
    History,
    Terms,
    entry_of,
    epsilon_of,
    filtered_epsilon,
    is_affordable,
    is_costly,
    plan_text,
    read_plan,
    reserving_run,
    with_charge,
    with_spares,
)

__all__ = ["Charge", "Ledger", "Terms", "charge_all", "on_disk", "spent_all"]

# By how much a calibrated run may seem to pass what it was calibrated to.
_ROUNDING = 1 + 1e-6
_FIXED = ("delta", "relation", "unit", "records")


#: Over which a policy's limits of a month count.
MONTH_DAYS = 30.0


@dataclass(frozen=True)
class Limit:
    """What some runs may cost together at the ledger's delta: the run that is charged, and those of ``runs`` that were charged
    within ``days``. Without ``runs`` it is all, and with no ``days`` the run alone.

    ``epsilon`` is counted as under a budget of its own, with all that the runs have declared. ``whose``: who may spend it, as a
    refusal begins.
    """

    epsilon: float
    whose: str = "The run"
    runs: frozenset[str] | None = None
    days: float = 0.0


@dataclass(frozen=True)
class Charge:
    """One event of one round.

    ``release`` identifies what will leave: a release that was charged before, and can only leave again as the same numbers,
    is not charged twice. Empty means that every charge is a new release, as at a real hospital, whose crash in mid-round makes
    it charge again.
    ``plan``: ``plan_text`` of all charges that the run will make; it is recorded with the run's first charge, and what
    later ones say of it does not count. Empty: the run's later charges may follow from its answers.
    ``limits``: what else must have room for it, beside the budget; they are not recorded.

    Examples:
        >>> from polyclinic.privacy.accounting import gaussian_event
        >>> charge = Charge(gaussian_event(4.0), purpose="statistics", run="run-1", round=0)
        >>> charge.release, charge.plan  # a new release of a run that declared nothing
        ('', '')
    """

    event: DpEvent
    purpose: str
    run: str
    round: int
    release: str = ""
    plan: str = ""
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class Ledger:
    """One site's spending in the file ``path``. Holds no connection between calls; made by ``open`` or ``read``.

    Examples:
        >>> import tempfile
        >>> from polyclinic.privacy.accounting import gaussian_event
        >>> ledger = Ledger.open(Path(tempfile.mkdtemp()) / "ledger.sqlite", Terms("north", delta=1e-5, budget=3.0))
        >>> round(ledger.charge(gaussian_event(4.0), "statistics", "run-1", round=0), 2)
        0.93
        >>> ledger.epsilon() <= ledger.budget, [charge["purpose"] for charge in ledger.events()], ledger.verify()
        (True, ['statistics'], True)
    """

    path: Path
    terms: Terms
    writable: bool

    @classmethod
    def open(cls, path: Path, terms: Terms) -> Ledger:
        """The ledger of a hospital, begun if there is none.

        Raises ConfigError if the file was begun with another site, delta, relation, unit or other records; DataError if it is no
        ledger.
        """
        return cls.open_all(path, [terms], alone=True)[0]

    @classmethod
    def open_all(cls, path: Path, terms: Sequence[Terms], alone: bool = False) -> list[Ledger]:
        """The ledgers of a simulation's sites in their one file, which begins where there is none.

        Args:
            path: The file.
            terms: Of each site. Budget and accountant may differ from those in the file, the rest may not.
            alone: Allows no other site in the file.

        Raises:
            ConfigError: if the file holds another site although ``alone``, or was begun with other terms.
            DataError: if it is no ledger.
        """
        path = Path(path)
        if not path.exists():
            create(path, terms)
        with connection(path, durable=alone) as db:
            changed = _terms_to_write(path, terms_in(db), terms, alone)
        if changed:
            with transaction(path) as db:  # another process may have begun a site meanwhile
                write_terms(db, _terms_to_write(path, terms_in(db), terms, alone))
        return [cls(path, wanted, True) for wanted in terms]

    @classmethod
    def read(cls, path: Path, site: str | None = None) -> Ledger:
        """A site's ledger under its own terms, for looking only; ``site`` may be left out where there is just one.

        Raises DataError if the file is no ledger, ConfigError if it does not hold the site.
        """
        ledgers = cls.read_all(path)
        if site is None and len(ledgers) > 1:
            raise ConfigError(f"The ledger {path} holds {len(ledgers)} sites; name one of {several(ledgers)}.")
        if site is not None and site not in ledgers:
            raise ConfigError(f"The ledger {path} does not hold the site {site!r}; it holds {several(ledgers)}.")
        return ledgers[site] if site is not None else next(iter(ledgers.values()))

    @classmethod
    def read_all(cls, path: Path) -> dict[str, Ledger]:
        """The ledgers of all sites in a file, by site, for looking only. Raises DataError if the file is no ledger."""
        with connection(Path(path)) as db:
            terms_by_site = terms_in(db)
            if not terms_by_site:
                raise LookupError("it holds no site")
            return {terms.site: cls(Path(path), terms, False) for terms in terms_by_site}

    @property
    def site(self) -> str:
        return self.terms.site

    @property
    def budget(self) -> float | None:
        return self.terms.budget

    @property
    def delta(self) -> float:
        return self.terms.delta

    def charge(
        self,
        event: DpEvent, purpose: str, run: str, round: int, release: str = "", plan: Sequence[tuple[DpEvent, int]] = (),
    ) -> float:  # fmt: skip
        """Record ``event`` before it happens; returns an upper bound on the epsilon spent with it.

        Args:
            event: What is about to be released.
            purpose: What for, as the statement shows it.
            run: The name of the run that releases it.
            round: The number of the round; 0 before the first.
            release: Identifies what will leave, so that the same numbers are not charged twice; empty for a new release.
            plan: All charges that the run will make, each with how often at most; of its first charge only, see ``Charge``.

        Raises:
            BudgetRefused: with the file unchanged, if the budget does not allow it.

        Examples:
            >>> import tempfile
            >>> from polyclinic.privacy.accounting import gaussian_event
            >>> ledger = Ledger.open(Path(tempfile.mkdtemp()) / "ledger.sqlite", Terms("north", delta=1e-5, budget=0.5))
            >>> round(ledger.charge(gaussian_event(9.0), "statistics", "run-1", round=0), 2)
            0.38
        """
        after = charge_all([(self, Charge(event, purpose, run, round, release, plan_text(plan) if plan else ""))])[0]
        if isinstance(after, BudgetRefused):
            raise after
        return after

    def epsilon(self, accountant: Accountant | None = None, delta: float | None = None) -> float:
        """The epsilon of all events at the ledger's delta, by its own accountant unless another is named.

        Another ``delta`` gives another true epsilon of the same events; the budget stays at the ledger's own.
        """
        terms = replace(
            self.terms, accountant=accountant or self.terms.accountant, delta=self.delta if delta is None else delta
        )
        with explained(self.path):
            return epsilon_of(self.read_site().history, terms)

    def events(self) -> list[dict[str, Any]]:
        """All charges in order: seq, time (UTC), run, round, purpose, release, event (JSON form), epsilon_after."""
        with explained(self.path):
            return [row.as_dict() for row in self.read_site().rows]

    def charges(self, purpose: str, run: str) -> list[Row]:
        """All charges of one purpose of one run, in order."""
        return [row for row in self.read_site().rows if (row.purpose, row.run) == (purpose, run)]

    def read_site(self) -> Recorded:
        """What the file holds of the site."""
        return read_sites(self.path, [self.site])[self.site]

    def verify(self) -> bool:
        """Whether every row and the fixed terms are as they were written, and none is missing."""
        return self.read_site().intact


def charge_all(charges: Sequence[tuple[Ledger, Charge]], durable: bool = True) -> list[float | BudgetRefused]:
    """Charge several sites of one file in one transaction; for each its new epsilon or its refusal.

    Charges that are not ``durable`` survive a crash of the process; one of the machine only after ``on_disk``.

    Examples:
        >>> import tempfile
        >>> from polyclinic.privacy.accounting import gaussian_event
        >>> terms = [Terms("north", delta=1e-5, budget=3.0), Terms("south", delta=1e-5, budget=0.5)]
        >>> ledgers = Ledger.open_all(Path(tempfile.mkdtemp()) / "ledger.sqlite", terms)
        >>> after = charge_all([(ledger, Charge(gaussian_event(4.0), "train", "run-1", 1)) for ledger in ledgers])
        >>> [type(result).__name__ for result in after]
        ['float', 'BudgetRefused']
    """
    path = charges[0][0].path
    if not all(ledger.writable and (ledger.path is path or ledger.path == path) for ledger, _ in charges):
        raise ConfigError(f"The ledger {path} was opened for reading, so it cannot be charged.")
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    results: list[float | BudgetRefused] = []
    rows: list[tuple[Any, ...]] = []
    # Most sites of a simulation have spent the same under the same terms, and are charged the same.
    alike: dict[tuple[object, ...], tuple[str, str, History, float | BudgetRefused]] = {}
    with transaction(path, durable) as db:
        heads = heads_in(db)
        for ledger, charge in charges:
            site = ledger.site
            before = _charged_before(db, site, charge) if charge.release else None
            if before is not None:
                results.append(before)
                continue
            seq, past = _past_of(db, path, site, heads)
            terms = ledger.terms.delta, ledger.terms.relation, ledger.terms.budget, ledger.terms.accountant
            limits = tuple(_with_recent(db, site, limit) for limit in charge.limits)
            charge = replace(charge, limits=limits) if limits else charge
            key = past, terms, id(charge.event), charge.run, charge.plan, bool(charge.release), limits
            if key not in alike:
                alike[key] = _judge(ledger.terms, past, charge)
            entry, plan, total, after = alike[key]
            if isinstance(after, BudgetRefused):
                after = _judge(ledger.terms, past, charge)[-1]  # which names its own site
            results.append(after)
            if not isinstance(after, BudgetRefused):
                row = Row(
                    seq + 1, now, charge.run, int(charge.round), charge.purpose, charge.release, plan, entry, after
                )  # fmt: skip
                heads[site] = link(heads[site], row)
                rows.append((site, *row[:-1], heads[site]))
                _remember(path, site, heads[site], seq + 1, total)
        db.executemany(f"INSERT INTO events (site, {COLUMNS}) VALUES ({'?, ' * 10}?)", rows)
        db.executemany("UPDATE sites SET head = ? WHERE site = ?", [(row[-1], row[0]) for row in rows])
    return results


def _terms_to_write(path: Path, recorded: Sequence[Terms], terms: Sequence[Terms], alone: bool) -> list[Terms]:
    """Those of ``terms`` that the file lacks or has otherwise. Raises ConfigError as ``Ledger.open_all`` does."""
    begun = {site_terms.site: site_terms for site_terms in recorded}
    wrong = [name for name in begun if name != terms[0].site] if alone else []
    if wrong:
        raise ConfigError(
            f"The ledger {path} was begun with site {wrong[0]!r}; it must stay so, got {terms[0].site!r}."
        )
    for wanted in terms:
        for name in _FIXED if wanted.site in begun else ():
            if (fixed := getattr(begun[wanted.site], name)) != getattr(wanted, name):
                raise ConfigError(
                    f"The ledger {path} was begun with {name} {fixed!r}; it must stay so, got {getattr(wanted, name)!r}."
                )
    return [wanted for wanted in terms if begun.get(wanted.site) != wanted]


def _judge(terms: Terms, past: History, charge: Charge) -> tuple[str, str, History, float | BudgetRefused]:
    """The charge as an entry, the plan that is recorded with it, all that is spent with it, and its epsilon or its refusal."""
    entry = entry_of(charge.event)
    is_first = is_costly(entry) and all(block.run != charge.run for block in past)
    plan = charge.plan if is_first else ""
    if plan and not charge.release and not charge.limits:
        plan = with_spares(past, charge.run, plan, terms)
    total = with_charge(past, charge.run, entry, read_plan(plan))
    return entry, plan, total, _afford(terms, past, total, charge)


def check_affordable(
    path: Path, terms: Terms, run: str, events: Sequence[DpEvent], plan: str, limits: Sequence[Limit]
) -> None:
    """Check that budget and ``limits`` have room for ``events``, with which a ``run`` of this ``plan`` begins.

    Charges nothing, and begins no ledger where there is none. A run of which the ledger holds a charge has begun: what it
    still costs is judged charge by charge.

    Args:
        path: The ledger's file, which need not exist.
        terms: Of the site.
        run: The name of the run.
        events: The first charges of the run, at least one.
        plan: All charges that the run will make, as ``plan_text`` writes them.
        limits: What some runs may cost together.

    Raises:
        BudgetRefused: if there is no room.
    """
    ledger = Ledger(path, terms, False)
    rows = ledger.read_site().rows if path.exists() else []
    if not any(row.run == run for row in rows):
        past = total = past_all([ledger])[0] if rows else ()
        for event in events:
            total = with_charge(total, run, entry_of(event), read_plan(plan))
        if rows:
            with connection(path) as db:
                limits = [_with_recent(db, terms.site, limit) for limit in limits]
        after = _afford(terms, past, total, Charge(events[-1], "train", run, 1, limits=tuple(limits)))
        if isinstance(after, BudgetRefused):
            raise after


def spent_all(ledgers: Sequence[Ledger]) -> list[float]:
    """``Ledger.epsilon`` of several sites of one file.

    Examples:
        >>> import tempfile
        >>> terms = [Terms("north", delta=1e-5), Terms("south", delta=1e-5)]
        >>> spent_all(Ledger.open_all(Path(tempfile.mkdtemp()) / "ledger.sqlite", terms))
        [0.0, 0.0]
    """
    with explained(ledgers[0].path):
        return [epsilon_of(past, ledger.terms) for past, ledger in zip(past_all(ledgers), ledgers, strict=True)]


def past_all(ledgers: Sequence[Ledger]) -> list[History]:
    """What several sites of one file have spent, run by run."""
    path = ledgers[0].path
    with connection(path) as db:
        heads = heads_in(db)
        return [_past_of(db, path, ledger.site, heads)[1] for ledger in ledgers]


# What a chain of hashes stands for, by its head: read from the file once, and then valid as long as nobody else charges.
_pasts: dict[tuple[str, str], tuple[str, int, History]] = {}
_MOST_PASTS = 100_000


def _past_of(db: sqlite3.Connection, path: Path, site: str, heads: Mapping[str, str]) -> tuple[int, History]:
    """The number of a site's charges, and what they have spent. Raises LookupError if the file does not hold the site."""
    if site not in heads:
        raise LookupError(f"the site {site!r} is missing")
    remembered = _pasts.get((str(path), site))
    if remembered is None or remembered[0] != heads[site]:
        _remember(path, site, heads[site], *past_in(db, site))
        remembered = _pasts[str(path), site]
    return remembered[1:]


def _remember(path: Path, site: str, head: str, charges: int, history: History) -> None:
    if len(_pasts) >= _MOST_PASTS:
        _pasts.clear()
    _pasts[str(path), site] = head, charges, history


def _charged_before(db: sqlite3.Connection, site: str, charge: Charge) -> float | None:
    """The site's epsilon now if this very release was charged; None if it was not."""
    same = "SELECT 1 FROM events WHERE site = ? AND run = ? AND round = ? AND purpose = ? AND release = ?"
    if not db.execute(same, (site, charge.run, charge.round, charge.purpose, charge.release)).fetchone():
        return None
    newest = "SELECT epsilon_after FROM events WHERE site = ? ORDER BY seq DESC LIMIT 1"
    return float(db.execute(newest, (site,)).fetchone()[0])


def _with_recent(db: sqlite3.Connection, site: str, limit: Limit) -> Limit:
    """The limit with those of its runs alone of which the site was charged within its days."""
    if not limit.days:
        return replace(limit, runs=frozenset())
    since = (datetime.now(UTC) - timedelta(days=limit.days)).isoformat(timespec="microseconds")
    rows = db.execute("SELECT DISTINCT run FROM events WHERE site = ? AND time >= ?", (site, since))
    recent = frozenset(run for (run,) in rows)
    return replace(limit, runs=recent if limit.runs is None else limit.runs & recent)


def _afford(terms: Terms, past: History, total: History, charge: Charge) -> float | BudgetRefused:
    for limit in charge.limits if total != past else ():
        # As under a budget of its own, by the tight accountant, as runs are calibrated.
        among = tuple(block for block in total if block.run == charge.run or block.run in (limit.runs or ()))
        own = replace(terms, accountant="pld", budget=limit.epsilon * _ROUNDING)
        if not is_affordable(among, own):
            return BudgetRefused(
                f"{limit.whose} may spend epsilon {limit.epsilon:.4g} at {terms.site!r}, and {charge.purpose!r} of round "
                f"{charge.round} would make it {filtered_epsilon(among, own):.4g}."
            )
    # What costs nothing is never refused, even if the policy's budget is now below what was spent.
    if terms.budget is None or total == past:
        return epsilon_of(total, terms, quick=True)
    if is_affordable(total, terms):
        after = epsilon_of(total, terms, quick=True)
        return after if after <= terms.budget else min(epsilon_of(total, terms), terms.budget)
    refused = f"The privacy budget of {terms.site!r} refuses {charge.purpose!r} of round {charge.round}:"
    run = reserving_run(total, terms)
    if run is not None and is_affordable(past, terms):
        return BudgetRefused(
            f"{refused} run {run!r} declared before its first charge that it would spend the budget of {terms.budget:.4g}, and "
            "only what it declared is answered; resume that run, or raise the budget."
        )
    after = max(epsilon_of(total, terms), filtered_epsilon(total, terms))
    return BudgetRefused(
        f"{refused} epsilon spent is {epsilon_of(past, terms):.4g}, it would become {after:.4g}, allowed is"
        f" {terms.budget:.4g}."
    )
