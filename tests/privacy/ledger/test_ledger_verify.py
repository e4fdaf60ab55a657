"""Verifying and exporting: edits are found and named, also by somebody who makes the chain anew; epsilon is recomputed."""

from __future__ import annotations

import csv
import json
import math
import os
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from functools import partial
from hashlib import sha256
from pathlib import Path

import dp_accounting as dpa
import pytest

import polyclinic
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import dpsgd_event, epsilon, event_from_json, gaussian_event
from polyclinic.privacy.ledger import Ledger, Terms
from polyclinic.privacy.ledger.file import genesis, link
from polyclinic.privacy.ledger.verify import export, verify_all

ROUND = dpsgd_event(0.1, 1.2, 5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def charged(path: Path, rounds: int = 3, budget: float | None = 3.0, planned: int | None = None, **terms) -> Ledger:
    ledger = Ledger.open(path, Terms("hospital-1", 1e-5, budget=budget, **terms))
    for turn in range(1, rounds + 1):
        ledger.charge(ROUND, "train", "run-1", turn, plan=[(ROUND, planned or rounds)])
    return ledger


def edit(path: Path, *commands: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        for command in commands:
            assert db.execute(command).rowcount >= 1, command
        db.commit()


def forge(path: Path) -> None:
    """Make every hash anew, as somebody would who knows the rule."""
    recorded = Ledger.read(path).read_site()
    with closing(sqlite3.connect(path)) as db:
        previous = genesis(recorded.terms)
        for row in recorded.rows:
            previous = link(previous, row)
            db.execute("UPDATE events SET hash = ? WHERE seq = ?", (previous, row.seq))
        db.execute("UPDATE sites SET head = ?", (previous,))
        db.commit()
    assert Ledger.read(path).verify()


def findings(path: Path) -> list[tuple[int | None, str]]:
    statement = verify_all(path)[0]
    assert statement["intact"] == (not statement["findings"])
    assert json.loads(json.dumps(statement, allow_nan=False)) == statement
    return [(finding["seq"], finding["problem"]) for finding in statement["findings"]]


def test_a_ledger_as_it_was_written_has_no_findings(path: Path) -> None:
    ledger = charged(path)
    ledger.charge(gaussian_event(9.0), "statistics", "run-2", 0)
    statement = verify_all(path)[0]
    assert statement["intact"] and statement["findings"] == []
    assert statement["epsilon"] == ledger.epsilon() and len(statement["events"]) == 4


def test_a_ledger_charged_up_to_its_budget_by_the_exact_accountant_has_no_findings(path: Path) -> None:
    ledger = charged(path, 3, planned=4)
    tight = epsilon(dpsgd_event(0.1, 1.2, 20), 1e-5)
    Ledger.open(path, Terms("hospital-1", 1e-5, budget=tight)).charge(ROUND, "train", "run-1", 4)
    assert ledger.events()[-1]["epsilon_after"] == pytest.approx(tight) and findings(path) == []


def test_a_policy_that_changed_its_accountant_is_no_finding(path: Path) -> None:
    charged(path, 2, planned=5)
    charged(path, 2, accountant="rdp")
    assert findings(path) == []
    charged(path, 1, accountant="pld")
    assert findings(path) == []


@pytest.mark.parametrize(
    ("command", "seq", "words"),
    [
        ("UPDATE events SET event = REPLACE(event, '1.2', '9.9') WHERE seq = 2", 2, "not as it was written"),
        ("UPDATE events SET round = 7 WHERE seq = 1", 1, "or the site's delta, relation or unit"),
        ("UPDATE events SET epsilon_after = 0.1 WHERE seq = 3", 3, "not as it was written"),
        ("UPDATE events SET run = x'00' WHERE seq = 2", 2, "not as it was written"),
        ("UPDATE events SET hash = 'x' WHERE seq = 2", 2, "not as it was written"),
        ("DELETE FROM events WHERE seq = 1", 2, "the charge before it is missing: 1 was expected"),
        ("UPDATE events SET seq = 9 WHERE seq = 3", 9, "3 was expected here"),
        ("UPDATE events SET seq = 'x' WHERE seq = 3", "x", "3 was expected here"),
        ("DELETE FROM events WHERE seq = 3", None, "charges at the end are missing"),
        ("DELETE FROM events", None, "all charges are missing"),
        ("UPDATE sites SET head = 'x'", None, "does not end where the site says"),
        ("UPDATE sites SET delta = 0.01", 1, "or the site's delta, relation or unit is not"),
        ("UPDATE sites SET relation = 'replace-one'", 1, "or the site's delta, relation or unit is not"),
    ],
)
def test_every_edit_is_named_with_its_place(path: Path, command: str, seq: int | None, words: str) -> None:
    charged(path)
    edit(path, command)
    assert any(found == seq and words in problem for found, problem in findings(path)), findings(path)


def test_an_event_made_cheaper_is_found_in_epsilon_though_the_chain_is_made_anew(path: Path) -> None:
    charged(path)
    edit(path, "UPDATE events SET epsilon_after = 0.1 WHERE seq = 3")
    forge(path)
    (seq, problem), *rest = findings(path)
    exact = epsilon(dpsgd_event(0.1, 1.2, 15), 1e-5)
    assert seq == 3 and not rest and "epsilon_after is 0.1" in problem
    assert float(problem.split("below ")[1].split(",")[0]) == pytest.approx(exact, rel=1e-4)


def test_an_event_made_dearer_is_found_in_every_charge_after_it(path: Path) -> None:
    charged(path, budget=30.0)
    edit(path, "UPDATE events SET event = REPLACE(event, '1.2', '0.9') WHERE seq = 2")
    forge(path)
    assert [seq for seq, problem in findings(path) if "below" in problem] == [2, 3]


@pytest.mark.parametrize("value", ["-1.0", "'much'", "0"])
def test_an_epsilon_that_is_none_is_too_low(path: Path, value: str) -> None:
    charged(path, 1)
    edit(path, f"UPDATE events SET epsilon_after = {value}")
    assert any(seq == 1 and "epsilon_after" in problem for seq, problem in findings(path))


@pytest.mark.parametrize("event", ['{"type": "ZCDpEvent"}', "{}", "3", "nonsense", '{"type": "GaussianDpEvent"}'])
def test_an_event_that_cannot_be_accounted_is_a_finding_and_leaves_no_epsilon(path: Path, event: str) -> None:
    charged(path)
    edit(path, f"UPDATE events SET event = '{event}' WHERE seq >= 2")
    statement = verify_all(path)[0]
    assert statement["epsilon"] is None and not statement["intact"]
    assert (2, True) in [(f["seq"], "cannot be accounted" in f["problem"]) for f in statement["findings"]]
    json.dumps(statement, allow_nan=False)


def test_spending_beyond_the_budget_of_now_is_a_finding(path: Path) -> None:
    spent = charged(path).epsilon()
    Ledger.open(path, Terms("hospital-1", 1e-5, budget=0.5))
    assert [seq for seq, _ in findings(path)] == [None]
    assert f"epsilon spent is {spent:.6g}" in findings(path)[0][1] and "0.5" in findings(path)[0][1]


def test_an_unlimited_ledger_without_noise_is_intact_and_unbounded(path: Path) -> None:
    charged(path, 1, None).charge(dpa.NonPrivateDpEvent(), "train", "run-2", 1)
    assert findings(path) == [] and verify_all(path)[0]["epsilon"] is None
    edit(path, "UPDATE events SET epsilon_after = 5.0 WHERE seq = 2")
    forge(path)
    assert [seq for seq, _ in findings(path)] == [2] and "below inf" in findings(path)[0][1]


def test_charges_whose_site_is_gone_are_found(path: Path) -> None:
    ledgers = Ledger.open_all(path, [Terms(f"s{i}", 1e-5, budget=3.0) for i in range(3)])
    for ledger in ledgers:
        ledger.charge(ROUND, "train", "run-1", 1)
    edit(path, "DELETE FROM sites WHERE site = 's1'")
    found = [finding for statement in verify_all(path) for finding in statement["findings"]]
    assert found == [{"site": "s1", "seq": None, "problem": "charges are there, but the site's terms are gone"}]
    assert verify_all(path, "s2")[0]["intact"]


def test_sites_are_verified_each_by_itself(path: Path) -> None:
    ledgers = Ledger.open_all(path, [Terms(f"s{i}", 1e-5, budget=3.0) for i in range(3)])
    for ledger in ledgers:
        ledger.charge(ROUND, "train", "run-1", 1)
    edit(path, "UPDATE events SET round = 4 WHERE site = 's1'")
    assert [statement["intact"] for statement in verify_all(path)] == [True, False, True]


def chain_of(site: dict) -> list[str]:
    """The hashes of an export's site, by nothing but its own words and SHA-256."""
    hashes = [sha256(site["begun"].encode()).hexdigest()]
    for event in site["events"]:
        hashes.append(sha256((hashes[-1] + event["recorded"]).encode()).hexdigest())
    return hashes


def test_an_exports_chain_can_be_checked_without_polyclinic(path: Path, tmp_path: Path) -> None:
    ledger = charged(path)
    export([ledger], tmp_path / "out.json")
    (site,) = json.loads((tmp_path / "out.json").read_text())["sites"]
    genesis_hash, *hashes = chain_of(site)
    assert genesis_hash == site["genesis"] and hashes == [event["hash"] for event in site["events"]]
    assert hashes[-1] == site["head"] and json.loads(site["begun"]) == ["hospital-1", 1e-5, "add-remove", "patient", ""]
    for event in site["events"]:
        written = json.loads(event["recorded"])
        assert written[:6] == [event[k] for k in ("seq", "time", "run", "round", "purpose", "release")]
        assert written[6] == event.get("plan", "")
        assert json.loads(written[7]) == event["event"] and written[8] == event["epsilon_after"]
    events = [event_from_json(event["event"]) for event in site["events"]]
    assert site["epsilon"] == epsilon(dpa.ComposedDpEvent(events), 1e-5)
    assert site["intact"] and site["findings"] == [] and site["runs"][0]["charges"] == 3


def test_an_earlier_export_shows_a_ledger_that_was_made_anew(path: Path, tmp_path: Path) -> None:
    charged(path, planned=4)
    export([Ledger.read(path)], tmp_path / "earlier.json")
    head = json.loads((tmp_path / "earlier.json").read_text())["sites"][0]["head"]
    charged(path, 1)
    assert head in [row.hash for row in Ledger.read(path).read_site().rows]
    edit(path, "UPDATE events SET purpose = 'test' WHERE seq = 1")
    forge(path)
    assert findings(path) == [] and head not in [row.hash for row in Ledger.read(path).read_site().rows]


def test_a_damaged_ledger_is_exported_as_it_is_and_says_so(path: Path, tmp_path: Path) -> None:
    charged(path)
    edit(path, "UPDATE events SET event = 'nonsense' WHERE seq = 2")
    export([Ledger.read(path)], tmp_path / "out.json")
    (site,) = json.loads((tmp_path / "out.json").read_text())["sites"]
    assert not site["intact"] and site["epsilon"] is None and site["events"][1]["event"] == "nonsense"
    assert {finding["seq"] for finding in site["findings"]} == {2}


def test_the_table_of_charges_holds_every_column(path: Path, tmp_path: Path) -> None:
    ledger = charged(path)
    export([ledger], tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["seq"]) for row in rows] == [1, 2, 3] and {row["site"] for row in rows} == {"hospital-1"}
    assert [json.loads(row["event"]) for row in rows] == [event["event"] for event in ledger.events()]
    assert [float(row["epsilon_after"]) for row in rows] == [event["epsilon_after"] for event in ledger.events()]
    assert math.isfinite(float(rows[0]["epsilon_after"])) and len(rows[0]["hash"]) == 64


def test_an_export_replaces_nothing_unless_forced_and_leaves_nothing_half_written(path: Path, tmp_path: Path) -> None:
    ledger, out = charged(path), tmp_path / "out.json"
    out.write_text("mine")
    with pytest.raises(ConfigError, match="exists; --force"):
        export([ledger], out)
    assert out.read_text() == "mine"
    for wrong, words in (
        (tmp_path / "out.txt", "must end in .json or .csv"),
        (tmp_path / "no" / "o.csv", "does not exist"),
    ):
        with pytest.raises(ConfigError, match=words):
            export([ledger], wrong)
    export([ledger], out, force=True)
    assert json.loads(out.read_text())["sites"][0]["site"] == "hospital-1"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["ledger.sqlite", "out.json"]


CHARGE_WHEN_TOLD = """
import sys
from pathlib import Path
from polyclinic.privacy.accounting import dpsgd_event
from polyclinic.privacy.ledger import Ledger, Terms
ledger = Ledger.open(Path(sys.argv[1]), Terms("hospital-1", 1e-5, budget=3.0))
print("ready", flush=True)
sys.stdin.readline()
ledger.charge(dpsgd_event(0.1, 1.2, 5), "train", "run-2", 1)
"""


def test_a_statement_is_of_one_moment_though_another_process_charges_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other charges after the newest hash was read and before the charges are."""
    charged(path, 1)
    root = str(Path(polyclinic.__file__).parents[1])
    other = subprocess.Popen(
        [sys.executable, "-c", CHARGE_WHEN_TOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": root},
    )  # fmt: skip
    assert other.stdin is not None and other.stdout is not None and other.stdout.readline() == "ready\n"
    told = []

    class Slow(sqlite3.Connection):
        def execute(self, sql: str, *values):
            if "FROM events" in sql and not told:
                told.append(other.stdin.write("now\n"))
                other.stdin.flush()
                with suppress(subprocess.TimeoutExpired):
                    other.wait(timeout=2)  # it waits for this very read to end
            return super().execute(sql, *values)

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Slow))
    before = Ledger.read(path).read_site()
    assert other.wait(timeout=60) == 0
    after = Ledger.read(path).read_site()
    assert told and before.intact and after.intact and len(after.rows) == len(before.rows) + 1 == 2
