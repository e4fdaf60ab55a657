"""Handwritten digits, 8 x 8: 1,797 images that come with scikit-learn. Not health data; small images for generators."""

from __future__ import annotations

from functools import lru_cache

import pandas as pd

from polyclinic.ehr.datasets.dataset import Dataset
from polyclinic.ehr.schema import Column, Schema

SIDE = 8
DIGITS = tuple(str(digit) for digit in range(10))
#: The pixels by row and column, from the top left.
PIXELS = tuple(f"p{row}{column}" for row in range(SIDE) for column in range(SIDE))

# Bounds: a pixel counts the dark points of a 4 x 4 block of the scanned bitmap.
SCHEMA = Schema(
    name="digits",
    columns=(
        Column(name="patient", kind="categorical", role="patient_id", description="the image"),
        *(Column(name=name, kind="continuous", bounds=(0.0, 16.0)) for name in PIXELS),
        Column(name="digit", kind="categorical", categories=DIGITS, role="label"),
    ),
)


@lru_cache(maxsize=1)
def _parsed() -> pd.DataFrame:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    records = pd.DataFrame(bunch.data, columns=list(PIXELS))
    records.insert(0, "patient", [f"image-{row + 1:04d}" for row in range(len(records))])
    records["digit"] = bunch.target.astype(str)
    return records


def load() -> pd.DataFrame:
    """1,797 records, one for each image: patient, 64 pixels from 0 to 16, digit."""
    return _parsed().copy()


DATASET = Dataset(
    name="digits",
    title="Handwritten digits, 8 x 8",
    description="1,797 small images of handwritten digits; not health data, but images that a generator can learn in "
    "minutes without a GPU.",
    schema=SCHEMA,
    licence="CC BY 4.0",
    citation="Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, "
    "doi:10.24432/C50P49",
    patients=1797,
    rows=1797,
    default_sites=4,
    default_partitioner="iid",
    load=load,
    available=lambda: True,
)
