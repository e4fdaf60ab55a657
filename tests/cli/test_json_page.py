"""docs/reference/json.md names every key that the commands print."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from polyclinic.cli import app

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/json.md").read_text()
NAMED = {word for text in re.findall(r"`+([^`]+)`+", PAGE) for word in re.findall(r"[a-z][a-z0-9_]*", text)}
# Whose keys are names: of hospitals, of cells, of a strategy's metrics, of a dp-accounting event's own fields.
OPEN = {"train", "evaluate", "sites", "event", "value", "standard_error"}


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for part in value:
            yield from keys(part)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield key
            if key == "sites" and isinstance(part, dict):
                yield from (inner for site in part.values() for inner in keys(site))
            elif key not in OPEN:
                yield from keys(part)


def printed(*arguments: str) -> Any:
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("json")


@pytest.fixture(scope="module")
def ledger(folder: Path) -> str:
    path = str(folder / "asked.sqlite")
    asked = ("--dataset", "breast-cancer", "--ledger", path, "--budget", "2", "--epsilon", "0.5")
    assert not set(keys(printed("query", "mean", "--column", "mean_radius", *asked))) - NAMED
    assert not set(keys(printed("query", "histogram", "--column", "malignant", *asked))) - NAMED
    return path


@pytest.mark.slow
def test_a_runs_keys_are_on_the_page(folder: Path) -> None:
    run = printed("run", "--dataset", "breast-cancer", "--rounds", "1", "--out", str(folder), "-c", "privacy.overlap=2")
    assert not set(keys(run)) - NAMED
    assert not set(keys(printed("show", run["run"]))) - NAMED
    options = ("--task", "synthesis", "--dataset", "trial", "--sites", "2", "--model", "gan", "--rounds", "1")
    assert not set(keys(printed("run", *options, "--out", str(folder)))) - NAMED


@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_a_ledgers_keys_are_on_the_page(ledger: str, folder: Path, command: str) -> None:
    more = ("--out", str(folder / "export.json")) if command == "export" else ()
    assert not set(keys(printed("ledger", command, ledger, *more))) - NAMED
    purposes = {event["purpose"] for event in printed("ledger", "show", ledger)["events"]}
    assert purposes == {"query-mean", "query-histogram"}
    assert all(f"`{purpose}`" in PAGE for purpose in purposes)


def test_an_accounts_keys_are_on_the_page() -> None:
    found = printed("account", "--sample-rate", "0.1", "--noise-multiplier", "2", "--steps", "10", "--delta", "1e-5")
    assert not set(keys(found)) - NAMED


def test_an_audits_keys_are_on_the_page() -> None:
    found = printed("audit", "--canaries", "40", "--seed", "1")
    assert set(keys(found)) and not set(keys(found)) - NAMED


@pytest.mark.parametrize("more", [("--column", "mean_radius"), ("--imputer",)])
def test_a_preparations_keys_are_on_the_page(folder: Path, more: tuple[str, ...]) -> None:
    out = folder / more[0].strip("-")
    found = printed("prepare", "--dataset", "breast-cancer", "--epsilon", "1", "--out", str(out), *more)
    assert not set(keys(found | {"columns": list(found.get("columns", {}).values())})) - NAMED
    assert all(f"`{event['purpose']}`" in PAGE for event in printed("ledger", "show", found["ledger"])["events"])


@pytest.mark.slow
def test_an_exported_models_keys_are_on_the_page(folder: Path) -> None:
    run = printed("run", "--dataset", "breast-cancer", "--rounds", "1", "--out", str(folder / "exported"))["run"]
    value = printed("export", run, "--out", str(folder / "model.pt"))
    described = json.loads(Path(value["description"]).read_text())
    assert not (set(keys(value)) | set(keys(described))) - NAMED
