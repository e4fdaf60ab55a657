"""A real hospital's own records: read from its source, chosen by its cohort, and made the schema's by its mapping."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from polyclinic.client.home.policy import HospitalFile
from polyclinic.ehr.cohorts import Cohort, Flow
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.sources import Chunk, of_cohort
from polyclinic.ehr.sources.columns import ColumnMapping, map_columns, own_schema
from polyclinic.errors import ConfigError
from polyclinic.plugins import open_source


def check_files(described: HospitalFile, folder: Path, schema: Schema) -> None:
    """Checks the mapping and cohort files; reads no record.

    Args:
        described: The content of the hospital's file.
        folder: The folder of that file, to which its paths are relative.
        schema: The public schema.

    Raises:
        ConfigError: A mapping or cohort file is wrong.
    """
    if described.mapping:
        ColumnMapping.read(folder / described.mapping, schema)
    if described.cohort:
        Cohort.read(folder / described.cohort)


def own_records(described: HospitalFile, folder: Path, schema: Schema) -> Iterator[Chunk]:
    """The hospital's records in chunks with the schema's columns.

    A cohort's steps speak of the hospital's own columns, before its mapping.

    Args:
        described: The content of the hospital's file.
        folder: The folder of that file, to which its paths are relative.
        schema: The public schema.

    Raises:
        ConfigError, DataError: The source, the mapping or the cohort cannot be read.
    """
    mapping = ColumnMapping.read(folder / described.mapping, schema) if described.mapping else ColumnMapping()
    cohort = Cohort.read(folder / described.cohort) if described.cohort else None
    own = own_schema(mapping, schema)
    chunks = open_source(described.data, folder, described.source, cohort.widen(own) if cohort else own)
    if cohort:
        chunks = of_cohort(chunks, cohort, own.patient_id.name if own.patient_id else None, described.data)
    return map_columns(chunks, mapping, schema)


def own_flow(path: Path) -> Flow:
    """How many rows and patients each step of a hospital's cohort leaves: exact counts, for the hospital alone.

    path: its ``hospital.toml``. Raises ConfigError where it has no cohort, DataError for records that cannot be read.
    """
    described, folder = HospitalFile.read(path), path.resolve().parent
    flow = None
    for chunk in own_records(described, folder, Schema.from_toml(folder / described.schema_)):
        flow = chunk.flow or flow
    if flow is None:
        raise ConfigError(
            f"{path}: there are no steps to count; name a file with [[steps]] by 'cohort', or no record is there."
        )
    return flow
