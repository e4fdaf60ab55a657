"""What a release must reach, and the two methods by which a table reaches it, each with the least loss that it can find.

``best_levels``, full-domain generalisation: one level for each quasi-identifier, the least lossy of all combinations. The
combinations form a lattice. Where one misses the target, so do all below it, so a binary search on a path to the top
(El Emam et al. 2009) rules out many at once; the others are taken in the order of a lower bound of their loss, until the
bound passes the best that was found.

``partition``, local recoding: rows are halved at medians as long as both halves reach the target (LeFevre, DeWitt,
Ramakrishnan 2006). Every class gets labels of its own: the range of its numbers, and of other columns the finest label of the
hierarchy that all of its cells share. It loses less than one level for a whole column; the labels of two classes may overlap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from polyclinic.ehr.anonymity.classes import (
    Classes,
    Spread,
    combine,
    l_by_class,
    overall_shares,
    patients_of,
    spread_of,
    t_by_class,
)
from polyclinic.ehr.anonymity.hierarchies import ANY, Ladder, cell_text
from polyclinic.ehr.anonymity.labels import range_name
from polyclinic.errors import ConfigError, DataError
from polyclinic.types import Bools, Floats, Ints


@dataclass(frozen=True)
class Target:
    """k: patients in every class. l: distinct values of each sensitive column in every class. t: its distance to the table.

    suppression: the share of patients who may lose a row. Raises ConfigError for what is out of range.
    """

    k: int
    l: int = 1  # noqa: E741
    t: float | None = None
    suppression: float = 0.0

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"k is {self.k}; it must be 1 or greater.")
        if self.l < 1:
            raise ConfigError(f"l is {self.l}; it must be 1 or greater.")
        if self.t is not None and not 0.0 <= self.t <= 1.0:
            raise ConfigError(f"t is {self.t:g}; it must lie between 0 and 1.")
        if not 0.0 <= self.suppression < 1.0:
            raise ConfigError(f"suppression is {self.suppression:g}; it must lie between 0 and 1, the latter excluded.")


@dataclass(frozen=True, eq=False)
class Sensitive:
    """A sensitive column: value (rows,) int64 numbers of its cells, in order where ``ordered``."""

    value: Ints
    ordered: bool


@dataclass(frozen=True, eq=False)
class Demand:
    """The target for one table: its patients ((rows,) int64, or None where each row is one) and sensitive columns."""

    target: Target
    rows: int
    patient: Ints | None
    sensitive: tuple[Sensitive, ...]

    @property
    def patients(self) -> int:
        """The number of patients."""
        return self.rows if self.patient is None else int(self.patient.max(initial=-1)) + 1

    @property
    def is_monotone(self) -> bool:
        """Whether coarser classes never need more suppression: so for k; where each patient has one row for l, and for t
        if nothing may be suppressed.
        """
        by_row = self.patient is None
        for_l = self.target.l == 1 or by_row
        for_t = self.target.t is None or (by_row and self.target.suppression == 0)
        return not self.sensitive or (for_l and for_t)

    def too_many(self, staying: Bools) -> bool:
        """Whether more patients lose a row than the target allows, or no row is left."""
        lost = self.rows - int(staying.sum()) if self.patient is None else len(np.unique(self.patient[~staying]))
        return lost > math.floor(self.target.suppression * self.patients + 1e-9) or not staying.any()

    def staying(self, of_row: Ints) -> Bools:
        """(rows,) bool: the rows that stay when every class that misses the target goes.

        t is measured against the table that stays, so classes go until none is too far from it.
        """
        classes = Classes(of_row, patients_of(of_row, self.patient))
        good: Bools = classes.patients >= self.target.k
        if self.target.l > 1 or self.target.t is not None:
            spreads = [spread_of(classes, column.value, column.ordered, self.patient) for column in self.sensitive]
            for spread in spreads:
                good &= l_by_class(spread) >= self.target.l
            while self.target.t is not None and (far := self._far(good, of_row, spreads)).any():
                good &= ~far
        staying: Bools = good[of_row]
        return staying

    def _far(self, good: Bools, of_row: Ints, spreads: Sequence[Spread]) -> Bools:
        """(classes,) bool: the good classes that are too far from the table of good classes."""
        far = np.zeros(len(good), dtype=np.bool_)
        staying = good[of_row]
        patient = None if self.patient is None else self.patient[staying]
        for column, spread in zip(self.sensitive, spreads, strict=True) if staying.any() else ():
            overall = overall_shares(column.value[staying], patient, len(spread.overall))
            far |= good & (t_by_class(spread, overall) > (self.target.t or 0.0) + 1e-12)
        return far

    def is_enough(self, rows: Ints) -> bool:
        """Whether these rows may be a class of the whole table, nothing of which goes."""
        patient = None if self.patient is None else self.patient[rows]
        patients = len(rows) if patient is None else len(np.unique(patient))
        if patients < self.target.k:
            return False
        if not self.sensitive or (self.target.l == 1 and self.target.t is None):
            return True
        held = Classes(np.zeros(len(rows), dtype=np.int64), np.array([patients], dtype=np.int64))
        for column, overall in zip(self.sensitive, self._overall, strict=True):
            spread = spread_of(held, column.value[rows], column.ordered, patient)
            if l_by_class(spread)[0] < self.target.l:
                return False
            if self.target.t is not None and t_by_class(spread, overall)[0] > self.target.t + 1e-12:
                return False
        return True

    @cached_property
    def _overall(self) -> tuple[Floats, ...]:
        return tuple(
            overall_shares(column.value, self.patient, int(column.value.max()) + 1) for column in self.sensitive
        )

    def hopeless(self) -> DataError:
        """What to raise where not even one class of all rows reaches the target."""
        target = self.target
        wanted = [f"k = {target.k}", *([f"l = {target.l}"] if target.l > 1 else []),
                  *([f"t = {target.t:g}"] if target.t is not None else [])]  # fmt: skip
        return DataError(
            f"{', '.join(wanted)} cannot be reached: {self.patients:,} patients in one class miss it; ask for less, or "
            "name other sensitive columns."
        )


MOST_NODES = 2_000_000


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a method makes of a table.

    Attributes:
        cells: By column the labels of each quasi-identifier that changes, as objects.
        staying: (rows,) bool rows that stay.
        loss: Mean over rows and quasi-identifiers, 1 for a suppressed row.
        levels: One of each quasi-identifier; None where classes have labels of their own.
        is_least: Whether no other combination of levels loses less.
        looked_at: Combinations that were tried.
        of: The number of all combinations.
    """

    cells: dict[str, pd.Series]
    staying: Bools
    loss: float
    levels: tuple[int, ...] | None = None
    is_least: bool = False
    looked_at: int = 0
    of: int = 0


def best_levels(ladders: Sequence[Ladder], demand: Demand) -> Outcome:
    """The combination of levels that reaches the demand and loses least.

    Raises ConfigError for a lattice of more than ``MOST_NODES``, DataError where not even ``*`` everywhere reaches it.
    """
    shape = [ladder.top + 1 for ladder in ladders]
    if math.prod(shape) > MOST_NODES:
        raise ConfigError(
            f"The hierarchies have {math.prod(shape):,} combinations of levels; at most {MOST_NODES:,} can be searched. "
            "Declare fewer levels, name fewer quasi-identifiers, or use the method mondrian."
        )
    nodes: Ints = np.indices(shape).reshape(len(shape), -1).T.astype(np.int64)
    bound: Floats = np.mean([ladder.mean_losses[nodes[:, i]] for i, ladder in enumerate(ladders)], axis=0)
    order = np.argsort(bound, kind="stable")
    search = _Search(ladders, demand, nodes[order], bound[order])
    top = tuple(ladder.top for ladder in ladders)
    if not search.reaches(top):
        raise demand.hopeless()
    while (place := search.next()) is not None:
        search.climb(tuple(search.nodes[place].tolist()), top)
    assert search.best is not None
    levels, staying, loss = search.best
    cells = {ladder.name: ladder.cells(level) for ladder, level in zip(ladders, levels, strict=True) if level > 0}
    return Outcome(cells, staying, loss, levels, demand.is_monotone, len(search.tried), len(nodes))


class _Search:
    def __init__(self, ladders: Sequence[Ladder], demand: Demand, nodes: Ints, bound: Floats) -> None:
        self.ladders, self.demand, self.nodes, self.bound = ladders, demand, nodes, bound
        self.open = np.ones(len(nodes), dtype=np.bool_)
        self.tried: dict[tuple[int, ...], bool] = {}
        self.best: tuple[tuple[int, ...], Bools, float] | None = None

    def next(self) -> int | None:
        """The first combination that is still open and may lose less than the best."""
        place = int(np.argmax(self.open))
        less = self.best is None or self.bound[place] < self.best[2] - 1e-12
        return place if self.open[place] and less else None

    def climb(self, start: tuple[int, ...], top: tuple[int, ...]) -> None:
        """Find where the path from ``start`` to the top begins to reach the demand; what lies below is ruled out."""
        path = _path(start, top)
        low, high = 0, len(path) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.reaches(path[middle]) else (middle + 1, high)

    def reaches(self, levels: tuple[int, ...]) -> bool:
        if levels not in self.tried:
            self.tried[levels] = self._try(levels)
        return self.tried[levels]

    def _try(self, levels: tuple[int, ...]) -> bool:
        of_row = combine([ladder.numbers[level] for ladder, level in zip(self.ladders, levels, strict=True)])
        staying = self.demand.staying(of_row)
        if self.demand.too_many(staying):
            self.open &= ~(self.nodes <= levels).all(axis=1)
            return False
        self.open &= ~(self.nodes == levels).all(axis=1)
        loss = _loss(self.ladders, levels, staying)
        if self.best is None or _rank(loss, levels) < _rank(self.best[2], self.best[0]):
            self.best = (levels, staying, loss)
        return True


def _rank(loss: float, levels: tuple[int, ...]) -> tuple[float, int]:
    """Of equal losses the lower levels are better: they say the same, and say it plainly."""
    return round(loss, 12), sum(levels)


def _loss(ladders: Sequence[Ladder], levels: Sequence[int], staying: Bools) -> float:
    each = [
        np.where(staying, ladder.losses[level][ladder.numbers[level]], 1.0).mean()
        for ladder, level in zip(ladders, levels, strict=True)
    ]
    return float(np.mean(each))


def _path(start: tuple[int, ...], top: tuple[int, ...]) -> list[tuple[int, ...]]:
    """One level more at each step, always of the column that is lowest on its ladder."""
    path, now = [start], list(start)
    while tuple(now) != top:
        rising = [i for i in range(len(now)) if now[i] < top[i]]
        now[min(rising, key=lambda i: now[i] / top[i])] += 1
        path.append(tuple(now))
    return path


def partition(ladders: Sequence[Ladder], numeric: Sequence[bool], demand: Demand) -> Outcome:
    """Halve the rows into classes that reach the demand, each with labels of its own.

    Args:
        ladders: Of each quasi-identifier.
        numeric: For each ladder, whether its labels are written as ranges.
        demand: The target that each class must reach, and the patients and sensitive values of the rows.

    Raises:
        DataError: Where all rows together miss the demand.
    """
    of_row = _halve_all([_ranks(ladder, ranged) for ladder, ranged in zip(ladders, numeric, strict=True)], demand)
    order = np.argsort(of_row, kind="stable")
    begin = np.flatnonzero(np.diff(of_row[order], prepend=-1))
    generalised = [
        (_ranges if ranged else _shared_labels)(ladder, of_row, order, begin)
        for ladder, ranged in zip(ladders, numeric, strict=True)
    ]
    cells = {ladder.name: labels for ladder, (labels, _) in zip(ladders, generalised, strict=True)}
    staying = np.ones(demand.rows, dtype=np.bool_)
    return Outcome(cells, staying, float(np.mean([loss.mean() for _, loss in generalised])))


def _halve_all(ranks: Sequence[Ints], demand: Demand) -> Ints:
    table = np.stack(ranks, axis=1).astype(np.int32)
    width = np.maximum(table.max(axis=0), 1)
    everyone = np.arange(demand.rows)
    if not demand.is_enough(everyone):
        raise demand.hopeless()
    of_row, count, stack = np.zeros(demand.rows, dtype=np.int64), 0, [everyone]
    while stack:
        rows = stack.pop()
        halves = _halves(table[rows], rows, width, demand)
        if halves is None:
            of_row[rows] = count
            count += 1
        else:
            stack.extend(halves)
    return of_row


def _halves(cells: np.ndarray, rows: Ints, width: np.ndarray, demand: Demand) -> tuple[Ints, Ints] | None:
    """The rows in two parts at the median of the column that is widest for its range, if both reach the demand."""
    if demand.patient is None and len(rows) < 2 * demand.target.k:
        return None
    spans = (cells.max(axis=0) - cells.min(axis=0)) / width
    for column in np.argsort(-spans, kind="stable"):
        if spans[column] == 0:
            return None
        values = cells[:, column]
        middle = np.partition(values, (len(values) - 1) // 2)[(len(values) - 1) // 2]
        left = values <= middle
        if left.all():
            left = values < middle
        halves = rows[left], rows[~left]
        if all(demand.is_enough(half) for half in halves):
            return halves
    return None


def _ranks(ladder: Ladder, ranged: bool) -> Ints:
    """(rows,) int64: numbers by size, missing last; other cells so that those with a label in common are neighbours."""
    base = ladder.numbers[0]
    if ranged:
        return base
    first: Ints = np.zeros(len(ladder.labels[0]), dtype=np.int64)
    first[base] = np.arange(len(base))
    rank = np.empty_like(first)
    rank[np.lexsort([numbers[first] for numbers in ladder.numbers[: ladder.top]])] = np.arange(len(first))
    return np.asarray(rank[base], dtype=np.int64)


def _ranges(ladder: Ladder, of_row: Ints, order: Ints, begin: Ints) -> tuple[pd.Series, Floats]:
    base = ladder.numbers[0]
    low, high = (part.reduceat(base[order], begin) for part in (np.minimum, np.maximum))
    labels = ladder.labels[0]
    whole = all(label is None or float(label).is_integer() for label in labels)  # type: ignore[arg-type]
    names = [_range(labels[a], labels[b], whole) for a, b in zip(low.tolist(), high.tolist(), strict=True)]
    loss = np.where([name == ANY for name in names], 1.0, (high - low) / max(len(labels) - 1, 1))
    return _labels_of_rows(ladder, names, of_row), loss[of_row]


def _range(low: object, high: object, whole: bool) -> object:
    """Missing cells are the last label, so a class with some of them and numbers tells nothing."""
    return (low if low is None else ANY) if high is None else range_name(float(low), float(high), whole)  # type: ignore[arg-type]


def _shared_labels(ladder: Ladder, of_row: Ints, order: Ints, begin: Ints) -> tuple[pd.Series, Floats]:
    names: list[object] = [ANY] * len(begin)
    loss = np.ones(len(begin))
    for level in range(ladder.top - 1, -1, -1):
        numbers = ladder.numbers[level][order]
        low, high = (part.reduceat(numbers, begin) for part in (np.minimum, np.maximum))
        for place in np.flatnonzero(low == high).tolist():
            names[place] = ladder.labels[level][low[place]]
            loss[place] = ladder.losses[level][low[place]]
    return _labels_of_rows(ladder, names, of_row), loss[of_row]


def _labels_of_rows(ladder: Ladder, names: Sequence[object], of_row: Ints) -> pd.Series:
    """The label of each row's class. Where one of them is text all are, for no file of one type holds both."""
    if any(isinstance(name, str) for name in names):
        names = [None if name is None else cell_text(name) for name in names]
    labels = np.empty(len(names), dtype=object)
    labels[:] = names
    return pd.Series(labels[of_row], dtype=object, name=ladder.name)
