"""Whatever kind of run it was: its files are JSON by RFC 8259, which has no infinity, and `serve` shows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import MessageType
from safetensors import safe_open
from starlette.testclient import TestClient

from polyclinic.inspection.result import RunResult
from polyclinic.runs.history import History
from polyclinic.runs.json_text import json_text
from polyclinic.serving.app import application
from tests.server.exchange.test_hostile_hospitals import at, metric, run, told

ONCE = {"rounds": 1, "training.local-steps": 1}
COUNTED = {"privacy.patients-per-site": 100, "data.standardise": "none"}
KINDS: dict[str, dict[str, Any]] = {
    "private": {}, "without privacy": {"privacy.dp": False}, "central": {"privacy.dp": False, "central.epsilon": 4.0} | COUNTED,
    "both": {"central.epsilon": 4.0} | COUNTED, "secure": {"secure.aggregation": True},
    "secure noise": {"privacy.dp": False, "secure.aggregation": True, "secure.noise": 1.0},
    "scaffold": {"privacy.dp": False, "strategy": "scaffold"}, "ditto": {"strategy": "ditto"},
    "noise over time": {"training.batching": "cyclic", "training.noise": "tree"},
    "output perturbation": {"task": "output-perturbation", "training.weight-decay": 0.1} | ONCE,
    "posterior": {"task": "posterior", "rounds": 8, "training.local-steps": 1, "privacy.epsilon": 2000.0},
    "posterior without privacy": {"task": "posterior", "rounds": 8, "training.local-steps": 1, "privacy.dp": False},
    "synthesis": {"task": "synthesis"} | ONCE, "synthesis without privacy": {"task": "synthesis", "privacy.dp": False} | ONCE,
}  # fmt: skip


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def check(folder: Path) -> list[dict[str, Any]]:
    """Everything that a run wrote as JSON is; returns the rows of its history."""
    for path in folder.rglob("*.json"):
        strict(path.read_text())
    lines = [strict(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    with safe_open(folder / "checkpoint.safetensors", framework="numpy") as file:
        for text in file.metadata().values():
            strict(text)
    client = TestClient(application(folder.parent, ["testserver"]))
    listed = [one for one in strict(client.get("/api/runs").text) if one["name"] == folder.name]
    assert [one["problem"] for one in listed] == [None]
    assert strict(client.get(f"/api/runs/{folder.name}").text)["sites"]
    return [line["row"] for line in lines if "row" in line]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_is_strict_json(quick: Callable[..., RunResult], kind: str) -> None:
    options = {"rounds": 2} | KINDS[kind]
    found = quick(**options)
    rows = check(found.path)
    private = options.get("privacy.dp", True)
    told = [row["epsilon"] for row in rows if row["site"] not in ("pooled", "macro")]
    assert told and all((epsilon is not None) == private for epsilon in told)
    assert found.summary["privacy"]["private"] == private
    page = " ".join((found.path / "report.html").read_text().split())
    exact = not private and "central.epsilon" not in options and "secure.noise" not in options
    says = (
        "of exact sums, without differential" if options.get("task") == "posterior" else "trained without differential"
    )
    assert (f"{says} privacy" in page) == exact


@pytest.mark.parametrize("word", [float("inf"), 1e308, 0.0])
@pytest.mark.parametrize("when", [MessageType.TRAIN, MessageType.EVALUATE])
def test_fault_42_whatever_one_hospital_says_of_its_epsilon_the_runs_own_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, word: float
) -> None:
    monkeypatch.setitem(at, "now", when)
    _, dropouts = run(tmp_path, told("epsilon", word))
    [folder] = tmp_path.iterdir()
    check(folder)
    summary = strict((folder / "summary.json").read_text())
    assert 0 < summary["privacy"]["epsilon"] <= 3
    assert ["its epsilon must be a finite number" in drop["reason"] for drop in dropouts] == [True] * (
        word == float("inf")
    )
    page = " ".join((folder / "report.html").read_text().split())
    assert "Differentially private: epsilon" in page and "No privacy guarantee" not in page


def test_a_metric_too_large_to_be_added_is_no_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(at, "now", MessageType.EVALUATE)
    _, dropouts = run(tmp_path, metric("loss", 1.7e308), metric("loss", -1.7e308))
    assert ["'loss' is 1.7e+308; allowed" in drop["reason"] for drop in dropouts] == [True, False]
    rows = check(next(tmp_path.iterdir()))
    assert [row["loss"] < 10 for row in rows if row["site"] == "macro"] == [True]


def test_a_number_that_is_not_finite_is_null(tmp_path: Path) -> None:
    value = {"a": [float("nan"), 1.0, {"b": (float("-inf"), "Infinity")}], "c": None}
    assert strict(json_text(value)) == {"a": [None, 1.0, {"b": [None, "Infinity"]}], "c": None}
    History.begin(tmp_path / "history.jsonl").add({"row": [{"round": 1, "epsilon": float("inf")}]})
    assert strict((tmp_path / "history.jsonl").read_text()) == {"row": {"round": 1, "epsilon": None}}
