"""Survival curves and the log-rank test from counts of patients by interval of a public grid of time.

The counts may be noisy. Intervals and tests then count the noise, which has a known size and is independent in every count, by
linear propagation. Curves are made monotone, which is post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polyclinic.types import Bools, Floats, Ints

_COVERED = 1.959963984540054
# A curve ends where fewer patients are at risk than this many standard deviations of the noise in their number.
_ABOVE_NOISE = 4.0


@dataclass(frozen=True, eq=False)
class Grid:
    """Intervals of time (edge before, edge], the first of which begins with the time.

    A patient counts in one of 3 J + 1 cells:

    - by the interval of the event,
    - by the interval inside which the patient was censored,
    - by the edge at which the patient was censored,
    - or as seen beyond the last edge.

    edges: (J,) rising.
    inside: How much of a patient is at risk in the interval inside which the patient was censored. It is also how much of the
    interval of an event counts for the hazard: half, as in life tables (Cutler and Ederer 1958), or 0. By 0 curves are those of
    Kaplan and Meier, and of Nelson and Aalen, where the edges hold all times of events.
    """

    edges: Floats
    inside: float = 0.5

    @property
    def size(self) -> int:
        """The number of cells."""
        return 3 * len(self.edges) + 1

    def cell(self, time: Floats, event: Bools) -> Ints:
        """(n,) the cell of each patient."""
        interval = np.searchsorted(self.edges, time, "left")
        within = interval < len(self.edges)
        at_edge = within & (self.edges[np.minimum(interval, len(self.edges) - 1)] == time)
        kind = np.where(event, 0, np.where(at_edge, 2, 1))
        return np.where(within, kind * len(self.edges) + interval, self.size - 1)

    @cached_property
    def events(self) -> Floats:
        """(J, cells) by which counts become numbers of events by interval."""
        return np.eye(len(self.edges), self.size)

    @cached_property
    def at_risk(self) -> Floats:
        """(J, cells) by which counts become numbers of patients at risk by interval."""
        later = np.triu(np.ones((len(self.edges), len(self.edges))))
        own = (1 - self.inside) * np.eye(len(self.edges))
        return np.concatenate([later, later - own, later, np.ones((len(self.edges), 1))], axis=1)


@dataclass(frozen=True, eq=False)
class Curve:
    """What is known at the end of each of the first intervals, as far as anybody is surely at risk.

    at_risk, events: (T,) patients; numbers that are not whole where counts are noisy.
    survival: (3, T) the share without the event, and the ends of its 95 % interval.
    hazard: (3, T) the same of the cumulative hazard.
    """

    edges: Floats
    at_risk: Floats
    events: Floats
    survival: Floats
    hazard: Floats

    @property
    def median(self) -> tuple[float | None, float | None, float | None]:
        """The first edge at which half of the patients had the event, and its 95 % interval; None for what is beyond."""
        value, low, high = (np.flatnonzero(line <= 0.5) for line in self.survival)
        first, begin, end = (float(self.edges[at[0]]) if len(at) else None for at in (value, low, high))
        return first, begin, end


def survival_curve(grid: Grid, counts: Floats, noise: float = 0.0) -> Curve:
    """The survival curve of counts of patients, with limits that count the noise in them.

    Survival is the estimate of Kaplan and Meier 1958 with Greenwood's variance and limits by log(-log S). The hazard is that of
    Nelson and Aalen, or of a life table, with limits by its logarithm. Noise widens limits as independent errors do (Zou and
    Donner 2008).

    Args:
        grid: The intervals of time.
        counts: (cells,) patients in each cell of the grid.
        noise: Standard deviation of the noise in each count; 0 for exact counts.

    Examples:
        >>> grid = Grid(np.array([1.0, 2.0]))
        >>> cells = grid.cell(np.array([1.0, 2.0, 2.0, 3.0]), np.array([True, True, False, False]))
        >>> curve = survival_curve(grid, np.bincount(cells, minlength=grid.size))
        >>> curve.at_risk, curve.survival[0].round(3)
        (array([4., 3.]), array([0.75, 0.5 ]))
    """
    events, at_risk = grid.events @ counts, grid.at_risk @ counts
    ends = len(events)
    if noise:
        spread = noise * np.linalg.norm(grid.at_risk - grid.events, axis=1)
        ends = _first_false((at_risk - events > _ABOVE_NOISE * spread) & (at_risk > _ABOVE_NOISE * spread))
    else:
        ends = _first_false(at_risk > 0)
    d, n = events[:ends], at_risk[:ends]
    left, seen = n - d, n - grid.inside * d
    with np.errstate(divide="ignore", invalid="ignore"):
        hazard = -np.cumsum(np.log1p(-d / n))
        inverse = np.where(left > 0, 1 / left, 0.0)
        by_sampling = np.cumsum(d * inverse / n), np.cumsum(d * left * n / seen**4)
    slopes = ((inverse, 1 / n - inverse), (n / seen**2, -d / seen**2))
    by_noise = [
        (noise * np.cumsum(by_events[:, None] * grid.events[:ends] + by_risk[:, None] * grid.at_risk[:ends], axis=0))
        ** 2
        for by_events, by_risk in slopes
    ]
    lines = [
        _limits(total, variance, of_noise.sum(axis=1))
        for total, variance, of_noise in zip((hazard, np.cumsum(d / seen)), by_sampling, by_noise, strict=True)
    ]
    survival, cumulative = np.exp(-lines[0][[0, 2, 1]]), lines[1]
    if noise and ends:
        from sklearn.isotonic import isotonic_regression  # takes half a second, which no run without noise waits for

        survival = np.array([isotonic_regression(line, y_min=0, y_max=1, increasing=False) for line in survival])
        cumulative = np.array([isotonic_regression(line, y_min=0) for line in cumulative])
    return Curve(grid.edges[:ends], n, d, survival, cumulative)


def _first_false(holds: Bools) -> int:
    return int(np.argmin(np.append(holds, False)))


def _limits(total: Floats, by_sampling: Floats, by_noise: Floats) -> Floats:
    """(3, T) cumulative hazards with their limits, by the variances of sampling, on the scale of logarithms, and of noise."""
    deviation = np.sqrt(np.maximum(by_sampling, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(total > 0, deviation / total, 0.0 if not by_noise.any() else np.inf)
    # Of noisy counts a small hazard may have a large deviation, of which logarithms say nothing.
    by_log = (relative <= 1) | ~by_noise.any()
    with np.errstate(over="ignore", invalid="ignore"):
        below = np.where(by_log, -np.expm1(-_COVERED * relative) * total, _COVERED * deviation)
        above = np.where(by_log, np.expm1(_COVERED * relative) * total, _COVERED * deviation)
    further = _COVERED**2 * by_noise
    limits = np.stack([total, total - np.sqrt(below**2 + further), total + np.sqrt(above**2 + further)])
    limits[1] = np.maximum(limits[1], 0.0)
    return np.where(np.isfinite(total), limits, total)


@dataclass(frozen=True, eq=False)
class LogRank:
    """The test of whether groups have the same hazards: a chi-squared ``statistic`` on degrees of ``freedom``, and its ``p``.

    observed, expected: (G,) events by group, and how many there would be by the same hazards.
    """

    statistic: float
    freedom: int
    p: float
    observed: Floats
    expected: Floats


def log_rank(grid: Grid, strata: Sequence[Floats], noises: Sequence[float]) -> LogRank:
    """The log-rank test, stratified: patients are compared within each of ``strata`` (Mantel 1966).

    Args:
        grid: The intervals of time.
        strata: Of each stratum (groups, cells) counts of patients.
        noises: Of each stratum, the standard deviation of the noise in each count, which adds to the differences' variances.

    Raises:
        ValueError: unless there are two groups or more.
    """
    groups = len(strata[0])
    if groups < 2:
        raise ValueError("A test of groups needs two of them.")
    observed, expected, covariance = np.zeros(groups), np.zeros(groups), np.zeros((groups, groups))
    for counts, noise in zip(strata, noises, strict=True):
        d, n = counts @ grid.events.T, counts @ grid.at_risk.T
        sure = _ABOVE_NOISE * noise * np.sqrt(groups) * np.linalg.norm(grid.at_risk, axis=1)
        ends = _first_false(n.sum(axis=0) > sure)
        d, n = d[:, :ends], n[:, :ends]
        total, at_risk = d.sum(axis=0), n.sum(axis=0)
        share, hazard = n / at_risk, total / at_risk
        observed, expected = observed + d.sum(axis=1), expected + (share * total).sum(axis=1)
        spread = np.maximum(total * (at_risk - total) / np.maximum(at_risk - 1, 0.5), 0.0)
        covariance += np.diag((share * spread).sum(axis=1)) - (share * spread) @ share.T
        for own in np.eye(groups)[:, :, None] if noise else ():  # one group's counts after another, for memory
            slopes = (own - share) @ grid.events[:ends] + ((share - own) * hazard) @ grid.at_risk[:ends]
            covariance += noise**2 * slopes @ slopes.T
    from scipy.stats import chi2  # takes a while to load

    off = (observed - expected)[:-1]
    statistic = float(off @ np.linalg.lstsq(covariance[:-1, :-1], off, rcond=None)[0])
    return LogRank(statistic, groups - 1, float(chi2.sf(statistic, groups - 1)), observed, expected)
