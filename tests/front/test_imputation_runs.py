"""Imputation in runs: what needs a fill or an imputer says so before anything is spent, and an imputer is paid for and used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, Message, RecordDict
from typer.testing import CliRunner

import polyclinic
from polyclinic import Federation
from polyclinic.cli import app
from polyclinic.client.app import app as client
from polyclinic.client.home.hospital import filled_by, filled_rows, open_hospital
from polyclinic.config import RunConfig
from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.imputation import Imputer
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError, DataError
from polyclinic.inspection.result import RunResult
from polyclinic.plugins import dataset_named
from polyclinic.privacy.ledger import Ledger
from polyclinic.wire.messages import ENROL, RECORD, EnrolRequest


def prepare(*arguments: str) -> Any:
    done = CliRunner().invoke(app, ["prepare", *arguments, "--json"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return json.loads(done.stdout)


@pytest.fixture
def trial(tmp_path: Path) -> Callable[..., RunResult]:
    """A small private run of simulated records with missing visits."""

    def run(**options: Any) -> RunResult:
        return Federation.from_dataset("trial", out=str(tmp_path), sites=2, rounds=1, training={"local_steps": 1}).run(
            pictures=False, **options
        )

    return run


def test_an_imputer_is_paid_for_and_used(tmp_path: Path, trial: Callable[..., RunResult]) -> None:
    result = prepare("--dataset", "trial", "--sites", "2", "--imputer", "--epsilon", "1", "--out", str(tmp_path / "i"))
    assert json.loads((tmp_path / "i" / "imputer-statement.json").read_text()) == result
    assert 0.99 < result["privacy"]["epsilon"] <= 1 and not result["exact"] and "columns" not in result
    events = Ledger.read(Path(result["ledger"]), "hospital-1").events()
    assert [event["purpose"] for event in events] == ["relations"]
    Imputer.read(result["imputer"]).check(dataset_named("trial").schema)
    mean, filled = trial(), trial(data={"imputation": "chained", "imputer_file": result["imputer"]})
    assert filled.summary["model_sha256"] != mean.summary["model_sha256"] and filled.pooled["auroc"] is not None


def test_indicators_are_features_of_the_run(trial: Callable[..., RunResult]) -> None:
    run = trial(data={"imputation": "indicator"})
    told = Schema.from_toml(run.path / "schema.toml")
    assert next(column for column in told.features if column.name == "sbp").indicator
    names = feature_names(told)
    assert "sbp_03 missing" in names and run.arrays["0.weight"].shape == (2, len(names))


def test_without_privacy_hospitals_may_fit_their_own_equations(trial: Callable[..., RunResult]) -> None:
    with pytest.raises(ConfigError, match="no epsilon holds"):
        trial(data={"imputation": "mice"})
    run = trial(data={"imputation": "mice"}, privacy={"dp": False})
    assert (
        run.pooled["auroc"] is not None
        and run.summary["model_sha256"] != trial(privacy={"dp": False}).summary["model_sha256"]
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data.imputation": "constant"}, "column 'sbp' may be missing and declares no fill"),
        ({"data.imputation": "chained"}, "data.imputer-file is empty"),
        ({"data.imputation": "chained", "data.imputer-file": "nowhere.json"}, "no imputer file nowhere.json"),
        ({"data.imputer-file": "x.json"}, "only with data.imputation at chained"),
        ({"data.imputation": "median"}, "'data.imputation' has the value 'median'"),
    ],
)
def test_what_is_lacking_is_said_before_a_run_begins(
    trial: Callable[..., RunResult], tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=words) as refused:
        trial(**options)
    assert refused.value.exit_code == 2 and not list(tmp_path.glob("*/sites"))


def test_an_imputer_of_other_features_is_refused(tmp_path: Path, trial: Callable[..., RunResult]) -> None:
    Imputer(("a",), np.zeros(1), np.eye(1)).write(tmp_path / "imputer.json")
    with pytest.raises(ConfigError, match="not of those of schema 'trial'"):
        trial(data={"imputation": "chained", "imputer_file": str(tmp_path / "imputer.json")})


def test_a_real_hospital_fills_by_its_own_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    age = rng.integers(20, 90, 1200)
    sbp = np.where(rng.random(1200) < 0.3, np.nan, 80.0 + age)
    records = pd.DataFrame({"id": np.arange(1200), "age": age, "sbp": sbp, "died": rng.integers(0, 2, 1200)})
    records.to_csv(tmp_path / "records.csv", index=False)
    columns = [
        {"name": "id", "kind": "integer", "role": "patient_id"},
        {"name": "age", "kind": "integer", "bounds": [0, 120]},
        {"name": "sbp", "kind": "continuous", "bounds": [60, 260], "nullable": True, "fill": 120},
        {"name": "died", "kind": "binary", "role": "label"},
    ]
    Schema.from_dict({"name": "clinic", "columns": columns}).to_toml(tmp_path / "schema.toml")
    file = tmp_path / "hospital.toml"
    file.write_text(
        'site = "north"\ndata = "records.csv"\nschema = "schema.toml"\nhome = "home"\nimputer = "imputer.json"\n'
        '[policy]\nbudget = 4.0\ndelta = 5e-4\nallowed-tasks = ["survey"]\n'
    )
    result = prepare("--hospital", str(file), "--imputer", "--epsilon", "2", "--out", str(tmp_path))
    assert result["imputer"] == str(tmp_path / "imputer.json")

    def rows(imputation: str) -> np.ndarray:
        config = RunConfig(
            data={"imputation": imputation, "imputer_file": "x" if imputation == "chained" else ""},
            privacy={"dp": False},
        )
        context = Context(1, 1, {"hospital": str(file)}, RecordDict(), config.flat())
        found: np.ndarray = filled_rows(
            open_hospital(context, EnrolRequest(run="r", site=0, version=polyclinic.__version__), config), imputation
        ).x
        return found

    gone = np.isnan(rows("mean")[:, 1])
    assert (rows("constant")[gone, 1] == 2 * (120 - 60) / 200 - 1).all()
    assert (rows("indicator")[:, 2] == gone).all()
    # 80 + age is known but for the noise.
    guessed, true = (rows("chained")[gone, 1] + 1) * 100 + 60, 80 + (rows("mean")[gone, 0] + 1) * 60
    assert np.abs(guessed - true).mean() < np.abs(true.mean() - true).mean()
    config = RunConfig(data={"imputation": "chained", "imputer_file": "x"}, privacy={"dp": False})
    hospital = open_hospital(
        Context(1, 1, {"hospital": str(file)}, RecordDict(), {}),
        EnrolRequest(run="r", site=0, version=polyclinic.__version__),
        config,
    )
    before, found = filled_by(hospital, "chained"), Imputer.read(result["imputer"])
    Imputer(found.features, found.mean + 0.1, found.covariance).write(tmp_path / "imputer.json")
    assert filled_by(hospital, "chained") != before  # so that a round of other rows is another release
    (tmp_path / "imputer.json").unlink()
    with pytest.raises(DataError, match="no imputer file"):
        rows("chained")
    context = Context(1, 1, {"hospital": str(file)}, RecordDict(), RunConfig().flat())
    reply = client(
        Message(RecordDict({RECORD: EnrolRequest(run="r", site=0, version=polyclinic.__version__).record()}), 1, ENROL),
        context,
    )
    assert reply.has_content()
