"""Made-up patients for tests of regressions: a schema, records of pooled hospitals, and their rows as a layout has them."""

from functools import cache

import numpy as np
import pandas as pd

from polyclinic.ehr.encoding import encode
from polyclinic.ehr.schema import Column, Schema
from polyclinic.privacy.streams import generator
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Floats

SCHEMA = Schema(
    name="made-up", unit="record",
    columns=(
        Column(name="age", kind="integer", bounds=(18, 98), nullable=True),
        Column(name="bmi", kind="continuous", bounds=(12, 60), centre=26, spread=5),
        Column(name="sex", kind="binary"),
        Column(name="smokes", kind="binary", categories=("no", "yes"), nullable=True),
        Column(name="region", kind="categorical", categories=("north", "south", "west"), nullable=True),
        Column(name="grade", kind="ordinal", categories=("I", "II", "III")),
        Column(name="ward", kind="categorical", categories=("a", "b"), drop_first=True),
        Column(name="visits", kind="integer", bounds=(0, 200)),
        Column(name="stay", kind="continuous", bounds=(-50, 150)),
        Column(name="died", kind="binary", role="label"),
    ),
)  # fmt: skip
LAYOUT = Layout.of(SCHEMA)


@cache
def records(patients: int = 1500, seed: int = 0) -> pd.DataFrame:
    """Of four hospitals, in the column ``hospital``; a tenth have no age, smoking or region."""
    rng = generator(seed, "records")
    age, bmi = np.clip(np.rint(rng.normal(62, 14, patients)), 18, 98), np.clip(rng.normal(26, 5, patients), 12, 60)
    sex, smokes, ward = (rng.integers(0, 2, patients) for _ in range(3))
    region, grade, hospital = (rng.integers(0, k, patients) for k in (3, 3, 4))
    eta = -1.0 + 0.03 * (age - 62) + 0.3 * sex - 0.4 * (region == 1) + 0.02 * (bmi - 26) + 0.2 * hospital
    table = pd.DataFrame({
        "age": age, "bmi": bmi, "sex": sex, "smokes": np.array(["no", "yes"], object)[smokes],
        "region": np.array(["north", "south", "west"], object)[region], "grade": np.array(["I", "II", "III"], object)[grade],
        "ward": np.array(["a", "b"], object)[ward],
        "visits": np.minimum(rng.negative_binomial(2.0, 2.0 / (2.0 + np.exp(1 + eta))), 200),
        "stay": np.clip(20 + 6 * eta + rng.normal(0, 5, patients), -50, 150),
        "died": (rng.uniform(size=patients) < 1 / (1 + np.exp(-eta))).astype(int), "hospital": hospital,
    })  # fmt: skip
    for name in ("age", "smokes", "region"):
        table.loc[rng.uniform(size=patients) < 0.1, name] = None
    return table


def rows(table: pd.DataFrame, layout: Layout = LAYOUT) -> Floats:
    """(n, D) rows of the layout."""
    encoded = encode(table, layout.schema)
    assert encoded.y is not None
    return layout.rows(encoded.x, encoded.y)
