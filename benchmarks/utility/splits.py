"""The datasets with another held-out quarter for each seed, as ``benchmarks.utility.splits:ist_3``.

One fixed split of this size has a standard error of 0.014 in AUROC; the mean over several splits has less.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pandas as pd

from polyclinic.ehr.datasets import Dataset, builtin

HELD_OUT = 0.25
HOSPITALS = {"ist": 20, "heart_disease": 4}
TITLES = {"ist": "IST, 20 hospitals", "heart_disease": "heart disease, 4 hospitals"}
# Below one over the patients of the largest hospital.
DELTAS = {"ist": 1e-4, "heart_disease": 1e-3}


def name_of(dataset: str, seed: int) -> str:
    """What the configuration key ``dataset`` is to be."""
    return f"{__name__}:{dataset}_{seed}"


@lru_cache(maxsize=4)
def drawn(dataset: str, seed: int) -> Dataset:
    """The dataset's first hospitals with ``HELD_OUT`` of each one's patients drawn for the test side."""
    whole = builtin()[dataset.replace("_", "-")]
    sites = whole.natural_sites[: HOSPITALS[dataset]]

    def load() -> pd.DataFrame:
        records = whole.load()
        records = records[records["site"].isin(sites)].reset_index(drop=True)
        rng = np.random.default_rng([seed, 4])
        test = np.zeros(len(records), dtype=bool)
        for site in sites:
            rows = np.flatnonzero(records["site"] == site)
            test[rng.permutation(rows)[: round(HELD_OUT * len(rows))]] = True
        return records.assign(split=np.where(test, "test", "train"))

    return replace(
        whole, name=f"{whole.name}-split-{seed}", natural_sites=sites, default_sites=len(sites),
        default_partitioner="natural", load=load, fixed_split="split",
    )  # fmt: skip


def __getattr__(name: str) -> Dataset:
    dataset, _, seed = name.rpartition("_")
    if dataset not in HOSPITALS or not seed.isdigit():
        raise AttributeError(f"There is no dataset {name!r} here; take {', '.join(HOSPITALS)} with _ and a seed.")
    return drawn(dataset, int(seed))
