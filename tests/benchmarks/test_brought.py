"""The benchmark of models that users bring: its models and engines, its rows and its page; no test asserts a time."""

import json
import os

import numpy as np
import pytest

from benchmarks import brought
from benchmarks.common.brought import MODELS, rows
from polyclinic.training.stacked.engines import choose


@pytest.mark.parametrize(
    ("name", "engine", "parameters"),
    [("tabular-resnet", "layered", 10_000), ("gru", "layered", 4_000), ("transformer", "layered", 8_000),
     ("cnn", "linear", 26_000), ("wide-mlp", "linear", 990_000)],
)  # fmt: skip
def test_models_train_in_closed_form(name: str, engine: str, parameters: int) -> None:
    build, features = MODELS[name]
    module = build()
    assert choose(module, features) == engine
    assert sum(p.numel() for p in module.parameters()) == pytest.approx(parameters, rel=0.15)
    table = rows(name, 3)
    assert table.x.shape == (500, features) and 0.3 < np.mean(table.y) < 0.7


def test_a_row_is_met_by_both_its_goals() -> None:
    found = {"ours": 1.0, "plain": 0.5, "opacus": 5.0}
    assert brought.compared("gru", found, "hooks")["met"] is True
    assert brought.compared("gru", found | {"plain": 0.39}, "hooks")["met"] is False
    assert brought.compared("gru", found | {"opacus": 4.9}, "hooks")["met"] is False


def test_a_busy_machine_measures_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.8, 0.0, 0.0))
    assert brought.main([]) == 2
    assert "The load is 0.8" in capsys.readouterr().err


def test_the_page_shows_the_committed_result() -> None:
    page = brought.PAGE.read_text(encoding="utf-8")
    shown = page.split(brought.BEGIN, 1)[1].split(brought.END, 1)[0].strip()
    expected = brought.table(json.loads(brought.RESULT.read_text())) if brought.RESULT.is_file() else ""
    assert shown == expected
