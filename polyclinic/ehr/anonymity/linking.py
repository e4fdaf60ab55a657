"""The linking attack: an outside table with names is joined to the records by what both hold (Sweeney 2002).

It shows what one outside table gives away. That a table stands it says nothing of the next table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from polyclinic.ehr.anonymity.classes import cell_numbers, combine, patient_numbers, require
from polyclinic.ehr.anonymity.hierarchies import Hierarchy
from polyclinic.ehr.anonymity.labels import bounds_of
from polyclinic.ehr.checks import texts
from polyclinic.ehr.dates import ISO_DATE
from polyclinic.errors import ConfigError, DataError, several
from polyclinic.types import Bools, Ints

_AT_ONCE = 20_000_000  # cells of a (people, classes) block


@dataclass(frozen=True, eq=False)
class Linked:
    """What an outside table tells, for each of its people; all arrays are (people,).

    Attributes:
        candidates: int64 patients of the records who may be this person; 0 where none fits.
        rival: bool, whether another person fits some of the same rows.
        learned: For each sensitive column int64, distinct values among the candidates.
    """

    candidates: Ints
    rival: Bools
    learned: dict[str, Ints]

    @property
    def re_identified(self) -> Bools:
        """(people,) bool: exactly one patient fits, and that patient fits no one else of the outside table."""
        alone: Bools = (self.candidates == 1) & ~self.rival
        return alone

    def is_disclosed(self, sensitive: str) -> Bools:
        """(people,) bool: all candidates have the same value, so it is known even where the patient is not."""
        certain: Bools = self.learned[sensitive] == 1
        return certain

    def summary(self) -> dict[str, object]:
        """Counts alone: people, matched, re_identified, narrowed (2 to 4 candidates), mean candidates, disclosed."""
        matched = self.candidates > 0
        return {
            "people": len(self.candidates), "matched": int(matched.sum()),
            "re_identified": int(self.re_identified.sum()),
            "narrowed": int(((self.candidates > 1) & (self.candidates < 5)).sum()),
            "mean_candidates": float(self.candidates[matched].mean()) if matched.any() else None,
            "disclosed": {name: int(self.is_disclosed(name).sum()) for name in self.learned},
        }  # fmt: skip


def link(
    records: pd.DataFrame,
    outside: pd.DataFrame,
    on: Sequence[str],
    sensitive: Sequence[str] = (),
    unit: str | None = None,
    hierarchies: Mapping[str, Hierarchy] | None = None,
    tolerances: Mapping[str, float] | None = None,
) -> Linked:
    """Return which patients of ``records`` each person of ``outside`` may be, by the columns ``on`` of both tables.

    A raw cell matches itself, every interval that holds it, and masks and dates of its form. It also matches the labels
    of its hierarchy where one is given. A missing cell matches nothing.

    Args:
        records: The table under attack, raw or released.
        outside: The outside table; each row is a person.
        on: The columns of both tables that link them, at least one.
        sensitive: Columns of ``records`` whose distinct values are counted among a person's candidates.
        unit: The column of ``records`` that tells patients apart; without it each row is a patient.
        hierarchies: By column, the hierarchy whose labels ``records`` may hold.
        tolerances: By column, how far a person's number may lie from one of ``records``, or outside an interval, and
            still match, in the column's unit.

    Raises:
        DataError: For a column that is not there, where none is named, and for a table without rows.
        ConfigError: For a tolerance that is negative or not finite, or of a column that is not among ``on``.
    """
    tolerances = tolerances or {}
    for name, tolerance in tolerances.items():
        if name not in on:
            raise ConfigError(f"tolerance names {name!r}, which is not among the columns that link: {several(on)}.")
        if not 0 <= tolerance < np.inf:
            raise ConfigError(f"The tolerance of {name!r} is {tolerance:g}; it must be a finite number of at least 0.")
    if not on:
        raise DataError("on: no column is named; give the columns that both tables hold.")
    require(records, [*on, *sensitive], "records")
    require(outside, on, "outside")
    if records.empty or outside.empty:
        raise DataError("A table without rows cannot be linked.")
    inside, asked = ([texts(table[name]) for name in on] for table in (records, outside))
    of_row, row = _distinct(inside)
    of_person, person = _distinct(asked)
    fits = _fits(
        [_column([cells[i] for i in row], [outside_cells[i] for i in person], (hierarchies or {}).get(name),
                 tolerances.get(name))
         for name, cells, outside_cells in zip(on, inside, asked, strict=True)]
    )  # fmt: skip
    patient = patient_numbers(records, unit)
    who = np.arange(len(records), dtype=np.int64) if patient is None else patient
    people = fits.T @ np.bincount(of_person)  # who fits the rows of each class
    rival = np.asarray((fits.multiply(people[None, :]) > 1).sum(axis=1)).ravel() > 0
    learned = {name: _distinct_among(fits, of_row, cell_numbers(records[name]))[of_person] for name in sensitive}
    return Linked(_distinct_among(fits, of_row, who)[of_person], rival[of_person], learned)


def _distinct(columns: Sequence[Sequence[str]]) -> tuple[Ints, Ints]:
    """The number of each row's tuple, and the first row of each tuple."""
    number = combine([pd.factorize(np.array(cells, dtype=object))[0].astype(np.int64) for cells in columns])
    return number, np.unique(number, return_index=True)[1].astype(np.int64)


def _column(
    labels: Sequence[str], cells: Sequence[str], hierarchy: Hierarchy | None, tolerance: float | None
) -> tuple[Any, Ints, Ints]:
    """Which distinct label may hide which distinct raw cell, (cells, labels) sparse; the numbers of both."""
    from scipy.sparse import coo_array

    of_class, names = pd.factorize(np.array(labels, dtype=object))
    of_person, distinct_cells = pd.factorize(np.array(cells, dtype=object))
    place = {name: number for number, name in enumerate(names) if name}
    pairs: set[tuple[int, int]] = set()
    for row, cell in enumerate(distinct_cells):
        if cell:
            behind = {cell, *_disguises(cell), *(hierarchy.labels(cell) if hierarchy else ())}
            pairs |= {(row, place[label]) for label in behind if label in place}
    ends = [(number, bounds) for name, number in place.items() if (bounds := bounds_of(name)) is not None]
    if tolerance is not None:
        numbers = pd.to_numeric(pd.Series(list(place)), errors="coerce")
        ends += [(place[name], (at, at, True)) for name, at in zip(place, numbers, strict=True) if np.isfinite(at)]
        # Beside the tolerance as much as sums of decimal numbers are rounded by.
        ends = [
            (number, (low - tolerance - 1e-9 * abs(low), high + tolerance + 1e-9 * abs(high), True))
            for number, (low, high, _) in ends
        ]
    number_of = pd.to_numeric(pd.Series(distinct_cells), errors="coerce").to_numpy(dtype=np.float64)
    for number, (low, high, closed) in ends:
        held = (number_of >= low) & ((number_of < high) | (closed & (number_of == high)))
        pairs |= {(row, number) for row in np.flatnonzero(held).tolist()}
    rows, columns = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T
    table = coo_array(
        (np.ones(len(rows), dtype=np.int64), (rows, columns)), shape=(len(distinct_cells), len(names))
    ).tocsr()
    return table, of_class.astype(np.int64), of_person.astype(np.int64)


def _fits(columns: Sequence[tuple[Any, Ints, Ints]]) -> Any:
    """(people, classes) sparse: 1 where a class's labels may hide all of a person's cells."""
    from scipy.sparse import csr_array, vstack

    people, classes = len(columns[0][2]), len(columns[0][1])
    if all(np.diff(table.indptr).max(initial=0) <= 1 for table, _, _ in columns):
        return _join(columns)
    blocks, step = [], max(1, _AT_ONCE // classes)
    for begin in range(0, people, step):
        block = np.ones((min(step, people - begin), classes), dtype=np.bool_)
        for table, of_class, of_person in columns:
            block &= table[of_person[begin : begin + step]].toarray().astype(np.bool_)[:, of_class]
        blocks.append(csr_array(block.astype(np.int64)))
    return vstack(blocks).tocsr()


def _join(columns: Sequence[tuple[Any, Ints, Ints]]) -> Any:
    """``_fits`` where every cell stands behind one label at most: a join."""
    from scipy.sparse import coo_array

    people, classes = len(columns[0][2]), len(columns[0][1])
    sought = {}
    for place, (table, _, of_person) in enumerate(columns):
        label = np.full(table.shape[0], -1, dtype=np.int64)
        label[np.diff(table.indptr) == 1] = table.indices
        sought[place] = label[of_person]
    left = pd.DataFrame(sought).assign(person=np.arange(people))
    right = pd.DataFrame({place: of_class for place, (_, of_class, _) in enumerate(columns)})
    pairs = left.merge(right.assign(group=np.arange(classes)), on=list(sought))
    where = (pairs["person"].to_numpy(), pairs["group"].to_numpy())
    return coo_array((np.ones(len(pairs), dtype=np.int64), where), shape=(people, classes)).tocsr()


def _distinct_among(fits: Any, of_row: Ints, value: Ints) -> Ints:
    """(people,) int64 distinct values among the rows of the classes that fit each person."""
    from scipy.sparse import coo_array

    shape = (fits.shape[1], int(value.max()) + 1)
    table = coo_array((np.ones(len(value), dtype=np.int64), (of_row, value)), shape=shape).tocsr()
    step = max(1, _AT_ONCE // shape[1])
    parts = [np.diff((fits[begin : begin + step] @ table).indptr) for begin in range(0, fits.shape[0], step)]
    return np.concatenate(parts).astype(np.int64)


def _disguises(cell: str) -> set[str]:
    """Labels other than intervals behind which a raw cell may stand by its form: ``*``, ``606**``, ``1964-03``, ``1960s``."""
    labels = {"*", *(cell[:length] + "*" * (len(cell) - length) for length in range(1, len(cell)))}
    return labels | ({cell[:7], cell[:4], f"{cell[:3]}0s"} if ISO_DATE.match(cell) else set())
