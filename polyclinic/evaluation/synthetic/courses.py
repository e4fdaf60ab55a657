"""How synthetic patients' visits over time compare with held-out ones: courses, intervals, numbers of visits, the next visit.

A step is a visit where any trajectory has a cell. The time of visits is the trajectory ``before latest``, if the schema has
it, which is then no measurement. Nothing here is private.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import wasserstein_distance

from polyclinic.ehr.encoding import column_cells, feature_slices
from polyclinic.ehr.schema import BEFORE_LATEST, Schema
from polyclinic.types import Floats, Ints

# Fewer cells, pairs or patients define nothing.
LEAST = 10
#: Lags at which autocorrelations are compared.
LAGS = (1, 2, 3)
_BAND = (0.1, 0.9)
# Of a ridge regression on standardised numbers.
_PENALTY = 1.0
# Numbers further out than so many standard deviations count as these; what hardly varies in one table would decide else.
_FAR = 4.0


@dataclass(frozen=True, eq=False)
class Courses:
    """The visits of n patients. measured: by trajectory (n, T) cells in its unit, NaN where missing. times: (n, T) or None.

    own: (n, S) features without steps, as encoded. y: (n,) classes.
    """

    measured: Mapping[str, Floats]
    times: Floats | None
    own: Floats
    y: Ints

    @classmethod
    def of(cls, x: Floats, y: Ints, schema: Schema) -> Courses | None:
        """Return the visits in encoded records; None of a schema without trajectories of measurements, or of one step each.

        Args:
            x: (n, F) encoded features.
            y: (n,) class numbers.
            schema: The schema by which they were encoded.
        """
        slices = feature_slices(schema)
        names = [column.name for column, _ in slices if column.kind == "trajectory"]
        cells = {name: column_cells(x, schema, name) for name in names}
        times = cells.pop(BEFORE_LATEST, None)
        # Trajectories of other lengths are not of the same visits.
        steps = max((table.shape[1] for table in cells.values()), default=0)
        measured = {name: table for name, table in cells.items() if table.shape[1] == steps}
        if steps < 2:
            return None
        own = [x[:, at] for column, at in slices if column.kind not in ("trajectory", "code_set")]
        if times is not None and times.shape[1] != steps:
            times = None
        return cls(measured, times, np.concatenate([np.zeros((len(x), 0)), *own], axis=1), y)

    @property
    def seen(self) -> np.ndarray:
        """(n, T) whether there is a visit."""
        tables = [*self.measured.values(), *([] if self.times is None else [self.times])]
        return np.asarray(~np.isnan(np.stack(tables)).all(axis=0))

    @property
    def counts(self) -> Floats:
        """(n,) how many visits each patient has."""
        return np.asarray(self.seen.sum(axis=1), dtype=np.float64)

    @property
    def intervals(self) -> Floats:
        """The times between successive visits of all patients, one after another; empty without times."""
        if self.times is None:
            return np.zeros(0)
        present = ~np.isnan(self.times)
        ordered = self.times[present]
        patient = np.nonzero(present)[0]
        return np.asarray(np.abs(np.diff(ordered))[np.diff(patient) == 0])


@dataclass(frozen=True)
class Likeness:
    """Of a table beside held-out patients; None where too few cells define a figure.

    Attributes:
        mean, band: Mean difference of means, and of 10 % and 90 % quantiles, by trajectory, step and class, in standard
            deviations of the held-out trajectory.
        autocorrelation: Mean difference at lags 1 to 3.
        visits: Wasserstein distance of the numbers of visits.
        interval: Wasserstein distance of the times between visits, in their held-out standard deviation.
        next_visit: R² on held-out patients of a regression learned from the table, mean over trajectories.
    """

    mean: float | None
    band: float | None
    autocorrelation: float | None
    visits: float
    interval: float | None
    next_visit: float | None


def compare_courses(real: Courses, table: Courses) -> Likeness:
    """The likeness of ``table`` to the held-out ``real`` patients, both of the same schema."""
    means, bands, correlations = [], [], []
    for name, cells in real.measured.items():
        spread, other = _spread(cells), table.measured[name]
        if spread:
            for label in np.unique(real.y):
                for step in range(cells.shape[1]):
                    pair = [
                        _drop_missing(values[y == label, step]) for values, y in ((cells, real.y), (other, table.y))
                    ]
                    if min(map(len, pair)) >= LEAST:
                        means.append(abs(pair[0].mean() - pair[1].mean()) / spread)
                        quantiles = [np.quantile(values, _BAND) for values in pair]
                        bands.append(float(np.abs(quantiles[0] - quantiles[1]).mean()) / spread)
        for lag in LAGS:
            both = autocorrelation(cells, lag), autocorrelation(other, lag)
            if both[0] is not None and both[1] is not None:
                correlations.append(abs(both[0] - both[1]))
    between = real.intervals, table.intervals
    width = float(between[0].std()) if min(map(len, between)) >= LEAST else 0.0
    scores = [score for score in next_visit(table, real).values() if score is not None]
    return Likeness(
        _mean(means), _mean(bands), _mean(correlations), float(wasserstein_distance(real.counts, table.counts)),
        float(wasserstein_distance(*between)) / width if width else None, _mean(scores),
    )  # fmt: skip


def autocorrelation(cells: Floats, lag: int) -> float | None:
    """Pearson correlation of (n, T) cells with those ``lag`` steps later, over all patients and steps; None where undefined."""
    if lag >= cells.shape[1]:
        return None
    before, after = cells[:, :-lag].ravel(), cells[:, lag:].ravel()
    present = ~np.isnan(before) & ~np.isnan(after)
    if present.sum() < LEAST or before[present].std() == 0 or after[present].std() == 0:
        return None
    return float(np.corrcoef(before[present], after[present])[0, 1])


def next_visit(learned_from: Courses, judged_on: Courses) -> dict[str, float | None]:
    """By trajectory R² on the patients of ``judged_on`` of a ridge regression learned from ``learned_from``.

    Predicted is each patient's last cell, from the two visits before it, own columns, the class and the time since the visit
    before. None where either side has fewer than ten patients with two cells. R² is below 0 where the mean would have
    predicted better.
    """
    scores: dict[str, float | None] = {}
    for name in judged_on.measured:
        (x, target, _), (x_new, truth, _) = (_histories(courses, name) for courses in (learned_from, judged_on))
        if min(len(target), len(truth)) < LEAST:
            scores[name] = None
            continue
        there = np.where(np.isnan(x).all(axis=0), 0.0, x)
        middle, scale = np.nanmean(there, axis=0), np.nanstd(there, axis=0)
        scale = np.where(scale > 1e-9, scale, 1.0)
        design, new = (np.clip(np.nan_to_num((features - middle) / scale), -_FAR, _FAR) for features in (x, x_new))
        # A number that never varies where it was learned from says nothing elsewhere.
        new *= np.abs(design).max(axis=0) > 0
        gram = design.T @ design + _PENALTY * np.eye(design.shape[1])
        weights = np.linalg.solve(gram, design.T @ (target - target.mean()))
        scores[name] = _r2(truth, target.mean() + new @ weights)
    return scores


def carried_forward(judged_on: Courses) -> dict[str, float | None]:
    """By trajectory R² of the last cell but one as the prediction of the last; None of fewer than ten patients."""
    scores: dict[str, float | None] = {}
    for name in judged_on.measured:
        _, truth, before = _histories(judged_on, name)
        scores[name] = _r2(truth, before) if len(truth) >= LEAST else None
    return scores


def _histories(courses: Courses, name: str) -> tuple[Floats, Floats, Floats]:
    """(m, f) numbers to predict by, NaN where missing, the (m,) last cells, and those before them, of the m patients with
    two."""
    cells, steps = courses.measured[name], np.arange(courses.measured[name].shape[1])
    present = ~np.isnan(cells)
    rows = np.flatnonzero(present.sum(axis=1) >= 2)
    last = np.where(present[rows], steps, -1).max(axis=1)
    earlier = steps < last[:, None]
    parts = [courses.own[rows], np.eye(int(max(courses.y.max(initial=0), 1)) + 1)[courses.y[rows]][:, 1:]]
    for table in courses.measured.values():
        parts += [_latest(table[rows], earlier, back) for back in (0, 1)]
    if courses.times is not None:
        now = courses.times[rows, last][:, None]
        parts.append(np.abs(now - _latest(courses.times[rows], earlier, 0)))
    return np.concatenate(parts, axis=1), cells[rows, last], _latest(cells[rows], earlier, 0)[:, 0]


def _latest(table: Floats, earlier: np.ndarray, back: int) -> Floats:
    """(m, 1) the latest of (m, T) cells that are there and ``earlier``, or with ``back`` 1 the one before it; NaN where none
    is."""
    candidates = ~np.isnan(table) & earlier
    later = np.cumsum(candidates[:, ::-1], axis=1)[:, ::-1]
    chosen = candidates & (later == back + 1)
    values = np.where(chosen, np.nan_to_num(table), 0.0).sum(axis=1)
    return np.where(chosen.any(axis=1), values, np.nan)[:, None]


def _r2(truth: Floats, predicted: Floats) -> float | None:
    spread = float(((truth - truth.mean()) ** 2).sum())
    return 1.0 - float(((truth - predicted) ** 2).sum()) / spread if spread > 0 else None


def _drop_missing(cells: Floats) -> Floats:
    return cells[~np.isnan(cells)]


def _spread(cells: Floats) -> float:
    values = _drop_missing(cells)
    return float(values.std()) if len(values) >= LEAST else 0.0


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None
