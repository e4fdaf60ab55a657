"""Made-up cohorts with known signal, a label of each kind, as datasets that a run can name."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from polyclinic.ehr.datasets.dataset import Dataset
from polyclinic.ehr.schema import Column, Schema

_FEATURES = [{"name": f"x{i}", "kind": "continuous", "bounds": [-3, 3], "clip": True} for i in range(3)]
LABELS: dict[str, list[dict[str, Any]]] = {
    "days": [
        {"name": "los", "kind": "continuous", "bounds": [0, 30], "clip": True, "unit": "days", "centre": 8.0, "spread": 5.0}
    ],
    "visits": [{"name": "visits", "kind": "integer", "bounds": [0, 20], "clip": True, "centre": 3.0, "spread": 3.0}],
    "grade": [{"name": "grade", "kind": "ordinal", "categories": ["none", "mild", "severe"]}],
    "died": [{"name": "died", "kind": "binary"}],
    "both": [{"name": "sepsis", "kind": "binary"}, {"name": "stroke", "kind": "binary"}],
    "codes": [{"name": "codes", "kind": "code_set", "categories": ["A", "B", "C"]}],
    "survival": [
        {"name": "time", "kind": "continuous", "bounds": [0, 100], "clip": True, "unit": "days"},
        {"name": "died", "kind": "binary"},
    ],
}  # fmt: skip


def schema(kind: str) -> Schema:
    labels = [{**column, "role": "label"} for column in LABELS[kind]]
    columns = [{"name": "id", "kind": "integer", "role": "patient_id"}, *_FEATURES, *labels]
    return Schema.from_dict({"name": kind, "columns": columns})


def records(kind: str, patients: int = 400, rows: int = 1) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(patients * rows, 3)).clip(-3, 3)
    score, noise = x @ [1.0, -0.5, 0.0], rng.logistic(size=len(x))
    table = pd.DataFrame({"id": np.repeat(np.arange(patients), rows), **{f"x{i}": x[:, i] for i in range(3)}})
    time, censored = rng.exponential(40 * np.exp(-score)), rng.uniform(0, 150, len(x))
    labels: dict[str, Any] = {
        "days": {"los": 8 + 3 * score + noise},
        "visits": {"visits": rng.poisson(3 * np.exp(0.5 * score))},
        "grade": {"grade": np.array(["none", "mild", "severe"])[np.digitize(2 * score + noise, [-0.5, 1.5])]},
        "died": {"died": (2 * score + noise > 1).astype(int)},
        "both": {"sepsis": (2 * score + noise > 1).astype(int), "stroke": (noise - score > 0).astype(int)},
        "codes": {"codes": [";".join(c for c, cut in zip("ABC", (-1, 0, 1), strict=True) if 2 * s + e > cut)
                            for s, e in zip(score, noise, strict=True)]},
        "survival": {"time": np.minimum(time, censored), "died": ((time < censored) & (time <= 100)).astype(int)},
    }  # fmt: skip
    return table.assign(**labels[kind])


def cohort(kind: str) -> Dataset:
    """Two hospitals of 200 patients each."""
    return Dataset(
        name=kind, title=kind, description="made up", schema=schema(kind), licence="none", citation="none", patients=400,
        rows=400, default_sites=2, default_partitioner="iid", load=partial(records, kind), available=lambda: True,
    )  # fmt: skip


def two_hospitals(kind: str) -> Dataset:
    """300 patients who were treated at north and at south."""
    made, names = schema(kind), ("north", "south")
    of_hospital = Schema(name=kind, columns=(*made.columns, Column(name="site", kind="categorical", role="site")))
    return replace(
        cohort(kind), schema=of_hospital, natural_sites=names, default_partitioner="natural", patients=300, rows=300,
        load=lambda: records(kind, 300).assign(site=np.where(np.arange(300) < 180, *names)),
    )  # fmt: skip


DAYS, VISITS, GRADE, DIED, BOTH, CODES, SURVIVAL = (cohort(kind) for kind in LABELS)
