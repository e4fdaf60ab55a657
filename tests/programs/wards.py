"""Two hospitals whose records every kind of analysis can be asked of, as files and as a simulation's dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from polyclinic.ehr.datasets.dataset import Dataset
from polyclinic.ehr.schema import Column, Schema

NAMES = ("north", "south")
SITE = Column(name="site", kind="categorical", role="site")
COLUMNS: list[dict[str, Any]] = [
    {"name": "id", "kind": "integer", "role": "patient_id"},
    {"name": "age", "kind": "integer", "bounds": [20, 90], "unit": "years"},
    {"name": "sbp", "kind": "continuous", "bounds": [60, 220], "clip": True, "unit": "mmHg"},
    {"name": "treated", "kind": "binary"},
    {"name": "ward", "kind": "categorical", "categories": ["a", "b"]},
    {"name": "days", "kind": "continuous", "bounds": [0, 100], "unit": "days"},
    {"name": "died", "kind": "binary"},
]


def schema(kind: str = "") -> Schema:
    """The public schema; a survival's labels are the time and the event."""
    roles = {"cox": {"days": "duration", "died": "event"}}.get(kind, {"died": "label"})
    columns = [column | ({"role": roles[column["name"]]} if column["name"] in roles else {}) for column in COLUMNS]
    return Schema.from_dict({"name": "wards", "columns": columns})


#: By what is run, its configuration keys.
RUNS: dict[str, dict[str, Any]] = {
    "survival": {"task": "survival", "task-options": "time='days', event='died', by='ward', intervals=5"},
    "components": {"task": "components", "task-options": "columns='age, sbp', scaling='public'", "rounds": 1},
    "regression": {"task": "regression", "task-options": "formula='died ~ age + treated', family='logistic'", "rounds": 3},
    "clusters": {"task": "clusters", "task-options": "columns='age, sbp', k=2, scaling='public'", "rounds": 2},
    "effect": {"task": "effect", "task-options": "treatment='treated', propensity=0.5", "rounds": 2},
    "ebm": {"model": "ebm", "rounds": 2, "evaluation.metrics": "none"},
    "cox": {"task": "cox", "task-options": "terms='age + treated', time='days', event='died', intervals=3", "rounds": 5,
            "data.label": "days, died"},
}  # fmt: skip


def records(patients: int = 400) -> pd.DataFrame:
    """Patients of both hospitals, of whom older ones die earlier and treated ones later."""
    rng = np.random.default_rng(0)
    age, treated = rng.integers(20, 91, patients), rng.integers(0, 2, patients)
    time = rng.exponential(60 * np.exp(-(age - 55) / 40 + 0.5 * treated))
    seen = rng.uniform(10, 100, patients)
    table = pd.DataFrame(
        {"id": np.arange(patients), "age": age, "sbp": (90 + age / 2 + rng.normal(0, 12, patients)).round(1)}
    )
    return table.assign(
        treated=treated, ward=rng.choice(["a", "b"], patients), days=np.minimum(time, seen).round(1),
        died=(time <= seen).astype(int), site=np.where(np.arange(patients) < patients // 2, *NAMES),
    )  # fmt: skip


def _dataset() -> Dataset:
    return Dataset(
        name="wards", title="wards", description="made up", schema=Schema(name="wards", columns=(*schema().columns, SITE)),
        licence="none", citation="none", patients=400, rows=400, default_sites=2, default_partitioner="natural",
        natural_sites=NAMES, load=records, available=lambda: True,
    )  # fmt: skip


WARDS = _dataset()


def write(folder: Path, name: str) -> tuple[Path, Path]:
    """A hospital's records and schema as files."""
    folder.mkdir(parents=True, exist_ok=True)
    records().query("site == @name").drop(columns="site").to_csv(folder / "records.csv", index=False)
    schema().to_toml(folder / "schema.toml")
    return folder / "records.csv", folder / "schema.toml"
