"""What a run says of metrics and numbers of patients: what left, what no policy let leave, and of whom."""

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from polyclinic.cli import app
from polyclinic.cli.runs.live import result_table
from polyclinic.client.own_eyes import own_predictions
from polyclinic.config import RunConfig
from polyclinic.errors import BudgetRefused, ConfigError
from polyclinic.evaluation.metrics import classification_metrics
from polyclinic.evaluation.report import render_comparison
from polyclinic.inspection.result import RunResult
from polyclinic.runs.folder import Run
from polyclinic.server.app import _Logged, coordinate
from tests.server.test_joining import KEYS, NAMES, Hospitals, hospitals

__all__ = ["hospitals"]
NONE = "metrics-epsilon = 0\n"  # neither exact nor private metrics
METRICS, PREDICTIONS = "release-metrics = true\n", "release-metrics = true\nrelease-predictions = true\n"


def run(folder: Path, policies: tuple[str, str, str], **keys: Any) -> RunResult:
    for name, line in zip(NAMES, policies, strict=True):
        path = folder / name / "hospital.toml"
        path.write_text(path.read_text() + line)
    config = RunConfig.build(KEYS | {"out": str(folder / "runs"), "rounds": 2}, keys)
    run_folder = Run.create(config)
    coordinate(Hospitals(folder, config, lambda done: set(NAMES)), config, run_folder, progress=_Logged())
    return RunResult.read(run_folder.path)


def shown(result: RunResult) -> str:
    screen = Console(width=200, record=True)
    screen.print(result_table(result.summary, screen))
    return screen.export_text()


def page(path: Path) -> str:
    text = re.sub(r"<(style|script).*?</\1>", "", path.read_text(), flags=re.S)
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text)))


def test_under_the_strict_policy_nothing_says_that_metrics_left_or_are_undefined(
    hospitals: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    result = run(hospitals, (NONE, NONE, NONE))
    shown_to_the_hospital(result, hospitals / "north" / "hospital.toml")
    notes, report, table = " ".join(result.summary["notes"]), page(result.report()), shown(result)
    assert "No hospital's policy let metrics or the exact number of its patients leave" in notes
    for text in (notes, report, table, repr(result), result._repr_html_()):
        assert "without noise" not in text and "undefined" not in text.lower()
    assert "Hospitals 3 numbers of patients not released, 2 rounds" in report
    assert "AUROC, pooled not released no hospital's policy lets predictions of held-out patients leave" in report
    assert (
        "one class only" not in report and "measured on held-out patients" not in report and "0 patients" not in report
    )
    assert "There are no intervals, curves or groups: no hospital's policy lets" in report
    assert "Not released : the hospital's policy does not let" in report
    assert table.count("not released") == 3 * 3 + 2
    with pytest.raises(ConfigError, match="No policy of the 3 hospitals lets predictions"):
        _ = result.predictions
    card = result.folder.card_file.read_text()
    assert "no hospital's policy lets predictions of held-out patients leave" in card
    assert "| north | not released |" in card and "AUROC" not in card and not re.search(r"\b(200|150|50)\b", card)
    assert not list(result.path.glob("plots/rounds.*")) and not list(result.path.glob("plots/loss.*"))
    rounds = [entry.getMessage() for entry in caplog.records if entry.getMessage().startswith("Round ")]
    assert len(rounds) == 2
    assert re.match(
        r"Round 1 of 2: 3 of 3 hospitals answered \(north, south, west\) in \d+\.\d s, metrics not released, ε spent at most "
        r"\d\.\d+ at a hospital$",
        rounds[0],
    )
    assert {site["released"] for site in result.summary["metrics"]["sites"].values()} == {False}
    assert result.rounds[["auroc", "loss"]].isna().all(axis=None)


def test_where_some_policies_let_metrics_leave_it_is_said_whose(
    hospitals: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    result = run(hospitals, (NONE, METRICS, PREDICTIONS))
    notes, report, table = " ".join(result.summary["notes"]), page(result.report()), shown(result)
    assert "patients left 2 of 3 hospitals (south, west) without noise, as their policies allow." in notes
    assert "Neither left north." in notes
    assert "Hospitals 3 numbers of patients not released, 2 rounds" in report
    assert "over the held-out patients of 1 of 3 hospitals" in report and "Pooled not released " in report
    assert "On held-out patients of 1 hospital, with 95 % intervals" in report
    assert re.search(r"north not released not released not released 2\.00", report)
    assert table.count("not released") == 3 + 2 and not re.search(r"pooled.*not released", table)
    assert any(re.match(r"Round 1 of 2: .* s, loss 0.*, AUROC ", entry.getMessage()) for entry in caplog.records)
    sites = result.summary["metrics"]["sites"]
    assert {name: site["released"] for name, site in sites.items()} == {"north": False, "south": True, "west": True}
    with pytest.warns(UserWarning, match=r"The policies of 2 of 3 hospitals \(north, south\) withhold predictions"):
        table = result.predictions
    assert set(table["site"]) == {"west"} and oct(result.folder.predictions_file.stat().st_mode)[-3:] == "600"
    of_metrics = classification_metrics(table["label"].astype(int), table[["score_0", "score_1"]])
    assert of_metrics["auroc"] == pytest.approx(sites["west"]["auroc"])
    own = shown_to_the_hospital(result, hospitals / "west" / "hospital.toml")["metrics"]
    assert {name: own[name]["value"] for name in ("auroc", "loss")} == pytest.approx(
        {name: sites["west"][name] for name in ("auroc", "loss")}
    )


def shown_to_the_hospital(result: RunResult, hospital: Path) -> dict[str, Any]:
    """What `polyclinic evaluate` prints at a hospital that was handed three files; its home stays as it was."""
    handed = hospital.parent / "handed"
    handed.mkdir()
    for file in (result.folder.config_file, result.folder.schema_file, result.folder.model_file):
        copy(file, handed)
    before = {path: path.read_bytes() for path in (hospital.parent / "home").rglob("*") if path.is_file()}
    for extra in (("--groups", "age"), ("--groups", "age", "--json")):
        done = CliRunner().invoke(app, ["evaluate", str(handed), "--hospital", str(hospital), *extra])
        assert done.exit_code == 0, done.output
        if "--json" not in extra:
            assert "own eyes: nothing was sent or charged, and no epsilon covers them" in " ".join(done.output.split())
            assert "AUROC" in done.output and "30 to 60" in done.output
    assert before == {path: path.read_bytes() for path in (hospital.parent / "home").rglob("*") if path.is_file()}
    output = dict(json.loads(done.stdout))
    assert output["hospital"] == hospital.parent.name and output["table"] is None and output["private"] is False
    assert output["metrics"]["auroc"]["low"] < output["metrics"]["auroc"]["value"]
    return output


def test_a_hospital_scores_no_model_that_its_policy_or_schema_does_not_allow(hospitals: Path) -> None:
    result, hospital = run(hospitals, (NONE, NONE, NONE)), hospitals / "north" / "hospital.toml"
    text = result.folder.config_file.read_text()
    result.folder.config_file.write_text(re.sub("(?m)^model = .*", 'model = "made.up:Code"', text))
    with pytest.raises(BudgetRefused, match="allows the models .* not 'made.up:Code'"):
        own_predictions(hospital, result.folder)
    result.folder.config_file.write_text(re.sub("(?m)^folds = 0", "folds = 3", text))
    with pytest.raises(BudgetRefused, match="does not let a run choose who is held out"):
        own_predictions(hospital, result.folder)
    result.folder.config_file.write_text(text)
    result.folder.schema().model_copy(update={"name": "other"}).to_toml(hospital.parent / "schema.toml")
    with pytest.raises(ConfigError, match="under another schema"):
        own_predictions(hospital, result.folder)


def test_metrics_without_predictions_give_a_mean_and_nothing_pooled(
    hospitals: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    result = run(hospitals, (METRICS, METRICS, METRICS))
    assert "patients left the hospitals without noise, as their policies allow." in " ".join(result.summary["notes"])
    metrics, report = result.summary["metrics"], page(result.report())
    assert metrics["pooled"]["released"] is False and metrics["macro"]["released"] is True
    assert "AUROC, pooled not released" in report and "numbers of patients not released" in report
    said = [entry.getMessage() for entry in caplog.records if entry.getMessage().startswith("Round ")]
    assert all(", the mean over hospitals, ε" in line for line in said)


def test_a_round_without_an_evaluation_has_no_undefined_metrics(
    hospitals: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run(hospitals, (METRICS, METRICS, METRICS), **{"evaluation.every": 2})
    assert any(re.match(r"Round 1 of 2: .* s, not evaluated, ε", entry.getMessage()) for entry in caplog.records)


def test_a_page_of_several_runs_says_of_which_no_predictions_left(hospitals: Path, tmp_path: Path) -> None:
    strict = run(hospitals, (NONE, NONE, NONE))
    open_one = run(hospitals, (PREDICTIONS, PREDICTIONS, PREDICTIONS))
    text = page(render_comparison([strict.path, open_one.path], tmp_path / "both.html"))
    assert text.count("not released") == 4 and "undefined" not in text


def test_a_simulation_says_what_its_policy_allows(quick: Callable[..., RunResult]) -> None:
    result = quick(rounds=1)
    notes = " ".join(result.summary["notes"])
    assert "left the hospitals without noise, as a simulation's policy allows. Epsilon does not cover them." in notes
    assert "not released" not in page(result.report()) + shown(result)


def test_secure_aggregation_says_what_was_not_summed_only_where_something_was_not(
    hospitals: Path, quick: Callable[..., RunResult]
) -> None:
    keys = {"secure.aggregation": True, "privacy.patients-per-site": 150}
    assert "under masks" not in " ".join(run(hospitals, (NONE, NONE, NONE), **keys).summary["notes"])
    said = " ".join(quick(rounds=1, secure={"aggregation": True}).summary["notes"])
    assert "Statistics and metrics were not summed under masks." in said
