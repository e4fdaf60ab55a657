"""``polyclinic schema``: a draft of a schema from a file, and whether a schema, and records under it, are sound."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from polyclinic.cli.terminal import Json, answer, loading, style_lines, table

app = typer.Typer(no_args_is_help=True, help="The public description of records: draft it, check it.")


@app.command()
def draft(
    file: Annotated[str, typer.Argument(help="One hospital's CSV or Parquet: a file, a folder or a pattern.")],
    out: Annotated[Path, typer.Option(help="The draft to write.")] = Path("schema.toml"),
    mapping: Annotated[
        Path | None,
        typer.Option(
            help="Mapping to write, if the hospital's cells need one. Default: mapping.toml beside the draft.",
            show_default=False,
        ),
    ] = None,
    label: Annotated[str, typer.Option(help="Column of the outcome. Default: one with a usual name.")] = "",
    patient: Annotated[str, typer.Option(help="Column that names the patient. Default: one with a usual name.")] = "",
    site: Annotated[str, typer.Option(help="Column of the hospital. Default: one with a usual name.")] = "",
    leave_out: Annotated[list[str] | None, typer.Option(help="Column that is not a feature; repeatable.")] = None,
    look: Annotated[
        bool,
        typer.Option("--look", help="Take bounds and categories from the records, as a simulation may. NOT private."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Draft a schema, and the mapping of a hospital's cells, for a person to confirm.

    Bounds and categories are left for a person to find in public; until then every command refuses the file.
    """
    with loading():
        from polyclinic.ehr.sources.hospital_draft import draft_schema

    mapping = mapping or out.with_name("mapping.toml")
    drafted = draft_schema(file, label, patient, site, leave_out or (), look)
    written = drafted.write(out, mapping)
    columns = [
        {key: column.get(key) for key in ("name", "kind", "role", "draft")} for column in drafted.values["columns"]
    ]
    headings = ("column", "kind", "role", "to confirm")
    rows = ((column["name"], column["kind"], column["role"] or "feature", column["draft"] or "") for column in columns)
    source = "has bounds and categories of the records, for a simulation" if look else "was made by looking at records"
    warning = f"{out} is a draft and {source}: it is not private. Keep it inside the hospital until a person has confirmed it."
    value = {
        "path": str(out), "mapping": str(mapping) if drafted.mapping else None, "rows": drafted.rows, "private": False,
        "columns": columns, "notes": list(drafted.notes),
    }  # fmt: skip
    mapped = (
        [f"{mapping} says how this hospital's cells are read; name it by 'mapping' in hospital.toml."]
        if written[1:]
        else []
    )
    answer(
        as_json, value, table(headings, rows, words=headings), *style_lines("yellow", warning), *mapped, *drafted.notes
    )


@app.command()
def check(
    schema: Annotated[Path, typer.Argument(help="The schema's TOML file.")],
    records: Annotated[
        str | None,
        typer.Argument(help="Records to check: what a hospital.toml names by 'data', or a hospital.toml."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a schema and, with it, records: exit code 2 and a sentence for each kind of fault.

    The counts of rows, patients and missing cells are exact and NOT private: they are for the hospital alone.
    """
    with loading():
        from polyclinic.ehr.encoding import feature_names
        from polyclinic.ehr.schema import Schema

    parsed = Schema.from_toml(schema)
    result: dict[str, Any] = {
        "schema": str(schema), "name": parsed.name, "digest": parsed.digest(), "unit": parsed.unit,
        "columns": len(parsed.columns), "features": len(feature_names(parsed)),
        "classes": parsed.num_classes if parsed.has_classes else None,
        "records": None if records is None else _counts(parsed, records),
    }  # fmt: skip
    answer(as_json, result, *_describe_schema(result))


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


def _describe_schema(result: dict[str, Any]) -> Iterator[str | Text | Table]:
    what = f"{result['columns']} columns, {result['features']} encoded features"
    what += f", {result['classes']} classes" if result["classes"] else ", a label without classes"
    yield f"{result['name']}: {what}; unit {result['unit']}; sha256 {result['digest'][:12]}"
    counts = result["records"]
    if counts is None:
        return
    yield f"Records: {counts['rows']:,} rows of {counts['patients']:,} patients, all as the schema says."
    if holes := [(name, f"{number:,}") for name, number in counts["missing"].items() if number]:
        yield table(("column", "missing"), holes)
    yield from style_lines("yellow", "These counts are exact, not private: keep them inside the hospital.")
