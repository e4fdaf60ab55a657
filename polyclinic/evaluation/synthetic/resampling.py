"""Bootstrap over test rows (or over their patients), and scores of many resamples at once.

A resample is a row of weights: how often each test row was drawn. What is computed from weights of one is the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError

Floats = NDArray[np.float64]
REDRAWS = 100  # of a resample that lacks a class; of very many rare classes one is lacking nevertheless
AT_ONCE = 2_000_000  # entries of a piece of the weights: some 16 MB


@dataclass(frozen=True)
class Interval:
    """A value with its confidence interval; each is ``None`` where the data do not define it."""

    value: float | None
    low: float | None = None
    high: float | None = None


def resamples(
    rows: int,
    count: int,
    rng: np.random.Generator,
    patients: NDArray[np.generic] | None,
    labels: NDArray[np.int64] | None = None,
) -> Iterator[Floats]:
    """Pieces (b, rows) of the weights of ``count`` resamples; with ``patients`` (rows,) all rows of one move together.

    labels: (rows,) classes from 0; a resample that lacks one of them is drawn again. Drawing within classes instead would
    hold their shares fixed, and make what depends on them look surer than it is.
    """
    if count < 1:
        raise ConfigError(f"resamples must be at least 1, not {count}.")
    unit = np.arange(rows) if patients is None else np.unique(patients, return_inverse=True)[1]
    units = int(unit.max(initial=-1)) + 1
    has = np.zeros((units, 0)) if labels is None else _classes(unit, labels)
    piece = max(1, AT_ONCE // max(rows, 1))
    for begin in range(0, count, piece):
        weights = _drawn(units, min(piece, count - begin), rng)
        for _ in range(REDRAWS):
            if not len(lacking := np.flatnonzero((weights @ has == 0).any(axis=1))):
                break
            weights[lacking] = _drawn(units, len(lacking), rng)
        yield weights[:, unit]


def _drawn(units: int, count: int, rng: np.random.Generator) -> Floats:
    """(count, units) how often each unit is among as many drawn with replacement."""
    drawn = rng.integers(units, size=(count, units)) + units * np.arange(count)[:, None]
    return np.bincount(drawn.ravel(), minlength=count * units).reshape(count, units).astype(np.float64)


def _classes(unit: NDArray[np.int64], labels: NDArray[np.int64]) -> Floats:
    """(units, classes) 1 where a unit has a row of a class, of those that any has."""
    present, number = np.unique(labels, return_inverse=True)
    has = np.zeros((int(unit.max()) + 1, len(present)))
    has[unit, number] = 1.0
    return has


def bootstrap(
    statistic: Callable[[Floats], Floats],
    rows: int,
    rng: np.random.Generator,
    count: int = 1000,
    patients: NDArray[np.generic] | None = None,
    labels: NDArray[np.int64] | None = None,
) -> tuple[Floats, Floats]:
    """The statistic of the rows as they are (...), and of ``count`` resamples (count, ...); NaN where undefined.

    statistic: of weights (b, rows), gives (b, ...).  patients: (rows,), whose rows are drawn together.  labels: as in
    ``resamples``.  Efron 1979. Raises ConfigError if ``count`` is below 1.
    """
    value = statistic(np.ones((1, rows)))[0]
    parts = [statistic(weights) for weights in resamples(rows, count, rng, patients, labels)]
    return value, np.concatenate(parts)


def interval(value: float, draws: Floats, level: float = 0.95) -> Interval:
    """The value with the percentile interval of its draws (count,), of those that are defined."""
    if not np.isfinite(value):
        return Interval(None)
    defined = draws[np.isfinite(draws)]
    if not defined.size:
        return Interval(float(value))
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(value), float(low), float(high))


def weighted_auroc(positive: NDArray[np.bool_], score: Floats, weights: Floats) -> Floats:
    """(b,) chance that a positive row scores above a negative one, ties half, in each resample; NaN with one class.

    positive, score: (n,).  weights: (b, n), non-negative.
    """
    order = np.argsort(score, kind="stable")
    ranks = score[order]
    ties = np.flatnonzero(np.concatenate([[True], ranks[1:] != ranks[:-1]]))
    ranked = weights[:, order]
    hits = np.add.reduceat(ranked * positive[order], ties, axis=1)
    misses = np.add.reduceat(ranked * ~positive[order], ties, axis=1)
    above = (hits * (np.cumsum(misses, axis=1) - misses / 2)).sum(axis=1)
    return ratio(above, hits.sum(axis=1) * misses.sum(axis=1))


def ratio(above: Floats, below: Floats) -> Floats:
    """above / below, NaN where below is zero."""
    return np.asarray(np.divide(above, below, out=np.full(np.shape(above), np.nan), where=below != 0))
