"""The ledger: charged means recorded, refused means untouched, whatever is killed and however many charge at once."""

from __future__ import annotations

import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Thread

import dp_accounting as dpa
import pytest

import polyclinic
from polyclinic.errors import BudgetRefused, ConfigError, DataError
from polyclinic.privacy import ledger as ledger_module
from polyclinic.privacy.accounting import dpsgd_event, epsilon, event_from_json, gaussian_event, plan
from polyclinic.privacy.ledger import Charge, Ledger, Limit, Terms, charge_all, check_affordable
from polyclinic.privacy.ledger.file import connection
from polyclinic.privacy.ledger.statements import statements
from polyclinic.privacy.ledger.terms import plan_text

ROUND = dpsgd_event(0.1, 1.2, 5)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "site" / "ledger.sqlite"


def _open(path: Path, budget: float | None = 3.0, delta: float = 1e-5, **terms) -> Ledger:
    return Ledger.open(path, Terms("hospital-1", delta, budget=budget, **terms))


def _content(path: Path) -> tuple[bytes, list[Path]]:
    return path.read_bytes(), sorted(path.parent.iterdir())


def _python(script: str, *arguments: object) -> subprocess.Popen:
    """Another process of this interpreter, with this checkout on its path."""
    root = str(Path(polyclinic.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip


def test_a_new_ledger_has_spent_nothing(path):
    ledger = _open(path)
    assert ledger.epsilon() == 0 and ledger.events() == [] and ledger.verify()
    assert [entry.name for entry in path.parent.iterdir()] == ["ledger.sqlite"]


def test_a_ledger_holds_its_site_from_the_moment_its_file_is_there(tmp_path):
    for attempt in range(20):
        path = tmp_path / str(attempt) / "ledger.sqlite"
        thread = Thread(target=_open, args=(path,))
        thread.start()
        while not path.exists():
            pass
        assert Ledger.read(path).site == "hospital-1"
        thread.join()


def test_of_two_that_begin_a_site_at_once_under_other_terms_one_is_refused(tmp_path, monkeypatch):
    path, transaction = tmp_path / "ledger.sqlite", ledger_module.transaction
    Ledger.open_all(path, [Terms("north", 1e-6)])

    def later(*given):
        monkeypatch.setattr(ledger_module, "transaction", transaction)
        Ledger.open_all(path, [Terms("south", 1e-6, records="partition 1")])
        return transaction(*given)

    monkeypatch.setattr(ledger_module, "transaction", later)
    with pytest.raises(ConfigError, match="begun with delta 1e-06; it must stay so, got 0.01"):
        Ledger.open_all(path, [Terms("south", 1e-2, records="partition 1")])
    assert Ledger.read(path, "south").delta == 1e-6


def test_spent_equals_the_accountant_over_rounds_and_opens(path):
    events = [gaussian_event(8.0), *[ROUND] * 4, dpsgd_event(0.05, 1.0, 7), *[ROUND] * 2]
    returned = [
        _open(path, 20.0).charge(event, "training", "run-1", turn, plan=[(event, 1) for event in events])
        for turn, event in enumerate(events)
    ]
    exact = epsilon(dpa.ComposedDpEvent(events), 1e-5)
    assert _open(path, 20.0).epsilon() == exact
    assert exact <= returned[-1] <= exact * 1.02
    assert returned == sorted(returned)
    assert _open(path, 20.0).epsilon("rdp") == epsilon(dpa.ComposedDpEvent(events), 1e-5, "rdp")
    assert _open(path, 20.0).verify()


def test_every_step_is_charged(path):
    ledger = _open(path)
    for turn in range(3):
        ledger.charge(ROUND, "training", "run-1", turn, plan=[(ROUND, 3)])
    recorded = [event_from_json(entry["event"]) for entry in ledger.events()]
    assert sum(event.count for event in recorded) == 15
    assert ledger.epsilon() == epsilon(dpsgd_event(0.1, 1.2, 15), 1e-5)


def test_events_are_kept_in_order_with_run_round_and_purpose(path):
    ledger = _open(path)
    ledger.charge(gaussian_event(9.0), "statistics", "a", 0)
    ledger.charge(ROUND, "training", "a", 1)
    first, second = ledger.events()
    assert (first["seq"], first["run"], first["round"], first["purpose"]) == (1, "a", 0, "statistics")
    assert (second["seq"], second["purpose"], event_from_json(second["event"])) == (2, "training", ROUND)
    assert first["time"] <= second["time"] and first["epsilon_after"] < second["epsilon_after"]


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_refused_charge_leaves_ledger_unchanged(path, accountant):
    ledger = _open(path, 2.5, accountant=accountant)
    ledger.charge(ROUND, "training", "run-1", 1)
    before, spent, events = _content(path), ledger.epsilon(), ledger.events()
    with pytest.raises(BudgetRefused, match=r"'hospital-1'.*spent is .*would become .*allowed is 2.5"):
        ledger.charge(dpsgd_event(0.1, 1.2, 500), "training", "run-1", 2)
    assert _content(path) == before
    assert ledger.epsilon() == spent and ledger.events() == events and ledger.verify()


def test_events_without_noise_are_refused_under_any_budget(path):
    with pytest.raises(BudgetRefused):
        _open(path, 1e9).charge(dpa.NonPrivateDpEvent(), "training", "run-1", 1)
    assert _open(path, 1e9).events() == []


def test_budget_holds_over_several_runs(path):
    """Gaussian releases over runs cost what they would in one, but for the share of delta that is kept for others."""
    accepted, one = 0, gaussian_event(8.0)
    with pytest.raises(BudgetRefused):
        for run in range(100):
            ledger = _open(path, 3.0)
            for turn in range(3):
                ledger.charge(one, "training", f"run-{run}", turn, plan=[(one, 3)])
                accepted += 1
    assert accepted > 3
    assert _open(path, 3.0).epsilon() <= 3.0 < 1.01 * epsilon(gaussian_event(8.0, accepted + 1), 1e-5)
    assert len(_open(path, 3.0).events()) == accepted


def test_a_plan_fits_into_a_budget_of_its_own_epsilon_and_no_further(path):
    made = plan(epsilon=1.5, delta=1e-5, training=lambda z: ((dpsgd_event(0.1, z, 3), 4),), statistics_share=0.1)
    one_round = dpsgd_event(0.1, made.noise_multiplier, 3)
    ledger = _open(path, made.epsilon)
    ledger.charge(made.statistics_event, "statistics", "run-1", 0, plan=made.charges)
    for turn in range(4):
        ledger.charge(one_round, "training", "run-1", turn + 1)
    assert ledger.epsilon() == epsilon(made.total_event, made.delta) <= made.epsilon
    for run in ("run-1", "run-2"):
        with pytest.raises(BudgetRefused, match="run 'run-1' declared before its first charge"):
            ledger.charge(one_round, "training", run, 5)


def test_a_run_that_may_cost_so_much_cannot_choose_from_a_longer_plan(path):
    """What is picked from a plan by the answers is no composition of the plan, whatever the picked charges cost."""
    ledger, made = _open(path, 50.0), plan(epsilon=1.0, delta=1e-5, training=lambda z: ((dpsgd_event(0.1, z, 3), 4),))
    one_round = dpsgd_event(0.1, made.noise_multiplier, 3)
    longer, own = plan_text([(one_round, 40)]), plan_text(made.charges)
    charge = Charge(one_round, "train", "run-1", 1, plan=longer, limits=(Limit(1.0),))
    (refused,) = charge_all([(ledger, charge)])
    assert isinstance(refused, BudgetRefused) and "may spend epsilon 1 at" in str(refused) and not ledger.events()
    with pytest.raises(BudgetRefused, match="may spend epsilon 1 at"):
        check_affordable(path, ledger.terms, "run-1", [one_round], longer, [Limit(1.0)])
    check_affordable(path, ledger.terms, "run-1", [one_round], own, [Limit(1.0)])
    after = [charge_all([(ledger, replace(charge, round=turn, plan=own))])[0] for turn in range(5)]
    assert [isinstance(one, BudgetRefused) for one in after] == [False] * 4 + [True] and ledger.epsilon() <= 1.0


def test_budget_is_the_policys_of_now(path):
    _open(path, 2.0).charge(ROUND, "training", "run-1", 1)
    with pytest.raises(BudgetRefused):
        _open(path, 0.1).charge(ROUND, "training", "run-2", 1)
    assert Ledger.read(path).budget == 0.1
    _open(path, 5.0).charge(ROUND, "training", "run-3", 1)
    assert statements([Ledger.read(path)])[0]["budget"] == 5.0


def test_unlimited_ledger_takes_events_without_noise(path):
    ledger = _open(path, None)
    assert ledger.charge(dpa.NonPrivateDpEvent(), "training", "run-1", 1) == math.inf
    assert ledger.epsilon() == math.inf
    assert statements([ledger])[0]["epsilon"] is None and statements([ledger])[0]["events"][0]["epsilon_after"] is None
    assert ledger.verify()


def test_statement_says_everything_that_epsilon_needs(path):
    _open(path, 3.0, relation="replace-one").charge(ROUND, "training", "run-1", 1)
    said = statements([Ledger.read(path)])[0]
    assert said["epsilon"] == epsilon(ROUND, 1e-5, "pld", "replace-one")
    assert {key: said[key] for key in ("site", "delta", "budget", "unit", "relation", "accountant", "intact")} == {
        "site": "hospital-1", "delta": 1e-5, "budget": 3.0, "unit": "patient", "relation": "replace-one",
        "accountant": "pld", "intact": True,
    }  # fmt: skip
    assert len(said["events"]) == 1


def test_a_ledger_opened_for_reading_cannot_be_charged(path):
    _open(path)
    before = _content(path)
    with pytest.raises(ConfigError, match="for reading"):
        Ledger.read(path).charge(ROUND, "training", "run-1", 1)
    assert _content(path) == before


@pytest.mark.parametrize(
    ("site", "delta", "terms", "named"),
    [
        ("hospital-1", 1e-6, {}, "delta 1e-05"),
        ("hospital-2", 1e-5, {}, "site 'hospital-1'"),
        ("hospital-1", 1e-5, {"relation": "replace-one"}, "relation 'add-remove'"),
        ("hospital-1", 1e-5, {"unit": "record"}, "unit 'patient'"),
    ],
)
def test_a_ledger_keeps_its_terms(path, site, delta, terms, named):
    _open(path)
    before = _content(path)
    with pytest.raises(ConfigError, match=named):
        Ledger.open(path, Terms(site, delta, budget=3.0, **terms))
    assert _content(path) == before


@pytest.mark.parametrize("budget", [0.0, -1.0, math.inf, math.nan])
def test_impossible_budgets_are_refused(path, budget):
    with pytest.raises(ConfigError, match="budget"):
        _open(path, budget)
    assert not path.exists()


GARBAGE = {"empty": b"", "zeros": b"\x00" * 4096, "csv": b"site,epsilon\n", "noise": os.urandom(5000)}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_a_file_that_is_no_ledger_is_a_data_error(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    for opened in (_open, Ledger.read):
        with pytest.raises(DataError, match="cannot be used as a privacy ledger: it is something else"):
            opened(path)
    assert path.read_bytes() == content


def test_a_torn_ledger_is_a_data_error(path):
    ledger = _open(path, 1e3)
    for turn in range(12):
        ledger.charge(ROUND, "training", "run-1", turn)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError):
        _open(path, 1e3).epsilon()


def test_other_databases_and_missing_files_are_data_errors(tmp_path):
    with sqlite3.connect(tmp_path / "other.sqlite") as db:
        db.execute("CREATE TABLE patients (name TEXT)")
    for name in ("other.sqlite", "missing.sqlite", "."):
        with pytest.raises(DataError):
            Ledger.read(tmp_path / name)
    assert not (tmp_path / "missing.sqlite").exists()


EDITS = [
    "UPDATE events SET event = REPLACE(event, '1.2', '9.9') WHERE seq = 2",
    "UPDATE events SET round = 7 WHERE seq = 1",
    "UPDATE events SET epsilon_after = 0.1 WHERE seq = 3",
    "UPDATE events SET purpose = 'test' WHERE seq = 3",
    "UPDATE events SET hash = 'x' WHERE seq = 1",
    "DELETE FROM events WHERE seq = 1",
    "DELETE FROM events WHERE seq = 3",
    "DELETE FROM events",
    "UPDATE events SET release = 'again' WHERE seq = 1",
    "UPDATE sites SET delta = 0.01",
]


@pytest.mark.parametrize("edit", EDITS)
def test_edits_from_outside_are_seen(path, edit):
    ledger = _open(path)
    for turn in range(3):
        ledger.charge(ROUND, "training", "run-1", turn, plan=[(ROUND, 3)])
    assert ledger.verify()
    db = sqlite3.connect(path)
    assert db.execute(edit).rowcount >= 1
    db.commit()
    db.close()
    assert not Ledger.read(path).verify()
    assert statements([Ledger.read(path)])[0]["intact"] is False


def test_statements_of_many_sites_are_those_of_each(path):
    ledgers = Ledger.open_all(path, [Terms(f"s{i}", 1e-5, budget=3.0) for i in range(4)])
    for turn, ledger in enumerate(ledgers[:3]):
        for number in range(turn + 1):
            ledger.charge(ROUND, "training", "run-1", number, plan=[(ROUND, turn + 1)])
    db = sqlite3.connect(path)
    db.execute("UPDATE events SET round = 7 WHERE site = 's1' AND seq = 2")
    db.commit()
    db.close()
    found = statements(ledgers)
    assert found == [statements([ledger])[0] for ledger in ledgers]
    assert [one["intact"] for one in found] == [ledger.verify() for ledger in ledgers] == [True, False, True, True]
    assert [len(one["events"]) for one in found] == [1, 2, 3, 0] and found[2]["epsilon"] == ledgers[2].epsilon()
    assert [one["events"] for one in found] == [ledger.events() for ledger in ledgers]


def test_an_edited_event_that_cannot_be_accounted_is_a_data_error(path):
    _open(path).charge(ROUND, "training", "run-1", 1)
    db = sqlite3.connect(path)
    db.execute("""UPDATE events SET event = '{"type": "ZCDpEvent"}'""")
    db.commit()
    db.close()
    with pytest.raises(DataError):
        _open(path).epsilon()
    assert not _open(path).verify()


CHARGE_THEN_HANG = """
import sys, time
from pathlib import Path
from polyclinic.privacy.accounting import dpsgd_event
from polyclinic.privacy.ledger import Ledger, Terms
ledger = Ledger.open(Path(sys.argv[1]), Terms("hospital-1", 1e-5, budget=3.0))
print(ledger.charge(dpsgd_event(0.1, 1.2, 5), "training", "run-1", 1), flush=True)
time.sleep(600)
"""


def test_fault_22_charge_survives_kill(path):
    process = _python(CHARGE_THEN_HANG, path)
    said = float(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    ledger = _open(path)
    assert [entry["round"] for entry in ledger.events()] == [1]
    assert ledger.epsilon() == epsilon(ROUND, 1e-5) and said == pytest.approx(ledger.epsilon(), rel=0.02)
    assert ledger.verify()


# A small cache makes SQLite write to the file itself long before the commit.
HALF_A_TRANSACTION = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA cache_size = 1")
db.execute("BEGIN IMMEDIATE")
for seq in range(100, 3000):
    db.execute("INSERT INTO events VALUES ('hospital-1', ?, 'now', 'run-2', 1, 'training', '', '', '{}', 1.0, 'x')", (seq,))
print("inserted", flush=True)
time.sleep(600)
"""


def test_kill_within_a_transaction_leaves_the_previous_content(path, tmp_path):
    ledger = _open(path)
    ledger.charge(ROUND, "training", "run-1", 1)
    events, before = ledger.events(), path.read_bytes()
    process = _python(HALF_A_TRANSACTION, path)
    assert process.stdout.readline() == "inserted\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    journal = path.with_name(path.name + "-journal")
    assert journal.exists() and path.read_bytes() != before  # it really was half written
    copy = tmp_path / "copy"
    shutil.copytree(path.parent, copy)
    assert Ledger.read(copy / path.name).events() == events
    reopened = _open(path)
    assert reopened.events() == events and reopened.verify()
    assert reopened.epsilon() == epsilon(ROUND, 1e-5)
    reopened.charge(ROUND, "training", "run-2", 1)
    assert reopened.verify() and len(reopened.events()) == 2


CHARGE_UNTIL_REFUSED = """
import sys
from pathlib import Path
from polyclinic.errors import BudgetRefused
from polyclinic.privacy.accounting import gaussian_event
from polyclinic.privacy.ledger import Ledger, Terms
print("ready", flush=True)
sys.stdin.readline()
ledger = Ledger.open(Path(sys.argv[1]), Terms("hospital-1", 1e-5, budget=3.0))
accepted = 0
try:
    for turn in range(50):
        ledger.charge(gaussian_event(8.0), "training", sys.argv[2], turn)
        accepted += 1
except BudgetRefused:
    print(accepted, flush=True)
"""


def test_processes_charging_at_once_never_overspend(path):
    processes = [_python(CHARGE_UNTIL_REFUSED, path, name) for name in ("run-1", "run-2")]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    accepted = sum(int(process.communicate(timeout=120)[0]) for process in processes)
    ledger = _open(path, 3.0)
    assert len(ledger.events()) == accepted > 1
    assert ledger.epsilon() <= 3.0 < 1.01 * epsilon(gaussian_event(8.0, accepted + 1), 1e-5)
    assert ledger.verify()


def test_the_same_release_is_charged_once_and_any_other_anew(path):
    ledger = _open(path, 20.0)
    first = ledger.charge(ROUND, "training", "run-1", 1, "digest-a")
    assert ledger.charge(ROUND, "training", "run-1", 1, "digest-a") == first and len(ledger.events()) == 1
    for run, turn, release in (("run-1", 1, "digest-b"), ("run-1", 2, "digest-a"), ("run-2", 1, "digest-a")):
        ledger.charge(ROUND, "training", run, turn, release)
    assert len(ledger.events()) == 4 and ledger.verify()


def test_charges_without_a_release_are_never_taken_for_repeats(path):
    ledger = _open(path, 20.0)
    for _ in range(2):
        ledger.charge(ROUND, "training", "run-1", 1)
    assert len(ledger.events()) == 2


def test_sites_of_a_simulation_share_a_file_and_nothing_else(path):
    terms = [Terms(f"site-{n}", 1e-5, budget=budget) for n, budget in enumerate((3.0, 0.1, None))]
    ledgers = Ledger.open_all(path, terms)
    first = charge_all([(ledger, Charge(ROUND, "training", "run-1", 1)) for ledger in ledgers])
    assert first[0] == first[2] == pytest.approx(epsilon(ROUND, 1e-5), rel=0.02)
    assert isinstance(first[1], BudgetRefused) and "'site-1'" in str(first[1])
    ledgers[2].charge(ROUND, "training", "run-1", 2)
    assert [len(Ledger.read(path, f"site-{n}").events()) for n in range(3)] == [1, 0, 2]
    assert all(Ledger.read(path, f"site-{n}").verify() for n in range(3))
    assert [ledger.terms for ledger in Ledger.read_all(path).values()] == terms
    with pytest.raises(ConfigError, match="holds 3 sites"):
        Ledger.read(path)
    with pytest.raises(ConfigError, match="does not hold the site 'site-9'"):
        Ledger.read(path, "site-9")
    with pytest.raises(ConfigError, match="begun with site"):
        Ledger.open(path, terms[2])


def test_only_a_simulations_rounds_may_wait_for_the_disk_and_a_killed_process_loses_none(path):
    _open(path)
    synchronous = []
    for durable in (True, False):
        with connection(path, durable) as db:
            synchronous += db.execute("PRAGMA synchronous").fetchone()
    assert synchronous == [3, 0]  # EXTRA, OFF
    if (process := os.fork()) == 0:
        ledger = Ledger.open(path, Ledger.read(path).terms)
        charge_all([(ledger, Charge(ROUND, "training", "run-1", 1))], durable=False)
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGKILL
    assert len(Ledger.read(path).events()) == 1 and Ledger.read(path).verify()


def test_charges_of_a_simulation_see_what_others_did_to_the_file(tmp_path: Path) -> None:
    """Its connection stays open: another process's charge, a file in its place, and one restored over it must not be missed."""
    path, terms = tmp_path / "ledger.sqlite", [Terms("a", 1e-5), Terms("b", 1e-5)]

    def charge(round: int) -> list[float | BudgetRefused]:
        charges = [
            (ledger, Charge(gaussian_event(5.0), "train", "r", round, f"r{round}"))
            for ledger in Ledger.open_all(path, terms)
        ]
        return charge_all(charges, durable=False)

    first = charge(1)
    early = path.read_bytes()
    second = charge(2)
    assert second[0] > first[0] and charge(2) == second  # the same release again costs nothing
    script = (
        "import sys; from pathlib import Path; from polyclinic.privacy.accounting import gaussian_event\n"
        "from polyclinic.privacy.ledger import Charge, Ledger, Limit, Terms, charge_all\n"
        "ledgers = Ledger.open_all(Path(sys.argv[1]), [Terms(name, 1e-5) for name in 'ab'])\n"
        "charge_all([(one, Charge(gaussian_event(5.0), 'train', 'r', 3, 'r3')) for one in ledgers], durable=False)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    fourth = charge(4)
    assert [row.round for row in Ledger.read(path, "a").read_site().rows] == [1, 2, 3, 4] and fourth[0] > second[0]
    path.write_bytes(early)
    assert charge(2) == second and [row.round for row in Ledger.read(path, "b").read_site().rows] == [1, 2]
    path.unlink()
    assert charge(1) == first and Ledger.read(path, "a").verify()
