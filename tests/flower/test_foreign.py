"""Flower's own apps give at the simulator what they give under `flwr run`."""

import json
from pathlib import Path

import pytest

from polyclinic.cli.runs.flower import superlink
from polyclinic.deployment.environment import flower_settings, with_settings
from tests.flower.foreign import APPS, EXPECTED, assert_alike, simulated, under_flower

# Of several kinds, and quick: a strategy's own loop, state, mods, an older strategy, errors.
QUICK = ("own_loop", "stateful", "with_mods", "older_strategy", "failing")
# Run anew under `flwr run`; the others are compared with what it gave when the table was made.
ANEW = ("pytorch_net", "failing")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in APPS]
)
def test_an_app_gives_what_it_gave_under_flower(tmp_path: Path, name: str) -> None:
    if name == "boosting":
        pytest.importorskip("xgboost")
    expected = json.loads(EXPECTED.read_text())[name]
    assert_alike(simulated(name, tmp_path), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pytorch_net", "secure_sum", "stateful"])
def test_workers_change_nothing(tmp_path: Path, name: str) -> None:
    expected = json.loads(EXPECTED.read_text())[name]
    assert_alike(simulated(name, tmp_path, "--workers", "2"), expected)
    if name == "stateful":
        assert_alike(simulated(name, tmp_path, "--workers", "2", "--ray-address", "local"), expected)


@pytest.mark.slow
def test_flower_gives_today_what_the_table_says(tmp_path: Path) -> None:
    environment = with_settings(flower_settings(tmp_path))
    with superlink(tmp_path, environment):
        for name in ANEW:
            assert_alike(under_flower(name, tmp_path / "apps", environment), json.loads(EXPECTED.read_text())[name])
