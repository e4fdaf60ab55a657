"""``polyclinic schema``: a draft of a schema from a file, and whether a schema, and records under it, are sound."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from polyclinic.cli.terminal import Json, answer, loading, styled, table

app = typer.Typer(no_args_is_help=True, help="The public description of records: draft it, check it.")


@app.command()
def infer(
    file: Annotated[str, typer.Argument(help="CSV or Parquet: a file, a folder or a pattern.")],
    out: Annotated[Path, typer.Option(help="The draft to write.")] = Path("schema.toml"),
    label: Annotated[str, typer.Option(help="Column of the outcome.")] = "",
    patient: Annotated[str, typer.Option(help="Column that names the patient; else one with a usual name.")] = "",
    as_json: Json = False,
) -> None:
    """Draft a schema for a person to confirm.

    It looks at real values: the draft is NOT private and stays inside the hospital. Its bounds and categories must be
    replaced by public ones; until then every command refuses the file.
    """
    with loading():
        from polyclinic.ehr.inference import infer_schema

    draft = infer_schema(file, label, patient)
    draft.to_toml(out)
    columns = [
        {key: column.get(key) for key in ("name", "kind", "role", "draft")} for column in draft.values["columns"]
    ]
    headings = ("column", "kind", "role", "to confirm")
    rows = ((one["name"], one["kind"], one["role"] or "feature", one["draft"] or "") for one in columns)
    warning = (
        f"{out} is a draft made from real values: it is not private. Keep it inside the hospital, and replace its bounds "
        "and categories by public ones before it is used."
    )
    answer(
        as_json,
        {"path": str(out), "rows": draft.rows, "private": False, "columns": columns, "notes": list(draft.notes)},
        table(headings, rows, words=headings), *styled("yellow", warning), *draft.notes,
    )  # fmt: skip


@app.command()
def check(
    schema: Annotated[Path, typer.Argument(help="The schema's TOML file.")],
    records: Annotated[
        str | None,
        typer.Argument(help="Records to read under it: what a hospital.toml names by 'data', or a hospital.toml."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a schema and, with it, records: exit code 2 and one sentence for the first thing that is wrong.

    The counts of rows, patients and missing cells are exact and NOT private: they are for the hospital alone.
    """
    with loading():
        from polyclinic.ehr.encoding import feature_names
        from polyclinic.ehr.schema import Schema

    found = Schema.from_toml(schema)
    result: dict[str, Any] = {
        "schema": str(schema), "name": found.name, "digest": found.digest(), "unit": found.unit,
        "columns": len(found.columns), "features": len(feature_names(found)), "classes": found.num_classes,
        "records": None if records is None else _counts(found, records),
    }  # fmt: skip
    answer(as_json, result, *_shown(result))


def _counts(schema: Any, records: str) -> dict[str, Any]:
    with loading():
        from polyclinic.client.home.policy import HospitalFile
        from polyclinic.client.home.records import own_records
        from polyclinic.ehr.shard import count_records
        from polyclinic.plugins import open_source

    if records.endswith(".toml"):
        hospital = HospitalFile.read(Path(records))
        return count_records(own_records(hospital, Path(records).resolve().parent, schema), schema, hospital.data)
    return count_records(open_source(records, Path(), {}, schema), schema, records)


def _shown(result: dict[str, Any]) -> Iterator[str | Text | Table]:
    what = f"{result['columns']} columns, {result['features']} encoded features, {result['classes']} classes"
    yield f"{result['name']}: {what}; unit {result['unit']}; sha256 {result['digest'][:12]}"
    counts = result["records"]
    if counts is None:
        return
    yield f"Records: {counts['rows']:,} rows of {counts['patients']:,} patients, all as the schema says."
    if holes := [(name, f"{number:,}") for name, number in counts["missing"].items() if number]:
        yield table(("column", "missing"), holes)
    yield from styled("yellow", "These counts are exact, not private: keep them inside the hospital.")
