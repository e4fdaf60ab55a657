"""Cells checked against a column of a schema and turned into numbers; every refusal is one sentence.

A message names the source, the column and the data row (counted from 1), and never the cell: cells are patients' data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from polyclinic.ehr.schema import Column
from polyclinic.errors import CellRefused, DataError
from polyclinic.types import Bools, Floats, Ints

_SHOWN_CATEGORIES = 8


def require_columns(records: pd.DataFrame, columns: tuple[Column, ...], source: str) -> None:
    """Raise DataError unless ``records`` has each of the columns exactly once."""
    require_names(records.columns.tolist(), [name for column in columns for name in column.record_names], source)


def require_names(present: Sequence[str], names: Iterable[str], source: str) -> None:
    """Raise DataError unless each of the names is ``present`` exactly once."""
    for name in names:
        if (count := present.count(name)) != 1:
            # The header is not quoted: in a file without one its place is taken by a patient's row.
            what = "is missing" if count == 0 else "appears more than once"
            raise DataError(f"{source}: column {name!r} {what}; the header must hold once each column that is read.")


def _refuse_first(bad: Bools, source: str, name: str, problem: str) -> None:
    if bad.any():
        raise CellRefused(source, name, int(np.argmax(bad)) + 1, problem)


def _refuse_missing(missing: Bools, column: Column, source: str, name: str) -> None:
    if column.role == "label":
        _refuse_first(missing, source, name, "the label is missing; complete the record or leave the row out")
    elif not column.nullable:
        remedy = "complete the record or set nullable = true in the schema"
        _refuse_first(missing, source, name, f"the cell is empty but the column is not nullable; {remedy}")


def _range_text(column: Column) -> str:
    low, high = column.bounds or (0.0, 1.0)
    return f"{low:g} to {high:g}{' ' + column.unit if column.unit else ''}"


def _parsed(values: pd.Series, column: Column) -> tuple[Floats, Bools]:
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
    """(rows,) floats of a continuous, integer or trajectory column (missing: NaN), or 0/1 of a plain binary one.

    A column with ``clip`` takes a cell beyond its bounds for the nearer bound. Raises DataError on text, infinite,
    out-of-bounds, fractional (integer) or missing (not nullable) cells.
    """
    name = str(values.name)
    out, missing = _parsed(values, column)
    text = np.isnan(out) & ~missing
    _refuse_first(text, source, name, "the cell is not a number; correct it, or leave it empty if it is missing")
    _refuse_first(np.isinf(out), source, name, "the cell is infinite; correct it, or leave it empty if it is missing")
    _refuse_missing(missing, column, source, name)
    known = np.where(missing, 0.0 if column.bounds is None else column.bounds[0], out)
    if column.kind == "binary":
        _refuse_first((known != 0) & (known != 1), source, name, "the cell must be 0 or 1; correct the record")
    else:
        low, high = column.bounds or (-np.inf, np.inf)
        remedy = "correct the record or widen the bounds in the schema"
        outside = ((known < low) | (known > high)) & (not column.clip)
        problem = f"the cell is outside the public bounds {_range_text(column)}; {remedy}"
        _refuse_first(outside, source, name, problem)
    if column.kind == "integer":
        fractional = ~missing & (known != np.round(known))
        _refuse_first(fractional, source, name, "the cell is not a whole number; correct it or use kind 'continuous'")
    return np.clip(out, low, high) if column.clip else out


def texts(values: pd.Series) -> list[str]:
    """Cells as text, missing ones as ``""``; a whole number reads the same whether stored as 1, 1.0 or "1"."""
    if pd.api.types.is_float_dtype(values):
        known = values.to_numpy(dtype=np.float64, na_value=np.nan)
        return ["" if np.isnan(v) else str(int(v)) if v.is_integer() else str(v) for v in known.tolist()]
    return ["" if absent else str(v).strip() for v, absent in zip(values.tolist(), values.isna().tolist(), strict=True)]


def codes(values: pd.Series, column: Column, source: str) -> Ints:
    """(rows,) indices into the column's categories, -1 where missing; an unknown category is the column's ``other``.

    Raises DataError on an unknown category where there is no ``other``.
    """
    name = str(values.name)
    lookup = {category: index for index, category in enumerate(column.categories)}
    unknown = lookup.get(column.other, -2)
    lookup[""] = -1
    out = np.array([lookup.get(cell, unknown) for cell in texts(values)], dtype=np.int64)
    shown = ", ".join(column.categories[:_SHOWN_CATEGORIES])
    if (more := len(column.categories) - _SHOWN_CATEGORIES) > 0:
        shown += f" and {more} more"
    _refuse_first(out == -2, source, name, f"the category is unknown; the schema allows {shown}")
    _refuse_missing(out == -1, column, source, name)
    return out


def code_sets(values: pd.Series, column: Column, source: str) -> Floats:
    """(rows, vocabulary) 0/1 of ';'-separated codes; an empty cell is the empty set, so nothing is ever missing.

    An unknown code is the column's ``other``; raises DataError where there is none.
    """
    name = str(values.name)
    lookup = {code: index for index, code in enumerate(column.categories)}
    unknown = lookup.get(column.other, -1)
    out = np.zeros((len(values), len(lookup)))
    for row, cell in enumerate(texts(values)):
        found = [lookup.get(code.strip(), unknown) for code in cell.split(";") if code.strip()]
        if -1 in found:
            problem = f"a code is not in the schema's vocabulary of {len(lookup)} codes"
            raise CellRefused(source, name, row + 1, f"{problem}; correct the record or extend the vocabulary")
        out[row, found] = 1.0
    return out


def identifiers(values: pd.Series, source: str) -> list[str]:
    """Cells of a patient_id or site column as text; raises DataError where one is missing."""
    out = texts(values)
    missing = np.array([cell == "" for cell in out], dtype=bool)
    _refuse_first(missing, source, str(values.name), "the identifier is missing; complete the record")
    return out


def class_numbers(records: pd.DataFrame, column: Column, source: str) -> Ints:
    """(rows,) class numbers 0..K-1 of a label column; raises DataError on a missing or unknown label."""
    values = records[column.name]
    if column.categories:
        return codes(values, column, source)
    return numbers(values, column, source).astype(np.int64)
