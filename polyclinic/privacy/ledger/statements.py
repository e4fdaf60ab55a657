"""What ledgers say, as the JSON that the command line prints and a run's summary carries; an infinite epsilon is None.

A statement is read from the file. The function ``with_details`` adds what follows from its events: other deltas, each run by
itself, what left outside epsilon, and what still fits into the budget.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from dp_accounting import GaussianDpEvent, NoOpDpEvent

from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import calibrate_noise_multiplier, epsilon
from polyclinic.privacy.accounting.risk import Risk, worst
from polyclinic.privacy.ledger import MONTH_DAYS, Ledger
from polyclinic.privacy.ledger.file import explained, finite, read_sites
from polyclinic.privacy.ledger.terms import (
    History,
    Terms,
    entry_of,
    epsilon_of,
    is_affordable,
    read_plan,
    risk_of,
    with_charge,
)
from polyclinic.privacy.streams import LEAST_DELTA

Statement = dict[str, Any]
_OUTSIDE = NoOpDpEvent.__name__
_LEAST_NOISE, _MOST_NOISE, _CLOSE = 1e-3, 1e6, 1e-4
_NEW_RUN = ""  # no run has this name


def statements(ledgers: Sequence[Ledger]) -> list[Statement]:
    """The statements of several sites of one file, which is read once, as of one moment."""
    path = ledgers[0].path
    recorded = read_sites(path, [ledger.site for ledger in ledgers])
    with explained(path):
        sites = [(ledger.terms, recorded[ledger.site]) for ledger in ledgers]
        return [statement(terms, own.history, [row.as_dict() for row in own.rows], own.intact) for terms, own in sites]


def statement(terms: Terms, history: History | None, events: Sequence[dict[str, Any]], intact: bool) -> Statement:
    """A site's statement; epsilon and risk are None where its history cannot be accounted.

    Args:
        terms: Of the site.
        history: What was charged by run; None where it cannot be accounted.
        events: The charges as the statement shows them.
        intact: Whether no finding speaks against the ledger.
    """
    return {
        "site": terms.site, "epsilon": None if history is None else finite(epsilon_of(history, terms)),
        "delta": terms.delta, "budget": terms.budget, "unit": terms.unit, "relation": terms.relation,
        "accountant": terms.accountant,
        "risk": None if history is None else risk_of(history, terms.relation).as_dict(),
        "events": [*events], "intact": intact,
    }  # fmt: skip


def statement_of(statements: Sequence[Statement]) -> Statement:
    """One site's statement as it is; several together: the largest epsilon and risk, all events with their site, and each's own.

    The largest are those of a patient with records at one of the sites.
    """
    if len(statements) == 1:
        return statements[0]
    spent, risks = [site["epsilon"] for site in statements], [site["risk"] for site in statements]
    first = statements[0]
    return {
        "site": None, "epsilon": None if None in spent else max(spent), "delta": first["delta"], "budget": first["budget"],
        "unit": first["unit"], "relation": first["relation"], "accountant": first["accountant"],
        "risk": None if None in risks else worst(Risk(**risk) for risk in risks).as_dict(),
        "events": [{"site": site["site"], **event} for site in statements for event in site["events"]],
        "intact": all(site["intact"] for site in statements), "sites": {site["site"]: site for site in statements},
    } | (
        {"findings": [finding for site in statements for finding in site["findings"]]} if "findings" in first else {}
    )  # fmt: skip


def with_details(statement: Statement, deltas: Sequence[float] = ()) -> Statement:
    """The statement with ``at``, ``runs``, ``outside`` and ``room``.

    at: epsilon at each of ``deltas``, or at the next three powers of ten below the statement's own.
    runs: what each run cost by itself; the figures do not add up to the whole, which composes better.
    outside: what left without costing the patients that epsilon protects.
    room: see ``room_left``.
    Raises ConfigError for a delta outside (0, 1).
    """
    terms = _terms(statement)
    history = _history(statement["events"])
    by_run: dict[str, list[dict[str, Any]]] = {}
    for event in statement["events"]:
        by_run.setdefault(event["run"], []).append(event)
    return statement | {
        "at": [{"delta": delta, "epsilon": finite(epsilon_of(history, replace(terms, delta=delta)))}
               for delta in deltas or smaller_deltas(terms.delta)],
        "runs": [{"run": run, "charges": len(events), "epsilon": finite(epsilon_of(_history(events), terms)),
                  "first": events[0]["time"], "last": events[-1]["time"]} for run, events in by_run.items()],
        "outside": [{"run": run, "purpose": purpose, "times": times}
                    for run, events in by_run.items()
                    for purpose, times in Counter(e["purpose"] for e in events if _outside(e)).items()],
        "room": room_left(history, replace(terms, site="")),
    }  # fmt: skip


def smaller_deltas(delta: float) -> list[float]:
    """The next three powers of ten below ``delta``, as far as a ledger takes them."""
    power = math.floor(math.log10(delta))
    first = power if float(f"1e{power}") < delta else power - 1
    powers = (float(f"1e{first - more}") for more in range(3))
    return [smaller for smaller in powers if smaller >= LEAST_DELTA]


# Sites of a simulation mostly have spent the same; their names do not matter here.
@lru_cache(maxsize=1024)
def room_left(history: History, terms: Terms) -> dict[str, float | None] | None:
    """The largest single release that the budget still allows: a sum with Gaussian noise, and its epsilon by itself.

    Budget less epsilon is not what is left, for epsilons do not add. Several releases together cost less than the sum of
    each by itself, and how much less depends on what they are. None where the budget is unlimited; epsilon 0 where not
    even a release with much noise fits.
    """
    if terms.budget is None:
        return None
    try:
        noise = _smallest_noise(history, terms)
    except ConfigError:
        return {"epsilon": 0.0, "noise_multiplier": None}
    return {
        "epsilon": epsilon(GaussianDpEvent(noise), terms.delta, terms.accountant, terms.relation),
        "noise_multiplier": noise,
    }


def month_of(statement: Statement, limit: float) -> dict[str, float | None]:
    """``limit``, ``epsilon`` that runs charged within thirty days cost together, and ``room``: as ``room_left``, under the limit.

    A run that goes on brings what it cost before, as where the limit is checked.
    """
    since = (datetime.now(UTC) - timedelta(days=MONTH_DAYS)).isoformat(timespec="microseconds")
    recent = {event["run"] for event in statement["events"] if event["time"] >= since}
    history = _history(event for event in statement["events"] if event["run"] in recent)
    terms = replace(_terms(statement), site="", budget=limit, accountant="pld")
    room = room_left(history, terms) or {"epsilon": None}
    return {"limit": limit, "epsilon": finite(epsilon_of(history, terms)), "room": room["epsilon"]}


def _terms(statement: Statement) -> Terms:
    return Terms(*(statement[name] for name in ("site", "delta", "relation", "unit", "budget", "accountant")))


def _smallest_noise(history: History, terms: Terms) -> float:
    """Of a further Gaussian release that the budget allows. Raises ConfigError where none does."""
    assert terms.budget is not None
    if not history:
        return calibrate_noise_multiplier(terms.budget, terms.delta, GaussianDpEvent, terms.accountant, terms.relation)

    def is_enough(noise: float) -> bool:
        return is_affordable(with_charge(history, _NEW_RUN, entry_of(GaussianDpEvent(noise))), terms)

    low, high = _LEAST_NOISE, _MOST_NOISE
    if not is_enough(high):
        raise ConfigError("no further release fits the budget")
    while high > low * (1 + _CLOSE):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _history(events: Iterable[dict[str, Any]]) -> History:
    history: History = ()
    for event in events:
        entry = json.dumps(event["event"], sort_keys=True)
        history = with_charge(history, event["run"], entry, read_plan(event.get("plan", "")))
    return history


def _outside(event: dict[str, Any]) -> bool:
    return bool(event["event"]["type"] == _OUTSIDE)
