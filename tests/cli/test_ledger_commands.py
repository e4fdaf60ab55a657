"""``polyclinic ledger`` as it is used: sentences, JSON, exit codes; and a run's epsilon for patients of several hospitals."""

import csv
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord

from polyclinic.cli.runs.live import privacy_sentence
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.evaluation.privacy_text import share
from polyclinic.inspection.result import RunResult
from polyclinic.plugins import dataset_named
from polyclinic.privacy.accounting import dpsgd_event, epsilon, gaussian_event
from polyclinic.privacy.ledger import Ledger, Terms
from polyclinic.privacy.ledger.terms import entry_of, to_text
from polyclinic.privacy.ledger.verify import export
from polyclinic.programs import program_of
from polyclinic.server.calibration import calibrate
from polyclinic.server.exchange.sites import Site
from polyclinic.server.federate import Outcome
from polyclinic.server.state import RunState
from polyclinic.server.summary import summarise
from tests.privacy.ledger.test_ledger_terms import ran

Command = Callable[..., Any]
ROUND = dpsgd_event(0.1, 1.2, 5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ledger = Ledger.open(tmp_path / "ledger.sqlite", Terms("hospital-1", 1e-5, budget=3.0))
    ledger.charge(gaussian_event(9.0), "statistics", "run-1", 0, plan=[(gaussian_event(9.0), 1), (ROUND, 1)])
    ledger.charge(ROUND, "train", "run-1", 1)
    ledger.charge(gaussian_event(5.0), "train", "run-2", 1)
    return ledger.path


def test_show_says_what_was_spent_by_whom_and_what_is_left(path: Path, command: Command, as_json: Command) -> None:
    said = command("ledger", "show", str(path)).stdout
    for words in (
        "the record is intact",
        "at δ = 1e-06",
        "room for one more release",
        "run-2",
        "statistics",
        "attack true-positive rate at 1 % false-positive rate: ",
        "Risk: an attacker who knows all other records",
    ):
        assert words in said, words
    found = as_json("ledger", "show", str(path), "--delta", "1e-6", "--delta", "1e-9")
    assert [one["delta"] for one in found["at"]] == [1e-6, 1e-9]
    assert found["epsilon"] < found["at"][0]["epsilon"] < found["at"][1]["epsilon"]
    assert [one["run"] for one in found["runs"]] == ["run-1", "run-2"] and found["outside"] == []
    assert 3.0 - found["epsilon"] < found["room"]["epsilon"] < 3.0


def test_verify_and_export_of_a_whole_ledger(path: Path, as_json: Command, command: Command, tmp_path: Path) -> None:
    found = as_json("ledger", "verify", str(path))
    assert set(found) >= {"site", "epsilon", "delta", "budget", "events", "intact", "findings"}
    assert found["risk"] == as_json("ledger", "show", str(path))["risk"]
    assert found["intact"] and found["findings"] == [] and found["epsilon"] == Ledger.read(path).epsilon()
    out = tmp_path / "out.json"
    assert as_json("ledger", "export", str(path), "--out", str(out)) == {
        "path": str(out), "sites": ["hospital-1"], "events": 3, "intact": True,
    }  # fmt: skip
    assert json.loads(out.read_text())["sites"][0]["risk"] == found["risk"]
    again = command("ledger", "export", str(path), "--out", str(out), "--json")
    assert again.returncode == 2 and again.stdout == "" and "--force" in again.stderr
    assert command("ledger", "export", str(path), "--out", str(out), "--force").returncode == 0


def test_a_formula_is_text_in_the_exported_table_and_itself_in_json(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.sqlite", Terms("=1+1", 1e-5))
    ledger.charge(gaussian_event(2.0), "@SUM(A1)", "-run", 1)
    export([ledger], tmp_path / "out.csv")
    export([ledger], tmp_path / "out.json")
    with (tmp_path / "out.csv").open(newline="") as file:
        [row] = csv.DictReader(file)
    assert (row["site"], row["purpose"], row["run"], row["round"]) == ("'=1+1", "'@SUM(A1)", "'-run", "1")
    [site] = json.loads((tmp_path / "out.json").read_text())["sites"]
    assert site["site"] == "=1+1" and site["events"][0]["run"] == "-run"


def test_verify_fails_with_a_sentence_for_each_finding(path: Path, command: Command) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE events SET event = REPLACE(event, '5.0', '9.9') WHERE seq = 3")
        db.commit()
    said = command("ledger", "verify", str(path))
    assert said.returncode == 1 and "hospital-1, charge 3: the charge is not as it was written." in said.stdout
    assert "; 1 finding\n" in said.stdout.partition("hospital-1, charge 3")[0]
    told = command("ledger", "verify", str(path), "--json")
    assert told.returncode == 1 and json.loads(told.stdout)["findings"][0]["seq"] == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "--delta", "2"], "delta must lie in (0, 1)"),
        (["show", "--site", "nobody"], "does not hold the site 'nobody'"),
        (["verify", "--site", "nobody"], "does not hold the site 'nobody'"),
        (["export", "--out", "out.pdf"], "must end in .json or .csv"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_2(
    path: Path, command: Command, arguments: list[str], words: str
) -> None:
    done = command("ledger", arguments[0], str(path), *arguments[1:])
    assert done.returncode == 2 and words in done.stderr and done.stdout == ""


def outcome(sites: int, elsewhere: int, charged: list[int], **config: Any) -> Outcome:
    """A finished run over real hospitals, each charged so many rounds."""
    chosen = RunConfig.build({"privacy.delta": 1e-3}, config)
    found = tuple(
        Site(i, f"h{i}", i, False, dataset_named("breast-cancer").schema, chosen.privacy.delta, 3.0, "add-remove", "pld",
             elsewhere if i == 0 else 0)
        for i in range(sites)
    )  # fmt: skip
    state = RunState({}, noise_multiplier=1.0)
    for site, count in zip(found, charged, strict=True):
        past = ran([entry_of(ROUND)] * count)
        spent = epsilon(dpsgd_event(0.1, 1.2, 5 * count), chosen.privacy.delta) if count else 0.0
        state.hear(site.name, ConfigRecord({"epsilon": spent, "charged": to_text(past)}))
    return Outcome(program_of(chosen), "r", found, calibrate(chosen), None, state)


def privacy(found: Outcome, folder: Path) -> dict[str, Any]:
    return dict(summarise(found, folder, folder)["privacy"])


def test_fault_patient_in_several_hospitals_the_runs_epsilon_is_composed(tmp_path: Path) -> None:
    """Golden list 2.24, at real hospitals, one of which declares that its patients may be in one other."""

    def cost(rounds: int) -> float:
        return epsilon(dpsgd_event(0.1, 1.2, 5 * rounds), 1e-3)

    alone = privacy(outcome(3, 0, [1, 3, 2]), tmp_path)
    assert alone["epsilon"] == cost(3) and alone["overlap"] == 1
    assert alone["composition"] == "disjoint patients: largest over hospitals"
    shared = privacy(outcome(3, 1, [1, 3, 2]), tmp_path)
    assert shared["epsilon"] == cost(5) > alone["epsilon"] and shared["overlap"] == 2
    assert shared["composition"] == "patients in up to 2 hospitals: composed"
    assert privacy(outcome(3, 7, [1, 3, 2]), tmp_path)["epsilon"] == cost(6)
    assert privacy(outcome(3, 0, [1, 3, 2], privacy={"overlap": 2}), tmp_path)["epsilon"] == cost(5)
    said = privacy_sentence({"privacy": shared})
    assert "at up to 2 hospitals together" in said and share(shared["risk"]["tpr_at_1_percent_fpr"]) in said
    assert shared["risk"]["advantage"] > alone["risk"]["advantage"] > 0


@pytest.mark.parametrize("told", [{}, {"epsilon": "much"}, {"epsilon": 1.0, "charged": "[1]"},
                                  {"epsilon": 1.0, "charged": '[["{}", 1]]'}])  # fmt: skip
def test_what_makes_no_sense_of_a_ledger_is_not_heard(told: dict[str, Any]) -> None:
    with pytest.raises(PolyclinicError, match="what h1 says of its ledger cannot be read"):
        RunState({}).hear("h1", ConfigRecord(told))


def test_overlap_changes_what_a_run_says_and_nothing_else(quick: Callable[..., RunResult]) -> None:
    alone, shared = quick(), quick(privacy={"overlap": 2})
    assert shared.summary["model_sha256"] == alone.summary["model_sha256"]
    assert shared.sites["epsilon"].equals(alone.sites["epsilon"])
    largest = alone.privacy["epsilon"]
    assert largest == alone.sites["epsilon"].max() < shared.privacy["epsilon"] < 2 * largest
    page = (shared.path / "report.html").read_text()
    assert "patients in up to 2 hospitals: composed" in page and "Epsilon, composed" in page
    assert "This is the largest epsilon" in (alone.path / "report.html").read_text()


def test_an_impossible_overlap_is_refused() -> None:
    with pytest.raises(ConfigError, match="'privacy.overlap'"):
        RunConfig.build({"privacy.overlap": 0})
