"""Which optimizer ``training.optimizer`` auto stands for, and that every runtime chooses it alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polyclinic import Federation
from polyclinic.config import RunConfig
from polyclinic.config.programs.newton import MOST_FEATURES
from polyclinic.ehr.schema import Column, Schema
from polyclinic.runs.folder import Run
from polyclinic.training.logistic.newton import MOST_CORRELATED


def _schema(label: Column, features: int = 1) -> Schema:
    numbers = [Column(name=f"x{number}", kind="continuous", bounds=(0.0, 1.0)) for number in range(features)]
    return Schema(name="stays", columns=(*numbers, label), unit="record")


CLASSES = _schema(Column(name="died", kind="binary", role="label"))
NUMBERS = _schema(Column(name="days", kind="continuous", role="label", bounds=(0.0, 30.0)))


@pytest.mark.parametrize(
    ("given", "optimizer"),
    [
        ({}, "newton"),
        ({"rounds": 30, "privacy.epsilon": 1.0, "data.standardise": "none"}, "newton"),
        ({"training.optimizer": "auto", "training.local-steps": 1}, "newton"),
        ({"training.recalibrate": False, "participation.fraction": 0.5}, "newton"),
        ({"objective": "classification", "strategy": "fedavg", "model": "logistic"}, "newton"),
        ({"secure.aggregation": True, "secure.shared-noise": True}, "newton"),
        ({"training.local-steps": 1}, "sgd"),
        ({"training.optimizer": "auto", "training.local-steps": 2}, "sgd"),
        ({"privacy.max-grad-norm": 2.0}, "sgd"),
        ({"objective": "binary"}, "sgd"),
        ({"objective-options": "focal=2"}, "sgd"),
        ({"strategy": "fedadam"}, "sgd"),
        ({"strategy-options": "fraction-train=0.5"}, "sgd"),
        ({"model": "mlp"}, "sgd"),
        ({"model": "gru"}, "adam"),
        ({"model": "gru", "strategy": "scaffold"}, "sgd"),
        ({"model": "transformer"}, "adam"),
        ({"upload.form": "difference"}, "sgd"),
        ({"central.epsilon": 2.0, "privacy.dp": False}, "sgd"),
        ({"task": "objective-perturbation"}, "sgd"),
    ],
)
def test_which_optimizer_a_run_takes(given: dict[str, Any], optimizer: str) -> None:
    config = RunConfig.build(given)
    chosen = config.for_schema(CLASSES)
    assert chosen.training.optimizer == optimizer and chosen.for_schema(NUMBERS) == chosen
    assert config.for_schema(NUMBERS).training.optimizer in ("sgd", "adam")
    # The same by Flower's run-config, by what was given, and by what a run's folder keeps.
    flower = RunConfig.from_flower(RunConfig.app_config() | config.for_flower())
    assert flower == RunConfig.build(config.minimal()) == config and RunConfig.build(chosen.flat()) == chosen
    assert flower.for_schema(CLASSES) == RunConfig.build(config.minimal()).for_schema(CLASSES) == chosen


def test_what_was_given_stays_and_the_rest_is_the_optimizers_own() -> None:
    steps, sums = (RunConfig().for_schema(schema) for schema in (NUMBERS, CLASSES))
    assert (steps.rounds, steps.data.standardise, steps.privacy.statistics_share) == (30, "public", 0.1)
    assert (sums.rounds, sums.data.standardise, sums.privacy.statistics_share) == (8, "measured", 0.3)
    given = RunConfig(rounds=30, data={"standardise": "public"}).for_schema(CLASSES)
    assert (given.rounds, given.data.standardise, given.privacy.statistics_share) == (30, "public", 0.1)
    public = RunConfig(privacy={"patients_per_site": 100}).for_schema(CLASSES)
    assert (public.training.optimizer, public.data.standardise, public.asks_statistics) == ("newton", "public", False)


def test_so_many_features_that_products_would_be_noise_have_gradient_steps() -> None:
    few, many = (_schema(CLASSES.label, features) for features in (MOST_FEATURES, MOST_FEATURES + 1))
    assert MOST_FEATURES == MOST_CORRELATED
    assert [RunConfig().for_schema(schema).training.optimizer for schema in (few, many)] == ["newton", "sgd"]


def test_a_run_says_what_it_chose_and_runs_of_a_sweep_have_one_optimizer(tmp_path: Path) -> None:
    federation = Federation.from_dataset("breast-cancer", rounds=2, out=str(tmp_path))
    result = federation.run(pictures=False)
    assert result.config.training.optimizer == "newton" and any(
        "Newton steps" in note for note in result.summary["notes"]
    )
    table = federation.sweep(strategy=["fedavg", "fedavgm"], out=str(tmp_path / "sweep"))
    chosen = [Run.open(tmp_path / "sweep" / run).config().training.optimizer for run in table["run"]]
    assert chosen == ["sgd", "sgd"]
