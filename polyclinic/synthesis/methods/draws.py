"""What all synthesizers of sums end in: classes by their frequencies, and rows that lie within the schema's bounds."""

from __future__ import annotations

import numpy as np

from polyclinic.synthesis.layout import Layout
from polyclinic.types import Floats, Ints


def drawn_classes(frequencies: Floats, rows: int, rng: np.random.Generator) -> Ints:
    """(rows,) classes, each by its frequency."""
    return picked(np.broadcast_to(frequencies, (rows, len(frequencies))), rng)


def picked(weights: Floats, rng: np.random.Generator) -> Ints:
    """(n,) a number for each row of (n, m) ``weights``, which are at least 0 and not all 0."""
    upto = np.cumsum(weights, axis=1)
    at = rng.random(len(weights)) * upto[:, -1]
    found: Ints = np.minimum((upto <= at[:, None]).sum(axis=1), weights.shape[1] - 1).astype(np.int64)
    return found


def within(layout: Layout, z: Floats) -> Floats:
    """(n, D) ``z`` within the bounds, and 0 where its indicator says that the cell is missing."""
    low, high = layout.bounds
    found: Floats = np.clip(z, low, high)
    found[:, np.flatnonzero(layout.nullable)] *= found[:, layout.missing] <= 0.5
    return found
