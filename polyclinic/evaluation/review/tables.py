"""What a packet is made of: a synthetic table, or one drawn from a run, and the names of codes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Checked, check_chunks
from polyclinic.ehr.sources.files import column_names, file_chunks, found_files
from polyclinic.errors import DataError, several
from polyclinic.synthesis.certificate import certificate_path
from polyclinic.synthesis.release import run_in, synthesize


def schema_of_run(run: Path, out: Path, rows: int, seed: int) -> tuple[Schema, Path]:
    """The schema of a finished run of task synthesis, and ``out``, to which ``rows`` rows were drawn from its generator.

    Raises ConfigError or DataError as ``synthesize`` does.
    """
    synthesize(run, rows, out, seed=seed)
    return Schema.from_toml(run_in(run) / "schema.toml"), out


def read_synthetic(path: Path, schema: Schema) -> Checked:
    """The synthetic records in a CSV or Parquet file, checked against the schema of what reviewers see.

    Raises DataError where the file has other columns than the schema, or its certificate names another schema.
    """
    known = {name for column in schema.columns for name in column.record_names}
    for file in found_files(path):
        if unknown := [name for name in column_names(file) if name not in known]:
            raise DataError(
                f"{file}: the schema {schema.name!r} has no column {several(map(repr, unknown))}; real and synthetic "
                "patients must be of one schema."
            )
    _check_certificate(path, schema)
    return check_chunks(file_chunks(path, schema), schema, str(path))


def _check_certificate(path: Path, schema: Schema) -> None:
    place = certificate_path(path)
    if not place.is_file():
        return
    try:
        columns, name = (found := json.loads(place.read_text(encoding="utf-8")))["columns"], found["schema"]["name"]
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{place} cannot be read as a certificate of synthetic records.") from None
    wanted = [name for column in schema.columns for name in column.record_names]
    if name != schema.name or columns != wanted:
        raise DataError(
            f"{path} was drawn for the schema {name!r} with other columns than {schema.name!r} has; give the run's own "
            "schema.toml by --schema."
        )


def read_names(path: Path) -> dict[str, str]:
    """What codes and categories mean, by a CSV file with columns ``code`` and ``name``. Raises DataError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:  # as spreadsheets write it
            rows = csv.DictReader(file)
            if not {"code", "name"} <= set(rows.fieldnames or ()):
                raise DataError(f"{path}: the header must have the columns 'code' and 'name'.")
            return {row["code"].strip(): row["name"].strip() for row in rows if row["code"] and row["name"]}
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or 'no reason given'}.") from None
    except (UnicodeDecodeError, csv.Error):
        raise DataError(f"{path}: the file cannot be read; it must be UTF-8 CSV.") from None
