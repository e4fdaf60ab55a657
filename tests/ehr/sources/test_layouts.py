"""Clinical tables by a mapping file: MIMIC-III and eICU against their own tables read by hand, OMOP and FHIR made here."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import read_shard
from polyclinic.ehr.sources import typed_records
from polyclinic.errors import ConfigError, DataError
from polyclinic.plugins import open_source
from tests.ehr.conftest import _real

CANARY = "canary-4711"


def read(data: str, folder: Path, mapping: str, schema: Schema, **options: str) -> pd.DataFrame:
    (folder / "mapping.toml").write_text(mapping)
    chunks = open_source(data, folder, {"mapping": "mapping.toml", **options}, schema)
    return pd.concat([typed_records(chunk, schema) for chunk in chunks], ignore_index=True)


def _schema(*columns: Column) -> Schema:
    identity = Column(name="patient", kind="categorical", role="patient_id")
    return Schema(name="s", columns=(identity, *columns, Column(name="died", kind="binary", role="label")))


def test_mimic3_admissions_with_their_laboratory_and_diagnoses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = _real("mimic3_demo_1.4/ADMISSIONS.csv.gz", monkeypatch)
    schema = _schema(
        Column(name="sex", kind="categorical", categories=("M", "F")),
        Column(name="age", kind="integer", bounds=(0, 320)),  # those over 89 are 300 in MIMIC
        Column(name="sodium", kind="continuous", bounds=(90, 200), nullable=True),
        Column(name="creatinine", kind="continuous", bounds=(0, 30), nullable=True),
        Column(name="sepsis", kind="binary"),
        Column(name="potassium", kind="trajectory", steps=3, bounds=(0, 20), nullable=True),
    )
    mapping = """
    [rows]
    table = "ADMISSIONS"
    key = "hadm_id"
    index = "admittime"
    [[columns]]
    name = "patient"
    value = "subject_id"
    [[columns]]
    name = "sex"
    table = "PATIENTS"
    by = "subject_id"
    value = "gender"
    [[columns]]
    name = "age"
    table = "PATIENTS"
    by = "subject_id"
    value = "dob"
    take = "years"
    [[columns]]
    name = "sodium"
    table = "LABEVENTS"
    codes = ["50983"]
    take = "first"
    to = 24
    units = { "mEq/L" = 1 }
    [[columns]]
    name = "creatinine"
    table = "LABEVENTS"
    codes = ["50912"]
    take = "mean"
    [[columns]]
    name = "sepsis"
    table = "DIAGNOSES_ICD"
    codes = ["99591", "99592", "038*"]
    take = "any"
    [[columns]]
    name = "potassium"
    table = "LABEVENTS"
    codes = ["50971"]
    [[columns]]
    name = "died"
    value = "hospital_expire_flag"
    """
    found = read(f"mimic3:{folder}", tmp_path, mapping, schema)

    admissions = pd.read_csv(folder / "ADMISSIONS.csv.gz", parse_dates=["admittime"])
    patients = pd.read_csv(folder / "PATIENTS.csv.gz", parse_dates=["dob"]).set_index("subject_id")
    labs = pd.read_csv(folder / "LABEVENTS.csv.gz", parse_dates=["charttime"])
    icd = pd.read_csv(folder / "DIAGNOSES_ICD.csv.gz", dtype={"icd9_code": str})
    assert len(found) == 129 and found["died"].sum() == 40
    assert found["patient"].tolist() == admissions["subject_id"].astype(str).tolist()
    assert found["sex"].tolist() == patients.loc[admissions["subject_id"], "gender"].tolist()
    born = patients["dob"].loc[admissions["subject_id"]].tolist()
    ages = [
        a.year - b.year - ((a.month, a.day) < (b.month, b.day))
        for a, b in zip(admissions["admittime"], born, strict=True)
    ]
    assert found["age"].tolist() == ages
    for number, (hadm, start) in enumerate(zip(admissions["hadm_id"], admissions["admittime"], strict=True)):
        own = labs[labs["hadm_id"] == hadm].dropna(subset="valuenum")
        sodium = own[(own["itemid"] == 50983) & (own["charttime"] < start + pd.Timedelta("24h"))].sort_values(
            "charttime"
        )
        expected = sodium["valuenum"].iloc[0] if len(sodium) else np.nan
        np.testing.assert_equal(found["sodium"][number], expected)
        creatinine = own.loc[own["itemid"] == 50912, "valuenum"].mean()
        np.testing.assert_allclose(found["creatinine"][number], creatinine)
        codes = icd.loc[icd["hadm_id"] == hadm, "icd9_code"].astype(str)
        assert found["sepsis"][number] == codes.str.match(r"99591$|99592$|038").any()
        potassium = own[own["itemid"] == 50971].sort_values("charttime", kind="stable")["valuenum"].head(3)
        cells = found.loc[number, ["potassium_00", "potassium_01", "potassium_02"]].astype(float)
        np.testing.assert_array_equal(cells.dropna(), potassium)


def test_eicu_stays_with_minutes_from_admission(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = _real("eicu_demo_2.0.1/patient.csv.gz", monkeypatch)
    schema = _schema(
        Column(name="region", kind="categorical", role="site"),
        Column(name="age", kind="integer", bounds=(0, 120), nullable=True),
        Column(name="systolic", kind="continuous", bounds=(0, 400), nullable=True),
        Column(name="infected", kind="binary"),
    )
    mapping = """
    [rows]
    table = "patient"
    key = "patientunitstayid"
    where = { hospitaldischargestatus = ["Alive", "Expired"] }
    [[columns]]
    name = "patient"
    value = "uniquepid"
    [[columns]]
    name = "region"
    table = "hospital"
    by = "hospitalid"
    value = "region"
    default = "unknown"
    [[columns]]
    name = "age"
    value = "age"
    values = { "> 89" = "90" }
    [[columns]]
    name = "systolic"
    table = "vitalAperiodic"
    value = "noninvasivesystolic"
    take = "max"
    from = 0
    to = 24
    [[columns]]
    name = "infected"
    table = "diagnosis"
    codes = ["038*"]
    take = "any"
    [[columns]]
    name = "died"
    value = "hospitaldischargestatus"
    values = { Alive = "0", Expired = "1" }
    """
    found = read(f"eicu:{folder}", tmp_path, mapping, schema)
    stays = pd.read_csv(folder / "derived" / "stays.csv.gz").dropna(subset="hosp_mortality").reset_index(drop=True)
    assert len(found) == 2492 and found["died"].sum() == 212
    assert found["patient"].tolist() == stays["uniquepid"].tolist()
    np.testing.assert_array_equal(found["age"].to_numpy(dtype=float, na_value=np.nan), stays["age_years"])
    assert found["region"].value_counts().to_dict() == stays["region"].fillna("unknown").value_counts().to_dict()
    vital = pd.read_csv(folder / "vitalAperiodic.csv.gz")
    first_day = vital[(vital["observationoffset"] >= 0) & (vital["observationoffset"] < 1440)]
    highest = first_day.groupby("patientunitstayid")["noninvasivesystolic"].max()
    np.testing.assert_array_equal(found["systolic"], highest.reindex(stays["patientunitstayid"]))
    shard = read_shard(open_source(f"eicu:{folder}", tmp_path, {"mapping": "mapping.toml"}, schema), schema, "eicu")
    assert shard.patients == stays["uniquepid"].nunique()


OMOP = """
[rows]
table = "visit_occurrence"
key = "visit_occurrence_id"
index = "visit_start_datetime"
where = { visit_concept_id = ["9201"] }
[[columns]]
name = "patient"
value = "person_id"
[[columns]]
name = "born"
table = "person"
by = "person_id"
value = "year_of_birth"
[[columns]]
name = "sex"
table = "person"
by = "person_id"
value = "gender_concept_id"
values = { "8507" = "male", "8532" = "female" }
[[columns]]
name = "temperature"
table = "measurement"
codes = ["3020891"]
time = "measurement_datetime"
take = "mean"
to = 24
units = { "586323" = 1, "9289" = [0.5555555555555556, -17.77777777777778] }
within = [25, 45]
[[columns]]
name = "diabetes"
table = "condition_occurrence"
by = "person_id"
codes = ["201826"]
take = "any"
[[columns]]
name = "died"
table = "death"
by = "person_id"
take = "any"
from = 0
to = 720
"""


def _omop() -> tuple[dict[str, pd.DataFrame], Schema]:
    tables = {
        "person": pd.DataFrame(
            {"person_id": [1, 2, 3], "year_of_birth": [1950, 1960, 1970], "gender_concept_id": [8507, 8532, 8507]}
        ),
        "visit_occurrence": pd.DataFrame(
            {
                "visit_occurrence_id": [10, 11, 20, 30],
                "person_id": [1, 1, 2, 3],
                "visit_concept_id": [9201, 9201, 9201, 9202],
                "visit_start_datetime": [
                    "2020-01-01 08:00:00",
                    "2020-06-01 08:00:00",
                    "2020-01-01 08:00:00",
                    "2020-01-01 08:00:00",
                ],
            }
        ),
        "measurement": pd.DataFrame(
            {
                "visit_occurrence_id": [10, 10, 10, 20, 20, 30],
                "person_id": [1, 1, 1, 2, 2, 3],
                "measurement_concept_id": [3020891, 3020891, 999, 3020891, 3020891, 3020891],
                "measurement_datetime": [
                    "2020-01-01 09:00:00",
                    "2020-01-01 10:00:00",
                    "2020-01-01 10:00:00",
                    "2020-01-01 09:00:00",
                    "2020-01-03 09:00:00",
                    "2020-01-01 10:00:00",
                ],
                "value_as_number": [38.0, 102.2, 1.0, 370.0, 39.0, 37.0],
                "unit_concept_id": [586323, 9289, 0, 586323, 586323, 586323],
            }
        ),
        "condition_occurrence": pd.DataFrame(
            {"person_id": [2], "condition_concept_id": [201826], "condition_start_date": ["2019-01-01"]}
        ),
        "death": pd.DataFrame({"person_id": [1], "death_date": ["2020-06-10"], "cause_concept_id": [0]}),
    }
    schema = _schema(
        Column(name="born", kind="integer", bounds=(1900, 2020)),
        Column(name="sex", kind="categorical", categories=("male", "female")),
        Column(name="temperature", kind="continuous", bounds=(25, 45), nullable=True),
        Column(name="diabetes", kind="binary"),
    )
    return tables, schema


def _check_omop(found: pd.DataFrame) -> None:
    assert found["patient"].tolist() == ["1", "1", "2"] and found["born"].tolist() == [1950, 1950, 1960]
    assert found["sex"].tolist() == ["male", "male", "female"] and found["diabetes"].tolist() == [0, 0, 1]
    np.testing.assert_allclose(found["temperature"], [38.5, np.nan, np.nan])
    assert found["died"].tolist() == [0, 1, 0]


@pytest.mark.parametrize("form", ["csv", "parquet", "parts", "sqlite"])
def test_omop_tables_in_files_and_in_a_database(form: str, tmp_path: Path) -> None:
    tables, schema = _omop()
    (tmp_path / "cdm").mkdir()
    for name, table in tables.items():
        if form == "csv":
            table.rename(columns=str.upper).to_csv(tmp_path / "cdm" / f"{name.upper()}.csv", index=False)
        elif form == "parquet":
            table.to_parquet(tmp_path / "cdm" / f"{name}.parquet")
        elif form == "parts":
            (tmp_path / "cdm" / name).mkdir()
            for start in range(0, len(table), 2):
                table.iloc[start : start + 2].to_parquet(tmp_path / "cdm" / name / f"part-{start}.parquet")
        else:
            with sqlite3.connect(tmp_path / "cdm.db") as connection:
                table.to_sql(name, connection, index=False)
            connection.close()
    _check_omop(read("omop:sqlite:///cdm.db" if form == "sqlite" else "omop:cdm", tmp_path, OMOP, schema))


FHIR = """
[rows]
table = "Encounter"
key = "encounter"
index = "start"
where = { class = ["IMP"] }
[[columns]]
name = "patient"
value = "patient"
[[columns]]
name = "age"
table = "Patient"
by = "patient"
value = "birthDate"
take = "years"
[[columns]]
name = "state"
table = "Patient"
by = "patient"
value = "address.state"
[[columns]]
name = "sbp"
table = "Observation"
codes = ["8480-6"]
take = "last"
to = 48
units = { "mm[Hg]" = 1, "kPa" = 7.50062 }
[[columns]]
name = "conditions"
table = "Condition"
by = "patient"
codes = ["I10", "E11*"]
take = "codes"
characters = 3
[[columns]]
name = "drugs"
table = "MedicationRequest"
take = "count"
[[columns]]
name = "died"
table = "Patient"
by = "patient"
value = "deceased"
values = { true = "1", false = "0" }
default = "0"
"""


def fhir_export(folder: Path) -> Schema:
    def code(*codings: str) -> dict[str, Any]:
        return {"coding": [{"system": "http://loinc.org", "code": c} for c in codings]}

    def about(kind: str, number: str, patient: str, stay: str | None = None) -> dict[str, Any]:
        found: dict[str, Any] = {"resourceType": kind, "id": number, "subject": {"reference": patient}}
        return {**found, "encounter": {"reference": f"Encounter/{stay}"}} if stay else found

    pressure = {"code": code("85354-9"), "status": "final", "effectiveDateTime": "2020-01-01T12:00:00Z"}
    resources: dict[str, list[dict[str, Any]]] = {
        "Patient": [
            {
                "resourceType": "Patient",
                "id": "p1",
                "birthDate": "1950-06-01",
                "address": [{"state": "MA"}],
                "deceasedBoolean": False,
            },
            {
                "resourceType": "Patient",
                "id": "p2",
                "birthDate": "1960-01",
                "address": [{"state": "NY"}],
                "deceasedDateTime": "2020-02-01",
            },
            {"resourceType": "Patient", "id": "p3", "birthDate": "1970", "address": [{"state": "MA"}]},
        ],
        "Encounter": [
            about("Encounter", "e1", "Patient/p1")
            | {"class": {"code": "IMP"}, "period": {"start": "2020-01-01T10:00:00+01:00"}},
            about("Encounter", "e2", "https://x.org/fhir/Patient/p2")
            | {"class": {"code": "IMP"}, "period": {"start": "2020-01-01"}},
            about("Encounter", "e3", "urn:uuid:p3") | {"class": {"code": "IMP"}, "period": {"start": "2020-01-01"}},
            about("Encounter", "e4", "Patient/p3") | {"class": {"code": "AMB"}, "period": {"start": "2020-03-01"}},
        ],
        "Observation": [
            about("Observation", "o1", "Patient/p1", "e1")
            | pressure
            | {
                "component": [
                    {
                        "code": code("8480-6", "271649006"),
                        "valueQuantity": {"value": 130, "unit": "mmHg", "code": "mm[Hg]"},
                    },
                    {"code": code("8462-4"), "valueQuantity": {"value": 80, "code": "mm[Hg]"}},
                ]
            },
            about("Observation", "o2", "Patient/p2", "e2")
            | pressure
            | {"code": code("8480-6"), "valueQuantity": {"value": 16, "code": "kPa"}},
            about("Observation", "o3", "Patient/p2", "e2")
            | pressure
            | {
                "code": code("8480-6"),
                "status": "entered-in-error",
                "effectiveDateTime": "2020-01-01T13:00:00Z",
                "valueQuantity": {"value": 1, "code": "kPa"},
            },
            about("Observation", "o4", "Patient/p3", "e3")
            | pressure
            | {
                "code": code("8480-6"),
                "effectiveDateTime": "2020-01-04",
                "valueQuantity": {"value": 99, "code": "mm[Hg]"},
            },
        ],
        "Condition": [
            about("Condition", "c1", "Patient/p1") | {"code": code("I10", "38341003")},
            about("Condition", "c2", "Patient/p1") | {"code": code("E11.9")},
            about("Condition", "c3", "Patient/p2") | {"code": code("I10"), "verificationStatus": code("refuted")},
        ],
        "MedicationRequest": [
            about("MedicationRequest", f"m{n}", "Patient/p1", "e1")
            | {"medicationCodeableConcept": code("a", "b"), "status": "active"}
            for n in range(2)
        ],
    }
    folder.mkdir()
    for kind, found in resources.items():
        text = "\n".join(json.dumps(resource) for resource in found) + "\n"
        (folder / f"{kind}.0001.ndjson").write_text(text)
    packed = folder / "Condition.0001.ndjson"
    with gzip.open(f"{packed}.gz", "wt") as out:
        out.write(packed.read_text())
    packed.unlink()
    return _schema(
        Column(name="age", kind="integer", bounds=(0, 120)),
        Column(name="state", kind="categorical", categories=("MA", "NY")),
        Column(name="sbp", kind="continuous", bounds=(40, 300), nullable=True),
        Column(name="conditions", kind="code_set", categories=("I10", "E11")),
        Column(name="drugs", kind="integer", bounds=(0, 50)),
    )


def test_fhir_resources_flattened_and_mapped(tmp_path: Path) -> None:
    schema = fhir_export(tmp_path / "export")
    found = read("fhir:export", tmp_path, FHIR, schema)
    assert found["patient"].tolist() == ["p1", "p2", "p3"] and found["age"].tolist() == [69, 60, 50]
    assert found["state"].tolist() == ["MA", "NY", "MA"] and found["conditions"].tolist() == ["E11;I10", "", ""]
    np.testing.assert_allclose(found["sbp"], [130.0, 16 * 7.50062, np.nan])
    assert found["drugs"].tolist() == [2, 0, 0] and found["died"].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (('name = "age"', 'name = "agee"'), "column 'age' must be mapped exactly once"),
        (('take = "last"', 'tkae = "last"'), "key 'columns.3.tkae'.*Did you mean 'take'"),
        (('take = "last"', 'take = "latest"'), "key 'columns.3.take'"),
        (("to = 48", "to = -1\nfrom = 5"), "key 'columns.3': 'from' must lie before 'to'"),
        (('table = "MedicationRequest"', 'table = "Medicine"'), "'medicine' is not a resource that is read"),
        (('table = "MedicationRequest"', 'table = "MedicationRequest"\nto = 3\nvalue = 3'), "key 'columns.5.value'"),
        (('index = "start"', ""), "need 'index' of .rows."),
        (('"kPa" = 7.50062', '"psi" = 51'), "a unit that 'units' does not list"),
        (
            ('key = "encounter"\nindex = "start"\nwhere = { class = ["IMP"] }', 'key = "patient"'),
            "column 'patient' must tell rows apart",
        ),
        (("[rows]", "[rows"), "is not valid TOML"),
    ],
)
def test_a_mapping_that_is_wrong_is_told_so(change: tuple[str, str], sentence: str, tmp_path: Path) -> None:
    schema = fhir_export(tmp_path / "export")
    assert change[0] in FHIR
    with pytest.raises(DataError, match=sentence):
        read("fhir:export", tmp_path, FHIR.replace(*change, 1), schema)


def test_what_is_not_there_or_damaged_is_told_so_without_a_cell(tmp_path: Path) -> None:
    schema = fhir_export(tmp_path / "export")
    with pytest.raises(ConfigError, match="the key 'mapping' of .source. is missing"):
        list(open_source("fhir:export", tmp_path, {}, schema))
    with pytest.raises(DataError, match="there is no Encounter.ndjson"):
        read("fhir:nowhere", tmp_path, FHIR, schema)
    with pytest.raises(DataError, match="there is no table 'encounter'"):
        read("omop:export", tmp_path, FHIR, schema)
    file = tmp_path / "export" / "Observation.0001.ndjson"
    file.write_text(file.read_text() + f'{{"resourceType": "{CANARY}"\n')
    with pytest.raises(DataError, match="Observation.0001.ndjson: the file cannot be read near line 5") as caught:
        read("fhir:export", tmp_path, FHIR, schema)
    assert CANARY not in str(caught.value)
