"""eICU demo: 2,520 intensive care stays of 1,841 patients in 186 hospitals, by the first day's physiology.

One record is a stay in a unit, a patient's own by ``uniquepid``. Features are those known at admission and the first
day's worst values as APACHE IV takes them. Of discharge only whether the patient left the hospital alive is read, and
of later days and of the predictions nothing.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from polyclinic.ehr.cohorts import Flow
from polyclinic.ehr.datasets.dataset import Dataset, Files, hospital_names
from polyclinic.ehr.schema import Schema

FILES = Files(
    dataset="eicu-demo",
    folder="eicu_demo_2.0.1",
    url="https://physionet.org/files/eicu-crd-demo/2.0.1/",
    published={
        "patient.csv.gz": "15e1eb52169828e3cfff3b67132a087298de4d0365bbb31bb294f6043bffd474",
        "hospital.csv.gz": "4ed356f9c4e7c8ce80e89241697e94b77f21c2f325cd6ad126794b1e92805ef4",
        "apacheApsVar.csv.gz": "2dc6d63f9807c7e663ffa253998691605d527b702ac1db8cc5dda92308061e78",
        "apachePredVar.csv.gz": "99d5a4ab2c5cd07b6ee0a540c86a576e5975ed3b93df8525e3d287d5babf3eae",
    },
)
SITES = hospital_names("eicu")
SCHEMA = Schema.from_toml(Path(__file__).with_suffix(".toml"))
# Where cells outside of the bounds are errors of entry.
_MEASURED_ONCE = ("age_years", "admissionheight", "admissionweight")
# Of the first day, in apacheApsVar and apachePredVar.
_PHYSIOLOGY = (
    "eyes", "motor", "verbal", "urine", "wbc", "temperature", "respiratoryrate", "sodium", "heartrate", "meanbp", "ph",
    "hematocrit", "creatinine", "albumin", "pao2", "pco2", "bun", "glucose", "bilirubin", "fio2",
)  # fmt: skip
_FLAGS_OF_DAY = ("intubated", "vent", "dialysis", "meds")
_HISTORY = (
    "aids", "hepaticfailure", "lymphoma", "metastaticcancer", "leukemia", "immunosuppression", "cirrhosis", "diabetes",
    "electivesurgery", "activetx", "thrombolytics", "midur", "oobintubday1", "oobventday1",
)  # fmt: skip
_CHOICES = ("gender", "unittype", "unitadmitsource", "unitstaytype")
_OF_HOSPITAL = ("region", "numbedscategory", "teachingstatus")
#: Groups of APACHE's admission diagnosis by the letters of its code; the first that is found holds.
_DIAGNOSES = {
    "after-surgery": "^S-",
    "arrest": "CARDARREST|RESPARREST",
    "sepsis": "^SEPSIS",
    "pneumonia": "^PNEUM",
    "heart-failure": "^CHF|CARDSHOCK",
    "coronary": "^AMI|UNSTANG|^INF",
    "stroke-or-coma": "^CVA|^ICH|SUBARACH|^COMA",
    "bleeding": "BLEED",
    "overdose": "^OD",
    "ketoacidosis": "^DKA",
    "renal-failure": "RENFAIL",
    "other": ".",
    "unknown": "",
}


def stays(patient: Path, hospital: Path, aps: Path, predictors: Path) -> pd.DataFrame:
    """Return one row for each of the 2,520 stays, in the order of ``patient``: keys, features as published, and ``died``.

    -1, which the APACHE tables write for a value that was not taken, is missing; died is missing where the state at
    discharge is. No other column of the tables is read.

    Args:
        patient: The file of the stays.
        hospital: The file of the hospitals.
        aps: The file of the first day's values for APACHE.
        predictors: The file of the variables for APACHE's predictions.
    """
    keys = ["patientunitstayid", "uniquepid", "hospitalid", "age", "hospitaldischargestatus", "unitdischargeoffset"]
    table = pd.read_csv(patient, usecols=[*keys, "admissionheight", "admissionweight", *_CHOICES])
    table["stay"] = table.pop("unitdischargeoffset") / (24 * 60)
    table["age_years"] = pd.to_numeric(table.pop("age").replace("> 89", "90"), errors="coerce")
    table["died"] = table.pop("hospitaldischargestatus").map({"Expired": 1.0, "Alive": 0.0})
    table = table.merge(pd.read_csv(hospital), on="hospitalid", how="left", validate="m:1")
    for file, names in ((aps, [*_PHYSIOLOGY, *_FLAGS_OF_DAY]), (predictors, ["admitdiagnosis", *_HISTORY])):
        day = pd.read_csv(file, usecols=["patientunitstayid", *names]).replace(-1, np.nan)
        table = table.merge(day, on="patientunitstayid", how="left", validate="1:1")
    return table


@lru_cache(maxsize=1)
def _parse(patient: Path, hospital: Path, aps: Path, predictors: Path) -> pd.DataFrame:
    table = stays(patient, hospital, aps, predictors)
    table = table[table["died"].notna()].reset_index(drop=True)
    table["patient"] = table["uniquepid"]
    table["site"] = table["hospitalid"].map("hospital-{:03d}".format)
    named = [*_OF_HOSPITAL, *_CHOICES]
    table[named] = table[named].fillna("unknown")
    table["electivesurgery"] = table["electivesurgery"].where(table["aids"].isna(), table["electivesurgery"].fillna(0))
    table["diagnosis"] = _group(table["admitdiagnosis"])
    for column in SCHEMA.features:
        if column.bounds is not None:
            cells, (low, high) = table[column.name], column.bounds
            table[column.name] = (
                cells.where(cells.between(low, high)) if column.name in _MEASURED_ONCE else cells.clip(low, high)
            )
    table["died"] = table["died"].astype("int64")
    return table[[column.name for column in SCHEMA.columns]]


def _group(code: pd.Series) -> pd.Series:
    diagnoses = code.fillna("").astype(str)
    places = np.stack([diagnoses.str.contains(pattern).to_numpy(dtype=bool) for pattern in _DIAGNOSES.values()], axis=1)
    names = np.array(list(_DIAGNOSES), dtype=object)[places.argmax(axis=1)]
    return pd.Series(names, index=code.index, dtype=object)


def load() -> pd.DataFrame:
    """The 2,492 stays of 1,820 patients whose state at the hospital's discharge is known.

    An impossible age, height or weight is missing; physiology is cut to its bounds; elective surgery, which APACHE asks of
    surgical patients only, is 0 for the others.
    """
    return _parse(*FILES.get().values()).copy()


DATASET = Dataset(
    name="eicu-demo",
    title="eICU demo, hospital death",
    description="Death in hospital by the first day's physiology: 2,492 intensive care stays of 1,820 patients in 186 "
    "hospitals, which are ten patients each; four regions make workable sites.",
    schema=SCHEMA,
    licence="ODbL 1.0",
    citation="Johnson, Pollard, Badawi and Raffa 2021, eICU Collaborative Research Database Demo 2.0.1, PhysioNet, "
    "doi:10.13026/4mxk-na84",
    patients=1820,
    rows=2492,
    default_sites=5,
    default_partitioner="column:region",
    natural_sites=SITES,
    flow=Flow.of(("stays in intensive care", 2520, 1841), ("state at hospital discharge known", 2492, 1820)),
    load=load,
    available=FILES.available,
    fetch=FILES.fetch,
)
