"""A run's model on new rows: as the run itself judges them, from frames, files and tables as they are written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from polyclinic import Federation
from polyclinic.cli import app
from polyclinic.ehr.datasets import builtin
from polyclinic.ehr.encoding import encode
from polyclinic.errors import ConfigError, DataError
from polyclinic.evaluation.metrics import auroc, classification_metrics
from polyclinic.inspection.result import RunResult


@pytest.fixture(scope="module")
def cancer(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    out = tmp_path_factory.mktemp("runs")
    return Federation.from_dataset("breast-cancer", out=str(out)).run(rounds=3, pictures=False)


def test_predictions_are_those_of_the_module_on_encoded_rows(cancer: RunResult) -> None:
    dataset = builtin()["breast-cancer"]
    records = dataset.load()
    arrays = {name: value.numpy() for name, value in cancer.arrays.items()}
    x = (encode(records, dataset.schema).x - arrays["standardiser.mean"]) / arrays["standardiser.std"]
    with torch.no_grad():
        by_hand = torch.softmax(cancer.model(torch.tensor(x, dtype=torch.float32)), dim=1).numpy()
    label = dataset.schema.label.name
    for table in (records, records.drop(columns=label), records.sample(frac=1, random_state=1)):
        scores = cancer.predict(table)
        assert list(scores.index) == list(table.index)
        assert np.allclose(scores.loc[records.index].to_numpy() if len(table) else [], by_hand, atol=1e-5)


def test_the_commands_write_probabilities_and_judge_them(
    cancer: RunResult, tmp_path: Path, as_json: Callable[..., Any], command: Callable[..., Any]
) -> None:
    records = builtin()["breast-cancer"].load()
    records.to_csv(tmp_path / "all.csv", index=False)
    out = tmp_path / "p.csv"
    answer = as_json("predict", str(cancer.path), str(tmp_path / "all.csv"), "--out", str(out))
    assert answer["rows"] == len(records) == len(pd.read_csv(out))
    assert np.allclose(pd.read_csv(out, index_col="row").to_numpy(), cancer.predict(records).to_numpy(), atol=1e-6)
    judged = as_json("evaluate", str(cancer.path), str(tmp_path / "all.csv"))
    estimate, scores = judged["metrics"]["auroc"], cancer.predict(records)["1"]
    assert estimate["value"] == pytest.approx(auroc((records["malignant"] == 1).to_numpy(), scores.to_numpy()))
    assert 0.9 < estimate["low"] < estimate["value"] < estimate["high"] and judged["private"] is False
    assert judged["mean_risk"] == pytest.approx(scores.mean()) and judged["patients"] == judged["rows"] == len(records)
    both = CliRunner().invoke(
        app, ["evaluate", str(cancer.path), str(tmp_path / "all.csv"), "--hospital", "hospital.toml"]
    )
    assert "exactly one of TABLE and --hospital" in str(both.exception)
    label = builtin()["breast-cancer"].schema.label.name
    records.drop(columns=label).to_csv(tmp_path / "bare.csv", index=False)
    refused = command("evaluate", str(cancer.path), str(tmp_path / "bare.csv"))
    assert refused.returncode == 2 and f"the label column {label!r} is missing" in refused.stderr


def test_tables_are_read_as_they_were_for_the_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    age, lab = rng.integers(20, 90, 300), rng.lognormal(0, 0.7, 300).round(1)
    table = pd.DataFrame({
        "mrn": range(300), "age": [f"{years} years" for years in age], "lab": [f"<{0.5}" if x < 0.5 else str(x) for x in lab],
        "sex": rng.choice(["m", "f"], 300), "icd": rng.choice(["I10;E11", "E11", ""], 300),
        "died": (age + rng.normal(0, 10, 300) > 60).astype(int),
    })  # fmt: skip
    result = Federation.from_tables({"a": table[::2], "b": table[1::2]}, "died", "mrn", out=str(tmp_path)).run(
        rounds=3, privacy={"delta": 0.002}, pictures=False
    )
    whole = result.predict(table)
    plain = table.assign(age=age, sex=table["sex"].str.strip()).drop(columns=["died", "mrn"])
    assert np.allclose(result.predict(plain).to_numpy(), whole.to_numpy())
    assert np.allclose(result.predict(plain.iloc[[7]]).to_numpy(), whole.iloc[[7]].to_numpy())
    assert whole["1"].corr(pd.Series(age)) > 0.5
    for wrong, words in (
        (plain.drop(columns="age"), "the model needs: 'age'"),
        (plain.assign(lab="1,500"), "a comma before three digits"),
    ):
        with pytest.raises(DataError, match=words):
            result.predict(wrong)


def test_a_run_without_a_classifier_predicts_nothing(tmp_path: Path) -> None:
    result = Federation.from_dataset("trial", out=str(tmp_path)).run(
        task="synthesis", synthesis={"rows": 50, "quality": False}, pictures=False
    )
    with pytest.raises(ConfigError, match="trains no classifier"):
        result.predict(pd.DataFrame({"x": [1]}))


def test_held_out_predictions_are_those_that_the_metrics_are_of(cancer: RunResult) -> None:
    table = cancer.predictions
    assert list(table.columns) == ["site", "patient", "label", "score_0", "score_1", "split"]
    assert set(table["split"]) == {"held-out"}
    for site, row in cancer.sites.iterrows():
        own = table[table["site"] == site]
        found = classification_metrics((own["label"] == "1").to_numpy(int), own[["score_0", "score_1"]].to_numpy())
        assert {name: row[name] for name in ("auroc", "loss")} == pytest.approx(
            {name: found[name] for name in ("auroc", "loss")}
        )
    assert not cancer.folder.predictions_file.exists()  # a simulation keeps no patient's row


def test_predictions_of_hospitals_own_models_are_those_that_they_gave(tmp_path: Path) -> None:
    result = Federation.from_dataset("breast-cancer", out=str(tmp_path), sites=3).run(
        rounds=1, strategy="ditto", pictures=False
    )
    table = result.predictions
    for site, row in result.sites.iterrows():
        own = table[table["site"] == site]
        assert auroc((own["label"] == "1").to_numpy(), own["score_1"].to_numpy()) == pytest.approx(row["auroc"])


def test_what_is_withheld_is_one_sentence(tmp_path: Path) -> None:
    silent = Federation.from_dataset("breast-cancer", out=str(tmp_path)).run(
        rounds=1, evaluation={"metrics": "private"}, pictures=False
    )
    with pytest.raises(ConfigError, match="'evaluation.metrics' has the value 'private', so no predictions"):
        _ = silent.predictions
    drawn = Federation.from_dataset("trial", out=str(tmp_path)).run(
        task="synthesis", synthesis={"rows": 50, "quality": False}, pictures=False
    )
    table = drawn.predictions
    auroc = classification_metrics((table["label"] == "1").to_numpy(int), table[["score_0", "score_1"]].to_numpy())[
        "auroc"
    ]
    assert auroc == pytest.approx(drawn.pooled["auroc"])
