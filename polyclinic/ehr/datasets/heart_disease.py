"""UCI Heart Disease: four hospitals, 920 patients; as FLamby's 740-row recipe, or with every row and missing cells."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from polyclinic.ehr.cohorts import Flow
from polyclinic.ehr.datasets.dataset import Dataset, Files
from polyclinic.ehr.schema import Schema

#: site name -> file, in the order of FLamby's centres.
_OF_SITE = {
    "cleveland": "processed.cleveland.data",
    "hungary": "processed.hungarian.data",
    "switzerland": "processed.switzerland.data",
    "long-beach": "processed.va.data",
}
SITES = tuple(_OF_SITE)
FILES = Files(
    dataset="heart-disease",
    folder="heart_uci",
    url="https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/",
    published={
        "processed.cleveland.data": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
        "processed.hungarian.data": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
        "processed.switzerland.data": "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
        "processed.va.data": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
    },
)

_RAW = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal")
_CODES = {
    "cp": {1: "typical-angina", 2: "atypical-angina", 3: "non-anginal", 4: "asymptomatic"},
    "restecg": {0: "normal", 1: "st-t-abnormality", 2: "lv-hypertrophy"},
    "slope": {1: "upsloping", 2: "flat", 3: "downsloping"},
    "thal": {3: "normal", 6: "fixed-defect", 7: "reversible-defect"},
}

SCHEMA_920 = Schema.from_toml(Path(__file__).with_suffix(".toml"))
#: Columns that FLamby's recipe leaves out, since they are missing so often.
LEFT_OUT = ("slope", "ca", "thal")
SCHEMA = Schema(
    name="heart-disease",
    columns=tuple(
        column.model_copy(
            update={"nullable": False, "drop_first": column.kind == "categorical" and column.role == "feature"}
        )
        for column in SCHEMA_920.columns
        if column.name not in (*LEFT_OUT, "severity")
    ),
)


@lru_cache(maxsize=1)
def _parse(cleveland: Path, hungary: Path, switzerland: Path, long_beach: Path) -> pd.DataFrame:
    """All 920 rows as numbers, '?' as NaN, with patient, site and disease."""
    frames = []
    for site, file in zip(SITES, (cleveland, hungary, switzerland, long_beach), strict=True):
        rows = pd.read_csv(file, header=None, names=[*_RAW, "num"], na_values="?")
        rows.insert(0, "patient", [f"{site}-{row + 1}" for row in range(len(rows))])
        rows.insert(1, "site", site)
        frames.append(rows)
    records = pd.concat(frames, ignore_index=True)
    records["severity"] = records.pop("num").astype("int64").astype(str)
    records["disease"] = (records["severity"] != "0").astype("int64")
    return records


def _places() -> tuple[Path, ...]:
    files = FILES.get()
    return tuple(files[_OF_SITE[site]] for site in SITES)


def _name_codes(records: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    for name, names in _CODES.items():
        if name in records:
            records[name] = records[name].map(names).astype(object)
    return records[[column.name for column in schema.columns]].copy()


def load() -> pd.DataFrame:
    """Return the 740 records of FLamby's recipe (complete in the first ten columns), with its split in the column ``split``.

    FLamby (Ogier du Terrail et al. 2022), fed_heart_disease: slope, ca and thal dropped, then rows with a missing cell.
    In each centre 66 % train by scikit-learn's train_test_split with seed 43. The split is stratified where every class
    has more than two rows. Cholesterol 0 is kept.
    """
    return _split(_places()).copy()


@lru_cache(maxsize=1)
def _split(places: tuple[Path, ...]) -> pd.DataFrame:
    """``load`` of files that were checked; so many runs in a process split them once."""
    from sklearn.model_selection import train_test_split

    raw = _parse(*places).drop(columns=list(LEFT_OUT))
    raw = raw[raw.notna().all(axis=1)].reset_index(drop=True)
    split = np.full(len(raw), "train", dtype=object)
    for site in SITES:
        rows = np.flatnonzero(raw["site"] == site)
        label = raw["disease"].to_numpy()[rows]
        counts = np.unique(label, return_counts=True)[1]
        _, test = train_test_split(
            np.arange(len(rows)),
            train_size=0.66,
            test_size=0.34,
            random_state=43,
            shuffle=True,
            stratify=label if (counts > 2).all() else None,
        )
        split[rows[test]] = "test"
    records = _name_codes(raw, SCHEMA)
    records["split"] = split
    return records


def load_920() -> pd.DataFrame:
    """All 920 records; a cholesterol or resting pressure of 0 (not measured) is missing."""
    raw = _parse(*_places()).copy()
    measured = ["chol", "trestbps"]
    raw[measured] = raw[measured].where(raw[measured] > 0)
    return _name_codes(raw, SCHEMA_920)


DATASET = Dataset(
    name="heart-disease",
    title="UCI Heart Disease, FLamby's recipe",
    description="Coronary disease in four hospitals: the 740 patients and the split of FLamby's Fed-Heart-Disease.",
    schema=SCHEMA,
    licence="CC BY 4.0",
    citation="Janosi, Steinbrunn, Pfisterer and Detrano 1989, UCI Machine Learning Repository, doi:10.24432/C52P4X",
    patients=740,
    rows=740,
    default_sites=4,
    default_partitioner="natural",
    natural_sites=SITES,
    load=load,
    available=FILES.available,
    fetch=FILES.fetch,
    fixed_split="split",
    flow=Flow.of(("patients of four hospitals", 920, 920), ("no missing cell in ten columns", 740, 740)),
)
DATASET_920 = replace(
    DATASET,
    name="heart-disease-920",
    title="UCI Heart Disease, every patient",
    description="Coronary disease in four hospitals: all 920 patients, with missing cells and three more columns.",
    schema=SCHEMA_920,
    patients=920,
    rows=920,
    load=load_920,
    fixed_split=None,
    flow=None,
)
