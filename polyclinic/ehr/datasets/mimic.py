"""MIMIC-III demo: 100 patients of one hospital, as ICD-9 code sets and as first measurements of nine vital signs.

Too small to learn from: it is here for schemas, joins and generators. ``mimic-demo`` has one row a patient, as Liu et al.
2019 (PPGAN) prepare the full data; ``mimic-demo-vitals`` one row an admission, as Beaulieu-Jones et al. 2019 do.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pandas as pd

from polyclinic.ehr.cohorts import Flow
from polyclinic.ehr.datasets.dataset import Dataset, Files
from polyclinic.ehr.schema import Column, Schema

FILES = Files(
    dataset="mimic-demo",
    folder="mimic3_demo_1.4",
    url="https://physionet.org/files/mimiciii-demo/1.4/",
    published={
        "PATIENTS.csv": "f65803a46bcb88127574bfd0b70d78d4123783d05bb411e70d4c9629edd7b703",
        "ICUSTAYS.csv": "455cd8fd014bd75d9d26ddf8cb116c77ecccee2fe35fea342801a631d94b387b",
        "DIAGNOSES_ICD.csv": "74dc979906bc2172f0cf025271dcd44c7cd52506b297e4b36e63dd40dce923da",
        "CHARTEVENTS.csv": "734387d583daa9c339f9744ce6e58ed7387b99672898139c910f9aa3e40c31ec",
    },
    copies={
        "PATIENTS.csv": ("PATIENTS.csv.gz", "9877ab96628c94e063266972e6d83e98e656ebfff80957cee18958a2aff508f5"),
        "ICUSTAYS.csv": ("ICUSTAYS.csv.gz", "fe156176d508c6f1e8b87d4becdb9a55c17c94b4eccfe2d50f9f7fab83b311cb"),
        "DIAGNOSES_ICD.csv": (
            "DIAGNOSES_ICD.csv.gz",
            "7ad7f2ca1d666d874872adebaff0a95b65bcb375f154f008c4f98c182bfa7c77",
        ),
        "CHARTEVENTS.csv": ("CHARTEVENTS.csv.gz", "3133c692e9c82c59674307410fff988a04fa1b57c9700ff3210bc92371c45036"),
    },
)
STEPS = 5
#: What the codes (ICD-9-CM, without their point) of a diagnosis that an admission may have as a label begin with. Of heart
#: failure as Beaulieu-Jones et al. 2019: 428.x, and of hypertension 402.x1, 404.x1 and 404.x3.
DIAGNOSES = {
    "heart_failure": r"428|402\d1|404\d[13]",
    "arrhythmia": "427",
    "kidney_failure": "584",
    "lung_disease": "518",
}
_CITATION = "Johnson, Pollard and Mark 2019, MIMIC-III Clinical Database Demo 1.4, doi:10.13026/C2HM2Q"

# Every category of ICD-9-CM that MIMIC's dictionary D_ICD_DIAGNOSES has: the standard's, not these patients'.
_CATEGORIES = """
    001-018 020-027 030-042 045-066 070-088 090-104 110-112 114-118 120-165 170-176 179-246 249-327 330-398 401-405
    410-417 420-438 440-449 451-466 470-478 480-488 490-496 500-508 510-543 550-553 555-558 560-560 562-562 564-608
    610-612 614-686 690-698 700-848 850-854 860-887 890-897 900-999 E000-019 E029-030 E800-807 E810-838 E840-858
    E860-876 E878-888 E890-999 V01-37 V39-91
"""


def _codes() -> tuple[str, ...]:
    out = []
    for span in _CATEGORIES.split():
        first, last = span.split("-")
        letter = first[:1] if first[0] in "EV" else ""
        out += [f"{letter}{number:0{len(last)}d}" for number in range(int(first[len(letter) :]), int(last) + 1)]
    return tuple(out)


CODES = _codes()

#: Vital sign -> its items in CareVue and MetaVision.
VITALS: dict[str, tuple[int, int]] = {
    "heart_rate": (211, 220045),
    "respiratory_rate": (618, 220210),
    "spo2": (646, 220277),
    "arterial_systolic": (51, 220050),
    "arterial_diastolic": (8368, 220051),
    "arterial_mean": (52, 220052),
    "cuff_systolic": (455, 220179),
    "cuff_diastolic": (8441, 220180),
    "cuff_mean": (456, 220181),
}
SCHEMA_VITALS = Schema.from_toml(Path(__file__).with_name("mimic_vitals.toml"))
SCHEMA = Schema(
    name="mimic-demo",
    columns=(
        *(column for column in SCHEMA_VITALS.columns if column.name in ("patient", "care_unit", "system")),
        Column(name="diagnoses", kind="code_set", categories=CODES, description="ICD-9-CM categories, all admissions"),
        Column(name="female", kind="binary", role="label", description="1 if female"),
    ),
    rules=("female == 1 or not has(diagnoses, '63*', '64*', '65*', '66*', '67*')",),  # pregnancy and birth
)


def category(code: pd.Series) -> pd.Series:
    """The category of each ICD-9-CM code (text, without its point): three characters, four of an E code."""
    return code.str.slice(0, 3).where(~code.str.startswith("E"), code.str.slice(0, 4))


def _diagnoses(file: Path) -> pd.DataFrame:
    table = pd.read_csv(file, usecols=["subject_id", "hadm_id", "icd9_code"], dtype=str).dropna()
    return table.assign(category=category(table["icd9_code"]))


def _first_stay(file: Path, key: str) -> pd.DataFrame:
    """The unit and the record system of each patient's (or admission's) first stay, by ``key``."""
    names = {"first_careunit": "care_unit", "dbsource": "system"}
    table = pd.read_csv(file, usecols=[key, "intime", *names], dtype=str).sort_values("intime", kind="stable")
    return table.drop_duplicates(key).set_index(key)[list(names)].rename(columns=names)


def load() -> pd.DataFrame:
    """100 patients: the set of categories coded in any of their admissions, and their sex."""
    files = FILES.get(("PATIENTS.csv", "ICUSTAYS.csv", "DIAGNOSES_ICD.csv"))
    patients = pd.read_csv(files["PATIENTS.csv"], usecols=["subject_id", "gender"], dtype=str)
    coded = _diagnoses(files["DIAGNOSES_ICD.csv"]).groupby("subject_id")["category"]
    patients["diagnoses"] = patients["subject_id"].map(coded.agg(lambda codes: ";".join(sorted(set(codes))))).fillna("")
    patients["female"] = (patients["gender"] == "F").astype("int64")
    patients = patients.join(_first_stay(files["ICUSTAYS.csv"], "subject_id"), on="subject_id")
    return patients.rename(columns={"subject_id": "patient"})[[column.name for column in SCHEMA.columns]]


@lru_cache(maxsize=1)
def _measurements(file: Path) -> pd.DataFrame:
    """(admission, vital sign and step) -> value: the first five measurements, without those marked as errors."""
    sign = {item: name for name, items in VITALS.items() for item in items}
    table = pd.read_csv(
        file,
        usecols=["row_id", "subject_id", "hadm_id", "itemid", "charttime", "valuenum", "error"],
        dtype={"subject_id": str, "hadm_id": str},
    )
    table = table[table["itemid"].isin(list(sign)) & (table["error"] != 1) & table["hadm_id"].notna()]
    table = table.assign(sign=table["itemid"].map(sign))
    bounds = {column.name: column.bounds or (0.0, 0.0) for column in SCHEMA_VITALS.features}
    low, high = (table["sign"].map({name: ends[place] for name, ends in bounds.items()}) for place in (0, 1))
    table = table[table["valuenum"].between(low, high)].sort_values(["charttime", "row_id"])
    table["step"] = table.groupby(["hadm_id", "sign"]).cumcount()
    table = table[table["step"] < STEPS]
    table["cell"] = table["sign"] + table["step"].map("_{:02d}".format)
    return table.pivot(index=["subject_id", "hadm_id"], columns="cell", values="valuenum")


def load_vitals() -> pd.DataFrame:
    """The admissions with a measured vital sign: the first five values of each of nine signs, and heart failure."""
    files = FILES.get(("ICUSTAYS.csv", "DIAGNOSES_ICD.csv", "CHARTEVENTS.csv"))
    coded = _diagnoses(files["DIAGNOSES_ICD.csv"])
    cells = [name for column in SCHEMA_VITALS.features for name in column.record_names]
    table = _measurements(files["CHARTEVENTS.csv"]).reindex(columns=cells).reset_index()
    for name, codes in DIAGNOSES.items():
        table[name] = table["hadm_id"].isin(coded.loc[coded["icd9_code"].str.match(codes), "hadm_id"]).astype("int64")
    table = table.join(_first_stay(files["ICUSTAYS.csv"], "hadm_id"), on="hadm_id").rename(
        columns={"subject_id": "patient"}
    )
    return table[[name for column in SCHEMA_VITALS.columns for name in column.record_names]]


DATASET = Dataset(
    name="mimic-demo",
    title="MIMIC-III demo, diagnoses",
    description="ICD-9 code sets, one row a patient, as PPGAN generates them; 100 patients of one hospital, too few to learn "
    "from.",
    schema=SCHEMA,
    licence="ODbL 1.0",
    citation=f"{_CITATION}; Liu et al. 2019",
    patients=100,
    rows=100,
    default_sites=2,
    default_partitioner="iid",
    load=load,
    available=FILES.available,
    fetch=FILES.fetch,
)
DATASET_VITALS = replace(
    DATASET,
    name="mimic-demo-vitals",
    title="MIMIC-III demo, vital signs",
    description="The first five measurements of nine vital signs of an admission; 98 patients of one hospital, too few to learn "
    "from.",
    schema=SCHEMA_VITALS,
    citation=f"{_CITATION}; Beaulieu-Jones et al. 2019",
    patients=98,
    rows=125,
    load=load_vitals,
    flow=Flow.of(("admissions", 129, 100), ("a vital sign measured", 125, 98)),
)
