"""REAL patients followed over a stay: cuff pressures over the first day in the eICU demo, laboratory values by day in the
MIMIC-III demo.

A visit is a measurement, an hour or more after the one before it, or a day with one of the values. Bounds are what is usual for
monitors and laboratories, not computed from these records.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from polyclinic.ehr.datasets import eicu, mimic
from polyclinic.ehr.datasets.dataset import Files
from polyclinic.ehr.schema import BEFORE_LATEST, Column, Schema
from polyclinic.types import Floats

EICU_STEPS, MIMIC_STEPS = 12, 10
EICU_FILES = Files(
    dataset="eicu-demo",
    folder=eicu.FILES.folder,
    url=eicu.FILES.url,
    published={
        "patient.csv.gz": eicu.FILES.published["patient.csv.gz"],
        "vitalAperiodic.csv.gz": "c294f46647990cb648b3ebfa589e83f330bdc0c2c922b5e8f23aa0ef99954635",
    },
)
MIMIC_FILES = Files(
    dataset="mimic-demo",
    folder=mimic.FILES.folder,
    url=mimic.FILES.url,
    published={
        "PATIENTS.csv": mimic.FILES.published["PATIENTS.csv"],
        "ADMISSIONS.csv": "487e0b87cc81472cc2eb9ee911b3493c39e15d32e8230cec559907060c009b1c",
        "LABEVENTS.csv": "bca32a7242e739c0cbf1690270db83c10e38a27dbfa915eeb14f5a31a1e898fa",
    },
    copies={
        "PATIENTS.csv": mimic.FILES.copies["PATIENTS.csv"],
        "ADMISSIONS.csv": ("ADMISSIONS.csv.gz", "edd7b9672db80381c73c6dfb574087bf47a6cb97d834ba9c711186a8754696ec"),
        "LABEVENTS.csv": ("LABEVENTS.csv.gz", "d33ab327a756f608270941c5c70b1f037842826a9cddc21a9b0593a4b8406d4f"),
    },
)
#: Column of vitalAperiodic -> the measurement.
PRESSURES = {"noninvasivesystolic": "systolic", "noninvasivediastolic": "diastolic"}
#: Item of LABEVENTS -> the value and its bounds.
VALUES: dict[int, tuple[str, tuple[float, float]]] = {
    50912: ("creatinine", (0.0, 25.0)),
    51006: ("urea", (0.0, 250.0)),
    50971: ("potassium", (1.0, 10.0)),
    50983: ("sodium", (100.0, 180.0)),
    51221: ("hematocrit", (10.0, 70.0)),
}


def _schema(
    name: str, steps: int, measured: dict[str, tuple[float, float]], longest: tuple[str, float], *own: Column
) -> Schema:
    cells = {"kind": "trajectory", "steps": steps, "nullable": True, "clip": True}
    trajectories = measured | {BEFORE_LATEST: (0.0, longest[1])}
    return Schema(
        name=name,
        columns=(
            Column(name="patient", kind="categorical", role="patient_id"),
            *own,
            Column(name="female", kind="binary"),
            *(Column.model_validate({"name": name, "bounds": bounds} | cells) for name, bounds in trajectories.items()),
            Column(name="died", kind="binary", role="label", description="in the hospital"),
        ),
    )


EICU = _schema(
    "eicu-pressures", EICU_STEPS, {"systolic": (30.0, 300.0), "diastolic": (10.0, 250.0)}, ("hours", 24.0),
    Column(name="age", kind="integer", unit="years", bounds=(0.0, 90.0), nullable=True),
)  # fmt: skip
MIMIC = _schema("mimic-values", MIMIC_STEPS, dict(VALUES.values()), ("days", 60.0))


def eicu_records() -> pd.DataFrame:
    """The first stay of each patient with a cuff pressure in the first day: its last twelve measurements of that day.

    Raises DataError where the eICU demo's files are not there.
    """
    files = EICU_FILES.get()
    columns = ["patientunitstayid", "uniquepid", "gender", "age", "hospitaldischargestatus"]
    stays = pd.read_csv(files["patient.csv.gz"], usecols=columns, dtype=str)
    stays = stays[stays["hospitaldischargestatus"].isin(["Alive", "Expired"])].drop_duplicates("uniquepid")
    wanted = ["patientunitstayid", "observationoffset", *PRESSURES]
    events = pd.read_csv(files["vitalAperiodic.csv.gz"], usecols=wanted).rename(columns=PRESSURES)
    events = events[events["observationoffset"].between(0, 1439)].dropna(subset=[*PRESSURES.values()])
    events["row"] = events["patientunitstayid"].astype(str)
    events = events[events["row"].isin(stays["patientunitstayid"])].sort_values(
        ["row", "observationoffset"], kind="stable"
    )
    events["time"] = events["observationoffset"] / 60.0
    events = events[_hourly(events["row"].to_numpy(), events["time"].to_numpy(dtype=np.float64))]
    stays = stays.set_index("patientunitstayid").loc[events["row"].unique()]
    age = pd.to_numeric(stays["age"].replace("> 89", "90"), errors="coerce").astype("Int64")
    own = {"patient": stays["uniquepid"], "age": age, "female": (stays["gender"] == "Female").astype("int64"),
           "died": (stays["hospitaldischargestatus"] == "Expired").astype("int64")}  # fmt: skip
    return _unrolled(events, EICU, EICU_STEPS, own)


def mimic_records() -> pd.DataFrame:
    """The first admission of each patient with laboratory values: its last ten days with any of them, the first value of each
    day.

    Raises DataError where the MIMIC-III demo's files are not there.
    """
    files = MIMIC_FILES.get()
    admissions = pd.read_csv(
        files["ADMISSIONS.csv"], usecols=["subject_id", "hadm_id", "admittime", "hospital_expire_flag"]
    )
    first = admissions.sort_values("admittime").drop_duplicates("subject_id").set_index("hadm_id")
    sex = pd.read_csv(files["PATIENTS.csv"], usecols=["subject_id", "gender"]).set_index("subject_id")["gender"]
    events = pd.read_csv(files["LABEVENTS.csv"], usecols=["hadm_id", "itemid", "charttime", "valuenum"]).dropna()
    events = events[events["itemid"].isin(VALUES) & events["hadm_id"].isin(first.index)].sort_values("charttime")
    events["row"] = events["hadm_id"].astype("int64")
    admitted = pd.to_datetime(first["admittime"]).loc[events["row"]].to_numpy()
    events["time"] = np.floor((pd.to_datetime(events["charttime"]).to_numpy() - admitted) / np.timedelta64(1, "D"))
    events["name"] = events["itemid"].map({item: name for item, (name, _) in VALUES.items()})
    daily = events.pivot_table(index=["row", "time"], columns="name", values="valuenum", aggfunc="first").reset_index()
    first = first.loc[daily["row"].unique()]
    own = {"patient": "p" + first["subject_id"].astype(str), "died": first["hospital_expire_flag"].astype("int64"),
           "female": (first["subject_id"].map(sex) == "F").astype("int64")}  # fmt: skip
    return _unrolled(daily, MIMIC, MIMIC_STEPS, own)


def _hourly(rows: np.ndarray, hours: Floats) -> np.ndarray:
    """(n,) which events, ordered by row and time, are the row's first or an hour or more after the last one that counts."""
    counts, last = np.zeros(len(rows), dtype=bool), -np.inf
    for number, hour in enumerate(hours):
        if number == 0 or rows[number] != rows[number - 1]:
            last = -np.inf
        if hour >= last + 1.0:
            counts[number], last = True, hour
    return counts


def _unrolled(events: pd.DataFrame, schema: Schema, steps: int, own: dict[str, pd.Series]) -> pd.DataFrame:
    """One row for each of the events' rows, in their order, of its latest events; ``own``: columns without steps, in that
    order."""
    rows = events.groupby("row", sort=False)
    place = steps - 1 - rows.cumcount(ascending=False).to_numpy()
    recent, number = place >= 0, rows.ngroup().to_numpy()
    before = (rows["time"].transform("max") - events["time"]).to_numpy()
    table: dict[str, object] = {name: cells.to_numpy() for name, cells in own.items()}
    for column in schema.features:
        if column.kind == "trajectory" and column.bounds is not None:
            values = before if column.name == BEFORE_LATEST else events[column.name].to_numpy(dtype=np.float64)
            cells = np.full((number.max() + 1, steps), np.nan)
            cells[number[recent], place[recent]] = np.clip(values[recent], *column.bounds)
            table |= {f"{column.name}_{step:02d}": cells[:, step] for step in range(steps)}
    return pd.DataFrame(table)
