"""Wisconsin diagnostic breast cancer: 569 patients, 30 measurements of cell nuclei; comes with scikit-learn."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pandas as pd

from polyclinic.ehr.datasets.dataset import Dataset
from polyclinic.ehr.schema import Schema

SCHEMA = Schema.from_toml(Path(__file__).with_suffix(".toml"))


@lru_cache(maxsize=1)
def _parse() -> pd.DataFrame:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer(as_frame=True)
    records = bunch.data.rename(columns=lambda name: name.replace(" ", "_"))[
        [column.name for column in SCHEMA.features]
    ]
    records.insert(0, "patient", [f"wdbc-{row}" for row in range(len(records))])
    records["malignant"] = 1 - bunch.target.astype("int64")
    return pd.DataFrame(records)


def load() -> pd.DataFrame:
    """569 records, one for each patient: patient, 30 features, malignant."""
    return _parse().copy()


DATASET = Dataset(
    name="breast-cancer",
    title="Breast Cancer Wisconsin (Diagnostic)",
    description="Malignant or benign from 30 measurements of cell nuclei in a fine needle aspirate; hospitals are "
    "simulated by dealing out the patients.",
    schema=SCHEMA,
    licence="CC BY 4.0",
    citation="Wolberg, Mangasarian, Street and Street 1993, UCI Machine Learning Repository, doi:10.24432/C5DW2B",
    patients=569,
    rows=569,
    default_sites=4,
    default_partitioner="label-quantity",
    load=load,
    available=lambda: True,
)
