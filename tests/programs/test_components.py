"""Components: without privacy those of numpy on pooled records; with it, noise that is said; under every way of summing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

from polyclinic import Federation
from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.inspection.result import RunResult
from polyclinic.plugins import dataset_named
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.sums import clipped_total, exact_total
from polyclinic.programs import program_of
from polyclinic.programs.analyses.components import Components, Numbers, spectrum
from polyclinic.runs.folder import Run
from polyclinic.server.app import coordinate
from tests.client.test_hospital import make_hospital
from tests.server.test_joining import NAMES, POLICY, Hospitals

COLUMNS = ("mean_radius", "mean_texture", "mean_smoothness", "mean_compactness")
OPTIONS = {"columns": ", ".join(COLUMNS)}
SCHEMA = Schema.from_dict(
    {
        "name": "clinic",
        "columns": [
            {"name": "id", "kind": "integer", "role": "patient_id"},
            {"name": "age", "kind": "integer", "bounds": [0, 120]},
            {"name": "sbp", "kind": "continuous", "bounds": [60, 260], "nullable": True},
            {"name": "dbp", "kind": "continuous", "bounds": [30, 160]},
            {"name": "arm", "kind": "categorical", "categories": ["a", "b", "c"]},
            {"name": "died", "kind": "binary", "role": "label"},
        ],
    }
)


def records() -> pd.DataFrame:
    return load_breast_cancer(as_frame=True).data.rename(columns=lambda name: name.replace(" ", "_"))[list(COLUMNS)]


def run(folder: Path, task: str = "components", **options: Any) -> RunResult:
    """A run over simulated hospitals, whose report is of tables alone."""
    federation = Federation.from_dataset("breast-cancer", out=str(folder), task=task)
    return federation.run(**{"task_options": OPTIONS, "pictures": False} | options)


def test_without_privacy_they_are_those_of_the_pooled_correlation_matrix(tmp_path: Path) -> None:
    result = run(tmp_path, privacy={"dp": False})
    values, vectors = spectrum(np.corrcoef(records().to_numpy().T))
    table, loadings = result.tables["components"], result.tables["loadings"]
    np.testing.assert_allclose(table["Eigenvalue"], values, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(table["Together, %"], 100 * np.cumsum(values) / 4, rtol=1e-9)
    np.testing.assert_allclose(loadings[["PC1", "PC2", "PC3", "PC4"]], vectors, atol=1e-9)
    assert list(table) == ["Component", "Eigenvalue", "Explained, %", "Together, %"]


def test_public_scales_give_the_covariance_of_numpy(tmp_path: Path) -> None:
    result = run(tmp_path, rounds=1, task_options=OPTIONS | {"scaling": "public"}, privacy={"dp": False})
    schema = dataset_named("breast-cancer").schema
    scale = [one["scale"] for one in Numbers.of(schema, OPTIONS["columns"], "public").scales()]
    values, _ = spectrum(np.cov((records() / scale).to_numpy().T))
    np.testing.assert_allclose(result.tables["components"]["Eigenvalue"], values, rtol=1e-9)


@pytest.mark.parametrize("secure", [{}, {"aggregation": True}, {"aggregation": True, "shared_noise": True}])
def test_with_privacy_the_noise_level_is_said(tmp_path: Path, secure: dict[str, Any]) -> None:
    result = run(tmp_path, privacy={"epsilon": 5.0}, secure=secure)
    table = result.tables["components"]
    exact = spectrum(np.corrcoef(records().to_numpy().T))[0]
    assert {"From", "To"} <= set(table) and "±1" in result.tables["loadings"]
    assert (table["From"] <= exact + 1e-9).all() and (exact <= table["To"] + 1e-9).all()
    assert result.summary["privacy"]["epsilon"] <= 5
    assert result.summary["analysis"]["numbers"]["scree"]["floor"] > 0


def test_rows_with_a_missing_number_are_left_out_and_a_patients_rows_count_once() -> None:
    method = Components(RunConfig(), "age, sbp, dbp", "public").method(SCHEMA)
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.5, 0.5, (60, 6))
    x[::7, 1] = np.nan
    z, patient = method.layout.rows(x, np.zeros(60, dtype=np.int64)), np.repeat(np.arange(30), 2)
    total = exact_total(
        lambda *rows: method.contributions(1, method.question(1, {}), *rows), method.size(1, {}), z, patient, 30
    )
    share, covariance = method.covariance(total / 30)
    complete, weights = ~np.isnan(x[:, 1]), np.full(60, 0.5)
    rows = z[complete][:, method.numbers.places]
    assert share == pytest.approx(weights[complete].sum() / 30)
    np.testing.assert_allclose(covariance, np.cov(rows.T, ddof=0), atol=1e-12)


def test_a_patient_adds_a_vector_of_length_one_at_most_however_far_out() -> None:
    method = Components(RunConfig(), "age, sbp, dbp", "public").method(SCHEMA)
    z = 100 * method.layout.rows(np.full((3, 6), 1.0), np.zeros(3, dtype=np.int64))
    total = clipped_total(
        lambda *rows: method.contributions(1, method.question(1, {}), *rows), method.size(1, {}), z, np.zeros(3, int), 1
    )
    assert 0.99 < np.linalg.norm(total) <= 1


def test_intervals_hold_the_eigenvalues_of_the_sum_without_noise() -> None:
    """Of 40 releases of a made-up sum, at most one in ten may miss an eigenvalue."""
    program = Components(RunConfig(), "age, sbp, dbp", "public")
    method, rng = program.method(SCHEMA), np.random.default_rng(1)
    x = rng.multivariate_normal(np.zeros(3), [[0.1, 0.05, 0], [0.05, 0.1, 0], [0, 0, 0.05]], 2000)
    z = method.layout.rows(
        np.concatenate([x, np.eye(3)[rng.integers(0, 3, 2000)]], axis=1), np.zeros(2000, dtype=np.int64)
    )
    total = (
        clipped_total(
            lambda *rows: method.contributions(1, method.question(1, {}), *rows),
            method.size(1, {}),
            z,
            np.arange(2000),
            2000,
        )
        / 2000
    )
    truth = spectrum(np.cov(z[:, :3].T))[0]
    missed = 0
    for _ in range(40):
        noisy = {"sum": total + 2e-3 * rng.standard_normal(len(total)), "noise": np.array([2e-3])}
        rows = program.result(method, {"arrays": noisy, "patients": 2000.0}).tables[0].rows
        missed += any(not row[2] - 1e-3 <= value <= row[3] + 1e-3 for row, value in zip(rows, truth, strict=True))
    assert missed <= 4


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"columns": "height"}, "columns names no feature as 'height'"),
        ({"columns": "age"}, "fewer than two numbers"),
        ({"scaling": "none"}, "scaling is 'none'; allowed: public, measured"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Components(RunConfig(), **options).method(SCHEMA)


def test_noise_that_hides_a_column_is_said_in_place_of_a_result(tmp_path: Path) -> None:
    result = run(tmp_path, privacy={"epsilon": 0.05})
    assert "hides" in result.summary["analysis"]["refused"]


def test_a_program_is_found_by_its_task() -> None:
    program = program_of(
        Federation.from_dataset("breast-cancer", task="components", task_options={"scaling": "public"}).config
    )
    assert isinstance(program, Components) and program.scaling == "public"


@pytest.mark.parametrize(("task", "options"), [("components", {}), ("clusters", {"k": 2})])
def test_real_hospitals_take_part_each_by_its_own_policy(tmp_path: Path, task: str, options: dict[str, Any]) -> None:
    for name in NAMES:
        (tmp_path / name).mkdir()
        allowed = POLICY + "allow-splits = true\n"
        policy = allowed if name == "west" else allowed.replace('"statistics"', f'"statistics", "{task}"')
        path = make_hospital(tmp_path / name, policy)
        path.write_text(path.read_text().replace("St. Elsewhere", name))
    keys = {
        "participation.min-sites": 1,
        "rounds": 2,
        "privacy.epsilon": 2.0,
        "privacy.delta": 1e-4,
        "out": str(tmp_path),
    }
    config = RunConfig.build(keys, {"task": task, "task-options": options})
    folder = Run.create(config, pictures=False)
    coordinate(Hospitals(tmp_path, config, lambda done: set(NAMES)), config, folder)
    summary = Run.open(folder.path).summary_json()
    assert set(summary["metrics"]["sites"]) == {"north", "south"} and not summary["analysis"]["refused"]
    assert {drop["site"] for drop in summary["dropouts"]} == {"west"}
    for name in ("north", "south"):
        ledger = Ledger.read(tmp_path / name / "home" / "ledger.sqlite")
        assert [event["purpose"] for event in ledger.events()] == ["statistics", "train", "train"]
        assert 1.9 < ledger.epsilon() <= 2
