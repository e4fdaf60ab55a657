"""A run's model on new rows: as the run itself judges them, from frames, files and tables as they are written."""

import json
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
from polyclinic.client.own_eyes import own_training_rows
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
    assert "There is no hospital file hospital.toml" in str(both.exception)
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


def test_a_row_that_the_model_cannot_read_has_no_prediction_and_the_others_have_theirs(
    tmp_path: Path, as_json: Callable[..., Any], command: Callable[..., Any]
) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({
        "mrn": range(200), "age": rng.integers(20, 90, 200), "sex": rng.choice(["female", "male", "other sex"], 200),
        "ward": pd.Series(rng.choice(["east", "west", "north"], 200)).where(rng.random(200) > 0.1, ""),
        "smokes": pd.Series(rng.choice(["yes", "no"], 200)).where(rng.random(200) > 0.1, ""),
    })  # fmt: skip
    table["died"] = (table["age"] + rng.normal(0, 10, 200) > 60).astype(int)
    table.loc[1::2, "smokes"] = (
        table["smokes"].map({"yes": "ja", "no": "nein"}).fillna("")[1::2]
    )  # so that it is 0 and 1
    result = Federation.from_tables({"a": table[::2], "b": table[1::2]}, "died", "mrn", out=str(tmp_path)).run(
        rounds=1, privacy={"delta": 0.002}, pictures=False
    )
    new = table.head(6).astype({"age": object})
    new.loc[1, "sex"], new.loc[2, "age"], new.loc[3, "ward"] = "unheard of", "", "Martian"
    new.loc[3, "smokes"] = "perhaps"
    assert result.folder.schema().features[-1].kind == "binary"
    new.to_csv(tmp_path / "new.csv", index=False)
    answer = as_json("predict", str(result.path), str(tmp_path / "new.csv"), "--out", str(tmp_path / "p.csv"))
    scores, whole = pd.read_csv(tmp_path / "p.csv", index_col="row"), result.predict(table.head(6))
    assert scores["1"].isna().tolist() == [False, True, True, False, False, False]
    assert np.allclose(scores.loc[[0, 4, 5]], whole.loc[[0, 4, 5]])
    ward_missing = result.predict(table.head(6).assign(ward="", smokes="")).loc[3]
    assert np.allclose(scores.loc[3], ward_missing)
    notes = " ".join(answer["notes"])
    assert "2 of 6 rows have no prediction" in notes and "'sex' (1: the category is unknown)" in notes
    assert "'age' (1: the cell is empty" in notes and "read as missing, in 'ward' (1), 'smokes' (1)" in notes
    assert "Martian" not in notes and "unheard" not in notes
    judged = as_json("evaluate", str(result.path), str(tmp_path / "new.csv"))
    assert judged["rows"] == judged["patients"] == 4 and any("2 of 6 rows" in note for note in judged["notes"])
    new.assign(age="").to_csv(tmp_path / "ageless.csv", index=False)
    refused = command("evaluate", str(result.path), str(tmp_path / "ageless.csv"))
    assert refused.returncode == 2 and "no row can be judged" in refused.stderr and "'age' (6:" in refused.stderr


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


def visits(patients: int, name: str, seed: int) -> pd.DataFrame:
    """Three visits a patient in no order, written by hand: the pulse of the last tells who died."""
    rng = np.random.default_rng(seed)
    died = rng.integers(0, 2, patients)
    pulse = np.column_stack([rng.normal(80, 8, (patients, 2)), 70 + 30 * died + rng.normal(0, 5, patients)]).round()
    table = pd.DataFrame({
        "mrn": np.repeat([f"{name}{patient}" for patient in range(patients)], 3), "Day": np.tile([3, 10, 40], patients),
        "pulse": [f"{value:.0f} /min" for value in pulse.ravel()], "sex": np.repeat(rng.choice(["m", "f"], patients), 3),
        "died": np.repeat(died, 3),
    })  # fmt: skip
    return table.sample(frac=1, random_state=seed).reset_index(drop=True)


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """A run over sequences of visits, beside whose folder lie ``a.csv`` and ``b.csv``."""
    out = tmp_path_factory.mktemp("visits")
    for seed, name in enumerate("ab"):
        visits(150, name, seed).to_csv(out / f"{name}.csv", index=False)
    places = {name: out / f"{name}.csv" for name in "ab"}
    return Federation.from_tables(places, "died", "mrn", time="day", steps=2, out=str(out / "runs")).run(
        model="gru", hidden=4, rounds=2, privacy={"dp": False}, training={"local_steps": 20}, pictures=False
    )


def test_new_visits_give_one_risk_for_each_patient_as_the_run_has_it(sequences: RunResult) -> None:
    table = pd.read_csv(sequences.path.parents[1] / "a.csv")
    risks = sequences.predict(table.drop(columns="died"))
    assert risks.index.name == "mrn" and set(risks.index) == set(table["mrn"]) and len(risks) == 150
    held = sequences.predictions.query("site == 'a'")
    assert len(held) and all(
        np.isclose(risks.to_numpy(), own, atol=1e-6).all(1).any() for own in held[["score_0", "score_1"]].to_numpy()
    )
    ordered = sequences.predict(table.sort_values(["mrn", "Day"], ascending=False).rename(columns={"Day": "DAY"}))
    assert np.allclose(ordered.loc[risks.index], risks)
    one = sequences.predict(table[table["mrn"] == "a7"].drop(columns="died"))
    assert np.allclose(one, risks.loc[["a7"]])
    late = table[table["mrn"] == "a7"].assign(Day="")
    with pytest.warns(UserWarning, match="3 rows without a time that can be read are left out"):
        assert "a7" not in sequences.predict(pd.concat([table[table["mrn"] != "a7"].astype(str), late])).index
    steps = pd.DataFrame({f"{name}_{step:02d}": ["80"] for name in ("pulse", "before latest") for step in range(2)})
    assert list(sequences.predict(steps.assign(sex="m")).index) == [0]
    with pytest.raises(DataError, match="lacks columns that visits need: 'day'"):
        sequences.predict(table.drop(columns="Day"))


def test_the_commands_judge_visits_by_patient_and_count_those_that_were_trained_on(
    sequences: RunResult, tmp_path: Path, as_json: Callable[..., Any], command: Callable[..., Any]
) -> None:
    own, out = sequences.path.parents[1] / "a.csv", tmp_path / "p.csv"
    assert as_json("predict", str(sequences.path), str(own), "--out", str(out))["by"] == "mrn"
    assert len(pd.read_csv(out, index_col="mrn")) == 150
    again = command("predict", str(sequences.path), str(own), "--out", str(out))
    assert again.returncode == 2 and f"{out} exists already; give another name, or --force" in again.stderr
    as_json("predict", str(sequences.path), str(own), "--out", str(out), "--force")
    judged = as_json("evaluate", str(sequences.path), str(own))
    trained = 150 - len(sequences.predictions.query("site == 'a'"))
    # Some held-out patients have the pulses of another who was trained on.
    assert judged["patients"] == judged["rows"] == 150 and trained <= judged["equal_to_trained"] < trained + 10
    assert judged["notes"][0].startswith(f"{judged['equal_to_trained']} of 150 rows equal rows that were trained on")
    visits(60, "c", 9).replace({"Day": 40}, 39).to_csv(tmp_path / "c.csv", index=False)
    elsewhere = as_json("evaluate", str(sequences.path), str(tmp_path / "c.csv"))
    assert (
        elsewhere["equal_to_trained"] == 0 and not elsewhere["notes"] and elsewhere["metrics"]["auroc"]["value"] > 0.9
    )


def test_a_hospitals_table_is_read_by_its_mapping_and_compared_with_its_records(
    tmp_path: Path, as_json: Callable[..., Any]
) -> None:
    from tests.client.test_hospital import make_hospital

    hospital = make_hospital(tmp_path, rows=200)
    records = pd.read_csv(tmp_path / "records.csv", dtype=str)
    raw = records.rename(columns={"sbp": "RR"}).assign(
        RR=[f"{float(cell) / 10:.2f}".replace(".", ",") for cell in records["sbp"]]
    )
    raw.to_csv(tmp_path / "raw.csv", index=False)
    (tmp_path / "mapping.toml").write_text('[columns.sbp]\nfrom = "RR"\ndecimal = ","\nfactor = 10\n')
    mapped = tmp_path / "mapped.toml"
    mapped.write_text('mapping = "mapping.toml"\n' + hospital.read_text().replace("records.csv", "raw.csv"))
    options: dict[str, Any] = {"out": str(tmp_path / "runs"), "privacy": {"delta": 0.004}}
    result = Federation.from_hospitals([mapped], **options).run(rounds=2, pictures=False)
    plain = Federation.from_hospitals([hospital], **options).run(rounds=2, pictures=False)
    expected = plain.predict(records).to_numpy()
    assert np.allclose(result.predict(raw, hospital=mapped), expected, atol=1e-3)
    with pytest.warns(UserWarning, match="which are read as missing in every row: 'sbp'"):
        lacking = plain.predict(records.drop(columns="sbp"))
    assert np.allclose(lacking, plain.predict(records.assign(sbp="")))
    under = Federation.from_hospitals(
        [f"one={tmp_path / 'raw.csv'}"], schema=tmp_path / "schema.toml", mapping=tmp_path / "mapping.toml", **options
    ).run(rounds=2, pictures=False)
    label = plain.folder.schema().label.name
    risks = under.predict(raw.drop(columns=[label, "id"]))
    assert len(risks) == 200 and np.allclose(risks, under.predict(raw, hospital=mapped))

    def trained(table: str, *hospital: str) -> Any:
        return as_json("evaluate", str(result.path), str(tmp_path / table), *hospital)["equal_to_trained"]

    by_mapping, held_out = ("--hospital", str(mapped)), len(result.predictions)
    assert 200 - held_out <= trained("raw.csv", *by_mapping) < 203 - held_out  # two patients may be alike
    raw[:50].to_csv(tmp_path / "part.csv", index=False)
    assert 20 < trained("part.csv", *by_mapping) < 50
    summary = result.folder.summary_json() | {"simulation": False}  # as the run of a real federation has it
    result.folder.summary_file.write_text(json.dumps(summary))
    result.folder.schema_file.write_text((tmp_path / "schema.toml").read_text())
    own = len(own_training_rows(mapped, result.folder).y)
    assert own <= trained("raw.csv", *by_mapping) < own + 3
    unknown = as_json("evaluate", str(result.path), str(tmp_path / "records.csv"))
    assert unknown["equal_to_trained"] is None and "--hospital compares those" in unknown["notes"][0]
