"""Rows and drop-outs beside the checkpoints: written once, counted by each checkpoint, cut back to it on resume."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array
from flwr.serverapp.strategy import FedAvg

from polyclinic import Federation
from polyclinic.errors import DataError, PolyclinicError
from polyclinic.inspection.result import RunResult
from polyclinic.runs.history import History
from polyclinic.server import federate
from polyclinic.server.checkpoint import load_checkpoint
from polyclinic.server.progress import Progress
from polyclinic.strategies.base.state import restore_strategy, strategy_state

Quick = Callable[..., RunResult]
ROWS = [{"round": number, "site": "a", "loss": number / 3, "auroc": None} for number in range(5)]
MEASURED = [{"round": 1, "train": {"spread": 0.5}}]
DROPOUTS = [{"round": 1, "site": "b\u2028", "reason": "no\nreply"}]


class StopsAfter(Progress):
    """Ends the run with an error once a round is done."""

    def __init__(self, round: int) -> None:
        self._round = round

    def on_round(self, config: object, state: object) -> None:
        if state.round == self._round:  # type: ignore[attr-defined]
            raise PolyclinicError("The lights went out.")


def stopped(quick: Quick, out: Path, round: int, **options: object) -> Path:
    with pytest.raises(PolyclinicError, match="lights"):
        quick(progress=StopsAfter(round), out=str(out), **options)
    (folder,) = out.iterdir()
    return folder


def same_rounds(one: RunResult, other: RunResult, but: tuple[str, ...] = ("seconds",)) -> bool:
    return one.rounds.drop(columns=[*but]).equals(other.rounds.drop(columns=[*but]))


def test_what_was_added_comes_back_and_the_rest_is_cut_off(tmp_path: Path) -> None:
    history = History.begin(tmp_path / "h")
    first = history.add({"row": ROWS[:2]})
    second = history.add(some := {"row": ROWS[:3], "strategy": MEASURED, "dropout": DROPOUTS})
    history.add(some | {"row": ROWS})
    for extent, kept in ((second, some), (first, {"row": ROWS[:2], "strategy": [], "dropout": []})):
        resumed, found = History.resume(tmp_path / "h", extent)
        assert found == kept and (tmp_path / "h").stat().st_size == extent.size
    assert resumed.add(some) == second


def test_ctrl_c_after_the_last_question_still_leaves_a_checkpoint_of_the_round(quick: Quick, tmp_path: Path) -> None:
    class Interrupted(Progress):
        asked = False

        def is_stopping(self) -> bool:
            return self.asked

        def on_round(self, config: object, state: object) -> None:
            self.asked = state.round == 2  # type: ignore[attr-defined]
            if self.asked:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quick(progress=Interrupted(), out=str(tmp_path), rounds=5, checkpoints={"every": 5})
    (folder,) = tmp_path.iterdir()
    assert load_checkpoint(folder / "checkpoint.safetensors")[0].round == 2


def test_only_what_is_new_is_written(tmp_path: Path) -> None:
    history = History.begin(tmp_path / "h")
    before = history.add({"row": ROWS * 200})
    (tmp_path / "h").write_bytes(b"")
    after = history.add({"row": [*ROWS * 200, ROWS[0]]})
    assert (tmp_path / "h").read_text() == json.dumps({"row": ROWS[0]}) + "\n"
    assert after.size - before.size == (tmp_path / "h").stat().st_size


@pytest.mark.parametrize("content", [None, b"", b"torn", b"\xff" * 400])
def test_a_history_that_is_not_what_was_written_is_one_sentence(tmp_path: Path, content: bytes | None) -> None:
    extent = History.begin(tmp_path / "h").add({"row": ROWS})
    (tmp_path / "h").unlink() if content is None else (tmp_path / "h").write_bytes(content)
    with pytest.raises(DataError, match=r"^\S*h does not hold the rounds .*restore it before the run goes on\.$"):
        History.resume(tmp_path / "h", extent)


def test_checkpoints_do_not_grow_with_the_rounds(quick: Quick) -> None:
    sizes = [(quick(rounds=rounds).path / "checkpoint.safetensors").stat().st_size for rounds in (2, 9)]
    assert abs(sizes[0] - sizes[1]) < 100


def test_the_ledger_is_on_the_disk_before_a_checkpoint_counts_on_it(
    quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def noted(name: str) -> None:
        real = getattr(federate, name)

        def called(*given: Any) -> None:
            real(*given)
            order.append(name)

        monkeypatch.setattr(federate, name, called)

    noted("on_disk")
    noted("save_checkpoint")
    quick(rounds=2)
    assert order[-4:] == ["on_disk", "save_checkpoint"] * 2


def test_a_stopped_runs_rounds_and_dropouts_come_back(quick: Quick, tmp_path: Path) -> None:
    trace = tmp_path / "away.csv"
    trace.write_text("round,site\n1,hospital-2\n3,hospital-3\n4,hospital-3\n")
    options = {
        "rounds": 4,
        "simulation.availability": str(trace),
        "training.optimizer": "adam",
        "training.learning-rate": 0.05,
    }
    whole = quick(out=str(tmp_path / "whole"), **options)
    folder = stopped(quick, tmp_path / "stopped", 3, **options)
    with (folder / "history.jsonl").open("a") as history:
        history.write('{"row": {"round": 4, "si')  # what a process killed within its next checkpoint leaves
    resumed = Federation.resume(folder)
    assert same_rounds(resumed, whole) and resumed.summary["dropouts"] == whole.summary["dropouts"]
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]


@pytest.mark.parametrize("every", [1, 2])
def test_an_older_checkpoint_that_was_kept_can_be_resumed_from(quick: Quick, tmp_path: Path, every: int) -> None:
    options = {
        "rounds": 5,
        "training.optimizer": "adam",
        "training.learning-rate": 0.05,
        "checkpoints.keep": 3,
        "checkpoints.every": every,
    }
    whole = quick(out=str(tmp_path / "whole"), **options)
    folder = stopped(quick, tmp_path / "stopped", 4, **options)
    shutil.copy(folder / "checkpoints" / "round-000002.safetensors", folder / "checkpoint.safetensors")
    with pytest.raises(PolyclinicError, match="lights"):
        Federation.resume(folder, progress=StopsAfter(3))
    # Round 4's counts on rounds that are not there any more.
    newest = max(path.name for path in (folder / "checkpoints").iterdir())
    assert newest == f"round-00000{3 if every == 1 else 2}.safetensors"
    resumed = Federation.resume(folder)
    # Round 4 had been charged when round 3 was asked for again, and a site tells what it has spent in all.
    assert same_rounds(resumed, whole, but=("seconds", "epsilon"))
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]
    assert resumed.privacy["epsilon"] == whole.privacy["epsilon"]


@pytest.mark.parametrize("damage", [None, 10, -1])
def test_a_run_without_its_history_does_not_go_on(quick: Quick, tmp_path: Path, damage: int | None) -> None:
    folder = stopped(quick, tmp_path / "stopped", 1)
    history = folder / "history.jsonl"
    content = history.read_bytes()
    history.unlink() if damage is None else history.write_bytes(content[:damage])
    with pytest.raises(DataError, match=r"history\.jsonl does not hold the rounds"):
        Federation.resume(folder)


@pytest.mark.parametrize("damage", [None, 20])
def test_a_site_that_lost_what_it_kept_stops_the_resume(quick: Quick, tmp_path: Path, damage: int | None) -> None:
    folder = stopped(
        quick,
        tmp_path / "stopped",
        2,
        rounds=4,
        training={"optimizer": "adam", "learning_rate": 0.05},
    )
    (kept,) = (folder / "sites" / "hospital-2").glob("optimizer-*-000002.safetensors")
    content = kept.read_bytes()
    kept.unlink() if damage is None else kept.write_bytes(content[:damage])
    with pytest.raises(DataError, match="what 'hospital-2' kept after round 2, is missing or damaged; restore it"):
        Federation.resume(folder)
    kept.write_bytes(content)
    whole = quick(out=str(tmp_path / "whole"), rounds=4, training={"optimizer": "adam", "learning_rate": 0.05})
    assert Federation.resume(folder).summary["model_sha256"] == whole.summary["model_sha256"]


class Remembering(FedAvg):
    """Keeps state of many shapes, and changes the model by it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.turns = 0
        self.by_layer: dict[int, Any] = {}
        self.last: Any = None
        self.ways = (np.float32(0.5), [None, "text", {"nested": np.zeros((2, 0))}])

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.turns += 1
        for index, (name, value) in enumerate(arrays.items()):
            before = self.by_layer.get(index, [0.0])[-1]
            self.by_layer[index] = [before, (before + value.numpy()) * float(self.ways[0])]
            arrays[name] = Array(self.by_layer[index][1] * np.float32(self.turns))
        self.last = np.array(1.0)
        return arrays, metrics


def test_a_strategys_state_comes_back_whatever_its_shape(quick: Quick, tmp_path: Path) -> None:
    options = {"rounds": 4, "strategy": f"{__name__}:Remembering", "privacy.dp": False}
    whole = quick(out=str(tmp_path / "whole"), **options)
    folder = stopped(quick, tmp_path / "stopped", 2, **options)
    assert Federation.resume(folder).summary["model_sha256"] == whole.summary["model_sha256"]
    one, other = Remembering(), Remembering()
    one.by_layer, one.turns, one.last = {3: [np.ones((2, 3))], 4: []}, 7, np.array(2.5)
    restore_strategy(other, {name: np.ascontiguousarray(value) for name, value in strategy_state(one).items()})
    assert other.turns == 7 and other.last.shape == () and other.last == 2.5 and other.by_layer[4] == []
    np.testing.assert_array_equal(other.by_layer[3][0], np.ones((2, 3)))
    assert type(other.ways) is tuple and other.ways[1][2]["nested"].shape == (2, 0)
