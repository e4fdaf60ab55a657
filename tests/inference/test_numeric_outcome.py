"""A posterior of a label that is a number: of all patients, and the one that linear algebra gives."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from polyclinic import Federation, RunResult
from polyclinic.ehr.datasets import Dataset
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError

_AGE, _MALE, _STAY = (
    Column(name="age", kind="integer", bounds=(0, 100)), Column(name="male", kind="binary"),
    Column(name="stay", kind="continuous", unit="days", bounds=(0, 30), role="label"),
)  # fmt: skip
SCHEMA = Schema(name="stays", unit="record", columns=(_AGE, _MALE, _STAY))


def records() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    age, male = draw.integers(20, 90, 900), draw.integers(0, 2, 900)
    stay = (3 + 0.1 * age + 2 * male + draw.normal(0, 2, 900)).clip(0, 30)
    return pd.DataFrame({"age": age, "male": male, "stay": stay})


STAYS = Dataset(
    name="stays", title="Stays", description="Made up.", schema=SCHEMA, licence="none", citation="none", patients=900, rows=900,
    default_sites=3, default_partitioner="iid", load=records, available=lambda: True,
)  # fmt: skip


def run(out: Path, **options: object) -> RunResult:
    federation = Federation.from_dataset(STAYS, task="posterior", model="linear", split={"fraction": 0.0}, out=str(out))
    return federation.run(pictures=False, posterior={"options": "deviation=0.3"}, **options)


def test_without_privacy_it_is_bayesian_linear_regression_of_all_patients(tmp_path: Path) -> None:
    posterior = run(tmp_path, privacy={"dp": False}).numbers["posterior"]
    table = records()
    design = np.column_stack([np.ones(900), (table.age - 50) / 25, table.male])
    outcome = (table.stay - 15) / 7.5
    precision = design.T @ design / 0.3**2 + np.eye(3) / 2.5**2
    mean = np.linalg.solve(precision, design.T @ outcome / 0.3**2)
    estimates = pd.DataFrame(posterior["parameters"]).T
    np.testing.assert_allclose(estimates["mean"].astype(float), mean, atol=1e-3)  # few long vectors are clipped
    np.testing.assert_allclose(estimates["sd"].astype(float), np.sqrt(np.diag(np.linalg.inv(precision))), rtol=0.02)
    assert posterior["columns"]["stay"] == {"centre": 15.0, "scale": 7.5, "unit": "days"}


def test_under_privacy_the_truth_is_in_the_intervals(tmp_path: Path) -> None:
    result = run(tmp_path, privacy={"epsilon": 8.0})
    truth = {"intercept": (3 + 5 - 15) / 7.5, "age": 0.1 * 25 / 7.5, "male": 2 / 7.5}
    for name, row in result.numbers["posterior"]["parameters"].items():
        assert abs(row["mean"] - truth[name]) < 4 * row["sd"], name
    assert result.privacy["epsilon"] <= 8.0


def test_a_model_of_yes_or_no_and_synthesis_refuse_a_number_before_a_run_begins(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'stay' last, which is a number; the model's outcome is 0 or 1"):
        Federation.from_dataset(STAYS, task="posterior", out=str(tmp_path)).run()
    with pytest.raises(ConfigError, match="of kind 'continuous'; what was asked for takes a label with classes"):
        Federation.from_dataset(STAYS, task="synthesis", out=str(tmp_path)).run()
    assert not list(tmp_path.iterdir())
