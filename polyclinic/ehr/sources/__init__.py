"""Where records come from: files, databases, FHIR, OMOP, MIMIC and eICU, each read in chunks under a schema."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import pandas as pd

from polyclinic.ehr.schema import Schema
from polyclinic.ehr.sources import layouts
from polyclinic.ehr.sources.chunks import ROWS, Chunk, Place, Source, numbered, of_cohort, typed
from polyclinic.ehr.sources.fhir import fhir
from polyclinic.ehr.sources.files import file_chunks, files
from polyclinic.ehr.sources.mapped import layout_source
from polyclinic.ehr.sources.sql import sql

BUILT_IN: Mapping[str, Source] = {
    "files": files,
    "sql": sql,
    "fhir": fhir,
    "omop": layout_source(layouts.OMOP),
    "mimic3": layout_source(layouts.MIMIC3),
    "mimic4": layout_source(layouts.MIMIC4),
    "eicu": layout_source(layouts.EICU),
}


def read_records(path: str | Path, schema: Schema) -> pd.DataFrame:
    """The records at ``path`` with exactly the schema's columns (role "ignore" left out), typed by their kinds.

    path: a .csv, .csv.gz or .parquet file, a folder of such files, or a glob pattern; files are read in order of name.
    Empty cells, NA, NaN, null and ? are missing. Raises DataError naming file, column and data row, never a cell.
    """
    return pd.concat([typed(chunk, schema) for chunk in file_chunks(path, schema)], ignore_index=True)


def named_place(data: str, known: Collection[str]) -> tuple[str, str]:
    """The source's name and the rest of ``data``: ``"fhir:export"`` is of "fhir", ``"package.module:Name:export"`` of that
    object, a URL of "sql", a path of "files"."""
    name, colon, rest = data.partition(":")
    if colon and name in known:
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
    "named_place",
    "numbered",
    "of_cohort",
    "read_records",
    "typed",
]
