"""``polyclinic prepare``: what it writes can be used, what it says of the cost is the ledger's, and mistakes write nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from polyclinic import Federation
from polyclinic.cli import app
from polyclinic.ehr.datasets import load_shards
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import BudgetRefused, ConfigError, PolyclinicError
from polyclinic.inspection.result import RunResult
from polyclinic.plugins import dataset_named
from polyclinic.privacy.ledger import Ledger


def prepare(*arguments: str) -> Any:
    done = CliRunner().invoke(app, ["prepare", *arguments, "--json"], catch_exceptions=True)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_prepared_schema_is_written_paid_for_and_trained_under(
    tmp_path: Path, quick: Callable[..., RunResult]
) -> None:
    out = tmp_path / "prepared"
    result = prepare("--dataset", "breast-cancer", "--epsilon", "2", "--column", "mean_radius", "--out", str(out))
    assert json.loads((out / "preparation.json").read_text()) == result
    schema, draft = Schema.from_toml(result["schema"]), dataset_named("breast-cancer").schema
    assert [c.name for c in schema.columns if c not in draft.columns] == ["mean_radius"]
    shards = load_shards(dataset_named("breast-cancer"), 0, "iid", 0, 1.0)
    radius = np.concatenate([shard.train.x[:, 0] for shard in shards]) * 20 + 20
    column, found = schema.features[0], result["columns"]["mean_radius"]
    assert column.clip and column.centre == pytest.approx(radius.mean(), abs=3)
    assert found["centre"] == column.centre and found["mechanism"] == "gaussian" and found["standard_error"] > 0
    assert 1.99 < result["privacy"]["epsilon"] <= 2 and not result["exact"]
    for name, site in result["sites"].items():
        ledger = Ledger.read(Path(result["ledger"]), name)
        assert [event["purpose"] for event in ledger.events()] == ["survey"]
        assert site["epsilon"] == pytest.approx(ledger.epsilon(), rel=0.02) and site["cost"] <= 2
    trained = quick(rounds=1, data={"schema_file": result["schema"]})
    assert Schema.from_toml(trained.path / "schema.toml") == schema
    assert trained.pooled["auroc"] is not None


def test_exact_counts_say_that_they_are_not_private(tmp_path: Path) -> None:
    result = prepare("--dataset", "breast-cancer", "--exact", "--out", str(tmp_path))
    assert result["exact"] and result["privacy"]["epsilon"] is None
    assert all(found["mechanism"] == "exact" and found["epsilon"] is None for found in result["columns"].values())
    assert all(site["epsilon"] is None and site["cost"] is None for site in result["sites"].values())
    shown = CliRunner().invoke(app, ["prepare", "--dataset", "breast-cancer", "--exact", "--out", str(tmp_path / "2")])
    assert "NOT private" in shown.stdout


def test_a_share_is_of_the_budget_and_adds_up_in_one_ledger(tmp_path: Path) -> None:
    asked = ["--dataset", "breast-cancer", "--share", "0.2", "--column", "mean_area", "--ledger", str(tmp_path / "l")]
    one = prepare(*asked, "--budget", "3", "--out", str(tmp_path / "one"))
    assert 0.59 < one["privacy"]["epsilon"] <= 0.6
    other = prepare(*asked, "--out", str(tmp_path / "other"))
    assert other["columns"]["mean_area"]["centre"] != one["columns"]["mean_area"]["centre"]
    assert all(0.6 < site["epsilon"] < 1.2 and site["budget"] == 3 for site in other["sites"].values())
    with pytest.raises(BudgetRefused):
        prepare(
            "--dataset", "breast-cancer", "--epsilon", "2.9", "--ledger", str(tmp_path / "l"), "--out", str(tmp_path)
        )
    assert not (tmp_path / "prepared.toml").exists()


def test_open_columns_of_a_simulation_are_found(tmp_path: Path) -> None:
    draft = dataset_named("trial").schema
    columns = [
        Column(name="male", kind="categorical", categories=("other",), other="other") if c.name == "male" else c
        for c in draft.columns
    ]
    Schema(name="draft", columns=tuple(columns)).to_toml(tmp_path / "draft.toml")
    asked = ("--dataset", "trial", "--schema-file", str(tmp_path / "draft.toml"), "--column", "male")
    result = prepare(*asked, "--epsilon", "2", "--out", str(tmp_path))
    assert result["columns"]["male"]["categories"] == ["0", "1", "other"]
    assert result["columns"]["male"]["mechanism"] == "gaussian, thresholded"
    assert result["columns"]["male"]["threshold_delta"] == pytest.approx(6e-7)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "exactly one of epsilon, share"),
        (["--epsilon", "1", "--exact"], "exactly one of epsilon, share"),
        (["--share", "0.5"], "there is none"),
        (["--share", "2", "--budget", "1"], "share must lie"),
        (["--epsilon", "1", "--column", "radius"], "no feature column 'radius'"),
        (["--epsilon", "1", "--bins", "1"], "bins must lie"),
        (["--epsilon", "-1", "--imputer"], "epsilon must lie"),
        (["--epsilon", "1", "--low", "0.99", "--high", "0.5"], "low < high"),
        (["--epsilon", "1", "--schema-file", "nowhere.toml"], "There is no schema file"),
        (["--epsilon", "1", "--hospital", "hospital.toml"], "exactly one of --dataset"),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(tmp_path: Path, arguments: list[str], words: str) -> None:
    with pytest.raises(PolyclinicError, match=words) as refused:
        prepare("--dataset", "breast-cancer", "--out", str(tmp_path / "out"), *arguments)
    assert refused.value.exit_code == 2 and not (tmp_path / "out").exists()


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    size = 3000  # at 300 noise hides where the last 2.5 % begin
    records = pd.DataFrame({"id": np.arange(size), "age": rng.integers(20, 90, size), "died": rng.integers(0, 2, size)})
    records.to_csv(tmp_path / "records.csv", index=False)
    columns = [
        {"name": "id", "kind": "integer", "role": "patient_id"},
        {"name": "age", "kind": "integer", "bounds": [0, 1000]},
        {"name": "died", "kind": "binary", "role": "label"},
    ]
    Schema.from_dict({"name": "clinic", "columns": columns}).to_toml(tmp_path / "schema.toml")
    hospital = tmp_path / "hospital.toml"
    hospital.write_text(
        'site = "north"\ndata = "records.csv"\nschema = "schema.toml"\nhome = "home"\n'
        '[policy]\nbudget = 4.0\ndelta = 1e-4\nallowed-tasks = ["survey"]\n'
    )
    return hospital


def test_a_real_hospital_prepares_by_its_own_policy(hospital: Path, tmp_path: Path) -> None:
    result = prepare("--hospital", str(hospital), "--share", "0.5", "--out", str(tmp_path / "out"))
    age = Schema.from_toml(result["schema"]).features[0]
    assert age.bounds is not None and age.bounds[1] - age.bounds[0] < 1000 and 1.99 < result["privacy"]["epsilon"] <= 2
    assert result["ledger"] == str(tmp_path / "home" / "ledger.sqlite")
    hospital.write_text(hospital.read_text().replace("schema.toml", "out/prepared.toml"))
    prepare("--hospital", str(hospital), "--epsilon", "1", "--out", str(tmp_path / "again"))
    with pytest.raises(ConfigError, match="--seed is for a simulation"):
        prepare("--hospital", str(hospital), "--epsilon", "1", "--seed", "3", "--out", str(tmp_path / "third"))


@pytest.mark.parametrize("imputer", [(), ("--imputer",)])
@pytest.mark.parametrize("epsilon", ["-1", "nan"])
def test_a_real_hospital_is_not_asked_for_an_impossible_epsilon(
    hospital: Path, tmp_path: Path, epsilon: str, imputer: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError, match="epsilon must lie between"):
        prepare("--hospital", str(hospital), "--epsilon", epsilon, "--out", str(tmp_path / "out"), *imputer)
    assert not (tmp_path / "home").exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("demo.log", "demo.log is a file, not a folder"),
        ("demo.log/inside", "cannot be written: Not a directory"),
        ("before", "prepared.toml exists already"),
        ("before/imputed", "imputer.json exists already"),
    ],
)
def test_a_folder_that_cannot_take_the_answer_is_refused_before_a_hospital_pays(
    hospital: Path, tmp_path: Path, out: str, words: str
) -> None:
    (tmp_path / "demo.log").touch()
    (tmp_path / "before" / "imputed").mkdir(parents=True)
    for name in ("prepared.toml", "imputed/imputer.json"):
        (tmp_path / "before" / name).write_text("paid for")
    imputer = ["--imputer"] if "imputed" in out else []
    with pytest.raises(ConfigError, match=words) as refused:
        prepare("--hospital", str(hospital), "--epsilon", "0.2", "--out", str(tmp_path / out), *imputer)
    assert refused.value.exit_code == 2 and not (tmp_path / "home").exists()
    assert (tmp_path / "before" / "prepared.toml").read_text() == "paid for"
    with pytest.raises(ConfigError, match=words):
        prepare(
            "--dataset", "breast-cancer", "--epsilon", "1", "--ledger", str(tmp_path / "l"), "--out", str(tmp_path / out),
            *imputer,
        )  # fmt: skip
    assert not (tmp_path / "l").exists()


def test_a_schema_file_written_anew_is_read_anew(tmp_path: Path) -> None:
    file, draft = tmp_path / "schema.toml", dataset_named("breast-cancer").schema
    for bounds in ((0.0, 40.0), (0.0, 80.0)):
        wider = draft.features[0].model_copy(update={"bounds": bounds})
        Schema(
            name="draft", unit=draft.unit, columns=(wider, *(c for c in draft.columns if c.name != wider.name))
        ).to_toml(file)
        run = Federation.from_dataset(
            "breast-cancer", out=str(tmp_path), rounds=1, data={"schema_file": str(file)}, privacy={"dp": False}
        ).run()
        assert Schema.from_toml(run.path / "schema.toml").features[0].bounds == bounds
