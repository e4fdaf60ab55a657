"""Patients whom lifelines and scikit-survival ship, at made-up hospitals, as datasets that a run can name."""

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
}  # fmt: skip


@lru_cache(maxsize=4)
def records(name: str) -> pd.DataFrame:
    if name == "rossi":
        from lifelines.datasets import load_rossi

        table = load_rossi()
    else:
        from sksurv.datasets import load_gbsg2

        x, y = load_gbsg2()
        table = x.assign(time=y["time"].astype(int), cens=y["cens"].astype(int))
        table[["menostat", "horTh", "tgrade"]] = table[["menostat", "horTh", "tgrade"]].astype(str)
        table[["age", "pnodes", "progrec"]] = table[["age", "pnodes", "progrec"]].astype(int)
    hospital = np.array(HOSPITALS)[np.arange(len(table)) % 3]
    names = [column["name"] for column in (*_IDS, *_COLUMNS[name])]
    return table.assign(id=np.arange(len(table)), hospital=hospital)[names]


def cohort(name: str) -> Dataset:
    patients = len(records(name))
    return Dataset(
        name=name, title=name, description="patients of a package",
        schema=Schema.from_dict({"name": name, "columns": [*_IDS, *_COLUMNS[name]]}),
        licence="none", citation="none", patients=patients, rows=patients, default_sites=3, default_partitioner="natural",
        natural_sites=HOSPITALS, load=partial(records, name), available=lambda: True,
    )  # fmt: skip


def __getattr__(name: str) -> Dataset:
    """GBSG2 and ROSSI, made when they are asked for."""
    if name.lower() not in _COLUMNS:
        raise AttributeError(name)
    return cohort(name.lower())
