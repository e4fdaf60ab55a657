"""Hospitals by their ``hospital.toml`` files as a dataset for a simulation: each with its own source, cohort and mapping.

Nothing is drafted: the schema is the public one that the files name. Policies and ledgers of the files are not used, for a
simulation has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path

import pandas as pd

from polyclinic.client.home.policy import HospitalFile
from polyclinic.client.home.records import own_records
from polyclinic.ehr.datasets.dataset import Dataset
from polyclinic.ehr.datasets.tables import SITE, hospital_files, own_patients
from polyclinic.ehr.faults import all_or_faults
from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.sources import typed_records
from polyclinic.errors import ConfigError, DataError, several


def hospitals(files: str | Sequence[str] = "", schema: str = "", mapping: str = "", cohort: str = "") -> Dataset:
    """The dataset of the hospitals that ``files``, one ``hospital.toml`` or several, describe.

    Args:
        files: With ``schema`` they are tables, as ``tables`` takes them: one for each hospital, or of the hospitals that the
            schema's column of role "site" names.
        schema, mapping, cohort: Files that hold for all hospitals' tables, as the keys of a ``hospital.toml``.

    Raises:
        ConfigError: for a file that is wrong or not there, two of one site, and files of unlike schemas.
        DataError: for records that cannot be read, and with all faults for those that the schema does not allow.
    """
    if schema:
        common = {"schema": schema, "mapping": mapping, "cohort": cohort, "home": ".", "policy": {}}
        described = [
            (path, HospitalFile.model_validate({"site": site, "data": str(path), **common}))
            for site, path in hospital_files(files)
        ]
    else:
        described = [
            (Path(text), HospitalFile.read(Path(text))) for text in ([files] if isinstance(files, str) else files)
        ]
    used = [
        path.parent / name
        for path, hospital in described
        for name in (path.name, hospital.data, hospital.schema_, hospital.mapping, hospital.cohort)
    ]
    # A database has no time of its last change: within a process it is read once.
    stamps = tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in used)
    places = tuple((str(path), hospital.model_dump_json(by_alias=True)) for path, hospital in described)
    return _dataset(places, stamps, of_tables=bool(schema))


@lru_cache(maxsize=4)
def _dataset(files: tuple[tuple[str, str], ...], stamps: tuple[int, ...], of_tables: bool) -> Dataset:
    described = {Path(path): HospitalFile.model_validate_json(text) for path, text in files}
    sites = [hospital.site for hospital in described.values()]
    if len(set(sites)) < len(files):
        raise ConfigError(f"Two files are of one hospital, of {several(sites)}; each must have a 'site' of its own.")
    schemas = [Schema.from_toml(path.parent / hospital.schema_) for path, hospital in described.items()]
    schema = schemas[0]
    if unlike := [site for site, its in zip(sites, schemas, strict=True) if its.digest() != schema.digest()]:
        raise ConfigError(
            f"The schema of {several(unlike)} is not that of {sites[0]}; all hospitals need the same one."
        )

    def records_of(path: Path, hospital: HospitalFile) -> pd.DataFrame:
        chunks = own_records(hospital, path.parent.resolve(), schema)
        parts = all_or_faults(partial(typed_records, chunk, schema) for chunk in chunks)
        if not sum(map(len, parts)):
            raise DataError(f"{path}: there are no records.")
        return pd.concat(parts, ignore_index=True).assign(**{_SITE: hospital.site})

    frames = all_or_faults(partial(records_of, path, hospital) for path, hospital in described.items())
    records = pd.concat(frames, ignore_index=True)
    names = records.pop(_SITE)
    if of_tables and schema.site:
        names = records[schema.site.name]
        sites = list(dict.fromkeys(names))
    site = schema.site.name if schema.site else SITE if SITE not in records else f"{SITE} of the file"
    records[site] = names
    notes = [
        "Hospitals are read by their files under their public schema. The simulation has a policy and ledgers of "
        "its own; those of the files are not used."
    ]
    if of_tables and schema.site:
        notes.append(f"The hospital is the value of {schema.site.name!r}, whose role in the schema is 'site'.")
    if schema.patient_id:
        patient = schema.patient_id.name
        records[patient], shared = own_patients(patient, records[patient], names)
        notes += shared
    columns = schema.columns if schema.site else (*schema.columns, Column(name=site, kind="categorical", role="site"))
    return Dataset(
        name=schema.name, title=f"{schema.name}, hospitals of one's own", description="Hospitals that were given for this run.",
        schema=schema.model_copy(update={"columns": columns}), licence="yours", citation="yours", rows=len(records),
        patients=records[schema.patient_id.name].nunique() if schema.patient_id else len(records), default_sites=len(sites),
        default_partitioner="natural", load=lambda: records.copy(), available=lambda: True, natural_sites=tuple(sites),
        notes=tuple(notes), own_numbers=schema.patient_id is not None,
    )  # fmt: skip


_SITE = "\0site"
