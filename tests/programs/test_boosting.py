"""Runs of shape functions: the model, what is read from it, and what it does not go with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from polyclinic import Federation, RunResult
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError

Quick = Callable[..., RunResult]
EBM: dict[str, Any] = {"model": "ebm", "training.local-steps": 1, "rounds": 4}
#: Every way of summing that a run of boosting may take.
EVERY_WAY = pytest.mark.parametrize(
    "options",
    [
        {"privacy.dp": False},
        {"privacy.epsilon": 8.0},
        pytest.param({"privacy.epsilon": 8.0, "secure.aggregation": True, "secure.shared-noise": True}, marks=pytest.mark.slow),
        pytest.param({"privacy.epsilon": 8.0, "secure.aggregation": True, "secure.clip-norm": 100.0}, marks=pytest.mark.slow),
        pytest.param({"privacy.dp": False, "secure.aggregation": True}, marks=pytest.mark.slow),
    ],
    ids=["no privacy", "own noise", "shared noise", "secure sum", "secure sum without noise"],
)  # fmt: skip


def _table() -> pd.DataFrame:
    from polyclinic.ehr.datasets import builtin

    return builtin()["breast-cancer"].load()


@EVERY_WAY
def test_a_run_ends_in_shape_functions(quick: Quick, options: dict[str, Any]) -> None:
    result = quick(**EBM | options)
    assert result.summary["metrics"]["pooled"]["auroc"] > 0.95
    for site in result.summary["statement"]["sites"].values() if options.get("privacy.dp", True) else ():
        assert site["epsilon"] <= 8.0
    shapes = result.shapes
    assert set(shapes["column"]) == {column.name for column in result.folder.schema().features}
    assert (shapes["noise"] > 0).all()


def test_what_is_read_from_a_model_is_what_it_predicts(quick: Quick) -> None:
    result, table = quick(**EBM), _table().head(40)
    parts = result.contributions(table)
    chances = result.predict(table).to_numpy()
    np.testing.assert_allclose(parts.sum(axis=1), np.log(chances[:, 1] / chances[:, 0]), atol=1e-4)
    column = "mean_radius"
    own = result.shapes.query("column == @column")
    for cell, part in zip(table[column].astype(float), parts[column], strict=True):
        (value,) = own[(own["low"] <= cell) & (cell < own["high"])]["value"]
        assert value == pytest.approx(part, abs=1e-5)
    html = result.report().read_text()
    assert "Shape functions" in html and "Importance" in html


def test_a_missing_cell_has_a_bin_of_its_own(tmp_path: Any) -> None:
    """Patients whose value is missing died; whoever fills it with the mean cannot see that."""
    rng = np.random.default_rng(0)
    value = pd.Series(rng.normal(50, 10, 600)).round(1)
    died = rng.random(600) < 0.1
    value[died & (rng.random(600) < 0.9)] = None
    frame = pd.DataFrame({"value": value, "age": rng.integers(20, 90, 600), "died": died.astype(int)})
    tables = {"a": frame[:300], "b": frame[300:]}
    result = Federation.from_tables(tables, label="died", out=str(tmp_path / "runs")).run(
        **EBM | {"pictures": False, "privacy.epsilon": 8.0}
    )
    gone = result.shapes.query("column == 'value' and category == 'missing'")
    assert gone["value"].item() > 0.5
    chances = result.predict(pd.DataFrame({"value": [50.0, None], "age": [50, 50]})).to_numpy()[:, 1]
    assert chances[1] > chances[0] + 0.1
    exported = result.export(tmp_path / "model.pt")
    import torch

    model = torch.jit.load(str(exported))
    rows = {
        "value": torch.tensor([50.0, torch.nan], dtype=torch.float64),
        "age": torch.tensor([50.0, 50.0], dtype=torch.float64),
    }
    np.testing.assert_allclose(model(rows)[:, 1], chances, atol=1e-6)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"strategy": "fedadam"}, "strategy is 'fedadam' but model is 'ebm'"),
        ({"training.local-steps": 5}, "training.local-steps is 5"),
        ({"training.optimizer": "adam"}, "training.optimizer is 'adam'"),
    ],
)
def test_keys_that_it_has_no_place_for_are_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RunConfig.build({"model": "ebm", **keys})


@pytest.mark.parametrize(
    ("keys", "said"),
    [({"model-options": "bins=1"}, "bins is 1"), ({"model-options": "leaves=3"}, "no option 'leaves'"),
     ({"objective-options": "weights=[1, 2]"}, "takes the objectives")],
)  # fmt: skip
def test_impossible_options_are_refused_before_anything_is_spent(quick: Quick, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        quick(**EBM | keys)
