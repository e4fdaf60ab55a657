"""A model in one file with its preprocessing: on raw rows of every kind of column it says what the run's own predictions say."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor

from polyclinic import Federation
from polyclinic.ehr.datasets import Dataset, builtin
from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.imputation import Imputer
from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.sources.files import whole_table
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.inspection.result import RunResult
from polyclinic.runs.exporting import description, scorer_of
from polyclinic.runs.predicting import predict

Table = dict[str, Any]
SCHEMA = Schema(
    name="all-kinds",
    unit="record",
    columns=(
        Column(name="age", kind="integer", bounds=(18, 100), unit="years", clip=True),
        Column(name="lab (mg/l)", kind="continuous", bounds=(0.1, 233.1), nullable=True, fill=3.0),
        Column(name="smokes", kind="binary", nullable=True, fill=0.0),
        Column(name="sex", kind="binary", categories=("f", "m"), nullable=True, fill="f"),
        Column(name="grade", kind="ordinal", categories=("low", "mid", "high"), nullable=True, fill="mid"),
        Column(name="ward", kind="categorical", categories=("a", "b", "rest"), other="rest", nullable=True, fill="a"),
        Column(name="arm", kind="categorical", categories=("x", "y"), drop_first=True),
        Column(name="icd", kind="code_set", categories=("I10", "E11", "other"), other="other"),
        Column(name="pulse", kind="trajectory", bounds=(30, 200), steps=2, whole=True, nullable=True, fill=80.0),
        Column(name="died", kind="binary", role="label"),
    ),
)


def records(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)

    def holes(values: Any) -> pd.Series:
        return pd.Series(values, dtype=object).where(rng.random(rows) > 0.2, None)

    age = rng.integers(10, 110, rows)
    return pd.DataFrame({
        "age": age, "lab (mg/l)": holes(rng.choice([0.1, 233.1, 7.3, 100.7], rows)).astype(float),
        "smokes": holes(rng.integers(0, 2, rows)).astype(float), "sex": holes(rng.choice(["f", "m"], rows)),
        "grade": holes(rng.choice(["low", "mid", "high"], rows)), "ward": holes(rng.choice(["a", "b", "new"], rows)),
        "arm": rng.choice(["x", "y"], rows), "icd": rng.choice(["I10;E11", "Z99", "", "E11"], rows),
        "pulse_00": holes(rng.integers(30, 200, rows)).astype(float), "pulse_01": rng.integers(30, 200, rows),
        "died": (age + rng.normal(0, 20, rows) > 60).astype(int),
    })  # fmt: skip


DATASET = Dataset(
    "all-kinds", "All kinds of columns", "", SCHEMA, "none", "none", 400, 400, 2, "iid", records, lambda: True
)


def inputs(table: pd.DataFrame, described: Table) -> dict[str, np.ndarray]:
    """A table as a description asks for it."""
    arrays: dict[str, np.ndarray] = {}
    for column in described["inputs"]:
        cells, categories = table[column["name"]], column["categories"]
        if column["kind"] == "code_set":
            codes = [
                {code if code in categories else column["other"] for code in cell.split(";") if code} for cell in cells
            ]
            arrays[column["name"]] = np.array([[float(code in row) for code in categories] for row in codes])
        elif column["type"] == "float64":
            arrays[column["name"]] = cells.to_numpy(np.float64)
        elif column["type"] == "string":
            arrays[column["name"]] = np.array(["" if pd.isna(cell) else cell for cell in cells], dtype=object)
        else:
            arrays[column["name"]] = np.array(
                [-1 if pd.isna(c) else categories.index(c) if c in categories else len(categories) for c in cells]
            )
    return arrays


def tensors(table: pd.DataFrame, described: Table) -> dict[str, Tensor]:
    return {name: torch.tensor(value) for name, value in inputs(table, described).items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunResult]:
    folder, made = tmp_path_factory.mktemp("runs"), dict[tuple[str, str], RunResult]()

    def train(imputation: str = "mean", model: str = "mlp") -> RunResult:
        if (imputation, model) not in made:
            data = {"imputation": imputation, "standardise": "public"}
            if imputation == "chained":
                data["imputer_file"] = str(folder / "imputer.json")
                features = feature_names(SCHEMA)
                square = np.random.default_rng(0).normal(size=(len(features), len(features)))
                moments = np.full(len(features), 0.1), square @ square.T + np.eye(len(features))
                Imputer(features, *moments).write(data["imputer_file"])
            made[imputation, model] = Federation.from_dataset(DATASET, out=str(folder)).run(
                rounds=2, data=data, model=model, pictures=False
            )
        return made[imputation, model]

    return train


@pytest.mark.parametrize("imputation", ["mean", "indicator", "constant", "chained"])
def test_raw_rows_are_encoded_filled_and_scored_as_by_predict(
    trained: Callable[..., RunResult], imputation: str
) -> None:
    result, table = trained(imputation), records(50, seed=1)
    scorer = scorer_of(result.folder)
    scores = scorer(tensors(table, description(result.folder, ".pt"))).numpy()
    assert np.allclose(scores, result.predict(table).to_numpy(), atol=1e-5)
    assert len(np.unique(scores)) > 50


def test_a_file_with_missing_cells_is_read_as_the_frame_that_was_written(
    trained: Callable[..., RunResult], tmp_path: Path
) -> None:
    result, table = trained(), records(30, seed=5)
    for mark in ("", "NA", "?"):
        table.to_csv(tmp_path / "table.csv", index=False, na_rep=mark)
        predicted = predict(result.folder, whole_table(tmp_path / "table.csv"), labelled=True)
        assert np.allclose(predicted.scores.to_numpy(), result.predict(table).to_numpy())
        assert predicted.encoded.y is not None and predicted.encoded.y.tolist() == table["died"].tolist()


def test_torchscript_holds_it_all_and_refuses_what_the_schema_does(
    trained: Callable[..., RunResult], tmp_path: Path
) -> None:
    result, table = trained(), records(50, seed=2)
    path = result.export(tmp_path / "model.pt")
    described = json.loads((tmp_path / "model.pt.json").read_text())
    inside = {"polyclinic.json": ""}
    loaded = torch.jit.load(str(path), _extra_files=inside)
    assert json.loads(inside["polyclinic.json"]) == described
    assert described["output"]["classes"] == ["0", "1"] and described["model_sha256"] == result.summary["model_sha256"]
    for rows in (table, table.iloc[:1]):
        assert np.allclose(loaded(tensors(rows, described)).numpy(), result.predict(rows).to_numpy(), atol=1e-5)
    strange = table.iloc[:8].copy()
    strange.loc[0, "lab (mg/l)"] = 233.2
    strange.loc[1, "arm"] = "z"
    strange.loc[2, "smokes"] = 0.5
    strange.loc[3, "arm"] = None
    strange.loc[4, ["sex", "grade"]] = "z"
    strange.loc[5, "ward"] = "z"
    scores = loaded(tensors(strange, described)).numpy()
    assert np.isnan(scores).all(axis=1).tolist() == [True, True, True, True, False, False, False, False]
    with pytest.warns(UserWarning) as told:
        assert np.allclose(result.predict(strange).to_numpy(), scores, atol=1e-5, equal_nan=True)
    notes = " ".join(str(warning.message) for warning in told)
    assert "read as missing, in 'sex' (1), 'grade' (1)." in notes
    assert (
        "4 of 8 rows have no prediction" in notes and "'arm' (1: the category is unknown), 'arm' (1: the cell" in notes
    )


def test_what_cannot_be_exported_is_one_sentence(
    trained: Callable[..., RunResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"ends in '.pkl', which is not a format of a model; end it in .onnx"):
        trained().export(tmp_path / "model.pkl")
    with pytest.raises(ConfigError, match=r"none/model.pt cannot be written: its folder does not exist"):
        trained().export(tmp_path / "none/model.pt")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"needs the packages onnx and onnxscript: pip install 'polyclinic\[onnx\]'"):
        trained().export(tmp_path / "model.onnx")
    drawn = Federation.from_dataset("trial", out=str(tmp_path)).run(
        task="synthesis", synthesis={"rows": 50, "quality": False}, pictures=False
    )
    with pytest.raises(ConfigError, match="trains no classifier"):
        drawn.export(tmp_path / "model.pt")
    assert not list(tmp_path.glob("model*"))


@pytest.mark.slow
def test_torch_export_gives_the_same(
    trained: Callable[..., RunResult], tmp_path: Path, as_json: Callable[..., Any]
) -> None:
    result, table = trained("chained"), records(50, seed=2)
    printed = as_json("export", str(result.path), "--out", str(tmp_path / "model.pt2"))
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    scores = loaded(tensors(table, json.loads(Path(printed["description"]).read_text()))).numpy()
    assert np.allclose(scores, result.predict(table).to_numpy(), atol=1e-5)


@pytest.mark.slow
def test_onnx_takes_categories_as_texts(trained: Callable[..., RunResult], tmp_path: Path) -> None:
    import onnxruntime

    result, table = trained("constant"), records(50, seed=3)
    table.loc[0, ["sex", "ward"]], table.loc[1, "arm"] = "z", "z"
    path = result.export(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(path))
    described = json.loads((tmp_path / "model.onnx.json").read_text())
    assert json.loads(session.get_modelmeta().custom_metadata_map["polyclinic.json"]) == described
    assert [column.name for column in session.get_inputs()] == [column["name"] for column in described["inputs"]]
    (scores,) = session.run(["probabilities"], inputs(table, described))
    with pytest.warns(UserWarning, match="read as missing, in 'sex' \\(1\\)"):
        assert np.allclose(scores, result.predict(table).to_numpy(), atol=1e-5, equal_nan=True)
    (refused,) = session.run(None, inputs(table.assign(arm="z"), described))
    assert np.isnan(refused).all()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gru", "transformer", "tabular-resnet"])
def test_sequences_and_embeddings_are_traced_for_any_number_of_rows(
    trained: Callable[..., RunResult], tmp_path: Path, model: str
) -> None:
    result, table = trained("indicator", model), records(50, seed=4)
    loaded = torch.jit.load(str(result.export(tmp_path / "model.pt")))
    given = tensors(table, description(result.folder, ".pt"))
    assert np.allclose(loaded(given).numpy(), result.predict(table).to_numpy(), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "label, options",
    [("age", {"objective": "huber"}), ("consciousness", {"objective": "ordinal"}),
     ("age, died", {"objective_options": "edges=[50, 60, 70, 80]"})],
)  # fmt: skip
def test_every_objectives_predictions_are_exported_and_stored(tmp_path: Path, label: str, options: Any) -> None:
    federation = Federation.from_dataset("icu", out=str(tmp_path), sites=3, data={"label": label}, **options)
    result, table = federation.run(rounds=1, pictures=False), builtin()["icu"].generate
    assert table is not None
    rows = table(2, 40, 5)
    loaded = torch.jit.load(str(result.export(tmp_path / "model.pt")))
    predicted, given = result.predict(rows), tensors(rows, description(result.folder, ".pt"))
    assert np.allclose(loaded(given).numpy(), predicted.to_numpy(), atol=1e-5)
    predictions = result.predictions
    assert [name for name in predictions if name.startswith("score_")] == [f"score_{name}" for name in predicted]
    assert result.plot("sites", Figure().subplots()).get_title(loc="left")
    assert "## Limits" in result.folder.card_file.read_text()


@pytest.mark.slow
def test_onnx_refuses_equations_that_it_has_no_operator_for(trained: Callable[..., RunResult], tmp_path: Path) -> None:
    with pytest.raises(PolyclinicError, match=r"ONNX has no operator for; export to .pt"):
        trained("chained").export(tmp_path / "model.onnx")
