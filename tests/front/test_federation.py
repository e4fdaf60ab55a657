"""A run from Python, stopped and resumed: nothing is lost, done twice, or left without a word on how to go on."""

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from polyclinic import Federation
from polyclinic.cli.terminal import fail
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.inspection.result import RunResult
from polyclinic.privacy.accounting import PrivacyPlan
from polyclinic.server.exchange.sites import Site
from polyclinic.server.state import RunState

Quick = Callable[..., RunResult]


class Watcher:
    """Keeps what it is told, and raises ``error`` when that begins with ``stop``."""

    def __init__(self, stop: str = "never", error: BaseException | None = None) -> None:
        self.told: list[str] = []
        self._stop, self._error = stop, error

    def on_step(self, what: str) -> None:
        self.told.append(what)
        if self._error is not None and what.startswith(self._stop):
            raise self._error

    def on_folder(self, folder: Path) -> None:
        self.on_step(f"opened {folder}")

    def is_stopping(self) -> bool:
        return False

    def on_start(
        self, config: RunConfig, sites: Sequence[Site], privacy: PrivacyPlan | None, engine: str | None
    ) -> None:
        self.on_step(f"started with {engine}")

    def on_round(self, config: RunConfig, state: RunState) -> None:
        self.on_step(f"round {state.round}")

    def on_dropouts(self, dropouts: Sequence[Mapping[str, Any]]) -> None:
        self.on_step(f"{len(dropouts)} dropped out")


def test_progress_tells_every_step(quick: Quick) -> None:
    watcher = Watcher()
    result = quick(progress=watcher, comparison=True, sites=2)
    assert watcher.told == [
        "calibrating the noise", f"opened {result.path}", "started with linear", "round 1", "round 2",
        "comparison: 1 of 3, all patients without DP", "comparison: 2 of 3, hospital-1 alone",
        "comparison: 3 of 3, hospital-2 alone",
    ]  # fmt: skip


class Settings(Watcher):
    """Notes the process's settings as each step is told."""

    def on_step(self, what: str) -> None:
        self.seen = gc.get_freeze_count() > 0, logging.getLogger("flwr").level, torch.get_num_threads()
        super().on_step(what)


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_calms_the_process_and_puts_its_settings_back(quick: Quick, fails: bool) -> None:
    before = gc.get_freeze_count(), logging.getLogger("flwr").level, torch.get_num_threads()
    watcher = Settings("round 1", KeyboardInterrupt() if fails else None)
    with suppress(KeyboardInterrupt):
        quick(progress=watcher, rounds=1)
    assert watcher.seen == (True, logging.WARNING, 1)
    assert (gc.get_freeze_count(), logging.getLogger("flwr").level, torch.get_num_threads()) == before


def test_a_failed_run_names_its_folder_and_goes_on_from_there(
    quick: Quick, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PolyclinicError) as caught:
        quick(progress=Watcher("round 1", PolyclinicError("The lights went out.")))
    (folder,) = tmp_path.iterdir()
    assert fail(caught.value) == 1
    assert capsys.readouterr().err.splitlines() == [
        "Error: The lights went out.", f"The run's folder is {folder}; go on with `polyclinic run --resume {folder}`.",
    ]  # fmt: skip
    assert Federation.resume(folder).summary["rounds"] == 2


def test_a_run_stopped_before_its_first_checkpoint_is_to_be_started_anew(quick: Quick, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        quick(progress=Watcher("started", KeyboardInterrupt()))
    (folder,) = tmp_path.iterdir()
    assert str(folder) in caught.value.__notes__[0] and "start it anew" in caught.value.__notes__[0]
    with pytest.raises(ConfigError, match="start it anew"):
        Federation.resume(folder)


def test_a_finished_run_is_not_resumed(quick: Quick) -> None:
    result = quick()
    before = (result.path / "summary.json").read_bytes()
    with pytest.raises(ConfigError, match=r"has finished; `polyclinic show .*` prints it\.$"):
        Federation.resume(result.path)
    assert (result.path / "summary.json").read_bytes() == before


def test_a_run_stopped_in_its_comparison_has_finished_and_says_what_is_missing(quick: Quick, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        quick(progress=Watcher("comparison: 2", KeyboardInterrupt()), comparison=True, sites=2)
    (folder,) = tmp_path.iterdir()
    assert "without the comparison" in caught.value.__notes__[0]
    found = RunResult.read(folder)
    assert found.summary["comparison"] is None
    assert any("comparison was asked for and is missing" in note for note in found.summary["notes"])
    with pytest.raises(ConfigError, match="has finished without the comparison"):
        Federation.resume(folder)


def test_a_resumed_run_makes_the_comparison_that_was_asked_for(quick: Quick, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        quick(progress=Watcher("round 1", KeyboardInterrupt()), comparison=True, sites=2)
    (folder,) = tmp_path.iterdir()
    resumed = Federation.resume(folder)
    assert set(resumed.summary["comparison"]["alone"]["sites"]) == {"hospital-1", "hospital-2"}
    assert not any("missing" in note for note in resumed.summary["notes"])
    assert RunResult.read(folder).summary == resumed.summary


@pytest.mark.parametrize("wrong", ["trial", {"rounds": 2}, None])
def test_a_federation_of_anything_but_a_configuration_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"takes a RunConfig, not .*; Federation\.from_dataset\(name\)"):
        Federation(wrong)


def test_a_result_is_one_short_line(quick: Quick) -> None:
    result = quick()
    shown = repr(result)
    assert shown.startswith(f"RunResult({result.path.name!r}, rounds=2, epsilon=2.99")
    assert "pooled_auroc=0." in shown and len(shown) < 120
    assert "epsilon=None" in repr(quick(privacy={"dp": False}))


def mixing(features: int, classes: int, widths: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 4), nn.BatchNorm1d(4), nn.Linear(4, classes))


def normed(features: int, classes: int, widths: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 4), nn.LayerNorm(4), nn.Linear(4, classes))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model": f"{__name__}:mixing"}, "mixes patients within a batch"),
        (
            {"model": f"{__name__}:normed", "training.engine": "linear"},
            "'training.engine' has the value 'linear'.*LayerNorm is not a linear",
        ),
        ({"ray_address": "nowhere"}, "'ray-address' has the value 'nowhere', which must be local, auto, or HOST:PORT"),
        ({"privacy.epsilon": 1e-6}, "'privacy.epsilon' has the value 1e-06"),
        (
            {
                "training.batching": "cyclic",
                "training.sample-rate": 0.25,
                "training.noise": "banded",
                "training.noise-options": "bands=0",
            },
            "'training.noise-options' has the value 'bands=0': bands must be a whole number from 1",
        ),
        (
            {
                "training.batching": "cyclic",
                "training.sample-rate": 0.25,
                "training.noise": "tree",
                "training.noise-options": "bands=2",
            },
            "'training.noise-options' has the value 'bands=2': .*takes no option 'bands'",
        ),
        (
            {
                "training.batching": "cyclic",
                "training.sample-rate": 0.25,
                "training.noise": "tree",
                "training.noise-options": "restart",
            },
            "'training.noise-options' has the value 'restart': 'restart' is not of the form key=value",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_before_any_privacy_is_spent(
    tmp_path: Path, options: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        Federation.from_dataset("breast-cancer", out=str(tmp_path / "runs")).run(rounds=1, **options)
    assert not (tmp_path / "runs").exists()
