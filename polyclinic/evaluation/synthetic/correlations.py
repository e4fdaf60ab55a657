"""Whether columns hang together as they do in the real table: Pearson matrices side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from polyclinic.errors import DataError
from polyclinic.evaluation.synthetic.transfer import spearman
from polyclinic.types import Bools, Floats


@dataclass(frozen=True)
class Correlations:
    """Pearson correlations of two tables over the columns that vary in both.

    columns: the names kept (m,).  dropped: those constant, or nowhere recorded, in a table.
    real, synthetic: (m, m).  spearman: rank correlation between the two lower triangles (Beaulieu-Jones et al. 2019).
    frobenius: norm of the difference of the matrices.  largest: its largest absolute entry.
    The last three are ``None`` where fewer than two columns are left (three for ``spearman``).
    """

    columns: tuple[str, ...]
    dropped: tuple[str, ...]
    real: Floats
    synthetic: Floats
    spearman: float | None
    frobenius: float | None
    largest: float | None


def correlations(real: ArrayLike, synthetic: ArrayLike, columns: Sequence[str] | None = None) -> Correlations:
    """The correlations of two tables (n, F) and (m, F) of numbers, compared; NaN is a missing value.

    With missing values a correlation is that of the rows with both entries, and a pair never seen together
    (in either table) is left out of the comparison.  columns: F names, else numbers from 0.
    Raises DataError if the tables have another shape, another number of columns or an infinite entry.
    """
    tables = [np.asarray(real, dtype=np.float64), np.asarray(synthetic, dtype=np.float64)]
    for table in tables:
        if table.ndim != 2 or table.shape[1] != tables[0].shape[1]:
            raise DataError(f"correlations need tables (n, F) of the same F, not {tables[0].shape} and {table.shape}.")
        if np.isinf(table).any():
            raise DataError("correlations need finite numbers, and a table has an infinite entry.")
    names = [str(i) for i in range(tables[0].shape[1])] if columns is None else list(columns)
    if len(names) != tables[0].shape[1]:
        raise DataError(f"correlations: {len(names)} names for {tables[0].shape[1]} columns.")
    varies = np.logical_and(*(_varies(table) for table in tables))
    a, b = (pearson(table[:, varies]) for table in tables)
    lower = np.tril_indices(int(varies.sum()), -1)
    pairs = np.stack([a[lower], b[lower]])
    pairs = pairs[:, np.isfinite(pairs).all(axis=0)]
    apart = pairs[1] - pairs[0]
    return Correlations(
        tuple(name for name, kept in zip(names, varies, strict=True) if kept),
        tuple(name for name, kept in zip(names, varies, strict=True) if not kept),
        a,
        b,
        spearman(pairs[0], pairs[1]),
        float(np.sqrt(2 * (apart**2).sum())) if apart.size else None,
        float(abs(apart).max()) if apart.size else None,
    )


def pearson(table: Floats) -> Floats:
    """(F, F) Pearson correlations of (n, F), of rows with both entries where some are NaN; NaN where undefined."""
    if not table.shape[1]:
        return np.empty((0, 0))
    if np.isnan(table).any():
        import pandas as pd

        return np.asarray(pd.DataFrame(table).corr(), dtype=np.float64)
    centred = table - table.mean(axis=0)
    covariance = centred.T @ centred
    deviation = np.sqrt(np.diag(covariance))
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (covariance / np.outer(deviation, deviation)).clip(-1, 1)
    np.fill_diagonal(found, np.where(deviation > 0, 1.0, np.nan))
    return np.asarray(found)


def _varies(table: Floats) -> Bools:
    low = np.where(np.isnan(table), np.inf, table).min(axis=0, initial=np.inf)
    high = np.where(np.isnan(table), -np.inf, table).max(axis=0, initial=-np.inf)
    return np.asarray(high > low)
