"""A table made k-anonymous, and what that cost. It is no differential privacy, and no proof against what else is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from polyclinic.ehr.anonymity.classes import Records, cell_numbers, classes_of, patient_numbers, require, value_numbers
from polyclinic.ehr.anonymity.hierarchies import (
    Hierarchy,
    Intervals,
    Ladder,
    coarser_column,
    default_hierarchy,
    ladder,
    listed_column,
)
from polyclinic.ehr.anonymity.methods import Demand, Sensitive, Target, best_levels, partition
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError, DataError
from polyclinic.types import Bools, Ints

Method = Literal["lattice", "mondrian"]
METHODS = ("lattice", "mondrian")


@dataclass(frozen=True, eq=False)
class Release:
    """A table whose quasi-identifiers are generalised, with the cost of that.

    Attributes:
        records: The rows that stay, with generalised quasi-identifiers.
        staying: (rows of the table,) bool, the rows that stay.
        hierarchies: Of each quasi-identifier, as applied.
        levels: Of each ``(level, last level)``; None where classes have labels of their own (mondrian).
        k: Patients in the smallest class.
        sizes: (classes,) patients in each.
        loss: Measures of information loss by name.
        is_least: Whether no other combination of levels loses less.
    """

    records: pd.DataFrame
    staying: Bools
    hierarchies: dict[str, Hierarchy]
    levels: dict[str, tuple[int, int]] | None
    k: int
    sizes: Ints
    loss: dict[str, Any]
    is_least: bool


def anonymise(
    records: Records, target: Target, hierarchies: Mapping[str, Hierarchy] | None = None, method: Method = "lattice"
) -> Release:
    """Return the records with generalised quasi-identifiers, such that every class reaches the target.

    Args:
        records: The table and the roles of its columns.
        target: The k, l and t that every class must reach.
        hierarchies: By column. Those that are not given follow from the schema's bounds, or from the cells.
        method: "lattice" (one level for a whole column, suppression) or "mondrian" (labels for each class, no
            suppression).

    Raises:
        ConfigError: For a target, hierarchy or method that cannot be.
        DataError: For columns that are missing, an empty table, and a target that cannot be reached.
    """
    quasi, sensitive, unit, table = records.quasi, records.sensitive, records.unit, records.table
    if method not in METHODS:
        raise ConfigError(f"method is {method!r}; it must be one of {', '.join(METHODS)}.")
    if (target.l > 1 or target.t is not None) and not sensitive:
        raise ConfigError("l and t are about sensitive columns; name at least one.")
    if table.empty:
        raise DataError("There are no records; give a table with at least one row under its header.")
    if not quasi:
        raise DataError("quasi: no column is named; give the columns that an outsider may know of a patient.")
    require(table, quasi, "quasi")
    require(table, sensitive, "sensitive")
    if both := [name for name in quasi if name in sensitive or name == unit]:
        raise ConfigError(f"Column {both[0]!r} cannot be a quasi-identifier and the unit or sensitive as well.")
    table = table.reset_index(drop=True)
    used = {name: _hierarchy(table[name], hierarchies or {}, records.schema) for name in quasi}
    ladders = [ladder(table[name], hierarchy) for name, hierarchy in used.items()]
    patient = patient_numbers(table, unit)
    if unit is not None and table[unit].is_unique:
        patient = None
    demand = Demand(target, len(table), patient, tuple(Sensitive(*value_numbers(table[name])) for name in sensitive))
    if method == "lattice":
        outcome = best_levels(ladders, demand)
    else:
        outcome = partition(ladders, [isinstance(hierarchy, Intervals) for hierarchy in used.values()], demand)
    released = table.assign(**outcome.cells)[outcome.staying]
    # By what the cells say: two classes may have got the same labels, and are one class for a reader.
    classes = classes_of(
        [cell_numbers(released[name]) for name in quasi], None if patient is None else patient[outcome.staying]
    )
    loss: dict[str, Any] = {
        "loss": outcome.loss, "discernibility": discernibility(classes.rows, int((~outcome.staying).sum())),
        "average_class_size": average_class_size(classes.rows, target.k),
    }  # fmt: skip
    levels = None
    if outcome.levels is not None:
        loss |= {
            "height": height(ladders, outcome.levels), "precision": precision(ladders, outcome.levels, outcome.staying),
            "looked_at": outcome.looked_at, "combinations": outcome.of,
        }  # fmt: skip
        levels = {ladder.name: (level, ladder.top) for ladder, level in zip(ladders, outcome.levels, strict=True)}
    return Release(released, outcome.staying, used, levels, classes.k, classes.patients, loss, outcome.is_least)


def _hierarchy(values: pd.Series, declared: Mapping[str, Hierarchy], schema: Schema | None) -> Hierarchy:
    name = str(values.name)
    columns = {column.name: column for column in schema.columns} if schema is not None else {}
    hierarchy = declared.get(name) or default_hierarchy(values, columns.get(name))
    if isinstance(hierarchy, Intervals) and not (is_numeric_dtype(values) and not is_bool_dtype(values)):
        raise ConfigError(f"The hierarchy of {name!r} is of intervals, but the column holds other cells than numbers.")
    return hierarchy


def fitting_schema(schema: Schema, release: Release, dropped: Sequence[str]) -> Schema:
    """Return the schema for ``release.records``: generalised columns become ordinal or categorical, those of ``*`` alone leave.

    Categories follow from the schema's own bounds and categories. Where classes have labels of their own (mondrian)
    they are the labels that occur, which is not private.

    Args:
        schema: The schema of the records before the release.
        release: The release of those records.
        dropped: Columns that the release leaves out; without its patient_id column each row is a unit.

    Raises:
        DataError: Where no feature or no label is left.
    """
    columns = [
        fitted
        for column in schema.columns
        if column.name not in dropped and column.is_read
        if (fitted := _fit_column(column, release)) is not None
    ]
    has_patients = any(column.role == "patient_id" for column in columns)
    return Schema(name=schema.name, columns=tuple(columns), unit=schema.unit if has_patients else "record")


def _fit_column(column: Column, release: Release) -> Column | None:
    if release.levels is None:
        if column.name not in release.hierarchies:
            return column
        return listed_column(
            column, "categorical", sorted({str(cell) for cell in release.records[column.name].dropna()})
        )
    level, top = release.levels.get(column.name, (0, 1))
    if level == 0:
        return column
    if level == top:
        return None
    return coarser_column(column, release.hierarchies[column.name], level)


def discernibility(sizes: Ints, suppressed: int) -> int:
    """Rows from which a row cannot be told, summed over rows: a class's rows, and all of them for a suppressed row.

    sizes: rows of each class. Bayardo and Agrawal 2005.
    """
    return int((sizes**2).sum()) + suppressed * (int(sizes.sum()) + suppressed)


def average_class_size(sizes: Ints, k: int) -> float | None:
    """Rows per class in multiples of k; 1 is the best there is. LeFevre, DeWitt and Ramakrishnan 2006, C_AVG."""
    return float(sizes.mean() / k) if len(sizes) else None


def height(ladders: Sequence[Ladder], levels: Sequence[int]) -> float:
    """The share of all levels that were climbed: 0 the table as it is, 1 nothing but ``*``. Samarati 2001."""
    return sum(levels) / sum(ladder.top for ladder in ladders)


def precision(ladders: Sequence[Ladder], levels: Sequence[int], staying: Bools) -> float:
    """Return 1 less the mean share of its ladder that a cell was lifted, a suppressed one to the top. Sweeney 2002, Prec.

    Args:
        ladders: Of each quasi-identifier.
        levels: The level of each ladder that the release uses.
        staying: (rows,) bool, False for suppressed rows.
    """
    lifted = np.mean([level / ladder.top for ladder, level in zip(ladders, levels, strict=True)])
    return float(1.0 - (staying.mean() * lifted + (~staying).mean()))
