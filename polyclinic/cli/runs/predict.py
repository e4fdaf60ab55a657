"""``polyclinic predict``, ``evaluate`` and ``export``: a finished run's model on records that lie here, and as one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyclinic.cli.options import Force
from polyclinic.cli.terminal import Json, answer, interval, loading, number, say, style_lines, table
from polyclinic.errors import ConfigError, DataError, PolyclinicError
from polyclinic.files import as_text

if TYPE_CHECKING:
    from polyclinic.ehr.shard import Rows
    from polyclinic.ehr.sources.columns import ColumnMapping
    from polyclinic.evaluation.assessment import Predictions
    from polyclinic.runs.folder import Run

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run, or a folder that holds one.")]
TablePath = Annotated[
    Path, typer.Argument(metavar="TABLE", help="CSV or Parquet with the columns of the run's tables, or of its schema.")
]
Mapped = Annotated[
    Path | None,
    typer.Option(help="Read TABLE by the mapping of this hospital.toml.", show_default=False),
]


def predict(
    run: RunFolder,
    records: TablePath,
    out: Annotated[
        Path, typer.Option(help="CSV to write, with one row of predictions for each row or patient.")
    ] = Path("predictions.csv"),
    contributions: Annotated[
        Path | None,
        typer.Option(
            help="Second CSV to write: what each column adds to each prediction (model ebm).", show_default=False
        ),
    ] = None,
    hospital: Mapped = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Predict the label of new rows or visits with a finished run's model. Nothing is sent or charged."""
    with loading():
        from polyclinic.ehr.sources.files import whole_table
        from polyclinic.files import check_new, write_outputs
        from polyclinic.runs.folder import Run
        from polyclinic.runs.predicting import predict as predicted_by
        from polyclinic.runs.shapes import contributions as parts_of

    check_new([out, *filter(None, [contributions])], force)
    opened = Run.open(run)
    predicted = predicted_by(opened, whole_table(records), str(records), mapping=_mapping(hospital, opened))
    tables = {out: predicted.scores, **({contributions: parts_of(opened, predicted)} if contributions else {})}
    tables = {path: shown.rename_axis(shown.index.name or "row") for path, shown in tables.items()}
    scores = tables[out]
    write_outputs(
        {path: shown.rename(index=as_text, columns=as_text).to_csv() for path, shown in tables.items()}, force
    )
    value = {
        "predictions": str(out), "contributions": str(contributions) if contributions else None, "rows": len(scores),
        "by": scores.index.name, "classes": list(scores.columns),
        "notes": list(predicted.notes),
    }  # fmt: skip
    what = "rows" if scores.index.name == "row" else "patients"
    answer(as_json, value, f"Predictions of {len(scores):,} {what}: {out}", *style_lines("yellow", *predicted.notes))


def _mapping(hospital: Path | None, run: Run) -> ColumnMapping | None:
    if hospital is None:
        return None
    with loading():
        from polyclinic.client.own_eyes import own_mapping

    return own_mapping(hospital, run)


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="File to write: .onnx, .pt (TorchScript) or .pt2 (torch.export).")],
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write a finished run's model as one file with its preprocessing: raw columns in, probabilities out."""
    with loading():
        from polyclinic.runs.exporting import export as write
        from polyclinic.runs.folder import Run

    described = write(Run.open(run), out, force)
    value = {"model": str(out), "description": f"{out}.json", "inputs": len(described["inputs"])}
    answer(as_json, value, f"{out} takes {value['inputs']} columns, which {out}.json describes.")


def evaluate(
    run: RunFolder,
    records: Annotated[
        Path | None, typer.Argument(metavar="TABLE", help="CSV or Parquet with the columns of the run's schema.")
    ] = None,
    hospital: Annotated[
        Path | None,
        typer.Option(
            help="Without TABLE: the held-out patients of this hospital.toml. With TABLE: the hospital by whose mapping it is "
            "read, and whose training rows are counted in it.",
            show_default=False,
        ),
    ] = None,
    groups: Annotated[
        str, typer.Option(help="With --hospital: feature column, whose groups are judged too.", show_default=False)
    ] = "",
    as_json: Json = False,
) -> None:
    """Judge a finished run's model on records with labels. The figures are exact, NOT private, and for who holds the records."""
    if records is None and hospital is None:
        raise ConfigError("Give TABLE, or --hospital for its held-out patients.")
    if groups and (records is not None or not hospital):
        raise ConfigError("--groups is for the held-out patients of --hospital.")
    with loading():
        from polyclinic.evaluation.assessment import assess
        from polyclinic.evaluation.groups import group_names
        from polyclinic.evaluation.judges import judge_of
        from polyclinic.programs import program_of
        from polyclinic.runs.folder import Run

    opened, site, notes = Run.open(run), None, list[str]()
    trained: int | None = 0
    if records is None:
        assert hospital is not None
        with loading():
            from polyclinic.client.own_eyes import own_predictions

        site, rows = own_predictions(hospital, opened, groups)
    else:
        rows, notes, trained = _of_table(opened, records, hospital)
    schema = opened.schema()
    by = judge_of(program_of(opened.config()).objective(schema))
    assessment = assess({"": rows}, 0, groups, group_names(schema, groups) if groups else (), by)
    if assessment["undefined"]:
        raise PolyclinicError(f"There is nothing to judge: {assessment['undefined']}.")
    metrics, patients = assessment["pooled"], len(set(rows.patient.tolist()))
    value: dict[str, Any] = {
        "run": str(opened.path), "table": str(records) if records else None, "hospital": site, "rows": len(rows.labels),
        "patients": patients, "private": False, "metrics": metrics, "calibration": assessment["calibration"],
        "groups": assessment["groups"], "equal_to_trained": trained, "notes": notes,
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
    answer(as_json, value, *tables, *style_lines("yellow" if trained else "dim", *notes))
    if not as_json:
        say(
            f"These figures are for {site}'s own eyes: nothing was sent or charged, and no epsilon covers them if they leave."
            if site
            else "These figures are exact, not private: keep them where the table is."
        )


def _of_table(run: Run, records: Path, hospital: Path | None) -> tuple[Predictions, list[str], int | None]:
    """The predictions of a table's rows, notes of them, and how many rows equal rows that were trained on, None where that is
    not known.

    Raises DataError where it has no labels.
    """
    from polyclinic.ehr.sources.files import whole_table
    from polyclinic.evaluation.assessment import Predictions
    from polyclinic.runs.predicting import predict as predicted_by
    from polyclinic.runs.predicting import trained_on

    predicted = predicted_by(run, whole_table(records), str(records), labelled=True, mapping=_mapping(hospital, run))
    rows, notes = predicted.encoded, list(predicted.notes)
    if rows.y is None:
        raise DataError(
            f"{records}: the label column {run.schema().labels[0].name!r} is missing; `polyclinic predict` needs none."
        )
    if not len(rows.y):
        raise DataError(" ".join([f"{records}: no row can be judged.", *notes]))
    trained = None
    try:
        trained = trained_on(rows, _training_rows(run, hospital))
    except PolyclinicError as error:
        notes.append(f"Whether rows were trained on is not known. {error}")
    if trained:
        notes.append(
            f"{trained:,} of {len(rows.y):,} rows equal rows that were trained on; if they are the same patients, these figures "
            "are better than those of new ones."
        )
    return Predictions(rows.y, predicted.scores.to_numpy()[predicted.places], predicted.patient), notes, trained


def _training_rows(run: Run, hospital: Path | None) -> list[Rows]:
    """The rows that hospitals trained on. Raises PolyclinicError where they are not at hand."""
    if hospital is not None and not run.summary().simulation:
        from polyclinic.client.own_eyes import own_training_rows

        return [own_training_rows(hospital, run)]
    return [
        shard.train for shard in run.simulation("--hospital compares those of one's own hospital.toml").shards.values()
    ]
