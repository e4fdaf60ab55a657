"""``polyclinic predict``, ``evaluate`` and ``export``: a finished run's model on records that lie here, and as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.terminal import Json, answer, loading, say, table
from polyclinic.errors import DataError

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A finished run's folder, or a folder with one.")]
TablePath = Annotated[
    Path, typer.Argument(metavar="TABLE", help="CSV or Parquet with the columns of the run's schema.")
]


def predict(
    run: RunFolder,
    records: TablePath,
    out: Annotated[Path, typer.Option(help="CSV to write: a row of probabilities for each row.")] = Path(
        "predictions.csv"
    ),
    as_json: Json = False,
) -> None:
    """Predict the label of new rows with a finished run's model. Nothing is sent or charged."""
    with loading():
        from polyclinic.ehr.datasets.tables import read_cells
        from polyclinic.files import write_file
        from polyclinic.runs.folder import Run
        from polyclinic.runs.predicting import predict as probabilities

    scores, _ = probabilities(Run.open(run), read_cells(records), str(records))
    write_file(out, scores.rename_axis("row").to_csv())
    value = {"predictions": str(out), "rows": len(scores), "classes": list(scores.columns)}
    answer(as_json, value, f"Predictions of {len(scores):,} rows: {out}")


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="File to write: .onnx, .pt (TorchScript) or .pt2 (torch.export).")],
    as_json: Json = False,
) -> None:
    """Write a finished run's model as one file with its preprocessing: raw columns in, probabilities out."""
    with loading():
        from polyclinic.runs.exporting import export as write
        from polyclinic.runs.folder import Run

    described = write(Run.open(run), out)
    value = {"model": str(out), "description": f"{out}.json", "inputs": len(described["inputs"])}
    answer(as_json, value, f"{out} takes {value['inputs']} columns, which {out}.json describes.")


def evaluate(run: RunFolder, records: TablePath, as_json: Json = False) -> None:
    """Judge a finished run's model on a table with labels. The figures are exact, NOT private, and for who holds the table."""
    with loading():
        from polyclinic.ehr.datasets.tables import read_cells
        from polyclinic.evaluation.metrics import classification_metrics
        from polyclinic.runs.folder import Run
        from polyclinic.runs.predicting import predict as probabilities

    opened = Run.open(run)
    scores, classes = probabilities(opened, read_cells(records), str(records))
    if classes is None:
        raise DataError(
            f"{records}: the label column {opened.schema().label.name!r} is missing; `polyclinic predict` needs none."
        )
    metrics: dict[str, float | None] = dict(classification_metrics(classes, scores.to_numpy()))
    if len(scores.columns) == 2:
        chance = scores.to_numpy()[:, 1]
        metrics |= {"mean_risk": float(chance.mean()), "observed": float((classes == 1).mean())}
    value = {"run": str(opened.path), "table": str(records), "rows": len(scores), "private": False, "metrics": metrics}
    rows = ((name, "not defined" if number is None else f"{number:.3f}") for name, number in metrics.items())
    answer(as_json, value, table(("metric", f"{len(scores):,} rows"), rows, words=("metric",)))
    if not as_json:
        say("These figures are exact, not private: keep them where the table is.")
