"""A run's folder read by its room: what each part gives, and what is said of a folder that lacks one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from polyclinic.errors import ConfigError, DataError, PolyclinicError
from polyclinic.inspection.result import RunResult
from polyclinic.runs import folder
from polyclinic.runs.folder import Run
from polyclinic.runs.summary import Summary

Quick = Callable[..., RunResult]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(quick: Quick) -> Run:
    return Run.open(quick(rounds=2, data={"imputation": "mean"}).path)


def test_a_folder_gives_config_summary_history_and_model(run: Run) -> None:
    assert run.finished and run.config().rounds == 2 and run.schema().name == run.config().dataset
    told = run.summary()
    assert told.version == 1 and told.rounds == 2 and told.privacy.private and told.simulation
    assert told.metrics.pooled.auroc == run.summary_json()["metrics"]["pooled"]["auroc"]
    records, table = run.history(), run.rounds()
    assert len(records["row"]) == len(table) and set(table["round"]) == {1, 2} and not records["dropout"]
    arrays, scale = run.arrays(), run.standardiser()
    assert scale is not None and len(arrays) == len(run.stored_arrays()) - 2
    for name, value in run.model().state_dict().items():
        assert torch.equal(value, torch.from_numpy(arrays[name]))


def test_a_summary_knows_every_key_that_a_run_writes(run: Run) -> None:
    told = run.summary_json()
    assert set(told) <= set(Summary.model_fields) and "version" not in told
    assert json.loads(json.dumps(run.summary().model_dump(exclude_unset=True))) == told


def test_a_simulation_is_rebuilt_as_the_run_dealt_it(run: Run) -> None:
    simulation, sites = run.simulation("do without"), run.summary().metrics.sites
    assert list(simulation.shards) == list(sites)
    scale = run.standardiser()
    assert scale is not None
    for site, shard in simulation.shards.items():
        train, test = simulation.rows(site)
        assert np.array_equal(train.x, (shard.train.x - scale[0]) / scale[1], equal_nan=True)
        assert len(test.y) == len(shard.test.y) and train.patients == shard.train.patients


def test_what_a_run_does_not_have_is_said_in_a_sentence(run: Run) -> None:
    with pytest.raises(ConfigError, match="task 'classification', which has no generator"):
        run.synthesizer()
    with pytest.raises(PolyclinicError, match="is not a run of an analysis"):
        run.analysis()
    told = run.summary_json()
    for change, said in (
        ({"version": 2}, "'version': it must be 1, got 2"),
        ({"metrics": {"sites": {"a": {"epsilon": "much"}}}}, "'metrics.sites.a.epsilon.*got 'much'"),
    ):
        run.write_summary(told | change)
        with pytest.raises(DataError, match=said):
            run.summary()
    run.write_summary(told | {"simulation": False})
    with pytest.raises(ConfigError, match="real hospitals, whose records are not here; ask them"):
        run.simulation("ask them")
    for text, said in (("[]", "one JSON object"), ("{", "cannot be read")):
        run.summary_file.write_text(text)
        with pytest.raises(DataError, match=said):
            run.summary()
    run.summary_file.unlink()
    with pytest.raises(
        ConfigError, match=r"has no summary.json: the run has not finished; resume it with `run --resume`"
    ):
        run.summary()
    run.rounds_file.write_text("torn")
    with pytest.raises(DataError, match=r"rounds.parquet cannot be read"):
        run.rounds()


def test_a_folder_of_one_run_stands_for_it(run: Run, tmp_path: Path) -> None:
    assert Run.open(run.path.parent) == run and Run.all_in(run.path.parent) == [run]
    with pytest.raises(ConfigError, match="is not a run's folder: it holds no config.toml"):
        Run.open(tmp_path / "nowhere")
    (run.path.parent / "other").mkdir()
    (run.path.parent / "other" / "config.toml").touch()
    with pytest.raises(ConfigError, match=f"holds 2 runs; name one: {run.path}, "):
        Run.open(run.path.parent)


def test_torn_and_strange_lines_of_a_history_are_passed_over(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.history() == {"row": [], "strategy": [], "dropout": []}
    run.history_file.write_text('{"row": {"round": 1}}\n[1]\n{"row": 5}\n{"dropout": {"site": "a"}}\n{"row": {"ro')
    assert run.history() == {"row": [{"round": 1}], "strategy": [], "dropout": [{"site": "a"}]}


def test_names_of_a_runs_files_are_spelled_in_the_room_alone() -> None:
    room = (ROOT / "polyclinic/runs/folder.py").read_text()
    names = set(re.findall(r'_Place\("([\w.-]+\.\w+)"\)', room))
    assert {"summary.json", "history.jsonl", "model.safetensors", "quality.json"} < names
    # A hospital's records have a schema, too, Flower a config.toml, and an experiment that was reproduced its own.
    elsewhere = names - {"schema.toml", "config.toml"} | {folder.LATEST}
    for room_path in ("polyclinic", "server", "client", "sim", "strategies"):
        for path in (ROOT / room_path).rglob("*.py"):
            if path.parent.name != "runs":
                spelled = {name for name in elsewhere if f'"{name}"' in path.read_text(encoding="utf-8")}
                assert not spelled, f"{path.relative_to(ROOT)} spells {sorted(spelled)}"
