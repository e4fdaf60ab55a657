"""Column by column, and pair by pair: is each distributed as in the real table, and do columns hang together as there?

Definitions follow SDMetrics (KSComplement, TVComplement, BoundaryAdherence, CategoryAdherence,
MissingValueSimilarity, ContingencySimilarity); 1 is best everywhere but in the Wasserstein-1 distance, in the column's unit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from polyclinic.errors import DataError, several
from polyclinic.evaluation.synthetic.classifiers import spearman
from polyclinic.types import Bools, Floats, Ints

BINS = 10


@dataclass(frozen=True)
class Numeric:
    """A column of numbers; missing values count only in ``missing``.

    Attributes:
        ks: 1 - the Kolmogorov-Smirnov distance.
        wasserstein: In the column's unit.
        boundary: Share of synthetic values within the real smallest and largest.
        missing: 1 - the difference of the shares of missing values.

    All but the last are ``None`` where a table has no value.
    """

    ks: float | None
    wasserstein: float | None
    boundary: float | None
    missing: float
    mean_real: float | None
    mean_synthetic: float | None


@dataclass(frozen=True)
class Categorical:
    """A column of categories; missing values count only in ``missing``.

    tv: 1 - the total variation distance.  category: share of synthetic values that the real column has too.
    ``None`` where a table has no value.
    """

    tv: float | None
    category: float | None
    missing: float


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


def columns(
    real: pd.DataFrame, synthetic: pd.DataFrame, categorical: Collection[str] = ()
) -> dict[str, Numeric | Categorical]:
    """Judge each column of the real table, and return the result by name.

    Args:
        real, synthetic: Tables with the same columns.
        categorical: Columns that are judged as categories; the others are judged as numbers.

    Raises:
        DataError: If a column is not in both tables, if a table has no rows, or if a number cannot be read as one.
    """
    _check(real, synthetic, categorical)
    return {
        str(name): (category if name in categorical else number)(real[name], synthetic[name]) for name in real.columns
    }


def number(real: pd.Series, synthetic: pd.Series) -> Numeric:
    """One column of numbers, NaN where missing, judged.  Raises DataError if an entry is not a number."""
    from scipy.stats import ks_2samp, wasserstein_distance

    a, b = (_numbers(column) for column in (real, synthetic))
    missing = _missing(real, synthetic)
    if not a.size or not b.size:
        return Numeric(None, None, None, missing, _mean(a), _mean(b))
    alike = 1 - float(ks_2samp(a, b, method="asymp").statistic)
    within = float(((b >= a.min()) & (b <= a.max())).mean())
    return Numeric(alike, float(wasserstein_distance(a, b)), within, missing, _mean(a), _mean(b))


def category(real: pd.Series, synthetic: pd.Series) -> Categorical:
    """One column of categories, judged."""
    a, b = (column.dropna() for column in (real, synthetic))
    missing = _missing(real, synthetic)
    if not len(a) or not len(b):
        return Categorical(None, None, missing)
    shares = [column.astype(object).value_counts(normalize=True) for column in (a, b)]
    apart = shares[0].sub(shares[1], fill_value=0.0).abs().sum()
    return Categorical(float(1 - apart / 2), float(shares[1].index.isin(shares[0].index) @ shares[1]), missing)


def pairs(
    real: pd.DataFrame, synthetic: pd.DataFrame, categorical: Collection[str] = (), bins: int = BINS
) -> pd.DataFrame:
    """Return (F, F) by column name: 1 - the total variation distance of each pair's contingency tables; on the diagonal, of one.

    A missing value is a category of its own. All pairs come from one product of indicator tables.

    Args:
        real, synthetic: Tables with the same columns.
        categorical: Columns that are judged as categories.
        bins: Numbers fall into so many parts of equal share in the real table (fewer where values repeat).

    Raises:
        DataError: As ``columns``.
    """
    from scipy.sparse import csr_array

    _check(real, synthetic, categorical)
    coded = [_levels(real[name], synthetic[name], None if name in categorical else bins) for name in real.columns]
    sizes = np.array([int(max(a.max(), b.max())) + 1 for a, b in coded])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    joint = []
    for side in (0, 1):
        places = np.stack([pair[side] for pair in coded], axis=1) + starts
        rows, width = places.shape
        ones = csr_array(
            (np.ones(places.size), places.ravel(), np.arange(0, places.size + 1, width)), shape=(rows, int(sizes.sum()))
        )
        joint.append((ones.T @ ones).toarray() / rows)
    apart = np.add.reduceat(np.add.reduceat(abs(joint[0] - joint[1]), starts, axis=0), starts, axis=1)
    return pd.DataFrame(1 - apart / 2, index=real.columns, columns=real.columns)


def correlations(real: ArrayLike, synthetic: ArrayLike, columns: Sequence[str] | None = None) -> Correlations:
    """Compare the correlations of two tables of numbers.

    With missing values a correlation is that of the rows with both entries. A pair never seen together (in either
    table) is left out of the comparison.

    Args:
        real, synthetic: (n, F) and (m, F); NaN is a missing value.
        columns: F names, else numbers from 0.

    Raises:
        DataError: If the tables have another shape, another number of columns or an infinite entry.
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
        tuple(name for name, variable in zip(names, varies, strict=True) if variable),
        tuple(name for name, variable in zip(names, varies, strict=True) if not variable),
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
        return np.asarray(pd.DataFrame(table).corr(), dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.atleast_2d(np.corrcoef(table, rowvar=False))


def _varies(table: Floats) -> Bools:
    low = np.where(np.isnan(table), np.inf, table).min(axis=0, initial=np.inf)
    high = np.where(np.isnan(table), -np.inf, table).max(axis=0, initial=-np.inf)
    return np.asarray(high > low)


def _levels(real: pd.Series, synthetic: pd.Series, bins: int | None) -> tuple[Ints, Ints]:
    """The two columns as whole numbers from 0 that mean the same in both; the missing are 0."""
    if bins is None:
        both = pd.concat([real.astype(object), synthetic.astype(object)], ignore_index=True)
        levels = pd.factorize(both)[0] + 1
        return levels[: len(real)], levels[len(real) :]
    values = _numbers(real)
    inner = np.unique(np.quantile(values, np.arange(1, bins) / bins)) if values.size else np.empty(0)
    levels_of_each = []
    for column in (real, synthetic):
        entries = _numbers(column, keep_missing=True)
        levels_of_each.append(
            np.where(np.isnan(entries), 0, np.searchsorted(inner, entries, side="right") + 1).astype(np.int64)
        )
    return levels_of_each[0], levels_of_each[1]


def _numbers(column: pd.Series, keep_missing: bool = False) -> Floats:
    try:
        values = pd.to_numeric(column).to_numpy(dtype=np.float64, na_value=np.nan)
    except (ValueError, TypeError):
        raise DataError(f"column {column.name!r} has entries that are not numbers; name it in categorical.") from None
    return np.asarray(values if keep_missing else values[~np.isnan(values)])


def _missing(real: pd.Series, synthetic: pd.Series) -> float:
    return float(1 - abs(real.isna().mean() - synthetic.isna().mean()))


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if values.size else None


def _check(real: pd.DataFrame, synthetic: pd.DataFrame, categorical: Collection[str]) -> None:
    if unlike := sorted({*map(str, real.columns)} ^ {*map(str, synthetic.columns)}):
        raise DataError(f"the tables must have the same columns; only one of them has {several(unlike)}.")
    if unknown := sorted(set(categorical) - {*map(str, real.columns)}):
        raise DataError(f"categorical names {several(unknown)}, which no table has.")
    if not len(real) or not len(synthetic) or not len(real.columns):
        raise DataError("the tables must have rows and columns.")
