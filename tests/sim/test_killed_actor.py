"""A Ray actor killed in the middle of a round costs time, and nothing else: the same model, one charge for each release."""

import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from polyclinic.inspection.result import RunResult

# A file that whoever dies makes first; beside it lie the runs' folders.
DIES = "POLYCLINIC_TEST_DIES"


class Mortal(nn.Module):
    """Logistic regression; the first process to train it in round 2, its sites charged, is killed by SIGKILL."""

    def __init__(self, features: int, classes: int, widths: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(features, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and DIES in os.environ:
            _die_in_round_2(Path(os.environ[DIES]))
        return self.linear(x)


def _die_in_round_2(mark: Path) -> None:
    for ledger in mark.parent.glob("runs/*/sites/ledger.sqlite"):
        with closing(sqlite3.connect(ledger)) as db:
            (newest,) = db.execute("SELECT MAX(round) FROM events").fetchone()
        if newest == 2 and not mark.exists():
            mark.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)


def charges(run: RunResult) -> dict[str, list[tuple[Any, ...]]]:
    return {
        name: [(event["round"], event["purpose"], event["release"]) for event in site["events"]]
        for name, site in run.summary["statement"]["sites"].items()
    }


@pytest.mark.slow
def test_an_actor_killed_within_a_round_changes_neither_model_nor_ledger(
    quick: Callable[..., RunResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"model": "tests.sim.test_killed_actor:Mortal", "sites": 6, "rounds": 3, "training.optimizer": "adam",
               "training.learning-rate": 0.05, "workers": 2, "ray_address": "local"}  # fmt: skip
    whole = quick(**options, out=str(tmp_path / "whole"))
    mark = tmp_path / "died"
    monkeypatch.setenv(DIES, str(mark))
    killed = quick(**options, out=str(tmp_path / "runs"))
    assert int(mark.read_text()) != os.getpid() and not Path(f"/proc/{mark.read_text()}").exists()
    assert killed.summary["model_sha256"] == whole.summary["model_sha256"]
    assert killed.summary["dropouts"] == [] and set(killed.sites.rounds_joined) == {3}
    assert killed.privacy["epsilon"] == whole.privacy["epsilon"]
    for name, found in charges(killed).items():
        assert [charge[:2] for charge in found] == [(0, "statistics"), (1, "train"), (2, "train"), (3, "train")], name
        assert killed.summary["statement"]["sites"][name]["intact"]
        assert killed.summary["metrics"]["sites"][name]["epsilon"] == whole.summary["metrics"]["sites"][name]["epsilon"]
