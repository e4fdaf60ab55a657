"""Where records come from: files, databases, FHIR, OMOP, MIMIC and eICU, each read in chunks under a schema."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import pandas as pd

from polyclinic.ehr.schema import Schema
from polyclinic.ehr.sources.chunks import ROWS, Chunk, Place, Source, as_chunks, of_cohort, typed_records
from polyclinic.ehr.sources.files import file_chunks

#: Where each source that comes with Polyclinic is, by name; loaded when it is asked for.
BUILT_IN: Mapping[str, str] = {
    name: f"polyclinic.ehr.sources.{place}"
    for name, place in {
        "files": "files:files",
        "sql": "sql:sql",
        "fhir": "fhir:fhir",
        "omop": "mapped:omop",
        "mimic3": "mapped:mimic3",
        "mimic4": "mapped:mimic4",
        "eicu": "mapped:eicu",
    }.items()
}


def read_records(path: str | Path, schema: Schema) -> pd.DataFrame:
    """The records at ``path`` with exactly the schema's columns (role "ignore" left out), typed by their kinds.

    path: a .csv, .csv.gz or .parquet file, a folder of such files, or a glob pattern; files are read in order of name.
    Empty cells, NA, NaN, null and ? are missing. Raises DataError naming file, column and data row, never a cell.
    """
    return pd.concat([typed_records(chunk, schema) for chunk in file_chunks(path, schema)], ignore_index=True)


def named_place(data: str, sources: Collection[str]) -> tuple[str, str]:
    """Return the source's name and the rest of ``data``.

    ``"fhir:export"`` is of "fhir", ``"package.module:Name:export"`` of that object, a URL of "sql", a path of "files".
    """
    name, colon, rest = data.partition(":")
    if colon and name in sources:
        return name, rest
    attribute, more, place = rest.partition(":")
    if more and attribute.isidentifier() and all(part.isidentifier() for part in name.split(".")):
        return f"{name}:{attribute}", place
    return ("sql" if "://" in data else "files"), data


__all__ = [
    "BUILT_IN",
    "ROWS",
    "Chunk",
    "Place",
    "Source",
    "as_chunks",
    "named_place",
    "of_cohort",
    "read_records",
    "typed_records",
]
