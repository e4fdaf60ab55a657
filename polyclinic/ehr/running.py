"""Counts of ordered cells under noise that stays small in sums over many cells, as quantiles and bounds need them.

Before noise is added, cells are mixed by a public lower triangular matrix C; afterwards they are unmixed. C is the
square root of the matrix of ones that adds cells up (rounded to a grid). The error of a running sum therefore grows
with the logarithm of the number of cells. Independent noise in each would grow with its square root (Fichtenberger,
Henzinger and Upadhyay 2023). All of it is public; no record is looked at here.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from polyclinic.types import Floats, Ints

#: What the matrix has on its diagonal: its numbers are whole ones on this grid, so that mixing is exact.
ONE = 2**12


@lru_cache(maxsize=64)
def _coefficients(cells: int) -> Ints:
    odd = np.arange(1, cells)
    root: Floats = np.cumprod(np.concatenate([[1.0], (2 * odd - 1) / (2 * odd)]))
    return np.rint(ONE * root).astype(np.int64)


@lru_cache(maxsize=64)
def _unmixing(cells: int) -> Floats:
    """(cells, cells) inverse of C."""
    place = np.subtract.outer(np.arange(cells), np.arange(cells))
    matrix = np.where(place >= 0, _coefficients(cells)[np.maximum(place, 0)] / ONE, 0.0)
    inverse: Floats = np.linalg.inv(matrix)
    return inverse


def norm(cells: int) -> float:
    """The largest L2 norm of a column of ``ONE`` times C: the most that one unit, however spread, moves the mixed cells."""
    return float(np.sqrt(np.sum(_coefficients(cells).astype(np.float64) ** 2)))


def mix(totals: Ints) -> Ints:
    """``ONE`` times C times ``totals``, (cells,) whole numbers; exact."""
    return np.convolve(totals, _coefficients(len(totals)))[: len(totals)]


def unmix(mixed: Floats) -> Floats:
    """(cells,) numbers of which ``mixed`` is C times them."""
    result: Floats = _unmixing(len(mixed)) @ mixed
    return result


def errors(weights: Floats, error: float) -> Floats:
    """Standard errors of sums of unmixed cells with ``weights``, (sums, cells), where each mixed one has ``error``."""
    result: Floats = error * np.linalg.norm(weights @ _unmixing(weights.shape[1]), axis=1)
    return result
