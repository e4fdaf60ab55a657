"""Cells checked against a column of a schema and turned into numbers.

A refusal has one sentence for each kind of fault. It names the source, the column, the first data row (counted from 1) and how
many cells more, and never a cell: cells are patients' data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd

from polyclinic.ehr.faults import CellsRefused, Fault
from polyclinic.ehr.schema import Column
from polyclinic.errors import DataError, several
from polyclinic.types import Bools, Floats, Ints

_SHOWN_CATEGORIES = 8


def require_columns(records: pd.DataFrame, columns: tuple[Column, ...], source: str) -> None:
    """Raise an error unless ``records`` has each of the columns exactly once.

    Args:
        records: The table.
        columns: The schema's columns that it must have; a trajectory stands for one column each step.
        source: The table's name in the message.

    Raises:
        DataError: For columns that are missing or appear more than once.
    """
    require_names(records.columns.tolist(), [name for column in columns for name in column.record_names], source)


def require_names(present: Sequence[str], names: Sequence[str], source: str) -> None:
    """Raise an error unless each of the names is ``present`` exactly once.

    Args:
        present: The names in a table's header.
        names: The names that it must have.
        source: The table's name in the message.

    Raises:
        DataError: For names that are missing or appear more than once.
    """
    # The header is not quoted: in a file without one its place is taken by a patient's row.
    problems = []
    counts = Counter(present)
    for what, wrong in (
        (("is", "are", "missing"), [name for name in names if not counts[name]]),
        (("appears", "appear", "more than once"), [name for name in names if counts[name] > 1]),
    ):
        if wrong:
            column, verb = ("columns", what[1]) if wrong[1:] else ("column", what[0])
            problems.append(f"{column} {several(map(repr, wrong), most=12)} {verb} {what[2]}")
    if problems:
        raise DataError(f"{source}: {', and '.join(problems)}; the header must hold once each column that is read.")


def _refuse(source: str, name: str, kinds: Iterable[tuple[Bools, str]]) -> None:
    """Raise CellsRefused unless no cell is bad in any way. kinds: which cells are, and the problem."""
    if faults := [Fault(source, name, problem, np.flatnonzero(bad)) for bad, problem in kinds if bad.any()]:
        raise CellsRefused(faults)


def _missing(missing: Bools, column: Column) -> Iterator[tuple[Bools, str]]:
    if column.is_label:
        yield missing, "the label is missing; complete the record or leave the row out"
    elif not column.nullable:
        remedy = "complete the record, leave the row out or set nullable = true in the schema"
        yield missing, f"the cell is empty but the column is not nullable; {remedy}"


def _range_text(column: Column) -> str:
    low, high = column.bounds or (0.0, 1.0)
    return f"{low:g} to {high:g}{' ' + column.unit if column.unit else ''}"


def _parse(values: pd.Series, column: Column) -> tuple[Floats, Bools]:
    """Cells as floats, NaN where empty or not a number, and which cells are empty."""
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "biuf":
        out: Floats = values.to_numpy(dtype=np.float64)
        return out, np.isnan(out)
    missing = values.isna().to_numpy(dtype=bool)
    if not (pd.api.types.is_numeric_dtype(values) or pd.api.types.is_string_dtype(values)):
        # Dates would parse as nanoseconds; lists and other objects would raise.
        values = values.astype(object).map(str)
    if column.kind == "binary" and not pd.api.types.is_numeric_dtype(values):
        values = values.astype(str).str.strip().str.lower().replace({"true": "1", "false": "0"})
    out = pd.to_numeric(values.where(~missing), errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    return out, missing


def numbers(values: pd.Series, column: Column, source: str) -> Floats:
    """Return (rows,) floats of a continuous, integer or trajectory column (missing: NaN), or 0/1 of a plain binary one.

    A column with ``clip`` takes a cell beyond its bounds for the nearer bound.

    Args:
        values: (rows,) cells, named as the column.
        column: The column of the schema.
        source: The table's name in the message.

    Raises:
        DataError: On text, infinite, out-of-bounds, fractional (integer) or missing (not nullable) cells.
    """
    name = str(values.name)
    out, missing = _parse(values, column)
    infinite = np.isinf(out)
    cells = np.where(missing | infinite, 0.0 if column.bounds is None else column.bounds[0], out)
    low, high = column.bounds or (-np.inf, np.inf)
    kinds = [
        (np.isnan(out) & ~missing, "the cell is not a number; correct it, or leave it empty if it is missing"),
        (infinite, "the cell is infinite; correct it, or leave it empty if it is missing"),
        *_missing(missing, column),
    ]
    if column.kind == "binary":
        kinds.append(((cells != 0) & (cells != 1) & ~np.isnan(cells), "the cell must be 0 or 1; correct the record"))
    else:
        outside = ((cells < low) | (cells > high)) & (not column.clip)
        remedy = "correct the record or widen the bounds in the schema"
        kinds.append((outside, f"the cell is outside the public bounds {_range_text(column)}; {remedy}"))
    if column.kind == "integer":
        fractional = (cells != np.round(cells)) & ~np.isnan(cells)
        kinds.append((fractional, "the cell is not a whole number; correct it or use kind 'continuous'"))
    _refuse(source, name, kinds)
    return np.clip(out, low, high) if column.clip else out


def texts(values: pd.Series) -> list[str]:
    """Cells as text, missing ones as ``""``; a whole number reads the same whether stored as 1, 1.0 or "1"."""
    if pd.api.types.is_float_dtype(values):
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        return ["" if np.isnan(v) else str(int(v)) if v.is_integer() else str(v) for v in numbers.tolist()]
    return ["" if absent else str(v).strip() for v, absent in zip(values.tolist(), values.isna().tolist(), strict=True)]


def codes(values: pd.Series, column: Column, source: str) -> Ints:
    """Return (rows,) indices into the column's categories, -1 where missing; an unknown category is the column's ``other``.

    Args:
        values: (rows,) cells, named as the column.
        column: The column of the schema, with categories.
        source: The table's name in the message.

    Raises:
        DataError: On an unknown category where there is no ``other``, and on a missing cell that is not nullable.
    """
    name = str(values.name)
    lookup = {category: index for index, category in enumerate(column.categories)}
    unknown = lookup.get(column.other, -2)
    lookup[""] = -1
    out = np.array([lookup.get(cell, unknown) for cell in texts(values)], dtype=np.int64)
    shown = ", ".join(column.categories[:_SHOWN_CATEGORIES])
    if (more := len(column.categories) - _SHOWN_CATEGORIES) > 0:
        shown += f" and {more} more"
    unknown_text = f"the category is unknown; the schema allows {shown}"
    _refuse(source, name, [(out == -2, unknown_text), *_missing(out == -1, column)])
    return out


def code_sets(values: pd.Series, column: Column, source: str) -> Floats:
    """Return (rows, vocabulary) 0/1 of ';'-separated codes; an empty cell is the empty set, so nothing is ever missing.

    An unknown code is the column's ``other``.

    Args:
        values: (rows,) cells, named as the column.
        column: The code_set of the schema, whose categories are the vocabulary.
        source: The table's name in the message.

    Raises:
        DataError: On an unknown code where there is no ``other``.
    """
    name = str(values.name)
    lookup = {code: index for index, code in enumerate(column.categories)}
    unknown = lookup.get(column.other, -1)
    out, strange = np.zeros((len(values), len(lookup))), np.zeros(len(values), dtype=bool)
    for row, cell in enumerate(texts(values)):
        places = [lookup.get(code.strip(), unknown) for code in cell.split(";") if code.strip()]
        strange[row] = -1 in places
        out[row, places] = 1.0
    problem = f"a code is not in the schema's vocabulary of {len(lookup)} codes"
    _refuse(source, name, [(strange, f"{problem}; correct the record or extend the vocabulary")])
    return out


def identifiers(values: pd.Series, source: str) -> list[str]:
    """Cells of a patient_id or site column as text; raises DataError where one is missing."""
    out = texts(values)
    missing = np.array([cell == "" for cell in out], dtype=bool)
    _refuse(source, str(values.name), [(missing, "the identifier is missing; complete the record")])
    return out


def class_numbers(records: pd.DataFrame, column: Column, source: str) -> Ints:
    """Return the (rows,) class numbers 0..K-1 of a label column.

    Args:
        records: The table, which has the label column.
        column: The label column of the schema.
        source: The table's name in the message.

    Raises:
        DataError: On a missing or unknown label.
    """
    values = records[column.name]
    if column.categories:
        return codes(values, column, source)
    return numbers(values, column, source).astype(np.int64)
