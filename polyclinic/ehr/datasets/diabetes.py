"""Diabetes 130: 101,766 hospital encounters of 71,518 patients with diabetes, and readmission within 30 days.

Three datasets of one file: encounters that did not end in death or a hospice, Strack's (of these each patient's first),
and every encounter. Groups of diagnoses are those of Strack et al. 2014, table 2. No hospital was published, so a site is
made from a column that stands in for one, or dealt.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from polyclinic.ehr.cohorts import Flow
from polyclinic.ehr.datasets.dataset import Dataset, Files
from polyclinic.ehr.schema import Schema

FILES = Files(
    dataset="diabetes-130",
    folder="diabetes130",
    url="https://archive.ics.uci.edu/static/public/296/diabetes+130-us+hospitals+for+years+1999-2008.zip",
    published={"diabetic_data.csv": "0689e7ec031237dc63031b938805c48377748761a3b26acab621567afa24df97"},
    copies={
        "diabetic_data.csv": (
            "diabetic_data.csv.gz",
            "16209e462b906f828e2423f7a9f783f4c4472ad81abd7d653f4e19b46da76e82",
        )
    },
    archive=True,
)
ROWS, PATIENTS = 101766, 71518

#: Discharge dispositions after which nobody is readmitted: expired (11, 19, 20, 21) or to a hospice (13, 14).
DEAD_OR_HOSPICE = ("11", "13", "14", "19", "20", "21")

SCHEMA = Schema.from_toml(Path(__file__).with_suffix(".toml"))
SCHEMA_FIRST = SCHEMA.model_copy(update={"name": "diabetes-130-first"})
SCHEMA_ALL = Schema(
    name="diabetes-130-all",
    columns=tuple(column for column in SCHEMA.columns if column.name != "discharge"),
    rules=SCHEMA.rules,
)
_ADMISSION_TYPES = {"1": "emergency", "2": "urgent", "3": "elective"}
_SOURCES = {"1": "referral", "2": "referral", "3": "referral", "7": "emergency-room", "4": "transfer",
            "5": "transfer", "6": "transfer", "10": "transfer", "22": "transfer", "25": "transfer"}  # fmt: skip
_DISCHARGES = {"1": "home", "2": "short-term-hospital", "3": "skilled-nursing", "4": "intermediate-care",
               "5": "other-inpatient", "6": "home-care", "7": "against-advice", "8": "home-care", "18": "unknown",
               "22": "rehabilitation", "23": "long-term-care", "25": "unknown", "26": "unknown",
               "28": "psychiatric"}  # fmt: skip
_SPECIALTIES = {
    "InternalMedicine": "internal-medicine",
    "Family/GeneralPractice": "family-practice",
    "Emergency/Trauma": "emergency",
    "Cardiology": "cardiology",
    "Nephrology": "nephrology",
    "Surgery": "surgery",
    "Orthopedics": "orthopedics",
    "?": "missing",
}


def diagnosis_group(code: pd.Series) -> pd.Series:
    """The group of each ICD-9 code (text, '?' where missing), after Strack et al. 2014, table 2."""
    number = pd.to_numeric(code, errors="coerce").to_numpy(dtype=np.float64)
    whole = np.floor(number)
    ranges = (
        ("diabetes", whole == 250),
        ("circulatory", ((whole >= 390) & (whole <= 459)) | (whole == 785)),
        ("respiratory", ((whole >= 460) & (whole <= 519)) | (whole == 786)),
        ("digestive", ((whole >= 520) & (whole <= 579)) | (whole == 787)),
        ("injury", (whole >= 800) & (whole <= 999)),
        ("musculoskeletal", (whole >= 710) & (whole <= 739)),
        ("genitourinary", ((whole >= 580) & (whole <= 629)) | (whole == 788)),
        ("neoplasms", (whole >= 140) & (whole <= 239)),
        ("missing", (code == "?").to_numpy(dtype=bool)),
    )
    groups = np.select([where for _, where in ranges], [name for name, _ in ranges], default="other")
    return pd.Series(groups, index=code.index, dtype=object)


@lru_cache(maxsize=1)
def _parse(file: Path) -> pd.DataFrame:
    """Every encounter with all features, ``disposition`` as published and the label."""
    # "None" is a test that was not taken, and stays text.
    raw = pd.read_csv(file, dtype=str, keep_default_na=False)
    specialty = raw["medical_specialty"].str.replace(r"^(Surgery|Orthopedics)-.*", r"\1", regex=True)
    table = {
        "patient": raw["patient_nbr"],
        "race": raw["race"].replace("?", "missing"),
        "admission_type": raw["admission_type_id"].map(_ADMISSION_TYPES).fillna("other"),
        "admission_source": raw["admission_source_id"].map(_SOURCES).fillna("other"),
        "specialty": specialty.map(_SPECIALTIES).fillna("other"),
        "payer": raw["payer_code"].replace("?", "missing"),
        **{f"diagnosis_{place}": diagnosis_group(raw[f"diag_{place}"]) for place in (1, 2, 3)},
        "discharge": raw["discharge_disposition_id"].map(_DISCHARGES).fillna("other"),
        "disposition": raw["discharge_disposition_id"],
        "readmitted": (raw["readmitted"] == "<30").astype("int64"),
    }
    for column in SCHEMA.features:
        if column.name not in table:
            cells = raw[column.name]
            if column.bounds is not None:
                cells = cells.astype("int64").clip(upper=int(column.bounds[1]))
            elif column.kind == "binary" and not column.categories:  # a drug that is only taken or not
                cells = (cells != "No").astype("int64")
            table[column.name] = cells
    return pd.DataFrame(table)


def _encounters(schema: Schema, first: bool, alive: bool) -> pd.DataFrame:
    table = _parse(FILES.get()["diabetic_data.csv"])
    if first:
        table = table.drop_duplicates("patient")
    if alive:
        table = table[~table["disposition"].isin(DEAD_OR_HOSPICE)]
    return table[[column.name for column in schema.columns]].reset_index(drop=True)


def load() -> pd.DataFrame:
    """The 99,343 encounters of 69,990 patients that did not end in death or a hospice."""
    return _encounters(SCHEMA, first=False, alive=True)


def load_first() -> pd.DataFrame:
    """The first encounter of each patient, where it did not end in death or a hospice: 69,973 (Strack et al. 2014)."""
    return _encounters(SCHEMA_FIRST, first=True, alive=True)


def load_all() -> pd.DataFrame:
    """All 101,766 encounters of 71,518 patients, without where they were discharged to."""
    return _encounters(SCHEMA_ALL, first=False, alive=False)


def _description(text: str) -> str:
    return (
        f"Readmission within 30 days of a patient with diabetes: {text}. No hospital was published, so records are dealt, or "
        "split by a column such as payer or specialty."
    )


_ALL, _ALIVE = ("encounters", ROWS, PATIENTS), "no death, no hospice"
DATASET = Dataset(
    name="diabetes-130",
    title="Diabetes 130, readmission",
    description=_description(
        f"the encounters ({ROWS:,} of {PATIENTS:,} patients in the file) that did not end in death or a hospice"
    ),
    schema=SCHEMA,
    licence="CC BY 4.0",
    citation="Strack et al. 2014, BioMed Research International 781670; UCI Machine Learning Repository, "
    "doi:10.24432/C5230J",
    patients=69990,
    rows=99343,
    default_sites=10,
    default_partitioner="label-quantity",
    load=load,
    available=FILES.available,
    fetch=FILES.fetch,
    flow=Flow.of(_ALL, (_ALIVE, 99343, 69990)),
)
DATASET_FIRST = replace(
    DATASET,
    name="diabetes-130-first",
    title="Diabetes 130, first encounters",
    description=_description("each patient's first encounter, with the same exclusions"),
    schema=SCHEMA_FIRST,
    patients=69973,
    rows=69973,
    load=load_first,
    flow=Flow.of(_ALL, ("first encounter of each patient", PATIENTS, PATIENTS), (_ALIVE, 69973, 69973)),
)
DATASET_ALL = replace(
    DATASET,
    name="diabetes-130-all",
    title="Diabetes 130, every encounter",
    description=_description("every encounter, without where the patient was discharged to, which tells deaths"),
    schema=SCHEMA_ALL,
    patients=PATIENTS,
    rows=ROWS,
    load=load_all,
    flow=None,
)
