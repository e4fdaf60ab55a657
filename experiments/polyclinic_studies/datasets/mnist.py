"""MNIST: 70,000 images of handwritten digits, 28 x 28, only where its files are given; nothing is downloaded.

Read from ``mnist/`` under the folder that POLYCLINIC_DATA names: the four IDX files of LeCun, Cortes and Burges, each as
published or compressed (``.gz``).
"""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from polyclinic.ehr.datasets.dataset import Dataset
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import DataError

FOLDER = "mnist"
SIDE = 28
DIGITS = tuple(str(digit) for digit in range(10))
#: The pixels by row and column, from the top left.
PIXELS = tuple(f"p{row:02d}{column:02d}" for row in range(SIDE) for column in range(SIDE))
#: Side of the published split -> the stem of its files.
_STEMS = {"train": "train", "test": "t10k"}
_UNSIGNED_BYTES = 8

Bytes = NDArray[np.uint8]

# Bounds: grey levels of one byte.
SCHEMA = Schema(
    name="mnist",
    columns=(
        Column(name="patient", kind="categorical", role="patient_id", description="the image"),
        *(Column(name=name, kind="continuous", bounds=(0.0, 255.0)) for name in PIXELS),
        Column(name="digit", kind="categorical", categories=DIGITS, role="label"),
    ),
)


def _names() -> list[str]:
    return [f"{stem}-{what}" for stem in _STEMS.values() for what in ("images-idx3-ubyte", "labels-idx1-ubyte")]


def _find(name: str) -> Path | None:
    declared = os.environ.get("POLYCLINIC_DATA")
    found = [Path(declared) / FOLDER / file for file in (name, f"{name}.gz")] if declared else []
    return next((path for path in found if path.is_file()), None)


def available() -> bool:
    """Whether all four files are there."""
    return all(_find(name) is not None for name in _names())


def read_idx(file: Path, dimensions: int) -> Bytes:
    """The array in an IDX file of unsigned bytes (``.gz``: compressed), of so many dimensions.

    Raises DataError naming the file if it is damaged or holds anything else.
    """
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} cannot be read ({type(error).__name__}); get it anew.") from None
    start = 4 + 4 * dimensions
    shape = tuple(np.frombuffer(content[4:start], dtype=">u4").tolist()) if len(content) >= start else ()
    if content[:4] != bytes((0, 0, _UNSIGNED_BYTES, dimensions)) or len(content) != start + math.prod(shape):
        raise DataError(f"{file} is not a whole IDX file of unsigned bytes with {dimensions} dimensions; get it anew.")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _side(side: str) -> tuple[Bytes, Bytes]:
    stem = _STEMS[side]
    images_file, labels_file = _find(f"{stem}-images-idx3-ubyte"), _find(f"{stem}-labels-idx1-ubyte")
    if images_file is None or labels_file is None:
        raise DataError(
            f"mnist: its files are not given; set POLYCLINIC_DATA to a folder whose subfolder {FOLDER} holds "
            f"{', '.join(_names())}, each as it is or with .gz."
        )
    images, labels = read_idx(images_file, 3), read_idx(labels_file, 1)
    if images.shape != (len(labels), SIDE, SIDE):
        raise DataError(
            f"{images_file} holds images of shape {images.shape}; {len(labels)} labels need "
            f"({len(labels)}, {SIDE}, {SIDE})."
        )
    if (labels > 9).any():
        raise DataError(f"{labels_file} holds a label above 9; the digits are 0 to 9.")
    return images.reshape(len(labels), -1), labels


def load() -> pd.DataFrame:
    """One record for each image: patient, 784 grey levels from 0 to 255 (one byte each), digit, split (train or test).

    Raises DataError where a file is absent or damaged.
    """
    sides = {side: _side(side) for side in _STEMS}
    records = pd.DataFrame(np.concatenate([images for images, _ in sides.values()]), columns=list(PIXELS))
    ends = {
        "patient": [f"{side}-{row + 1:05d}" for side, (images, _) in sides.items() for row in range(len(images))],
        "digit": np.concatenate([labels for _, labels in sides.values()]).astype(str),
        "split": np.repeat(list(sides), [len(labels) for _, labels in sides.values()]),
    }
    return pd.concat([records, pd.DataFrame(ends)], axis=1)


DATASET = Dataset(
    name="mnist",
    title="MNIST handwritten digits, 28 x 28",
    description="70,000 images of handwritten digits, read where their files are given; not health data, but what private "
    "generators are compared on.",
    schema=SCHEMA,
    licence="CC BY-SA 3.0",
    citation="LeCun, Bottou, Bengio and Haffner 1998, Gradient-based learning applied to document recognition, "
    "Proceedings of the IEEE 86(11)",
    patients=70000,
    rows=70000,
    default_sites=5,
    default_partitioner="iid",
    load=load,
    available=available,
    fixed_split="split",
)
