"""Wisconsin diagnostic breast cancer: 569 patients, 30 measurements of cell nuclei; comes with scikit-learn."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

from polyclinic.ehr.datasets.dataset import Dataset
from polyclinic.ehr.schema import Schema

SCHEMA = Schema.from_toml(Path(__file__).with_suffix(".toml"))
# The columns of scikit-learn's file before the label, in their order.
_MEASURED = [
    name
    for kind in ("mean_{}", "{}_error", "worst_{}")
    for name in map(
        kind.format,
        ("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave_points", "symmetry",
         "fractal_dimension"),
    )
]  # fmt: skip


@lru_cache(maxsize=1)
def _parsed() -> pd.DataFrame:
    # The file itself: to import scikit-learn's loader takes longer than to train on what it loads.
    place = find_spec("sklearn")
    assert place is not None and place.origin is not None, "scikit-learn is a dependency"
    table = np.loadtxt(Path(place.origin).parent / "datasets" / "data" / "breast_cancer.csv", delimiter=",", skiprows=1)
    records = pd.DataFrame(table[:, :-1], columns=_MEASURED)[[column.name for column in SCHEMA.features]]
    records.insert(0, "patient", [f"wdbc-{row}" for row in range(len(records))])
    records["malignant"] = 1 - table[:, -1].astype("int64")
    return records


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
