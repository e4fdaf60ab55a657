"""Patients whom lifelines and scikit-survival ship, and made-up ones, at made-up hospitals, as datasets that a run can name.

As ``benchmarks.utility.cohorts:GBSG2``. The made-up ones have columns as METABRIC has them, and a law that is known.
"""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np
import pandas as pd

from polyclinic.ehr.datasets.dataset import Dataset
from polyclinic.ehr.schema import Schema

HOSPITALS = ("east", "north", "south")
_IDS = [
    {"name": "id", "kind": "integer", "role": "patient_id"},
    {"name": "hospital", "kind": "categorical", "role": "site"},
]
_COLUMNS = {
    "gbsg2": [
        {"name": "time", "kind": "integer", "role": "duration", "bounds": [0, 3000], "unit": "days"},
        {"name": "cens", "kind": "binary", "role": "event"},
        {"name": "menostat", "kind": "binary", "categories": ["Pre", "Post"]},
        {"name": "horTh", "kind": "binary", "categories": ["no", "yes"]},
        {"name": "tgrade", "kind": "categorical", "categories": ["I", "II", "III"]},
        {"name": "age", "kind": "integer", "bounds": [18, 90], "unit": "years"},
        {"name": "pnodes", "kind": "integer", "bounds": [0, 60]},
        {"name": "progrec", "kind": "integer", "bounds": [0, 2500]},
    ],
    "rossi": [
        {"name": "week", "kind": "integer", "role": "duration", "bounds": [0, 52], "unit": "weeks"},
        {"name": "arrest", "kind": "binary", "role": "event"},
        {"name": "fin", "kind": "binary"}, {"name": "race", "kind": "binary"}, {"name": "wexp", "kind": "binary"},
        {"name": "mar", "kind": "binary"}, {"name": "paro", "kind": "binary"},
        {"name": "age", "kind": "integer", "bounds": [15, 60], "unit": "years"},
        {"name": "prio", "kind": "integer", "bounds": [0, 20]},
    ],
    "whas500": [
        {"name": "lenfol", "kind": "integer", "role": "duration", "bounds": [0, 2400], "unit": "days"},
        {"name": "fstat", "kind": "binary", "role": "event"},
        *({"name": name, "kind": "binary"} for name in ("afb", "chf", "cvd", "gender", "miord", "mitype", "sho")),
        {"name": "age", "kind": "integer", "bounds": [20, 105], "unit": "years"},
        {"name": "bmi", "kind": "continuous", "bounds": [12, 45]},
        {"name": "diasbp", "kind": "integer", "bounds": [0, 200]},
        {"name": "hr", "kind": "integer", "bounds": [30, 190]},
        {"name": "sysbp", "kind": "integer", "bounds": [50, 250]},
    ],
    "made_up": [
        {"name": "months", "kind": "continuous", "role": "duration", "bounds": [0, 300], "unit": "months"},
        {"name": "died", "kind": "binary", "role": "event"},
        {"name": "age", "kind": "integer", "bounds": [20, 100], "unit": "years"},
        {"name": "size", "kind": "continuous", "bounds": [1, 180], "unit": "mm"},
        {"name": "nodes", "kind": "integer", "bounds": [0, 40]},
        {"name": "grade", "kind": "categorical", "categories": ["1", "2", "3"]},
        *({"name": name, "kind": "binary"} for name in ("er", "her2", "chemotherapy")),
    ],
}  # fmt: skip
# Of the made-up patients: their number, the shape and scale of their Weibull law in months, and how long they are seen at most.
_PATIENTS, _SHAPE, _SCALE, _LONGEST = 2000, 1.2, 420.0, 320.0


@lru_cache(maxsize=4)
def records(name: str) -> pd.DataFrame:
    if name == "rossi":
        from lifelines.datasets import load_rossi

        table = load_rossi()
    elif name == "made_up":
        table = _made_up(_PATIENTS, 0)
    elif name == "whas500":
        from sksurv.datasets import load_whas500

        x, y = load_whas500()
        table = x.astype(float).round({"age": 0}).assign(lenfol=y["lenfol"], fstat=y["fstat"])
        whole = [column["name"] for column in _COLUMNS[name] if column["kind"] != "continuous"]
        table[whole] = table[whole].astype(int)
    else:
        from sksurv.datasets import load_gbsg2

        x, y = load_gbsg2()
        table = x.assign(time=y["time"].astype(int), cens=y["cens"].astype(int))
        table[["menostat", "horTh", "tgrade"]] = table[["menostat", "horTh", "tgrade"]].astype(str)
        table[["age", "pnodes", "progrec"]] = table[["age", "pnodes", "progrec"]].astype(int)
    hospital = np.array(HOSPITALS)[np.arange(len(table)) % 3]
    names = [column["name"] for column in (*_IDS, *_COLUMNS[name])]
    return table.assign(id=np.arange(len(table)), hospital=hospital)[names]


def _made_up(patients: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng([seed, 27])
    table = pd.DataFrame({
        "age": rng.normal(61, 13, patients).clip(21, 96).round(), "size": rng.lognormal(3.15, 0.5, patients).clip(2, 160),
        "nodes": rng.negative_binomial(0.45, 0.18, patients).clip(0, 40),
        "grade": rng.choice(["1", "2", "3"], patients, p=[0.1, 0.4, 0.5]),
        "er": rng.random(patients) < 0.76, "her2": rng.random(patients) < 0.13, "chemotherapy": rng.random(patients) < 0.21,
    })  # fmt: skip
    alive = _SCALE * (rng.exponential(size=patients) / np.exp(made_up_risk(table))) ** (1 / _SHAPE)
    seen = rng.uniform(60, _LONGEST, patients)
    flags = {name: table[name].astype(int) for name in ("er", "her2", "chemotherapy")}
    return table.assign(
        months=np.minimum(alive, seen).clip(0, 300), died=((alive <= seen) & (alive <= 300)).astype(int), **flags
    )


def made_up_risk(table: pd.DataFrame) -> np.ndarray:
    """(n,) the logarithm of made-up patients' hazards, less that of a usual patient: of age it is no straight line."""
    age, grade = table["age"] - 60, table["grade"].map({"1": -0.4, "2": 0.0, "3": 0.3}).astype(float)
    by_age = np.where(age < 0, -0.012 * age, 0.06 * age)
    return np.asarray(
        by_age + 0.35 * np.log(table["size"] / 25) + 0.25 * np.log1p(table["nodes"]) + grade - 0.4 * table["er"].astype(float)
        + 0.4 * table["her2"].astype(float) - 0.2 * table["chemotherapy"].astype(float)
    )  # fmt: skip


def made_up_survival(table: pd.DataFrame, at: np.ndarray) -> np.ndarray:
    """(n, T) true chances of made-up patients to have no event until the times ``at``."""
    return np.exp(-np.outer(np.exp(made_up_risk(table)), (at / _SCALE) ** _SHAPE))


def cohort(name: str) -> Dataset:
    patients = len(records(name))
    return Dataset(
        name=name, title=name, description="patients of a package",
        schema=Schema.from_dict({"name": name, "columns": [*_IDS, *_COLUMNS[name]]}),
        licence="none", citation="none", patients=patients, rows=patients, default_sites=3, default_partitioner="natural",
        natural_sites=HOSPITALS, load=partial(records, name), available=lambda: True,
    )  # fmt: skip


def __getattr__(name: str) -> Dataset:
    """GBSG2, ROSSI, WHAS500 and MADE_UP, made when they are asked for."""
    if name.lower() not in _COLUMNS:
        raise AttributeError(name)
    return cohort(name.lower())
