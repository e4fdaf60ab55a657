"""Wisconsin diagnostic breast cancer: 569 patients, 30 measurements of cell nuclei; comes with scikit-learn."""

from __future__ import annotations

from functools import lru_cache

import pandas as pd

from polyclinic.ehr.datasets.dataset import Dataset
from polyclinic.ehr.schema import Column, Schema

# Upper bounds (all lower bounds are 0) of a nucleus's mean and worst value and of the standard error. They follow from
# what is measured, rounded up: a nucleus of radius at most 40 has an area of at most 40^2 pi = 5027 and, with an
# outline a fifth longer than a circle's, a perimeter of at most 300; the shape indices are fractions near 0, with room.
_UPPER = {
    "radius": (40.0, 40.0, 5.0),
    "texture": (60.0, 60.0, 8.0),
    "perimeter": (300.0, 300.0, 30.0),
    "area": (5000.0, 5000.0, 800.0),
    "smoothness": (0.25, 0.25, 0.05),
    "compactness": (0.5, 1.5, 0.2),
    "concavity": (0.6, 1.5, 0.5),
    "concave points": (0.3, 0.4, 0.1),
    "symmetry": (0.5, 0.8, 0.1),
    "fractal dimension": (0.15, 0.25, 0.05),
}
_STATISTICS = ("mean", "worst", "error")


def _column_name(measure: str, statistic: str) -> str:
    return f"{measure} {statistic}" if statistic == "error" else f"{statistic} {measure}"


def _schema() -> Schema:
    features = [
        Column(
            name=_column_name(measure, statistic).replace(" ", "_"),
            kind="continuous",
            bounds=(0.0, uppers[place]),
            description=f"{_column_name(measure, statistic)} over the nuclei of one image",
        )
        for place, statistic in enumerate(_STATISTICS)
        for measure, uppers in _UPPER.items()
    ]
    patient = Column(name="patient", kind="categorical", role="patient_id")
    label = Column(name="malignant", kind="binary", role="label", description="1 malignant, 0 benign")
    return Schema(name="breast-cancer", columns=(patient, *features, label))


SCHEMA = _schema()


@lru_cache(maxsize=1)
def _parsed() -> pd.DataFrame:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer(as_frame=True)
    names = {_column_name(m, s): _column_name(m, s).replace(" ", "_") for m in _UPPER for s in _STATISTICS}
    records = bunch.data.rename(columns=names)[[column.name for column in SCHEMA.features]]
    records.insert(0, "patient", [f"wdbc-{row}" for row in range(len(records))])
    records["malignant"] = 1 - bunch.target.astype("int64")
    return pd.DataFrame(records)


def load() -> pd.DataFrame:
    """569 records, one for each patient: patient, 30 features, malignant."""
    return _parsed().copy()


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
