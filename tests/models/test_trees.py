"""Runs of boosted trees: the model, what it sees that an additive one cannot, and a real hospital that is asked for sums."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from typer.testing import CliRunner

from polyclinic import Federation, RunResult
from polyclinic.cli import app as cli
from polyclinic.client.app import app
from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.privacy.ledger.terms import plan_text
from polyclinic.programs import program_of
from polyclinic.programs.boosting import Boosting
from polyclinic.wire.arrays import from_record
from polyclinic.wire.messages import QUESTION, TrainRequest
from tests.client.test_hospital import SCHEMA, context, ledger, make_hospital, message
from tests.programs.test_boosting import EVERY_WAY
from tests.runs.test_exporting import inputs

Quick = Callable[..., RunResult]
TREES: dict[str, Any] = {"model": "trees", "training.local-steps": 1, "rounds": 4}
NO_REPORT = {"pictures": False}
POLICY = 'budget = 5.0\ndelta = 1e-3\nallowed-models = ["trees"]\n'


@EVERY_WAY
def test_a_run_ends_in_trees_that_rank_patients(quick: Quick, options: dict[str, Any]) -> None:
    result = quick(**TREES | options)
    assert result.summary["metrics"]["pooled"]["auroc"] > 0.95
    for site in result.summary["statement"]["sites"].values() if options.get("privacy.dp", True) else ():
        assert site["epsilon"] <= 8.0
    assert any("random" in note for note in result.summary["notes"])


@pytest.mark.slow
def test_workers_change_nothing(quick: Quick) -> None:
    one, two = quick(**TREES, seed=3), quick(**TREES, seed=3, workers=2)
    for name, value in one.folder.model().state_dict().items():
        assert torch.equal(value, two.folder.model().state_dict()[name])


def _either(patients: int) -> pd.DataFrame:
    """Patients who die where exactly one of two numbers is high, so that neither says anything by itself."""
    rng = np.random.default_rng(0)
    pulse, lactate = rng.normal(80, 15, patients).round(), rng.normal(2, 0.5, patients).round(2)
    odd = (pulse > 80) != (lactate > 2)
    lactate[rng.random(patients) < 0.05] = np.nan
    return pd.DataFrame(
        {"pulse": pulse, "lactate": lactate, "died": (rng.random(patients) < 0.1 + 0.8 * odd).astype(int)}
    )


@pytest.mark.slow
def test_trees_see_two_columns_together_where_shape_functions_cannot(tmp_path: Path) -> None:
    table = _either(4000)
    tables = {"a": table[:2000], "b": table[2000:]}
    federation = Federation.from_tables(tables, label="died", out=str(tmp_path / "runs"))
    options = TREES | NO_REPORT | {"privacy.epsilon": 3.0}
    trees, shapes = (federation.run(**options | {"model": model}) for model in ("trees", "ebm"))
    assert trees.summary["metrics"]["pooled"]["auroc"] > 0.8
    assert shapes.summary["metrics"]["pooled"]["auroc"] < 0.6
    asked = pd.DataFrame({"pulse": [60.0, 100.0, 100.0], "lactate": [1.5, 1.5, None]})
    chances = trees.predict(asked).to_numpy()[:, 1]
    assert chances[0] < 0.4 and chances[1] > 0.6 and 0.3 < chances[2] < 0.7
    columns = {name: torch.tensor(asked[name].to_numpy(dtype=float)) for name in asked}
    script = torch.jit.load(str(trees.export(tmp_path / "model.pt")))
    np.testing.assert_allclose(script(columns)[:, 1], chances, atol=1e-6)


@pytest.mark.slow
def test_trees_are_exported_as_onnx(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    table = _either(600)
    trees = Federation.from_tables({"a": table}, label="died", out=str(tmp_path / "runs")).run(**TREES | NO_REPORT)
    session = onnxruntime.InferenceSession(str(trees.export(tmp_path / "model.onnx")))
    described = json.loads((tmp_path / "model.onnx.json").read_text())
    (scores,) = session.run(["probabilities"], inputs(table, described))
    np.testing.assert_allclose(scores, trees.predict(table).to_numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("keys", "said"),
    [({"model-options": "depth=8"}, "depth is 8"), ({"model-options": "bins=3"}, "no option 'bins'"),
     ({"objective-options": "weights=[1, 2]"}, "takes the objectives")],
)  # fmt: skip
def test_impossible_options_are_refused_before_anything_is_spent(quick: Quick, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        quick(**TREES | keys)


def test_the_command_line_refuses_with_code_2(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["run", "-c", "model=trees", "-c", "model-options=trees=0", "--out", str(tmp_path)])
    assert isinstance(done.exception, ConfigError) and done.exception.exit_code == 2
    assert "trees is 0; it must be a whole number from 1 to 512" in str(done.exception)


def _asked(folder: Path, changed: Any = None, dp: bool = True) -> Message:
    """A hospital's answer to the second round, of whose question ``changed`` makes another."""
    config = RunConfig.build({"model": "trees", "model-options": "trees=16", "privacy.dp": dp, "split.fraction": 0.25})
    program, schema = program_of(config), Schema.from_dict(SCHEMA)
    half, model = program.half(schema, [], 1.0), program.first(schema)
    assert half is not None and isinstance(program, Boosting)
    size = program.method(schema).size(1, {})
    from polyclinic.programs import Collected

    state, model = half.absorb(1, half.first(), model, Collected({"sum": np.zeros(size)}, 0.01, 200.0))
    question = half.question(2, state)
    question = changed(question) if changed else question
    values: dict[str, Any] = {"public_patients": 200.0, "learning_rate": 1.0, "noise_multiplier": None}
    if dp:
        event = program.price(program.settings(20.0))
        values |= {"noise_multiplier": 20.0, "plan": plan_text([(event, config.rounds)])}
    request = message(TrainRequest(run="r", site=0, round=2, **values), "train", model)
    request.content[QUESTION] = ArrayRecord({name: Array(value) for name, value in question.items()})
    return app(request, context(folder / "hospital.toml", config))


def test_a_hospital_charges_its_ledger_and_answers(tmp_path: Path) -> None:
    make_hospital(tmp_path, POLICY)
    reply = _asked(tmp_path)
    (arrays,) = [from_record(part) for part in reply.content.array_records.values()]
    assert np.isfinite(arrays["sum"]).all() and ledger(tmp_path / "hospital.toml").epsilon() > 0


@pytest.mark.parametrize("changed", [
    lambda asked: asked | {"radius": np.zeros(1)}, lambda asked: asked | {"basis": np.full_like(asked["basis"], np.nan)},
    lambda asked: asked | {"weights": asked["weights"][1:]}, lambda asked: asked | {"thresholds": np.zeros(80)},
    lambda asked: asked | {"round": np.array([11])},
])  # fmt: skip
def test_a_lying_coordinator_is_refused_before_anything_is_charged(tmp_path: Path, changed: Any) -> None:
    make_hospital(tmp_path, POLICY)
    assert "question" in _asked(tmp_path, changed).error.reason
    assert not (tmp_path / "home" / "ledger.sqlite").exists()
