"""Small tables for tests of synthesis: every kind of column, missing cells, a rare class."""

import numpy as np
import pandas as pd

from polyclinic.ehr.encoding import encode
from polyclinic.ehr.schema import Column, Schema
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Floats

MIXED = Schema(
    name="mixed",
    unit="record",
    columns=(
        Column(name="age", kind="integer", bounds=(0.0, 100.0), centre=60.0, spread=15.0),
        Column(name="lactate", kind="continuous", bounds=(0.0, 20.0), nullable=True),
        Column(name="male", kind="binary", nullable=True),
        Column(name="ward", kind="categorical", categories=("icu", "med", "surg"), nullable=True),
        Column(name="codes", kind="code_set", categories=("250", "401", "428")),
        Column(name="sbp", kind="trajectory", steps=3, bounds=(60.0, 240.0), nullable=True),
        Column(name="stage", kind="ordinal", categories=("I", "II", "III")),
        Column(name="died", kind="categorical", role="label", categories=("no", "yes", "unknown")),
    ),
)


def mixed(rows: int, seed: int) -> pd.DataFrame:
    """Dependent columns: the older, the higher the lactate, the pressure and the risk."""
    rng = np.random.default_rng(seed)
    died = rng.choice(3, rows, p=[0.7, 0.25, 0.05])
    level = rng.normal(size=rows)
    age = np.clip(np.round(60 + 12 * level + 6 * (died == 1)), 0, 100)
    lactate = np.clip(6 + 1.5 * level + rng.normal(size=rows), 0, 20)
    sbp = np.clip(130 + 12 * level[:, None] + rng.normal(0, 8, (rows, 3)), 60, 240)
    male = (rng.random(rows) < 0.3 + 0.3 * (level > 0)).astype(float)
    ward = rng.choice(4, rows, p=[0.2, 0.45, 0.25, 0.1])
    codes = rng.random((rows, 3)) < np.array([0.3, 0.6, 0.1]) + 0.2 * (level[:, None] > 0)
    stage = np.digitize(level, [-0.5, 1.0])
    return pd.DataFrame(
        {
            "age": age,
            "lactate": np.where(rng.random(rows) < 0.2, np.nan, lactate),
            "male": np.where(rng.random(rows) < 0.1, np.nan, male),
            "ward": np.array(["icu", "med", "surg", None], dtype=object)[ward],
            "codes": [";".join(np.array(["250", "401", "428"])[row]) for row in codes],
            **{f"sbp_{step:02d}": np.where(rng.random(rows) < 0.1, np.nan, sbp[:, step]) for step in range(3)},
            "stage": np.array(["I", "II", "III"], dtype=object)[stage],
            "died": np.array(["no", "yes", "unknown"], dtype=object)[died],
        }
    )


def rows_of(layout: Layout, records: pd.DataFrame) -> Floats:
    """(n, D) of records."""
    found = encode(records, layout.schema)
    assert found.y is not None
    return layout.rows(found.x, found.y)


def numbers_only(columns: int, classes: int, **options: object) -> Schema:
    """A schema of numeric columns with centre 0 and spread 1, and a label."""
    bounds = {"bounds": (-6.0, 6.0), "centre": 0.0, "spread": 1.0} | options
    return Schema(
        name="numbers",
        unit="record",
        columns=(
            *(Column.model_validate({"name": f"x{i}", "kind": "continuous", **bounds}) for i in range(columns)),
            Column(name="y", kind="categorical", role="label", categories=tuple(f"c{i}" for i in range(classes))),
        ),
    )
