"""The work that every engine gets: hospitals of a fixed size, 30 features, two classes, made from a seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from benchmarks.common.tables import FEATURES, tables
from polyclinic.ehr.datasets import Dataset
from polyclinic.ehr.schema import Schema

SCHEMA = Schema.from_dict({
    "name": "benchmark",
    "columns": [
        {"name": "patient", "kind": "integer", "role": "patient_id"},
        {"name": "site", "kind": "integer", "role": "site"},
        *({"name": f"x{i:02d}", "kind": "continuous", "bounds": [-6.0, 6.0]} for i in range(FEATURES)),
        {"name": "y", "kind": "binary", "role": "label"},
    ],
})  # fmt: skip


def _generate(patients_each: int) -> Callable[[int, int, int], pd.DataFrame]:
    def generate(sites: int, patients: int, seed: int) -> pd.DataFrame:
        each = patients_each + 2  # two test patients a site, so that the training shard has the size that is named
        x, y = tables(sites, each, seed)
        site = np.repeat(np.arange(sites), each)
        frame = pd.DataFrame(x.reshape(-1, FEATURES), columns=[f"x{i:02d}" for i in range(FEATURES)])
        frame.insert(0, "site", site)
        frame.insert(0, "patient", np.arange(len(site)))
        frame["y"] = y.reshape(-1)
        frame["split"] = np.where(np.arange(len(site)) % each < 2, "test", "train")
        return frame

    return generate


def _dataset(patients_each: int) -> Dataset:
    return Dataset(
        name=f"benchmark-{patients_each}", title="Benchmark", description="SIMULATED rows for measuring speed.",
        schema=SCHEMA, licence="Apache-2.0", citation="Polyclinic's own generator", patients=patients_each,
        rows=patients_each, default_sites=1, default_partitioner="natural", natural_sites=("hospital-00000",),
        load=lambda: _generate(patients_each)(1, patients_each, 0), available=lambda: True, simulated=True,
        generate=_generate(patients_each), fixed_split="split",
    )  # fmt: skip


hospitals_500 = _dataset(500)
hospitals_100 = _dataset(100)
hospitals_20 = _dataset(20)
