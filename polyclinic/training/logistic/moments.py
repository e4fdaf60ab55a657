"""Second moments of patients' rows by a noisy sum: how rows are shortened, their products, and what the noise leaves of them."""

from __future__ import annotations

import math

import numpy as np

from polyclinic.types import Floats

# Variances are as usual, give or take a share of it, and within these shares.
_USUALLY, _LEAST_VARIANCE, _MOST_VARIANCE = 0.5, 0.02, 2.0
# However noisy, products of features count for so much.
_LEAST_TRUST = 1e-3
# Features have at least this mean square of a correlation.
_LEAST_SQUARE = 1e-4


def shorten_rows(rows: Floats, radius: float | Floats) -> Floats:
    """Rows that are longer than ``radius``, scaled to that length."""
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.asarray(rows * np.minimum(1.0, radius / np.maximum(lengths, 1e-300)))


def products(rows: Floats, most: int) -> Floats:
    """(n, q (q + 1) / 2) products of (n, q) features; with more than ``most`` features their squares alone.

    Those of two are multiplied by the square root of 2, so that a row's products are as long as the square of its
    length.
    """
    width = rows.shape[1]
    if width > most:
        return rows**2
    products = np.empty((len(rows), width * (width + 1) // 2))
    scaled, start = math.sqrt(2.0) * rows, 0
    for at in range(width):
        products[:, start] = rows[:, at] ** 2
        np.multiply(rows[:, at, None], scaled[:, at + 1 :], out=products[:, start + 1 : start + width - at])
        start += width - at
    return products


def drawn_in(moments: Floats, usual: Floats, error: float) -> tuple[Floats, float]:
    """Noisy covariances, drawn towards those of independent features as far as they are noise.

    Args:
        moments: (q, q) noisy covariances.
        usual: (q,) the variances that features usually have.
        error: Standard deviation of the noise in a square.

    Returns:
        The covariances, and the largest eigenvalue of the noise that is left.
    """
    count, products = len(moments), moments - np.diag(np.diag(moments))
    entries = products[np.triu_indices(count, 1)]
    square = float((entries**2).mean()) if len(entries) else 0.0
    trust = max(_LEAST_TRUST, 1 - error**2 / 2 / max(square, 1e-12))
    return trust * products + np.diag(_variances(moments, usual, error)), trust * error * math.sqrt(2 * count)


def drawn_in_by_pair(moments: Floats, usual: Floats, error: float) -> tuple[Floats, Floats]:
    """As ``drawn_in`` where variances are far apart: each product as far as it is noise.

    All correlations are taken to be about as large.

    Args:
        moments: (q, q) noisy covariances.
        usual: (q,) the variances that features usually have.
        error: Standard deviation of the noise in a square.

    Returns:
        The covariances, and (q,) the variance of the noise that is left in each row's products, added up.
    """
    variances, products = _variances(moments, usual, error), moments - np.diag(np.diag(moments))
    size, noise = np.outer(variances, variances) * (products != 0), error**2 / 2
    square = float((size * (products**2 - noise)).sum()) / max(float((size**2).sum()), 1e-300)
    expected = max(square, _LEAST_SQUARE) * size
    trust = expected / np.maximum(expected + noise, 1e-300)
    return trust * products + np.diag(variances), (trust**2 * noise).sum(axis=1)


def _variances(moments: Floats, usual: Floats, error: float) -> Floats:
    """(q,) noisy variances, drawn towards the usual ones."""
    spread = (_USUALLY * usual) ** 2
    variances = usual + (np.diag(moments) - usual) * spread / (spread + error**2)
    return np.asarray(np.clip(variances, _LEAST_VARIANCE * usual, _MOST_VARIANCE * usual))
