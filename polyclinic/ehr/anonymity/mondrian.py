"""Local recoding: rows are halved at medians as long as both halves reach the target (LeFevre, DeWitt, Ramakrishnan 2006).

Every class gets labels of its own: the range of its numbers, and of other columns the finest label of the hierarchy that
all of its cells share. It loses less than one level for a whole column; the labels of two classes may overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from polyclinic.ehr.anonymity.hierarchies import ANY, Ladder
from polyclinic.ehr.anonymity.target import Demand
from polyclinic.ehr.labels import range_name
from polyclinic.types import Floats, Ints


@dataclass(frozen=True, eq=False)
class Partition:
    """of_row: (rows,) class of each row. cells: each quasi-identifier's labels. loss: mean over rows and columns."""

    of_row: Ints
    cells: tuple[pd.Series, ...]
    loss: float


def partition(ladders: Sequence[Ladder], numeric: Sequence[bool], demand: Demand) -> Partition:
    """Classes that reach the demand. numeric: which columns are told as ranges.

    Raises DataError where all rows together miss it.
    """
    of_row = _halved([_ranks(ladder, ranged) for ladder, ranged in zip(ladders, numeric, strict=True)], demand)
    order = np.argsort(of_row, kind="stable")
    begin = np.flatnonzero(np.diff(of_row[order], prepend=-1))
    told = [
        (_ranges if ranged else _shared)(ladder, of_row, order, begin)
        for ladder, ranged in zip(ladders, numeric, strict=True)
    ]
    return Partition(of_row, tuple(cells for cells, _ in told), float(np.mean([loss.mean() for _, loss in told])))


def _halved(ranks: Sequence[Ints], demand: Demand) -> Ints:
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
    return _told(ladder, names, of_row), loss[of_row]


def _range(low: object, high: object, whole: bool) -> object:
    """Missing cells are the last label, so a class with some of them and numbers tells nothing."""
    return (low if low is None else ANY) if high is None else range_name(float(low), float(high), whole)  # type: ignore[arg-type]


def _shared(ladder: Ladder, of_row: Ints, order: Ints, begin: Ints) -> tuple[pd.Series, Floats]:
    names: list[object] = [ANY] * len(begin)
    loss = np.ones(len(begin))
    for level in range(ladder.top - 1, -1, -1):
        numbers = ladder.numbers[level][order]
        low, high = (part.reduceat(numbers, begin) for part in (np.minimum, np.maximum))
        for place in np.flatnonzero(low == high).tolist():
            names[place] = ladder.labels[level][low[place]]
            loss[place] = ladder.losses[level][low[place]]
    return _told(ladder, names, of_row), loss[of_row]


def _told(ladder: Ladder, names: Sequence[object], of_row: Ints) -> pd.Series:
    labels = np.empty(len(names), dtype=object)
    labels[:] = names
    return pd.Series(labels[of_row], dtype=object, name=ladder.name)
