"""Federated flows: one hospital is central training bit for bit, the price is that of the steps, and runs end in rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyclinic import Federation, RunResult
from polyclinic.config import train_settings
from polyclinic.ehr.datasets import load_shards
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.models.tabular import initialise
from polyclinic.plugins import dataset_named
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.streams import keyed_stream, torch_seed
from polyclinic.programs.densities import Densities
from polyclinic.server.calibration import calibrate
from polyclinic.synthesis.flows.synthesizer import FlowRows
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.synthesizer import load
from polyclinic.training.density import DensityTask
from polyclinic.training.task import SiteWork

Run = Callable[..., RunResult]
SMALL = {"task": "synthesis", "model": "maf", "synthesis.options": "transforms=2, hidden=8", "training.local-steps": 2}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def call(**options: Any) -> RunResult:
        usual = {
            "rounds": 3,
            "sites": 3,
            "synthesis.rows": 100,
            "synthesis.baselines": False,
            "synthesis.quality": False,
            "evaluation.every": 3,
        }
        return Federation.from_dataset("trial", out=str(tmp_path)).run(
            **(SMALL | {"pictures": False} | usual | options)
        )

    return call


def rows_of_run(result: RunResult) -> FlowRows:
    hospitals = max(result.config.synthesis.condition_hospitals, 1)
    found = load(
        result.path / "synthesizer.safetensors", Layout.of(Schema.from_toml(result.path / "schema.toml"), hospitals)
    )
    assert isinstance(found, FlowRows)
    return found


def test_one_hospital_is_central_training_bit_for_bit(run: Run) -> None:
    result = run(sites=1, privacy={"patients_per_site": 150})
    config = result.config
    shard = load_shards(dataset_named("trial"), 1, "natural", 0, 1.0)[0]
    recipe = Densities(config).recipe(Layout.of(shard.schema))
    settings = train_settings(config, calibrate(config).noise_multiplier)
    arrays = {name: value.numpy() for name, value in initialise(recipe.module, torch_seed(0, "model")).items()}
    kept: dict[str, np.ndarray] = {}
    for round in range(1, 4):
        sampling, noise, layers = (
            keyed_stream(0, purpose, round, shard.site) for purpose in ("batches", "gradient-noise", "layers")
        )
        work = SiteWork(shard.train, sampling, noise, 150.0, kept, layers)
        update = DensityTask(recipe).train(recipe.module, arrays, [work], settings)[0]
        arrays, kept = update.arrays, dict(update.state)
    found = rows_of_run(result)
    for name, value in arrays.items():
        np.testing.assert_array_equal(result.arrays[name].numpy(), value)
        np.testing.assert_array_equal(found.flow[name], value)


def test_a_run_pays_for_counts_and_steps_and_ends_in_rows(run: Run) -> None:
    result = run(privacy={"epsilon": 2.0}, synthesis={"condition_hospitals": 3})
    plan = calibrate(result.config)
    assert epsilon(plan.total_event, result.config.privacy.delta) <= 2.0
    for site in result.summary["statement"]["sites"].values():
        assert [event["purpose"] for event in site["events"]] == ["statistics", "train", "train", "train"]
        assert site["epsilon"] == pytest.approx(epsilon(plan.total_event, result.config.privacy.delta), rel=1e-3)
    assert any("every model update" in note for note in result.summary["notes"])
    drawn = rows_of_run(result)
    assert drawn.layout.classes == 2 * 3
    z = drawn.sample(200, np.random.default_rng(0))
    assert drawn.layout.decode(z).shape[0] == 200
    assert np.isfinite(drawn.log_density(z, np.random.default_rng(0), 2)).all()


def test_rows_are_drawn_by_an_average_over_rounds(run: Run) -> None:
    plain = {"privacy.dp": False, "sites": 1, "evaluation.every": 1}
    first, second = (rows_of_run(run(rounds=rounds, **plain)).flow for rounds in (1, 2))
    averaged = run(rounds=2, **plain, **{"synthesis.options": "transforms=2, hidden=8, ema=0.5"})
    for name, value in rows_of_run(averaged).flow.items():
        np.testing.assert_array_equal(averaged.arrays[name].numpy(), second[name])
        np.testing.assert_allclose(value, (0.25 * first[name] + 0.5 * second[name]) / 0.75, atol=1e-6)


def test_hospitals_share_the_noise_in_a_secure_sum(run: Run) -> None:
    result = run(
        model="nsf", rounds=1, secure={"aggregation": True, "shared_noise": True},
        **{"synthesis.options": "transforms=1, hidden=4, bins=4", "training.optimizer": "sgd", "training.local-steps": 1,
        "training.sample-rate": 1.0, "training.learning-rate": 0.1, "evaluation.every": 1},
    )  # fmt: skip
    assert result.privacy["epsilon"] <= 3.0
    assert rows_of_run(result).sample(10, np.random.default_rng(0)).shape[0] == 10


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"synthesis.options": "blocks=3"}, "has no option 'blocks'"),
        ({"synthesis.options": "hidden=0"}, "whole number from 1 to 4096"),
        ({"synthesis.candidates": 2}, "generators of a game"),
        ({"strategy": "ditto"}, "changes the steps that hospitals take"),
        ({"model": "mfa", "synthesis.kind": "density"}, "known are maf, nsf"),
    ],
)
def test_bad_options_are_refused_before_a_run(run: Run, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run(**options)
