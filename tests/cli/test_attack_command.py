"""``polyclinic attack`` as it is used: its JSON, what it leaves in the run's folder, and what it refuses."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from polyclinic import Federation
from polyclinic.cli import app
from polyclinic.cli.runs.attack import describe_attacks as shown_of
from polyclinic.errors import ConfigError, DataError
from polyclinic.evaluation.report.attacks import attack_section
from polyclinic.inspection.attacks import read_target
from polyclinic.inspection.result import RunResult
from polyclinic.runs import folder
from polyclinic.runs.simulation import simulated_patients
from tests.cli.test_json_page import NAMED, keys

Run = Callable[..., RunResult]


def attacked(*arguments: str) -> Any:
    done = CliRunner().invoke(app, ["attack", *arguments, "--json"])
    assert done.exit_code == 0, done.exception or done.output
    return json.loads(done.stdout)


def test_a_models_run_is_attacked_and_its_report_says_what_was_found(quick: Run) -> None:
    run = quick(rounds=2, privacy={"epsilon": 2, "delta": 1e-4})
    found = attacked(str(run.path), "--shadows", "4", "--sensitive", "mean_radius", "--canaries", "100")
    assert found == json.loads((run.path / "attacks.json").read_text())
    assert not set(keys(found)) - NAMED
    assert found["members"] == sum(simulated_patients(run.config)) == 569 - found["non_members"]
    assert [one["attack"] for one in found["membership"]] == ["loss threshold", "model inversion", "LiRA"]
    for one in found["membership"]:
        assert 0.3 < one["auc"]["low"] < one["auc"]["value"] < one["auc"]["high"] < 0.7
        assert one["bound"]["delta"] == 1e-4 and one["bound"]["epsilon_lower"] < 2
        assert one["tpr_at_01_percent_fpr"]["value"] is None
    assert [one["column"] for one in found["attributes"]] == ["mean_radius"]
    single, noisy = (one for one in found["gradients"]["trials"] if one["batch"] == 1)
    assert single["recovered"] == 1 and noisy["recovered"] == 0 and not single["private"] and noisy["private"]
    assert single["labels"] == 1 and noisy["labels"] < 1
    assert found["gradients"]["noise_multiplier"] == run.privacy["noise_multiplier"]
    assert 0 <= found["audit"]["epsilon_lower"] < found["audit"]["epsilon_claimed"] == found["claimed"]["epsilon"]
    assert found["left_out"] == [] and found["allowed"] == run.privacy["risk"]
    page = (run.path / "report.html").read_text()
    section = page.split("What attacks found")[1]
    assert section.count("data:image/svg+xml") == 2 and "proves nothing" in section and "canaries" in section


def test_a_generators_run_is_attacked_by_its_rows(tmp_path: Path) -> None:
    run = Federation.from_dataset("trial", sites=2, out=str(tmp_path)).run(
        task="synthesis", model="moments", synthesis={"quality": False}
    )
    found = attacked(str(run.path), "--canaries", "0")
    assert not set(keys(found)) - NAMED
    assert [one["attack"] for one in found["membership"]] == ["closest synthetic row"]
    assert found["closest"]["copies_members"] == found["closest"]["copies_non_members"] == 0
    assert [one["name"] for one in found["identification"][:3]] == ["singling out", "linkability", "inference"]
    assert {one["column"] for one in found["identification"][2:]} >= {"age", "controlled"}
    assert [one["attack"] for one in found["left_out"]] == ["audit with canaries"] and found["audit"] is None


def test_who_took_part_is_no_coin_where_the_split_was_published(quick: Run, heart_disease: None) -> None:
    shares = [
        read_target(quick(dataset="heart-disease", privacy={"dp": False}, **more).path).share
        for more in ({}, {"partitioner": "iid", "sites": 2})
    ]
    assert shares == [None, 0.75]


@pytest.mark.slow
def test_of_a_model_whose_layers_stay_at_hospitals_only_gradients_are_attacked(quick: Run) -> None:
    run = quick(
        rounds=1,
        privacy={"dp": False},
        model="mlp",
        hidden="4",
        strategy="fedper",
        strategy_options="layers=0.*",
    )
    found = attacked(str(run.path), "--canaries", "0")
    assert found["membership"] == found["attributes"] == [] and found["gradients"]["trials"][0]["recovered"] == 1
    assert [one["attack"] for one in found["left_out"]] == ["who took part", "secret columns", "audit with canaries"]
    assert "Who took part?" not in (run.path / "report.html").read_text()


def test_a_section_is_there_only_of_what_can_be_read(tmp_path: Path) -> None:
    assert attack_section(folder.Run(tmp_path)) == ""
    (tmp_path / "attacks.json").write_text('{"members": 3}')
    with pytest.raises(DataError, match="attack the run again"):
        attack_section(folder.Run(tmp_path))


def test_a_run_without_privacy_has_nothing_to_audit_and_a_wrong_column_is_told(quick: Run) -> None:
    run = quick(rounds=1, privacy={"dp": False})
    found = attacked(str(run.path), "--shadows", "0", "--sensitive", "mean_area", "--delta", "1e-3")
    why = {one["attack"]: one["why"] for one in found["left_out"]}
    assert set(why) == {"LiRA", "audit with canaries"} and "claims no epsilon" in why["audit with canaries"]
    assert found["claimed"]["epsilon"] is found["allowed"] is None and found["membership"][0]["bound"]["delta"] == 1e-3
    screen = Console(record=True, width=150, file=io.StringIO())
    screen.print(*shown_of(found), sep="\n")
    said = screen.export_text()
    assert "Left out: audit with canaries" in said and "mean_area" in said and "The run claims no epsilon" in said
    wrong = CliRunner().invoke(app, ["attack", str(run.path), "--sensitive", "mean_aria"])
    assert isinstance(wrong.exception, ConfigError) and "Did you mean 'mean_area'?" in str(wrong.exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "not a run's folder"),
        (["nowhere", "--shadows", "2"], "--shadows is 2; allowed are 0 and 4 to 256"),
        (["nowhere", "--canaries", "5"], "--canaries is 5; allowed are 0 and 10 to 3000"),
        (["nowhere", "--delta", "1"], "--delta is 1; it must lie between 0 and 1"),
        (["nowhere", "--seed", "-1"], "--seed is -1"),
    ],
)
def test_wrong_input_is_one_sentence(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["attack", *arguments])
    assert isinstance(done.exception, ConfigError) and done.exception.exit_code == 2
    assert words in str(done.exception) and "\n" not in str(done.exception)
