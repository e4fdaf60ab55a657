"""``polyclinic predict``, ``evaluate`` and ``export``: a finished run's model on records that lie here, and as one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyclinic.cli.terminal import Json, answer, interval, loading, number, say, table
from polyclinic.errors import ConfigError, DataError, PolyclinicError

if TYPE_CHECKING:
    from polyclinic.evaluation.assessment import Predictions
    from polyclinic.runs.folder import Run

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
        from polyclinic.ehr.sources.files import whole_table
        from polyclinic.files import write_file
        from polyclinic.runs.folder import Run
        from polyclinic.runs.predicting import predict as probabilities

    if not out.parent.is_dir():
        raise ConfigError(f"--out has the value {str(out)!r}, whose folder does not exist.")
    scores, _ = probabilities(Run.open(run), whole_table(records), str(records))
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


def evaluate(
    run: RunFolder,
    records: Annotated[
        Path | None, typer.Argument(metavar="TABLE", help="CSV or Parquet with the columns of the run's schema.")
    ] = None,
    hospital: Annotated[
        Path | None,
        typer.Option(help="In place of TABLE: the held-out patients of this hospital.toml.", show_default=False),
    ] = None,
    groups: Annotated[
        str, typer.Option(help="With --hospital: feature column by whose groups it is judged, too.", show_default=False)
    ] = "",
    as_json: Json = False,
) -> None:
    """Judge a finished run's model on records with labels. The figures are exact, NOT private, and for who holds the records."""
    if (records is None) == (hospital is None):
        raise ConfigError("Give exactly one of TABLE and --hospital.")
    if groups and not hospital:
        raise ConfigError("--groups is for --hospital.")
    with loading():
        from polyclinic.evaluation.assessment import assess
        from polyclinic.evaluation.groups import group_names
        from polyclinic.evaluation.judges import judge_of
        from polyclinic.programs import program_of
        from polyclinic.runs.folder import Run

    opened, site = Run.open(run), None
    if hospital:
        with loading():
            from polyclinic.client.evaluation import own_predictions

        site, rows = own_predictions(hospital, opened, groups)
    else:
        assert records is not None
        rows = _of_table(opened, records)
    schema = opened.schema()
    by = judge_of(program_of(opened.config()).objective(schema))
    assessment = assess({"": rows}, 0, groups, group_names(schema, groups) if groups else (), by)
    if assessment["undefined"]:
        raise PolyclinicError(f"There is nothing to judge: {assessment['undefined']}.")
    metrics, patients = assessment["pooled"], len(set(rows.patient.tolist()))
    value: dict[str, Any] = {
        "run": str(opened.path), "table": None if hospital else str(records), "hospital": site, "rows": len(rows.labels),
        "patients": patients, "private": False, "metrics": metrics, "calibration": assessment["calibration"],
        "groups": assessment["groups"],
    }  # fmt: skip
    shown = [(by.titles[name], interval(row)) for name, row in metrics.items()]
    if by.has_classes and rows.scores.shape[1] == 2:
        value |= {"mean_risk": float(rows.scores[:, 1].mean()), "observed": float((rows.labels == 1).mean())}
        shown += [(words, number(value[key])) for words, key in (("Mean risk", "mean_risk"), ("Observed", "observed"))]
    whose = (
        f"{patients:,} patients"
        if patients == len(rows.labels)
        else f"{len(rows.labels):,} rows of {patients:,} patients"
    )
    tables = [table(("metric", whose), shown, words=("metric",))]
    if by_group := assessment["groups"]:
        judged = [(name, row["metrics"]) for name, row in by_group["groups"].items() if row["metrics"]]
        lines = [(name, *(interval(row[key]) for key in by.of_groups)) for name, row in judged]
        tables.append(table((groups, *(by.titles[key] for key in by.of_groups)), lines))
    answer(as_json, value, *tables)
    if not as_json:
        say(
            f"These figures are for {site}'s own eyes: nothing was sent or charged, and no epsilon covers them if they leave."
            if site
            else "These figures are exact, not private: keep them where the table is."
        )


def _of_table(run: Run, records: Path) -> Predictions:
    """The predictions of a table's rows. Raises DataError where it has no labels."""
    import numpy as np
    import pandas as pd

    from polyclinic.ehr.sources.files import whole_table
    from polyclinic.evaluation.assessment import Predictions
    from polyclinic.runs.predicting import predict as probabilities

    cells, schema = whole_table(records), run.schema()
    scores, classes = probabilities(run, cells, str(records), labelled=True)
    if classes is None:
        raise DataError(
            f"{records}: the label column {schema.labels[0].name!r} is missing; `polyclinic predict` needs none."
        )
    column = schema.patient_id.name if schema.patient_id else ""
    patient = pd.factorize(cells[column])[0] if column in cells.columns else np.arange(len(cells))
    return Predictions(classes, scores.to_numpy(), patient)
