"""Runs towards each objective: from a label of its kind to metrics, predictions and pages; and what refuses such labels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from polyclinic import Federation
from polyclinic.config import RunConfig
from polyclinic.ehr.encoding import encode
from polyclinic.errors import ConfigError
from polyclinic.evaluation.judges import judge_of
from polyclinic.evaluation.report import render_comparison
from polyclinic.inspection.attacks import attack_run
from polyclinic.inspection.audits import subject_of_config
from polyclinic.inspection.result import RunResult
from polyclinic.programs import program_of
from polyclinic.training.auditing.canaries import guess
from polyclinic.training.auditing.faults import fault_named
from tests.objectives.cohorts import cohort, records, schema
from tests.objectives.test_objectives import TAKEN, Cubic

COHORTS = "tests.objectives.cohorts:"
#: By objective the least or most that its first metric reaches in ten rounds on two hospitals of 150 training patients.
REACHED = {
    "classification": 0.65, "binary": 0.8, "ordinal": 0.4, "squared": 3.0, "huber": 3.0, "quantile": 3.0, "poisson": 2.2,
    "negative-binomial": 2.2, "multi-label": 0.75, "hazards": 0.65, "piecewise-exponential": 0.65,
}  # fmt: skip


def run(name: str, out: Path, **options: Any) -> RunResult:
    kind, given = TAKEN[name]
    fixed: dict[str, Any] = {
        "objective": name, "objective_options": given, "rounds": 10, "privacy": {"epsilon": 8.0, "patients_per_site": 150},
        "pictures": False, "out": str(out),
    }  # fmt: skip
    return Federation.from_dataset(f"{COHORTS}{kind.upper()}").run(**(fixed | options))


QUICK = ("squared", "ordinal", "hazards")


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in TAKEN if name not in QUICK)]
)
def test_a_private_run_learns_and_tells_what_it_reached(name: str, tmp_path: Path) -> None:
    result, kind = run(name, tmp_path), TAKEN[name][0]
    summary, objective = result.summary["objective"], program_of(result.config).objective(schema(kind))
    first, better = summary["headline"][0], np.less if REACHED[name] >= 1 else np.greater
    assert summary["name"] == name and better(result.pooled[first], REACHED[name])
    assert list(summary["metrics"]) == list(result.summary["evaluation"]["pooled"])
    assert {*result.rounds} >= {*summary["headline"], "loss", "epsilon"} and result.privacy["epsilon"] <= 8.0
    floor = result.summary["floor"][first]
    assert floor is None or better(result.pooled[first], floor)
    table = records(kind)
    predicted = result.predict(table.drop(columns=[column.name for column in schema(kind).labels]))
    assert list(predicted.columns) == list(objective.columns) and np.isfinite(predicted.to_numpy()).all()
    encoded = encode(table, schema(kind))
    judge = judge_of(objective)
    held_out = sum(site.test.patients for site in result.folder.simulation("x").shards.values())
    assert judge.exact(encoded.y, predicted.to_numpy())["n"] == 400 and 0 < held_out < 400
    page = result.folder.report.read_text()
    assert f"{summary['metrics'][first]}, pooled" in page and ("AUROC" in page) == ("AUROC" in str(summary["metrics"]))


@pytest.mark.slow
def test_numbers_come_back_in_the_labels_unit_and_the_commands_judge_them(
    tmp_path: Path, as_json: Callable[..., Any], command: Callable[..., Any]
) -> None:
    result, table = run("squared", tmp_path / "runs"), records("days")
    assert 5 < result.predict(table)["los"].mean() < 11
    table.to_csv(tmp_path / "all.csv", index=False)
    judged = {
        name: row["value"]
        for name, row in as_json("evaluate", str(result.path), str(tmp_path / "all.csv"))["metrics"].items()
    }
    missed = result.predict(table)["los"] - table["los"].clip(0, 30)
    assert judged["mae"] == pytest.approx(float(missed.abs().mean())) and judged["rmse"] < 5
    shown = command("show", str(result.path)).stdout
    assert "MAE" in shown and "R2" in shown and "AUROC" not in shown
    assert "pooled_mae=" in repr(result) and "pooled MAE" in result._repr_html_()
    answer = as_json("predict", str(result.path), str(tmp_path / "all.csv"), "--out", str(tmp_path / "p.csv"))
    assert list(pd.read_csv(tmp_path / "p.csv")) == ["row", "los"] and answer["classes"] == ["los"]


@pytest.mark.slow
def test_a_plain_classification_is_what_it_was_before_there_were_objectives(tmp_path: Path) -> None:
    plain = run("classification", tmp_path, objective="", objective_options="")
    named = run("classification", tmp_path, objective_options="")
    assert plain.summary["model_sha256"] == named.summary["model_sha256"]
    assert plain.pooled == named.pooled and plain.summary["objective"]["predicts"] == "classes"


@pytest.mark.slow
def test_a_comparison_and_figures_are_of_the_objectives_metrics(tmp_path: Path) -> None:
    result = run("squared", tmp_path, rounds=2, pictures=True, comparison=True)
    assert result.summary["comparison"]["without_dp"]["pooled"]["mae"] > 0
    plots = {path.name for path in result.folder.plots.iterdir()}
    assert {"rounds.svg", "loss.svg", "sites.svg", "calibration.svg"} <= plots and "decision.svg" not in plots
    curve = result.summary["evaluation"]["calibration"]
    assert len(curve) == 10 and curve[0]["predicted"] < curve[-1]["predicted"]
    page = result.folder.report.read_text()
    assert "linear regression of los (days)" in page and "By hospital" in page and "MAE (days)" in page
    other = run("squared", tmp_path / "other", rounds=2, seed=1)
    beside = render_comparison([result.path, other.path], tmp_path / "page.html").read_text()
    assert "MAE (days)" in beside and "AUROC" not in beside and "labels" not in beside
    ranks = run("ordinal", tmp_path / "ranks", rounds=1)
    assert (
        "The runs are of different labels"
        in render_comparison([ranks.path, other.path], tmp_path / "p.html").read_text()
    )


def test_any_column_of_a_schema_may_be_the_label(tmp_path: Path) -> None:
    result = Federation.from_dataset(f"{COHORTS}SURVIVAL").run(
        data={"label": "x0"}, rounds=1, privacy={"patients_per_site": 150}, pictures=False, out=str(tmp_path)
    )
    roles = {column.name: column.role for column in result.folder.schema().columns}
    assert roles["x0"] == "label" and roles["time"] == roles["died"] == "ignore"
    assert result.summary["objective"]["name"] == "squared" and list(result.predict(records("survival"))) == ["x0"]
    with pytest.raises(ConfigError, match="names 'x9', which is not a column of schema 'survival'"):
        Federation.from_dataset(f"{COHORTS}SURVIVAL").run(data={"label": "x9"})


@pytest.mark.slow
def test_a_loss_of_ones_own_trains(tmp_path: Path) -> None:
    result = run("squared", tmp_path, objective=Cubic, objective_options="", rounds=3)
    assert result.summary["objective"]["name"] == "cubic" and result.pooled["mae"] < 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "synthesis"}, "is of kind 'continuous'; what was asked for takes a label with classes"),
        ({"task": "output-perturbation"}, "'classification', which takes one label of kind"),
        ({"task": "synthesis", "objective": "squared"}, "has an effect only with the task classification"),
        ({"objective": "ordinal"}, "'ordinal', which takes one label of kind 'ordinal'"),
        ({"objective": "sqared"}, "Did you mean 'squared'"),
    ],
)
def test_what_needs_classes_refuses_numbers_before_anything_is_spent(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        Federation.from_dataset(f"{COHORTS}DAYS").run(out=str(tmp_path), rounds=1, **options)
    assert words in str(refused.value)
    assert not list(tmp_path.rglob("ledger.sqlite"))


@pytest.mark.slow
@pytest.mark.parametrize("name", TAKEN)
def test_attacks_and_the_audit_are_made_on_every_objective(name: str, tmp_path: Path) -> None:
    options = {"model": "mlp", "hidden": "8", "training": {"local_steps": 2, "engine": "auto"}}
    result = run(name, tmp_path, **options, rounds=3)
    found = attack_run(result.path, shadows=4, canaries=12)
    inverted = ["model inversion"] if name in ("classification", "binary") else []
    assert [one["attack"] for one in found["membership"]] == ["loss threshold", *inverted, "LiRA"]
    assert [one["attack"] for one in found["left_out"]] == ([] if inverted else ["model inversion"])
    assert all(0 <= one["auc"]["value"] <= 1 for one in found["membership"])
    assert {one["column"] for one in found["attributes"]} == {"x0", "x1", "x2"}
    alone = [one for one in found["gradients"]["trials"] if one["batch"] == 1]
    assert [one["recovered"] for one in alone if not one["private"]] == [1.0]  # a single record is in its gradient
    assert found["audit"]["epsilon_lower"] <= found["audit"]["epsilon_claimed"] <= 8.0


@pytest.mark.slow
def test_a_regression_that_learns_its_patients_by_heart_tells_who_they_are(tmp_path: Path) -> None:
    settings = {"privacy": {"dp": False}, "training": {"local_steps": 300, "optimizer": "adam", "learning_rate": 0.02}}
    table = records("days", 120).assign(los=np.random.default_rng(1).uniform(0, 30, 120))
    table["hospital"] = np.where(table["id"] % 2, "north", "south")
    federation = Federation.from_frame(table, "hospital", label="los", patient="id", out=str(tmp_path))
    result = federation.run(model="mlp", hidden="256", rounds=5, pictures=False, **settings)
    found = attack_run(result.path, shadows=0, canaries=0)["membership"][0]
    assert found["auc"]["low"] > 0.5


def test_an_audit_is_of_the_objective_that_the_dataset_and_the_configuration_name() -> None:
    with pytest.raises(ConfigError, match="takes one label of kind"):
        subject_of_config(RunConfig(objective="squared"))
    assert subject_of_config(RunConfig(objective="binary")).classes == 2
    days = RunConfig(dataset=f"{COHORTS}DAYS", objective="squared")
    subject = subject_of_config(days)
    assert subject.labels.tolist() == [30.0, 0.0] and subject.patients.y.dtype == np.float64
    assert guess(subject, 20, (6,), 0.95, white_box=False).epsilon_lower <= subject.epsilon
    broken = subject_of_config(days, seed=0, fault=fault_named("noise-off"))
    assert guess(broken, 120, (80,), 0.95, white_box=True).epsilon_lower > broken.epsilon


def test_private_metrics_are_of_the_objective_or_withheld_in_a_sentence(tmp_path: Path) -> None:
    private = {"metrics": "private", "epsilon": 20.0}
    result = run("squared", tmp_path, evaluation=private)
    told = result.summary["private_metrics"]["pooled"]["metrics"]
    assert result.pooled["mae"] == told["mae"]["value"] and 0 < told["mae"]["error"] < 1 and told["mae"]["value"] < 4
    page = result.folder.report.read_text()
    assert "MAE (days)" in page and f"{told['rmse']['value']:.3f} ± {told['rmse']['error']:.3f}" in page
    hazards = run("hazards", tmp_path / "hazards", rounds=1, evaluation=private)
    reason = json.dumps(hazards.summary["private_metrics"]["withheld"])
    assert hazards.pooled["concordance"] is None and "no private metrics of the objective 'hazards'" in reason
    ranks = run("ordinal", tmp_path, rounds=1, evaluation={"metrics": "private", "epsilon": 50.0})
    assert ranks.summary["private_metrics"]["pooled"] is not None


def test_a_dataset_of_numbers_is_split_and_dealt_by_quarters_of_the_label() -> None:
    days = cohort("days")
    for partitioner in ("iid", "dirichlet", "classes:2"):
        result = Federation.from_dataset(f"{COHORTS}DAYS", partitioner=partitioner, alpha=0.3)
        assert result.config.partitioner == partitioner
    from polyclinic.ehr.datasets import load_shards

    shards = load_shards(days, 2, "classes:2", 0, 1.0)
    assert abs(shards[0].y.mean() - shards[1].y.mean()) > 1 and all(shard.y.dtype == np.float64 for shard in shards)
    assert {0.15 < shard.test.patients / shard.patients < 0.35 for shard in shards} == {True}


def test_a_number_in_tables_of_ones_own_is_a_label(tmp_path: Path) -> None:
    table = records("days").rename(columns={"los": "length of stay"}).round(1)
    tables = {
        "north": table[::2],
        "south": table[1::2].assign(**{"length of stay": lambda t: t["length of stay"].astype(str)}),
    }
    federation = Federation.from_tables(tables, label="length of stay", patient="id", out=str(tmp_path))
    result = federation.run(rounds=10, privacy={"dp": False}, pictures=False)
    label = result.folder.schema().label
    assert label.kind == "continuous" and label.bounds is not None and label.centre == pytest.approx(8, abs=1)
    assert result.summary["objective"]["name"] == "squared" and result.pooled["r2"] > 0.3
    assert any("is a number, from" in note for note in result.summary["notes"])
    assert not any("very skewed" in note for note in result.summary["notes"])
    assert list(result.predict(table.drop(columns="length of stay"))) == ["length of stay"]


def test_a_very_skewed_number_has_a_hint_of_an_objective_that_suits(tmp_path: Path) -> None:
    table = records("days").assign(los=np.random.default_rng(0).lognormal(0, 1, len(records("days"))).round(2))
    federation = Federation.from_tables(
        {"a": table[::2], "b": table[1::2]}, label="los", patient="id", out=str(tmp_path)
    )
    hints = {
        objective: [
            note for note in federation.run(rounds=1, privacy={"dp": False}, pictures=False, objective=objective).summary["notes"]
            if "`objective=huber`" in note
        ]
        for objective in ("squared", "huber")
    }  # fmt: skip
    assert len(hints["squared"]) == 1 and "'los' is very skewed" in hints["squared"][0] and not hints["huber"]


def test_a_label_that_is_no_column_is_suggested_by_its_words() -> None:
    table = records("days").rename(columns={"los": "los_days"})
    with pytest.raises(
        ConfigError, match="^label names 'los', which is not a column of the tables. Did you mean 'los_days'?"
    ):
        Federation.from_tables({"north": table[::2], "south": table[1::2]}, label="los", patient="id")
