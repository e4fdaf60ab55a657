"""So many patients of a large data set, drawn by a seed, so that studies of many runs on it are cheap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from polyclinic.ehr.datasets import Dataset, diabetes, ist
from polyclinic_studies.datasets import icd

#: Data set and number of patients by name.
_SETS: dict[str, tuple[Dataset, int]] = {
    "diabetes": (diabetes.DATASET, 4000), "ist": (ist.DATASET, 4000), "icd": (icd.DATASET, 10_000)
}  # fmt: skip


def sample_patients(dataset: Dataset, patients: int, seed: int) -> Dataset:
    """So many of the patients, with all records of each; of a simulated data set as many that are simulated."""

    def load() -> pd.DataFrame:
        if dataset.generate is not None:
            return dataset.generate(dataset.default_sites, patients, seed)
        records = dataset.load()
        everyone = np.sort(records["patient"].unique().astype(str))
        chosen = np.random.default_rng(seed).choice(everyone, patients, replace=False)
        return records[records["patient"].astype(str).isin(set(chosen))].reset_index(drop=True)

    return replace(
        dataset, load=load, generate=None, patients=patients, rows=patients, default_partitioner="iid", natural_sites=(),
        flow=None,
    )  # fmt: skip


def __getattr__(name: str) -> Dataset:
    """``diabetes_3``, ``ist_3``, ``icd_3``: patients drawn by a seed, so that configurations can name them."""
    which, _, seed = name.partition("_")
    if which not in _SETS or not seed.isdigit():
        raise AttributeError(f"There is no {name!r} here; take {', '.join(_SETS)} with _ and a seed.")
    return sample_patients(*_SETS[which], int(seed))
