"""The policy limits what one run, and what all runs of thirty days, may cost of the budget."""

import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyclinic.client.app import app
from polyclinic.config import RunConfig
from polyclinic.errors import BudgetRefused
from polyclinic.privacy.accounting import gaussian_event
from polyclinic.privacy.ledger import Charge, Ledger, Limit, Terms, charge_all
from polyclinic.wire.messages import RECORD, REFUSED, STATISTICS, StatisticsRequest
from tests.approval.test_decisions import RUN, enrols
from tests.client.test_hospital import STRICT, context, ledger, make_hospital, message

MONTH = Limit(1.0, "All runs of thirty days", days=30.0)


def limited(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> Path:
    monkeypatch.setenv("POLYCLINIC_HOSPITAL", "as a node that was started by polyclinic")
    return make_hospital(folder, "\n".join((STRICT, *lines)) + "\n")


def counts(hospital: Path, run: str, noise: float) -> Any:
    asked = StatisticsRequest(run=run, site=0, noise_multiplier=noise)
    config = RunConfig.build({**RUN, "privacy.epsilon": 2.0})
    return app.call_stack([message(asked, STATISTICS)], [context(hospital, config)])[0]


def test_a_run_that_asks_for_more_than_one_run_may_cost_is_refused_as_it_enrols(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hospital = limited(tmp_path, monkeypatch, "most-epsilon-per-run = 0.8")
    said: Any = enrols(hospital, RunConfig.build(RUN)).content[RECORD]
    assert "The run may spend epsilon 0.8 at 'St. Elsewhere'" in said["refusal"]
    assert not (tmp_path / "home" / "ledger.sqlite").exists()
    said = enrols(hospital, RunConfig.build({**RUN, "privacy.epsilon": 0.7})).content[RECORD]
    assert said["refusal"] == ""


def test_runs_of_one_month_share_its_limit_and_what_they_may_cost_alone_does_not_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hospital = limited(tmp_path, monkeypatch, "most-epsilon-per-month = 1.0")
    assert not counts(hospital, "first", 3.0).has_error()
    spent = ledger(hospital).epsilon()
    refused = counts(hospital, "second", 3.0)
    assert refused.error.code == REFUSED
    assert "All runs of thirty days may spend epsilon 1 at 'St. Elsewhere'" in refused.error.reason
    assert ledger(hospital).epsilon() == spent
    assert not counts(hospital, "third", 20.0).has_error()


def aged(path: Path, days: float) -> None:
    """Date all charges of a ledger back."""
    then = (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="microseconds")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE events SET time = ?", (then,))


def test_what_was_charged_more_than_thirty_days_ago_is_of_another_month(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    charged = Charge(gaussian_event(5.0), "statistics", "first", 0, limits=(MONTH,))
    (first,) = charge_all([(book(path), charged)])
    assert 0.5 < first < 1.0
    (again,) = charge_all([(book(path), replace(charged, run="second"))])
    assert isinstance(again, BudgetRefused)
    aged(path, 29.0)
    assert isinstance(charge_all([(book(path), replace(charged, run="second"))])[0], BudgetRefused)
    aged(path, 31.0)
    (later,) = charge_all([(book(path), replace(charged, run="second"))])
    assert not isinstance(later, BudgetRefused) and later > first
    # A run that goes on brings what it cost before.
    assert isinstance(charge_all([(book(path), replace(charged, round=1))])[0], BudgetRefused)


def book(path: Path) -> Ledger:
    return Ledger.open(path, Terms("north", delta=1e-5, budget=50.0))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(4.0, 40.0)), max_size=12))
def test_no_order_of_charges_passes_a_limit(asked: list[tuple[str, float]]) -> None:
    """What was accepted costs, run by run and altogether, at most what was allowed, by the ledger's own accountant."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        for turn, (run, noise) in enumerate(asked):
            limits = (Limit(0.6), MONTH)
            charge_all([(book(path), Charge(gaussian_event(noise), "statistics", run, turn, limits=limits))])
        if not asked:
            return
        alone = dict.fromkeys("abc", 0)
        for name in alone:
            own = Ledger.open(Path(folder) / f"{name}.sqlite", Terms("north", delta=1e-5, budget=50.0))
            rows = [event for event in book(path).events() if event["run"] == name]
            for row in rows:
                own.charge(gaussian_event(row["event"]["noise_multiplier"]), "statistics", name, row["round"])
            assert own.epsilon() <= 0.6 + 1e-9
        assert book(path).epsilon() <= 1.0 + 1e-9
