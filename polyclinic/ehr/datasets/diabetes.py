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
from polyclinic.ehr.datasets.dataset import Dataset
from polyclinic.ehr.datasets.files import Files
from polyclinic.ehr.schema import Column, Schema

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

_AGES = tuple(f"[{low}-{low + 10})" for low in range(0, 100, 10))
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
_PAYERS = ("MC", "HM", "SP", "BC", "MD", "CP", "UN", "CM", "OG", "PO", "DM", "CH", "WC", "OT", "MP", "SI", "FR")
_DIAGNOSES = ("circulatory", "respiratory", "digestive", "diabetes", "injury", "musculoskeletal", "genitourinary",
              "neoplasms", "other", "missing")  # fmt: skip
_CHANGES = ("No", "Steady", "Up", "Down")
#: The drugs whose dose changed often enough to be told apart, and those that are only taken or not.
_DOSED = ("metformin", "insulin", "glipizide", "glyburide", "glimepiride", "pioglitazone", "rosiglitazone")
_TAKEN = ("repaglinide", "nateglinide", "chlorpropamide", "acetohexamide", "tolbutamide", "acarbose", "miglitol",
          "troglitazone", "tolazamide", "glyburide-metformin", "glipizide-metformin", "glimepiride-pioglitazone",
          "metformin-rosiglitazone", "metformin-pioglitazone")  # fmt: skip

# Bounds: a stay of 1 to 14 days was the study's rule of inclusion (Strack et al. 2014, section 2.2); a claim holds up to
# six procedures and sixteen diagnoses; the other counts are cut where more of them would hardly tell more.
_COUNTS: dict[str, tuple[float, float, str]] = {
    "time_in_hospital": (1, 14, "days from admission to discharge"),
    "num_lab_procedures": (0, 100, "laboratory tests of the encounter, 100 for more"),
    "num_procedures": (0, 6, "other procedures of the encounter"),
    "num_medications": (0, 50, "distinct drugs of the encounter, 50 for more"),
    "number_diagnoses": (1, 16, "diagnoses of the encounter"),
    "number_outpatient": (0, 5, "outpatient visits in the year before, 5 for more"),
    "number_emergency": (0, 5, "emergency visits in the year before, 5 for more"),
    "number_inpatient": (0, 5, "inpatient stays in the year before, 5 for more"),
}


def _schema(name: str, discharge: bool) -> Schema:
    def choice(key: str, categories: tuple[str, ...], text: str = "", drop_first: bool = True) -> Column:
        return Column(name=key, kind="categorical", categories=categories, drop_first=drop_first, description=text)

    features = [
        Column(name="age", kind="ordinal", categories=_AGES, unit="years"),
        choice("gender", ("Female", "Male", "Unknown/Invalid")),
        choice("race", ("Caucasian", "AfricanAmerican", "Hispanic", "Asian", "Other", "missing")),
        choice("admission_type", ("emergency", "urgent", "elective", "other")),
        choice("admission_source", ("emergency-room", "referral", "transfer", "other")),
        choice("specialty", ("missing", *[s for s in _SPECIALTIES.values() if s != "missing"], "other"),
               "specialty of the admitting physician"),
        choice("payer", ("missing", *_PAYERS), "code of who pays"),
        *(Column(name=key, kind="integer", bounds=(low, high), description=text)
          for key, (low, high, text) in _COUNTS.items()),
        *(choice(f"diagnosis_{place}", _DIAGNOSES, f"group of the ICD-9 code diag_{place}") for place in (1, 2, 3)),
        choice("max_glu_serum", ("None", "Norm", ">200", ">300"), "glucose serum test; None: not taken"),
        choice("A1Cresult", ("None", "Norm", ">7", ">8"), "haemoglobin A1c test; None: not taken"),
        *(choice(drug, _CHANGES, "dose during the encounter") for drug in _DOSED),
        *(Column(name=drug, kind="binary", description="1 if taken") for drug in _TAKEN),
        Column(name="change", kind="binary", categories=("No", "Ch"), description="change of diabetic medicines"),
        Column(name="diabetesMed", kind="binary", categories=("No", "Yes"), description="any diabetic medicine"),
    ]  # fmt: skip
    if discharge:
        groups = (*dict.fromkeys(_DISCHARGES.values()), "other")
        features.append(choice("discharge", groups, "where the patient was discharged to"))
    patient = Column(name="patient", kind="categorical", role="patient_id", description="patient_nbr")
    label = Column(name="readmitted", kind="binary", role="label", description="1 if readmitted within 30 days")
    rules = (
        "diabetesMed == 'Yes' or (metformin == 'No' and insulin == 'No')",
        "diabetesMed == 'Yes' or change == 'No'",
    )
    return Schema(name=name, columns=(patient, *features, label), rules=rules)


SCHEMA = _schema("diabetes-130", discharge=True)
SCHEMA_FIRST = _schema("diabetes-130-first", discharge=True)
SCHEMA_ALL = _schema("diabetes-130-all", discharge=False)


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
    found = np.select([where for _, where in ranges], [name for name, _ in ranges], default="other")
    return pd.Series(found, index=code.index, dtype=object)


@lru_cache(maxsize=1)
def _parsed(file: Path) -> pd.DataFrame:
    """Every encounter with all features, ``disposition`` as published and the label."""
    # "None" is a test that was not taken, and stays text.
    raw = pd.read_csv(file, dtype=str, keep_default_na=False)
    specialty = raw["medical_specialty"].str.replace(r"^(Surgery|Orthopedics)-.*", r"\1", regex=True)
    table = {
        "patient": raw["patient_nbr"],
        "age": raw["age"],
        "gender": raw["gender"],
        "race": raw["race"].replace("?", "missing"),
        "admission_type": raw["admission_type_id"].map(_ADMISSION_TYPES).fillna("other"),
        "admission_source": raw["admission_source_id"].map(_SOURCES).fillna("other"),
        "specialty": specialty.map(_SPECIALTIES).fillna("other"),
        "payer": raw["payer_code"].replace("?", "missing"),
        **{name: raw[name].astype("int64").clip(upper=int(high)) for name, (_, high, _) in _COUNTS.items()},
        **{f"diagnosis_{place}": diagnosis_group(raw[f"diag_{place}"]) for place in (1, 2, 3)},
        **{name: raw[name] for name in ("max_glu_serum", "A1Cresult", *_DOSED)},
        **{name: (raw[name] != "No").astype("int64") for name in _TAKEN},
        "change": raw["change"],
        "diabetesMed": raw["diabetesMed"],
        "discharge": raw["discharge_disposition_id"].map(_DISCHARGES).fillna("other"),
        "disposition": raw["discharge_disposition_id"],
        "readmitted": (raw["readmitted"] == "<30").astype("int64"),
    }
    return pd.DataFrame(table)


def _encounters(schema: Schema, first: bool, alive: bool) -> pd.DataFrame:
    table = _parsed(FILES.get()["diabetic_data.csv"])
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


def _described(text: str) -> str:
    return (
        f"Readmission within 30 days of a patient with diabetes: {text}. No hospital was published, so records are dealt, or "
        "split by a column such as payer or specialty."
    )


_ALL, _ALIVE = ("encounters", ROWS, PATIENTS), "no death, no hospice"
DATASET = Dataset(
    name="diabetes-130",
    title="Diabetes 130, readmission",
    description=_described(
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
    description=_described("each patient's first encounter, with the same exclusions"),
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
    description=_described("every encounter, without where the patient was discharged to, which tells deaths"),
    schema=SCHEMA_ALL,
    patients=PATIENTS,
    rows=ROWS,
    load=load_all,
    flow=None,
)
