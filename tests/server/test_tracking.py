"""Trackers, with the real packages: what they are told, by whom it is read again, and what happens where they fail."""

import json
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from polyclinic.errors import ConfigError
from polyclinic.federation import Federation
from polyclinic.inspection.result import RunResult
from polyclinic.server.progress import Progress
from polyclinic.server.tracking import numbers

Quick = Callable[..., RunResult]
Track = dict[str, dict[int, float]]


def tensorboard(folder: Path) -> Track:
    """The scalars as TensorBoard itself reads them, by tag and step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder)).Reload()
    return {tag: {one.step: one.value for one in read.Scalars(tag)} for tag in read.Tags()["scalars"]}


def mlflow(place: str) -> tuple[Any, Track]:
    """The newest run, and its metrics."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=place)
    run = client.search_runs([client.get_experiment_by_name("polyclinic").experiment_id])[0]
    return run, {key: {one.step: one.value for one in client.get_metric_history(run.info.run_id, key)}
                 for key in run.data.metrics}  # fmt: skip


def expected(result: RunResult) -> Track:
    found: Track = {}
    for number, rows in result.rounds.groupby("round"):
        for tag, value in numbers(json.loads(rows.to_json(orient="records", double_precision=15))).items():
            found.setdefault(tag, {})[int(str(number))] = value
    return found


def same(track: Track, result: RunResult) -> None:
    own = expected(result)
    last = {"privacy-epsilon": {result.summary["rounds"]: result.privacy["epsilon"]}}
    assert track.keys() == own.keys() | last.keys()
    for tag, steps in (own | last).items():
        assert track[tag] == pytest.approx(steps, rel=1e-6), tag


class Stops(Progress):
    """Stops a run, or does something to it, after a round."""

    def __init__(self, after: int, what: Callable[[], None] | None = None) -> None:
        self.after, self.what = after, what

    def on_round(self, config: Any, state: Any) -> None:
        if state.round == self.after:
            if self.what is None:
                raise KeyboardInterrupt
            self.what()


def folder_in(out: Path) -> Path:
    (found,) = (path for path in out.iterdir() if (path / "config.toml").is_file())
    return found


def test_tensorboard_shows_a_resumed_run_as_one_track_of_what_the_rounds_table_has(
    quick: Quick, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):  # round 3 is in no checkpoint, so it is done again
        quick(tracking={"tool": "tensorboard"}, rounds=5, checkpoints={"every": 2}, progress=Stops(3))
    place = folder_in(tmp_path) / "tensorboard"
    assert set(tensorboard(place)["auroc/pooled"]) == {1, 2}
    result = Federation.resume(folder_in(tmp_path))
    same(tensorboard(place), result)
    epsilons = tensorboard(place)["epsilon/hospital-1"]
    assert sorted(epsilons) == [1, 2, 3, 4, 5] and epsilons[5] == pytest.approx(result.sites.epsilon["hospital-1"])
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    text = EventAccumulator(str(place)).Reload().Tensors("configuration")[0].tensor_proto.string_val[0].decode()
    assert "| rounds | 5 |" in text and str(tmp_path) not in text


@pytest.mark.slow
def test_a_run_that_goes_on_from_an_earlier_checkpoint_takes_back_what_came_after(quick: Quick, tmp_path: Path) -> None:
    place = tmp_path / "boards"
    with pytest.raises(KeyboardInterrupt):
        quick(
            tracking={"tool": "tensorboard", "place": str(place)}, rounds=4, checkpoints={"keep": 4}, progress=Stops(3)
        )
    folder = folder_in(tmp_path)
    shutil.copy(folder / "checkpoints" / "round-000001.safetensors", folder / "checkpoint.safetensors")
    told: list[set[int]] = []
    seen = Stops(2, lambda: told.append(set(tensorboard(place / folder.name)["auroc/pooled"])))
    result = Federation.resume(folder, progress=seen)
    assert told == [{1, 2}], "round 3 of the track was of a run that has been taken back"
    same(tensorboard(place / folder.name), result)


@pytest.mark.slow  # docs/trackers.md, of which every command is run, shows a run in MLflow quickly
def test_mlflow_shows_a_resumed_run_as_one_run(quick: Quick, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        quick(tracking={"tool": "mlflow"}, rounds=3, progress=Stops(2))
    place = f"sqlite:///{tmp_path / 'mlflow.db'}"
    run, _ = mlflow(place)
    assert run.info.status == "KILLED"
    result = Federation.resume(folder_in(tmp_path))
    again, track = mlflow(place)
    same(track, result)
    assert (again.info.run_id, again.info.status, again.info.run_name) == (
        run.info.run_id,
        "FINISHED",
        result.folder.name,
    )
    assert again.data.params["rounds"] == "3" and "out" not in again.data.params
    told = json.dumps([again.data.params, again.data.tags])
    assert str(tmp_path) not in told and "root" not in told


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        path.write_bytes(b"no database and no folder")


@pytest.mark.parametrize(("tracker", "where"), [
    ("tensorboard", "*/tensorboard"), pytest.param("mlflow", "mlflow.db", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_tracker_that_fails_under_way_is_noted_and_stops_nothing(
    quick: Quick, tmp_path: Path, tracker: str, where: str
) -> None:
    whole = quick(rounds=3, out=str(tmp_path / "other"))
    result = quick(rounds=3, tracking={"tool": tracker}, progress=Stops(1, lambda: _remove(tmp_path.glob(where))))
    assert result.summary["model_sha256"] == whole.summary["model_sha256"] and len(result.rounds) == len(whole.rounds)
    (note,) = set(result.summary["notes"]) - set(whole.summary["notes"])
    assert note.startswith(f"The tracker {tracker} failed after round 1 and was told no more: ")
    assert "\n" not in note and note in (result.path / "report.html").read_text().replace("&#39;", "'")


@pytest.mark.slow
def test_a_resumed_run_whose_tracker_is_gone_goes_on_and_one_that_comes_back_catches_up(
    quick: Quick, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"tracking.tool": "tensorboard", "rounds": 4}
    with pytest.raises(KeyboardInterrupt):
        quick(progress=Stops(1), **options)
    folder = folder_in(tmp_path)
    place = folder / "tensorboard"
    place.rename(tmp_path / "away")
    place.write_text("")
    with pytest.raises(KeyboardInterrupt):
        Federation.resume(folder, progress=Stops(3))
    assert "failed after round 1" in json.loads((folder / "tracker.json").read_text())["problem"]
    place.unlink()
    (tmp_path / "away").rename(place)
    result = Federation.resume(folder)
    same(tensorboard(place), result)
    assert not any("tracker" in note for note in result.summary["notes"])


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow"])
def test_a_missing_package_is_one_sentence_before_a_folder_is_made(
    quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str
) -> None:
    monkeypatch.setitem(sys.modules, tracker, None)
    with pytest.raises(ConfigError, match=r"package is not installed; `pip install polyclinic\[trackers\]`"):
        quick(tracking={"tool": tracker})
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_is_said_before_a_hospital_is_asked(
    quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="holds a password") as caught:
        quick(tracking={"tool": "mlflow", "place": "https://anna:secret@tracks.example"})
    assert "secret" not in str(caught.value) and not list(tmp_path.iterdir())
    (tmp_path / "taken").write_text("")
    with pytest.raises(ConfigError, match="'tensorboard', which cannot begin: "):
        quick(tracking={"tool": "tensorboard", "place": str(tmp_path / "taken")})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://anna:secret@tracks.example")
    with pytest.raises(ConfigError, match="'mlflow', which cannot begin: ") as caught:
        quick(tracking={"tool": "mlflow"})
    assert "secret" not in str(caught.value)
    assert not list(tmp_path.glob("*/sites")), "a hospital was asked"


def test_hospitals_of_odd_names_are_told_apart() -> None:
    rows = [{"round": 1, "site": site, "auroc": value, "loss": None, "epsilon": float("inf"), "seconds": 2.0}
            for site, value in (("Zürich", 0.5), ("Z#rich", 0.7), ("a/b", 0.6), ("St. Mary", 0.8))]  # fmt: skip
    found = numbers(rows)
    assert sorted(found.values()) == [0.5, 0.6, 0.7, 0.8, 2.0] and found["auroc/St. Mary"] == 0.8
    assert all(tag.count("/") <= 1 and tag.isascii() for tag in found)
