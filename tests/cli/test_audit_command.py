"""``polyclinic audit`` as it is used: its JSON, its exit codes, and what it says of a run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from polyclinic.cli import app
from polyclinic.errors import ConfigError
from polyclinic.inspection.audits import subject_of_run
from polyclinic.inspection.result import RunResult
from polyclinic.runs.simulation import simulated_patients

Run = Callable[..., RunResult]
SMALL = ["--canaries", "300", "--guesses", "150", "--seed", "1"]


def audit(*arguments: str) -> tuple[int, Any]:
    """The exit code and the JSON."""
    done = CliRunner().invoke(app, ["audit", *arguments, *SMALL, "--json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, json.loads(done.stdout)


def test_json_is_the_contract_and_goes_alone_to_stdout(command: Callable[..., Any]) -> None:
    done = command("audit", *SMALL, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) >= {"epsilon_lower", "confidence", "epsilon_claimed", "violated"}
    assert 0 < found["epsilon_lower"] < found["epsilon_claimed"] == 3.0 and found["confidence"] == 0.95
    assert found["violated"] is False and found["caught_by"] == [] and found["fault"] is None
    assert all(finding["passed"] for finding in found["findings"]) and len(found["findings"]) == 9
    assert found["canaries"] == 300 and found["guesses"] == 150 >= found["correct"] > 75


@pytest.mark.parametrize(
    ("fault", "caught_by"), [("noise-off", "canaries"), ("batch-norm", "refusal"), ("shuffled", "batch sizes")]
)
def test_a_planted_fault_fails_the_audit_and_is_said_to_be_caught(fault: str, caught_by: str) -> None:
    code, found = audit("--fault", fault)
    assert code == 1 and found["violated"] is True and found["fault"] == fault
    assert found["caught_by"][0] == caught_by
    assert (found["refused"] is not None) == (fault == "batch-norm")


def test_people_are_told_in_a_sentence_and_a_table() -> None:
    done = CliRunner().invoke(app, ["audit", "--fault", "half-noise", "--black-box", *SMALL])
    assert done.exit_code == 1
    said = " ".join(done.stdout.split())
    assert "with 95 % confidence; claimed 3 at δ = 1e-05" in said and "black box" in said
    assert "The fault half-noise was caught by: noise size." in said and "noise size" in said


def test_a_run_is_audited_with_its_noise_rounds_and_claims(quick: Run) -> None:
    run = quick(rounds=3, privacy={"delta": 1e-4})
    code, found = audit(str(run.path))
    assert code == 0 and found["violated"] is False
    assert found["epsilon_claimed"] == run.privacy["epsilon"] and found["delta"] == 1e-4
    subject = subject_of_run(run.path)
    assert subject.rounds == 3 and subject.settings.noise_multiplier == run.privacy["noise_multiplier"]
    assert subject.patients.patients in simulated_patients(run.config)
    code, found = audit(str(run.path), "--fault", "noise-off", "--delta", "1e-6")
    assert code == 1 and found["delta"] == 1e-6 and found["epsilon_claimed"] > run.privacy["epsilon"]


def test_tasks_that_release_a_minimiser_and_strategies_that_look_twice_are_audited(quick: Run) -> None:
    code, found = audit("--task", "output-perturbation", "-c", "convex.perturbation=gamma")
    assert code == 0 and found["box"] == "white" and len(found["findings"]) == 4
    code, found = audit("--strategy", "ditto", "-c", "rounds=5", "--fault", "second-noise-off")
    assert code == 1 and found["caught_by"][-1] == "noise size (personal)"
    run = quick(rounds=2, strategy="scaffold", strategy_options="variate=gradient")
    code, found = audit(str(run.path))
    assert code == 0 and "noise size (control)" in {finding["name"] for finding in found["findings"]}


def test_a_plugged_in_task_is_audited_and_one_of_another_kind_as_a_black_box(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_task.py").write_text(
        "from types import SimpleNamespace\nfrom polyclinic.training import classification as c\n"
        "parts = dict(name='theirs', event=c.event, check=c.check, train=c.train, evaluate=c.evaluate)\n"
        "steps, other = SimpleNamespace(**parts), SimpleNamespace(**parts, takes_steps=False)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    short = ["-c", "rounds=5"]
    code, found = audit("--task", "their_task:steps", *short)
    assert code == 0 and found["box"] == "white" and len(found["findings"]) == 9
    code, found = audit("--task", "their_task:other", *short, "--fault", "noise-off")
    assert found["box"] == "black" and [finding["name"] for finding in found["findings"]] == ["canaries"]
    said = CliRunner().invoke(app, ["audit", "--task", "their_task:other", *short, *SMALL]).stdout
    assert "only its final model was attacked" in " ".join(said.split())


def test_a_run_that_claims_nothing_or_has_not_finished_cannot_be_audited(quick: Run) -> None:
    run = quick(rounds=1, privacy={"dp": False})
    with pytest.raises(ConfigError, match="claims no epsilon for patients, so there is nothing to audit"):
        subject_of_run(run.path)
    (run.path / "summary.json").unlink()
    with pytest.raises(ConfigError, match="has not finished"):
        subject_of_run(run.path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "not a run's folder"),
        (["--fault", "noise-of"], "Did you mean 'noise-off'?"),
        (["--task", "regression"], "'regression'"),
        (
            ["--task", "output-perturbation", "--fault", "shuffled"],
            "of which the task 'output-perturbation' takes none",
        ),
        (
            ["--task", "exponential-mechanism", "--fault", "no-clipping"],
            "would keep the task 'exponential-mechanism' drawing for ever",
        ),
        (["--fault", "second-noise-off"], "as 'ditto'"),
        (["--model", "mlpp"], "Did you mean 'mlp'?"),
        (["--strategy", "fedavgg"], "Did you mean 'fedavg'?"),
        (["--canaries", "5"], "--canaries is 5; allowed are 10 to 3000"),
        (["--guesses", "2000"], "--guesses is 2000; allowed are 1 to 1000"),
        (["--confidence", "1"], "--confidence is 1; it must lie between 0 and 1"),
        (["--seed", "-1"], "--seed is -1"),
        (["--delta", "2"], "'privacy.delta' has the value 2.0"),
        (["nowhere", "--model", "mlp"], "give --task, --model, --strategy and -c without one"),
    ],
)
def test_wrong_input_is_one_sentence(tmp_path: Path, arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["audit", *arguments])
    assert isinstance(done.exception, ConfigError) and done.exception.exit_code == 2
    assert words in str(done.exception) and "\n" not in str(done.exception)
