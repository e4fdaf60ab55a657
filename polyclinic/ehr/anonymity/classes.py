"""Equivalence classes, rows that agree in every quasi-identifier, and measures of what they give away, each by its paper.

A patient counts once in a class however many rows it has there. A missing cell is a value of its own.

The measures of a sensitive column take a ``Spread``: how it is spread over classes. Where several columns are sensitive, each has
measures of its own. None of them is a guarantee against what an outsider knows beyond the quasi-identifiers, and none is
differential privacy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from polyclinic.ehr.schema import Schema
from polyclinic.errors import DataError
from polyclinic.types import Bools, Floats, Ints

#: Sets of quasi-identifiers that ``uniqueness`` looks at, at most: all subsets of ten columns.
MOST_SETS = 1023


@dataclass(frozen=True, eq=False)
class Records:
    """A table and the roles of its columns.

    Args:
        table: One row for each record.
        quasi: Columns that an outsider may know.
        sensitive: Columns that nobody may learn, which l and t are about.
        unit: The column that tells patients apart, of whom each counts once in a class. Without it each row is a
            patient.
        schema: The schema of the table, if there is one.
    """

    table: pd.DataFrame
    quasi: Sequence[str]
    sensitive: Sequence[str] = ()
    unit: str | None = None
    schema: Schema | None = None

    @property
    def notes(self) -> list[str]:
        """What a reader of figures about this table has to know."""
        if self.unit is None:
            return ["Each row counts as a patient; name the column that tells patients apart if they have several."]
        return []


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
    """Raise an error that names ``what`` unless ``records`` has each of the columns.

    Args:
        records: The table.
        names: The columns that it must have.
        what: The argument or table that the message names first.

    Raises:
        DataError: For the first column that is not there.
    """
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
    numbers = cell_numbers(records[unit])
    if (numbers == 0).any():
        row = int(np.argmax(numbers == 0)) + 1
        raise DataError(f"unit: column {unit!r}, data row {row}: the identifier is missing; complete the record.")
    return numbers - 1


def combine(numbers: Sequence[Ints]) -> Ints:
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
    keys, place = distinct(key, size)
    return place, len(keys)


def distinct(key: Ints, size: int | None = None) -> tuple[Ints, Ints]:
    """The distinct keys (n,) in their order, and the place of each key among them; keys are not negative."""
    if size is not None and size <= 8 * len(key) + 1024:
        present = np.zeros(size, dtype=np.bool_)
        present[key] = True
        return np.flatnonzero(present).astype(np.int64), (np.cumsum(present) - 1)[key]
    keys, place = np.unique(key, return_inverse=True)
    return keys, place.astype(np.int64)


def classes_of(numbers: Sequence[Ints], patient: Ints | None) -> Classes:
    """The classes of rows that agree in all of ``numbers``; patient: (rows,) int64, or None where each row is one."""
    of_row = combine(numbers)
    return Classes(of_row, patients_of(of_row, patient))


def patients_of(of_row: Ints, patient: Ints | None) -> Ints:
    """(n,) int64 distinct patients in each class."""
    if patient is not None and len(of_row):
        width = int(patient.max()) + 1
        of_row = np.unique(of_row * width + patient) // width
    return np.bincount(of_row).astype(np.int64)


def equivalence_classes(records: pd.DataFrame, quasi: Sequence[str], unit: str | None = None) -> Classes:
    """Return the classes of ``records``: rows that agree in every quasi-identifier.

    Args:
        records: The table, one row for each record.
        quasi: The quasi-identifiers, at least one column.
        unit: The column that tells patients apart; without it each row is a patient.

    Raises:
        DataError: For a column that is not there, and where none is named.
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
    unique = np.zeros(int(patient.max(initial=-1)) + 1, dtype=np.bool_)
    unique[patient[alone]] = True
    return unique


def uniqueness(
    records: pd.DataFrame, quasi: Sequence[str], unit: str | None = None, most: int | None = None
) -> list[dict[str, Any]]:
    """Return k, the number of classes and the patients who stand alone, for each set of quasi-identifiers.

    Args:
        records: The table, one row for each record.
        quasi: The quasi-identifiers, of which sets are formed.
        unit: The column that tells patients apart; without it each row is a patient.
        most: The largest number of columns in a set; None means all of them.

    Returns:
        A list of ``{"columns", "k", "classes", "unique", "share"}``, small sets first. So many patients
        (``unique``, and their ``share`` of all, 0 to 1) have a row that agrees with no other patient's in the columns.

    Raises:
        DataError: For a column that is not there, an identifier that is missing, and more sets than ``MOST_SETS``.
    """
    require(records, quasi, "quasi")
    numbers, patient = {name: cell_numbers(records[name]) for name in quasi}, patient_numbers(records, unit)
    sets = [names for size in range(1, (most or len(quasi)) + 1) for names in combinations(quasi, size)]
    if len(sets) > MOST_SETS:
        raise DataError(f"quasi: {len(quasi)} columns have {len(sets):,} sets; ask for sets of fewer columns.")
    summaries = []
    for names in sets:
        classes = classes_of([numbers[name] for name in names], patient)
        alone = unique_patients(classes, patient)
        summaries.append({"columns": list(names), "k": classes.k, "classes": len(classes.patients),
                      "unique": int(alone.sum()), "share": float(alone.mean()) if len(alone) else 0.0})  # fmt: skip
    return summaries


_AT_ONCE = 4_000_000  # cells of a (classes, values) block


@dataclass(frozen=True, eq=False)
class Spread:
    """A sensitive column over classes: one entry for each class and each value that occurs in it, in order of class.

    A patient with several values in a class is spread evenly over them.

    Attributes:
        of_class, value: (entries,) int64.
        share: (entries,) float64, the weight of the value in its class, summing to 1 in each class.
        holders: (entries,) int64, the class's patients who have the value.
        overall: (values,) float64, the weights in the whole table.
        patients: (classes,) int64.
        ordered: Whether the values are numbers or ranks.
    """

    of_class: Ints
    value: Ints
    share: Floats
    holders: Ints
    overall: Floats
    patients: Ints
    ordered: bool

    @cached_property
    def values_in_class(self) -> Ints:
        """(classes,) int64 distinct values of each class."""
        return np.bincount(self.of_class, minlength=len(self.patients)).astype(np.int64)

    @property
    def gain(self) -> Floats:
        """(entries,) float64 relative gain (q - p) / p."""
        p = self.overall[self.value]
        return (self.share - p) / p


def value_numbers(values: pd.Series) -> tuple[Ints, bool]:
    """(rows,) int64 numbers of the cells, and whether they are in order: of numbers and ordered categories they are.

    A missing cell is the last value.
    """
    if isinstance(values.dtype, pd.CategoricalDtype):
        numbers, ordered = values.cat.codes.to_numpy(dtype=np.int64), bool(values.cat.ordered)
    else:
        ordered = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
        numbers = np.asarray(pd.factorize(values, sort=ordered)[0], dtype=np.int64)
    numbers = np.where(numbers < 0, numbers.max(initial=-1) + 1, numbers)
    return compact(numbers)[0], ordered


def spread_of(classes: Classes, value: Ints, ordered: bool, patient: Ints | None) -> Spread:
    """Return the spread of a sensitive column's values over the classes.

    Args:
        classes: The equivalence classes of the same rows.
        value: (rows,) int64 numbers of the values, from 0.
        ordered: Whether the values are numbers or ranks.
        patient: (rows,) int64 numbers of patients, or None where each row is one.
    """
    width = int(value.max(initial=0)) + 1
    of_class, what, weight = _once(classes.of_row, value, patient)
    pairs, place = distinct(of_class * width + what, len(classes.patients) * width)
    overall = overall_shares(value, patient, width)
    holders = np.bincount(place, minlength=len(pairs)).astype(np.int64)
    in_class = pairs // width
    share = np.bincount(place, weights=weight, minlength=len(pairs)) / classes.patients[in_class]
    return Spread(in_class, pairs % width, share, holders, overall, classes.patients, ordered)


def overall_shares(value: Ints, patient: Ints | None, width: int) -> Floats:
    """Return the (width,) float64 shares of the values 0..width-1 among all rows.

    Each patient is spread evenly over its values.

    Args:
        value: (rows,) int64 numbers of the values.
        patient: (rows,) int64 numbers of patients, or None where each row is one.
        width: The number of values.
    """
    _, values, weight = _once(np.zeros_like(value), value, patient)
    total: Floats = np.bincount(values, weights=weight, minlength=width).astype(np.float64)
    return total / max(float(weight.sum()), 1.0)


def _once(of_row: Ints, value: Ints, patient: Ints | None) -> tuple[Ints, Ints, Floats]:
    """Class and value of each distinct (class, patient, value), and 1 over the patient's number of values in the class."""
    if patient is None:
        return of_row, value, np.ones(len(value))
    width = int(value.max(initial=0)) + 1
    member = compact(of_row * (int(patient.max(initial=0)) + 1) + patient)[0]
    pairs, first = np.unique(member * width + value, return_index=True)
    return of_row[first], value[first], 1.0 / np.bincount(pairs // width)[pairs // width]


def spread(records: pd.DataFrame, quasi: Sequence[str], sensitive: str, unit: str | None = None) -> Spread:
    """Return the spread of one sensitive column over the classes of the quasi-identifiers.

    Args:
        records: The table, one row for each record.
        quasi: The quasi-identifiers, at least one column.
        sensitive: The sensitive column.
        unit: The column that tells patients apart; without it each row is a patient.

    Raises:
        DataError: For a column that is not there, and where no quasi-identifier is named.
    """
    require(records, [sensitive], "sensitive")
    value, ordered = value_numbers(records[sensitive])
    return spread_of(equivalence_classes(records, quasi, unit), value, ordered, patient_numbers(records, unit))


def alpha(spread: Spread) -> float:
    """The largest share of a class's patients who have one value: (alpha, k)-anonymity for every value.

    Wong, Li, Fu and Wang 2006.
    """
    return float((spread.holders / spread.patients[spread.of_class]).max(initial=0.0))


def l_by_class(spread: Spread) -> Ints:
    """(classes,) int64 distinct values of each class; 1 where all of its patients have one value in common."""
    common = spread.holders == spread.patients[spread.of_class]
    values = spread.values_in_class.copy()
    values[spread.of_class[common]] = 1
    return values


def l_diversity(spread: Spread) -> int:
    """Distinct values of the class that has fewest. Machanavajjhala, Kifer, Gehrke, Venkitasubramaniam 2007."""
    return int(l_by_class(spread).min()) if len(spread.patients) else 0


def entropy_l_diversity(spread: Spread) -> float:
    """exp of the smallest entropy of a class, a real number. Machanavajjhala et al. 2007."""
    entropy = np.bincount(spread.of_class, weights=-spread.share * np.log(spread.share), minlength=len(spread.patients))
    return float(np.exp(entropy.min(initial=math.inf)))


def recursive_c(spread: Spread, l: int) -> float:  # noqa: E741
    """The c that recursive (c, l)-diversity must exceed: the largest r_1 / (r_l + ... + r_m) of a class.

    r_1 is the commonest value's share, then in falling order; infinite where a class has fewer than l values.
    Machanavajjhala et al. 2007.
    """
    order = np.lexsort((-spread.share, spread.of_class))
    of_class, share = spread.of_class[order], spread.share[order]
    start = np.cumsum(spread.values_in_class) - spread.values_in_class
    rank = np.arange(len(share)) - start[of_class]
    tail = np.bincount(of_class, weights=np.where(rank >= l - 1, share, 0.0), minlength=len(spread.patients))
    with np.errstate(divide="ignore"):
        return float((share[start] / tail).max(initial=0.0))


def basic_beta(spread: Spread) -> float:
    """The largest relative gain (q - p) / p of a value in a class. Cao and Karras 2012."""
    return float(spread.gain.max(initial=0.0))


def enhanced_beta(spread: Spread) -> float:
    """The least beta for which every gain is at most min(beta, -ln p); infinite where a gain exceeds -ln p.

    Cao and Karras 2012.
    """
    gain = spread.gain
    excess = gain > -np.log(spread.overall[spread.value]) + 1e-12
    return math.inf if (excess & (gain > 0)).any() else float(gain.max(initial=0.0))


def t_by_class(spread: Spread, overall: Floats | None = None) -> Floats:
    """(classes,) float64 earth mover's distance of each class to ``overall`` (default: the whole table).

    overall: (values,) shares; a value of share 0 is none of the table's, and no class that counts may hold it.
    Ordered values: neighbours are 1 / (m - 1) apart; others: any two are 1 apart. Li, Li and Venkatasubramanian 2007.
    """
    p = spread.overall if overall is None else overall
    there = p > 0
    entries = there[spread.value]
    of_class, share = spread.of_class[entries], spread.share[entries]
    value, p = (np.cumsum(there) - 1)[spread.value[entries]], p[there]
    classes, m = len(spread.patients), len(p)
    if not spread.ordered:
        over = np.maximum(share - p[value], 0.0)
        return np.bincount(of_class, weights=over, minlength=classes).astype(np.float64)
    out = np.zeros(classes)
    step = max(1, _AT_ONCE // max(m, 1))
    for begin in range(0, classes if m > 1 else 0, step):
        low, high = np.searchsorted(of_class, [begin, begin + step])
        block = np.zeros((min(step, classes - begin), m))
        block[of_class[low:high] - begin, value[low:high]] = share[low:high]
        out[begin : begin + step] = np.abs(np.cumsum(block - p, axis=1)).sum(axis=1) / (m - 1)
    return out


def t_closeness(spread: Spread) -> float:
    """The largest distance of a class's values to the whole table's, in [0, 1]. Li et al. 2007."""
    return float(t_by_class(spread).max(initial=0.0))


def delta_disclosure(spread: Spread) -> float:
    """The largest abs(ln(q / p)) of a value in a class; infinite where a class lacks a value.

    Brickell and Shmatikov 2008.
    """
    if (spread.values_in_class < len(spread.overall)).any():
        return math.inf
    return float(np.abs(np.log(spread.share / spread.overall[spread.value])).max(initial=0.0))


def measures(spread: Spread) -> dict[str, float | int | None]:
    """All of a sensitive column's measures by name; ``None`` where a measure is infinite.

    Keys: alpha, l, entropy_l, recursive_c (at this l), basic_beta, enhanced_beta, t, delta.
    """
    l = l_diversity(spread)  # noqa: E741
    values: dict[str, float] = {
        "alpha": alpha(spread), "entropy_l": entropy_l_diversity(spread), "recursive_c": recursive_c(spread, l),
        "basic_beta": basic_beta(spread), "enhanced_beta": enhanced_beta(spread), "t": t_closeness(spread),
        "delta": delta_disclosure(spread),
    }  # fmt: skip
    return {"l": l} | {name: value if math.isfinite(value) else None for name, value in values.items()}
