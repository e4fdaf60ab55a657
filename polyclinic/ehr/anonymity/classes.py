"""Equivalence classes: rows that agree in every quasi-identifier, and how many patients each class holds.

A patient counts once in a class however many rows it has there. A missing cell is a value of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from polyclinic.errors import DataError
from polyclinic.types import Bools, Ints

#: Sets of quasi-identifiers that ``uniqueness`` looks at, at most: all subsets of ten columns.
MOST_SETS = 1023


@dataclass(frozen=True, eq=False)
class Classes:
    """of_row: (rows,) int64 class of each row, 0..n-1. patients: (n,) int64 patients with a row in each class."""

    of_row: Ints
    patients: Ints

    @property
    def k(self) -> int:
        """The patients of the smallest class; 0 of no rows (Samarati and Sweeney 1998)."""
        return int(self.patients.min()) if len(self.patients) else 0

    @property
    def rows(self) -> Ints:
        """(n,) int64 rows of each class."""
        return np.bincount(self.of_row, minlength=len(self.patients)).astype(np.int64)


def require(records: pd.DataFrame, names: Sequence[str], what: str) -> None:
    """Raise DataError, naming ``what``, unless ``records`` has each of the columns."""
    for name in names:
        if name not in records.columns:
            # The header is not quoted: in a file without one its place is taken by a patient's row.
            raise DataError(f"{what}: there is no column {name!r}; give a name of the table's header.")


def cell_numbers(values: pd.Series) -> Ints:
    """(rows,) int64: equal cells have equal numbers, missing ones 0."""
    return np.asarray(pd.factorize(values)[0], dtype=np.int64) + 1


def patient_numbers(records: pd.DataFrame, unit: str | None) -> Ints | None:
    """(rows,) int64 patient of each row by the column ``unit``, or None where each row is a patient.

    Raises DataError where the column or one of its cells is missing.
    """
    if unit is None:
        return None
    require(records, [unit], "unit")
    found = cell_numbers(records[unit])
    if (found == 0).any():
        row = int(np.argmax(found == 0)) + 1
        raise DataError(f"unit: column {unit!r}, data row {row}: the identifier is missing; complete the record.")
    return found - 1


def combined(numbers: Sequence[Ints]) -> Ints:
    """(rows,) int64 in 0..n-1: equal exactly where all of ``numbers`` (each (rows,), not negative) are equal."""
    key = np.zeros(len(numbers[0]), dtype=np.int64)
    size = 1
    for part in numbers:
        width = int(part.max(initial=0)) + 1
        if size > np.iinfo(np.int64).max // width:
            key, size = compact(key)
        key = key * width + part
        size *= width
    return compact(key, size)[0]


def compact(key: Ints, size: int | None = None) -> tuple[Ints, int]:
    """The keys renumbered 0..n-1 in their order, and n. size: an exclusive upper bound of the keys, if known."""
    found, place = distinct(key, size)
    return place, len(found)


def distinct(key: Ints, size: int | None = None) -> tuple[Ints, Ints]:
    """The distinct keys (n,) in their order, and the place of each key among them; keys are not negative."""
    if size is not None and size <= 8 * len(key) + 1024:
        present = np.zeros(size, dtype=np.bool_)
        present[key] = True
        return np.flatnonzero(present).astype(np.int64), (np.cumsum(present) - 1)[key]
    found, place = np.unique(key, return_inverse=True)
    return found, place.astype(np.int64)


def classes_of(numbers: Sequence[Ints], patient: Ints | None) -> Classes:
    """The classes of rows that agree in all of ``numbers``; patient: (rows,) int64, or None where each row is one."""
    of_row = combined(numbers)
    return Classes(of_row, patients_of(of_row, patient))


def patients_of(of_row: Ints, patient: Ints | None) -> Ints:
    """(n,) int64 distinct patients in each class."""
    if patient is not None and len(of_row):
        width = int(patient.max()) + 1
        of_row = np.unique(of_row * width + patient) // width
    return np.bincount(of_row).astype(np.int64)


def equivalence_classes(records: pd.DataFrame, quasi: Sequence[str], unit: str | None = None) -> Classes:
    """The classes of ``records`` by the columns ``quasi``; patients are told apart by the column ``unit``.

    Raises DataError for a column that is not there, and where none is named.
    """
    if not quasi:
        raise DataError("quasi: no column is named; give the columns that an outsider may know of a patient.")
    require(records, quasi, "quasi")
    return classes_of([cell_numbers(records[name]) for name in quasi], patient_numbers(records, unit))


def unique_patients(classes: Classes, patient: Ints | None) -> Bools:
    """(patients,) bool: patients who have a row in a class in which they are alone."""
    alone: Bools = classes.patients[classes.of_row] == 1
    if patient is None:
        return alone
    found = np.zeros(int(patient.max(initial=-1)) + 1, dtype=np.bool_)
    found[patient[alone]] = True
    return found


def uniqueness(
    records: pd.DataFrame, quasi: Sequence[str], unit: str | None = None, most: int | None = None
) -> list[dict[str, Any]]:
    """For each set of up to ``most`` (default: all) quasi-identifiers its k, classes and patients who stand alone.

    A list of ``{"columns", "k", "classes", "unique", "share"}``, small sets first. Raises DataError as
    ``equivalence_classes``, and for more sets than ``MOST_SETS``.
    """
    require(records, quasi, "quasi")
    numbers, patient = {name: cell_numbers(records[name]) for name in quasi}, patient_numbers(records, unit)
    sets = [names for size in range(1, (most or len(quasi)) + 1) for names in combinations(quasi, size)]
    if len(sets) > MOST_SETS:
        raise DataError(f"quasi: {len(quasi)} columns have {len(sets):,} sets; ask for sets of fewer columns.")
    found = []
    for names in sets:
        classes = classes_of([numbers[name] for name in names], patient)
        alone = unique_patients(classes, patient)
        found.append({"columns": list(names), "k": classes.k, "classes": len(classes.patients),
                      "unique": int(alone.sum()), "share": float(alone.mean()) if len(alone) else 0.0})  # fmt: skip
    return found
