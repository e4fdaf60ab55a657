"""Tables of one number a cell, and how far apart their rows are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from polyclinic.ehr.encoding import column_cells
from polyclinic.ehr.schema import NUMERIC_KINDS, Column, Schema
from polyclinic.errors import DataError
from polyclinic.types import Floats, Ints

_PIECE = 4_000_000


@dataclass(frozen=True, eq=False)
class Table:
    """values: (n, C), in each column's unit or the numbers of its categories, NaN where missing.  spans: (C,) the width of a
    number's public bounds, 0 of a category."""

    names: tuple[str, ...]
    values: Floats
    spans: Floats

    @classmethod
    def of(cls, x: Floats, y: Ints, schema: Schema) -> Table:
        """Of (n, F) features as encoded, without scaling, and (n,) labels: a trajectory's visits are columns of their own, and
        so is each code of a set. Raises DataError where nothing is in it."""
        if not len(y):
            raise DataError("a table to attack has no rows.")
        names: list[str] = []
        cells, spans = [], []
        for column in schema.features:
            found = column_cells(x, schema, column.name)
            own = column.record_names if len(column.record_names) == found.shape[1] else column.categories
            names += own
            cells.append(found)
            spans += [_span(column)] * found.shape[1]
        return cls(
            (*names, schema.label.name), np.concatenate([*cells, y[:, None].astype(np.float64)], axis=1),
            np.array([*spans, 0.0]),
        )  # fmt: skip

    def at(self, rows: Ints) -> Table:
        return replace(self, values=self.values[rows])

    def __len__(self) -> int:
        return len(self.values)


def _span(column: Column) -> float:
    if column.kind not in NUMERIC_KINDS:
        return 0.0
    low, high = column.bounds or (0.0, float(len(column.categories) - 1))
    return high - low


def first_rows(patient: Ints, patients: int) -> Ints:
    """(patients,) the first row of each patient, of (n,) patients from 0: one row stands for each."""
    found = np.full(patients, -1, dtype=np.int64)
    found[patient[::-1]] = np.arange(len(patient))[::-1]
    return found[found >= 0]


def distances(a: Table, b: Table, columns: Sequence[int]) -> Floats:
    """(n, m) sums over ``columns`` of how far apart cells are: numbers by the share of their bounds, categories and missing
    cells 0 where they are the same and else 1. Gower 1971."""
    found = np.zeros((len(a), len(b)))
    for column in columns:
        found += apart(a, b, column)
    return found


def apart(a: Table, b: Table, column: int) -> Floats:
    """(n, m) of one column."""
    mine, theirs, span = a.values[:, column][:, None], b.values[:, column][None], a.spans[column]
    cells = np.minimum(np.abs(mine - theirs) / span, 1.0) if span else (mine != theirs).astype(np.float64)
    missing = np.isnan(mine), np.isnan(theirs)
    if missing[0].any() or missing[1].any():
        cells = np.where(missing[0] | missing[1], missing[0] != missing[1], cells)
    return np.asarray(cells)


def nearest(a: Table, b: Table, columns: Sequence[int]) -> tuple[Ints, Floats]:
    """For each row of ``a`` (n,) the row of ``b`` nearest to it, the first of several, and its distance."""
    piece = max(1, _PIECE // max(len(b), 1))
    places, lengths = [], []
    for begin in range(0, len(a), piece):
        far = distances(a.at(np.arange(begin, min(begin + piece, len(a)))), b, columns)
        places.append(far.argmin(axis=1))
        lengths.append(far.min(axis=1))
    return np.concatenate(places), np.concatenate(lengths)
