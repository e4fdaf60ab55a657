"""The command line as it is used: names, JSON keys and exit codes are a contract."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from polyclinic.cli import app
from polyclinic.cli.commands import COMMANDS
from polyclinic.errors import ConfigError

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def finished(as_json: Command, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("runs")
    summary: dict[str, Any] = as_json(
        "run", "--rounds", "3", "-c", "training.local-steps=2", "--out", str(out), "--compare"
    )
    return summary


def test_run_prints_the_contract(finished: dict[str, Any]) -> None:
    assert set(finished) >= {
        "run", "rounds", "seed", "strategy", "engine", "dataset", "metrics", "privacy", "model_sha256", "seconds",
        "rounds_per_second",
    }  # fmt: skip
    assert set(finished["metrics"]) == {"pooled", "macro", "sites"}
    assert len(finished["metrics"]["sites"]) == 4
    for site in finished["metrics"]["sites"].values():
        assert set(site) >= {"patients", "auroc", "accuracy", "epsilon", "delta", "budget", "rounds_joined"}
        assert 0 < site["epsilon"] <= site["budget"] == 3.0
        assert site["rounds_joined"] == 3
    assert set(finished["privacy"]) >= {"epsilon", "delta", "unit", "relation", "accountant"}
    assert finished["privacy"]["epsilon"] == max(s["epsilon"] for s in finished["metrics"]["sites"].values())
    assert finished["comparison"]["without_dp"]["pooled"]["auroc"] > 0.9
    assert set(finished["comparison"]["alone"]["sites"]) == set(finished["metrics"]["sites"])


def test_run_folder_holds_everything(finished: dict[str, Any]) -> None:
    folder = Path(finished["run"])
    for name in ("config.toml", "versions.json", "rounds.parquet", "rounds.csv", "model.safetensors", "ledger.json",
                 "summary.json", "report.html", "plots/loss.svg", "plots/rounds.svg", "plots/epsilon.svg"):  # fmt: skip
        assert (folder / name).stat().st_size > 0, name
    page = (folder / "report.html").read_text()
    assert "<script src" not in page and 'href="http' not in page and 'src="http' not in page
    statement = json.loads((folder / "ledger.json").read_text())
    for site in statement["sites"].values():
        assert [event["purpose"] for event in site["events"]] == ["statistics", "train", "train", "train"]
        assert site["intact"]


def test_show_and_ledger_show(finished: dict[str, Any], as_json: Command, command: Command) -> None:
    assert as_json("show", finished["run"]) == finished
    assert "pooled" in command("show", finished["run"]).stdout
    ledger = Path(finished["run"]) / "sites" / "ledger.sqlite"
    together = as_json("ledger", "show", str(ledger))
    assert together["intact"] and together["epsilon"] == pytest.approx(finished["privacy"]["epsilon"], rel=0.02)
    assert set(together["sites"]) == set(finished["metrics"]["sites"]) and len(together["events"]) == 4 * 4
    shown = as_json("ledger", "show", str(ledger), "--site", "hospital-2")
    assert shown == together["sites"]["hospital-2"] | {"held_out": None}
    assert set(shown) >= {"site", "epsilon", "delta", "budget", "events", "intact"}
    assert shown["epsilon"] == pytest.approx(finished["metrics"]["sites"][shown["site"]]["epsilon"], rel=0.02)
    assert command("ledger", "show", str(ledger)).stdout.count("the record is intact") == 4
    assert "statistics" in command("ledger", "show", str(ledger), "--site", "hospital-1").stdout


def test_without_dp_nothing_is_claimed(as_json: Command, command: Command, tmp_path: Path) -> None:
    summary = as_json("run", "--no-dp", "--rounds", "1", "--out", str(tmp_path))
    assert summary["privacy"]["epsilon"] is None
    assert any("no formal guarantee" in note for note in summary["notes"])
    ledger = Path(summary["run"]) / "sites" / "ledger.sqlite"
    assert "unbounded" in command("ledger", "show", str(ledger)).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "--dataset", "heart-diseas"], 2, "Did you mean 'heart-disease'?"),
        (["run", "--strategy", "fedavgg"], 2, "Did you mean 'fedavg'?"),
        (["run", "--epsilon", "-1"], 2, "'privacy.epsilon' has the value -1.0"),
        (["run", "--delta", "0.5"], 2, "1/patients"),
        (["run", "-c", "strategy-options=zeta=1"], 2, "'zeta'"),
        (["run", "-c", "strategy-options=fraction-train=0.5"], 2, "the round loop decides"),
        (["run", "-c", "rounds"], 2, "KEY=VALUE"),
        (["run", "-c", "model=mlpp"], 2, "Did you mean 'mlp'?"),
        (["run", "-c", "participation.min-sites=9"], 2, "participation.min-sites"),
        (["run", "nowhere.toml"], 2, "There is no configuration file"),
        (["run", "--resume", "nowhere"], 2, "not a run's folder"),
        (["show", "nowhere"], 2, "not a run's folder"),
        (["account", "--sample-rate", "0.1", "--steps", "10", "--delta", "1e-5"], 2, "exactly one"),
        (
            ["account", "--sample-rate", "2", "--steps", "10", "--delta", "1e-5", "--noise-multiplier", "1"],
            2,
            "sample_rate",
        ),
        (["ledger", "show", "nowhere.sqlite"], 2, "ledger"),
        (["datasets", "show", "trail"], 2, "Did you mean 'trial'?"),
        (["flower", "run", "--app", "nowhere"], 2, "not a Flower app"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_2(
    command: Command, tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    extra = ["--out", str(tmp_path)] if arguments[0] == "run" and "--resume" not in arguments else []
    done = command(*arguments, *extra)
    assert done.returncode == code, done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--strategy", ":x"], "'strategy' has the value ':x'; known are fedavg,"),
        (["--strategy", ".foo:x"], "'strategy' has the value '.foo:x'; known are fedavg,"),
        (["--strategy", "json:"], "'strategy' has the value 'json:'; known are fedavg,"),
        (["--dataset", "json:loads"], "'dataset' has the value 'json:loads', which makes no polyclinic Dataset"),
        (["--dataset", "json:nothing"], "'dataset' has the value 'json:nothing', which does not load"),
        (["-c", "model=os:getcwd"], "'model' has the value 'os:getcwd', which must build a torch nn.Module, not a str"),
        (["-c", "model=builtins:max"], "'model' has the value 'builtins:max', which makes no torch module"),
        (["-c", "model=builtins:print"], "must build a torch nn.Module, not a NoneType"),
        (["-c", "model=:x"], "'model' has the value ':x'; known are logistic, mlp"),
        (["-c", "participation.min-sites=9"], "'participation.min-sites' has the value 9, which must be at most 4"),
        (["."], "cannot be read"),
        (["--epsilon", "3,5"], "--epsilon has the value '3,5', which must be a number with a point: 3.5."),
        (
            ["-c", "privacy.epsilon=3,5"],
            "'privacy.epsilon' has the value '3,5', which must be a number with a point: 3.5.",
        ),
    ],
)
def test_wrong_input_is_refused_before_a_folder_is_made(tmp_path: Path, arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["run", *arguments, "--out", str(tmp_path / "runs")])
    assert isinstance(done.exception, ConfigError) and done.exception.exit_code == 2
    assert words in str(done.exception) and "\n" not in str(done.exception)
    assert not (tmp_path / "runs").exists()


def test_a_finished_run_is_not_resumed(finished: dict[str, Any], command: Command) -> None:
    done = command("run", "--resume", finished["run"], "--json")
    assert done.returncode == 2 and done.stdout == ""
    assert "has finished; `polyclinic show" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "name", [[], ["run"], ["account"], ["datasets"], ["ledger", "show"], ["plugins"], ["flower", "run"], ["show"]]
)
def test_help_is_there(command: Command, name: list[str]) -> None:
    done = command(*name, "--help")
    assert done.returncode == 0 and "Usage" in done.stdout


def test_the_help_lists_every_command_as_the_command_describes_itself(command: Command) -> None:
    for name, paragraph in COMMANDS.items():
        described = typer.main.get_command(app).commands[name].help  # type: ignore[attr-defined]
        assert paragraph == " ".join(described.split("\f")[0].split("\n\n")[0].split()), name
    for help_of_all in (command("--help"), command()):
        assert help_of_all.stdout.split() == command("--help").stdout.split()
        words = " ".join(help_of_all.stdout.split())
        assert all(f"{name} {paragraph}" in words for name, paragraph in COMMANDS.items())


@pytest.mark.parametrize(
    "command", [["query", "count", "--epsilon", "1", "--ledger", "ledger", "--json"], ["datasets", "show"]]
)
def test_every_command_finds_a_module_in_the_current_folder(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "nearby.py").write_text(
        "from polyclinic.plugins import dataset_named\nCOHORT = dataset_named('breast-cancer')\n"
    )
    named = ["nearby:COHORT"] if command[0] == "datasets" else ["--dataset", "nearby:COHORT"]
    code = "import sys; sys.path.remove(''); from polyclinic.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *command, *named], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_version(command: Command) -> None:
    import polyclinic

    assert command("--version").stdout == f"polyclinic {polyclinic.__version__}\n"


def test_account_gives_the_golden_number_and_its_inverse(as_json: Command) -> None:
    common = ["account", "--sample-rate", "0.032", "--steps", "313", "--delta", "1e-5"]
    found = as_json(*common, "--noise-multiplier", "1")
    assert set(found) == {
        "epsilon", "delta", "noise_multiplier", "sample_rate", "steps", "accountant", "relation", "approximate", "risk",
        "plot",
    }  # fmt: skip
    assert found["epsilon"] == pytest.approx(3.6727, rel=1e-3)
    assert as_json(*common, "--target-epsilon", "2")["noise_multiplier"] == pytest.approx(1.403387, rel=2e-3)
    assert as_json(*common, "--noise-multiplier", "1", "--accountant", "rdp")["epsilon"] == pytest.approx(
        4.1481, rel=1e-3
    )


def test_datasets_and_plugins(as_json: Command, command: Command) -> None:
    listed = {row["name"]: row for row in as_json("datasets")}
    assert listed["breast-cancer"]["patients"] == 569 and listed["breast-cancer"]["available"]
    assert {"heart-disease", "heart-disease-920", "trial"} <= set(listed)
    assert as_json("datasets", "show", "trial")["schema"]["columns"]
    assert "nothing to fetch" in command("datasets", "fetch", "breast-cancer").stdout
    groups = {(row["group"], row["name"]) for row in as_json("plugins")}
    assert {("strategies", "fedadam"), ("models", "mlp"), ("tasks", "classification")} <= groups


@pytest.mark.slow
def test_what_a_plug_in_prints_does_not_get_into_the_json(as_json: Command, tmp_path: Path) -> None:
    (tmp_path / "chatty.py").write_text(
        "from torch import nn\n"
        "def model(features, classes, widths):\n"
        "    print('{a model}')\n"
        "    return nn.Linear(features, classes)\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    summary = as_json("run", "-c", "model=chatty:model", "--rounds", "1", "--out", str(tmp_path), PYTHONPATH=path)
    assert summary["rounds"] == 1
