"""Records to tensors and back, as a pure function of the schema: nothing is estimated from the records.

Continuous, integer, ordinal and trajectory cells map affinely from their public bounds to [-1, 1]; binary cells to 0
and 1; categorical cells to one-hot; code sets to multi-hot. Missing cells stay visible: NaN for numeric and binary
columns, all zeros for one-hot. Imputation is the model's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from polyclinic.ehr.checks import class_numbers, code_sets, codes, numbers, require_columns
from polyclinic.ehr.faults import all_or_faults
from polyclinic.ehr.schema import CLASS_KINDS, NUMERIC_KINDS, Column, Schema
from polyclinic.errors import DataError
from polyclinic.types import Bools, Floats, Ints, Labels

_DIGITS = 12


@dataclass(frozen=True, eq=False)
class Encoded:
    """Encoded records: x (rows, features) float64, may hold NaN; y as ``encode_labels`` gives it, None if unlabelled."""

    x: Floats
    y: Labels | None


def encode(records: pd.DataFrame, schema: Schema, source: str = "records") -> Encoded:
    """Return the features (and the label, if present) of ``records`` as arrays, columns in the order of ``feature_names``.

    Args:
        records: The table, one row for each record.
        schema: The schema by which it is encoded.
        source: The table's name in messages.

    Raises:
        CellsRefused: Naming ``source``, columns and data rows, for the cells that the schema does not allow.
        DataError: For columns that are missing or appear more than once.
    """
    require_columns(records, schema.features, source)
    blocks = all_or_faults(partial(_encode_column, records, column, source) for column in schema.features)
    x = np.concatenate(blocks, axis=1) if blocks else np.zeros((len(records), 0))
    labelled = all(column.name in records.columns for column in schema.labels)
    return Encoded(x, encode_labels(records, schema, source) if labelled else None)


def encode_labels(records: pd.DataFrame, schema: Schema, source: str = "records") -> Labels:
    """Return the labels of ``records`` as an array.

    Args:
        records: The table, which has the schema's label columns.
        schema: The schema by which it is encoded.
        source: The table's name in messages.

    Returns:
        (rows,) int64 class numbers; (rows,) float64 in the label's unit; (rows, codes) float64 0/1 of a code_set; or
        (rows, columns) float64 of several label columns.

    Raises:
        DataError: Naming ``source``, column and data row, for a label that is missing or not allowed.
    """
    parts = all_or_faults(partial(_label, records, column, source) for column in schema.labels)
    return parts[0] if len(parts) == 1 else np.stack([part.astype(np.float64) for part in parts], axis=1)


def _label(records: pd.DataFrame, column: Column, source: str) -> Labels:
    if column.kind in CLASS_KINDS:
        return class_numbers(records, column, source)
    read = code_sets if column.kind == "code_set" else numbers
    return read(records[column.name], column, source)


def _encode_column(records: pd.DataFrame, column: Column, source: str) -> Floats:
    cells = _encoded_cells(records, column, source)
    return np.concatenate([cells, np.isnan(cells)], axis=1) if column.indicator else cells


def _encoded_cells(records: pd.DataFrame, column: Column, source: str) -> Floats:
    cells = [records[name] for name in column.record_names]
    if column.kind == "code_set":
        return code_sets(cells[0], column, source)
    if column.kind == "categorical":
        return _one_hot(codes(cells[0], column, source), column)
    if column.kind == "ordinal" or (column.kind == "binary" and column.categories):
        ranks = codes(cells[0], column, source).astype(np.float64)
        values = np.where(ranks < 0, np.nan, ranks)[:, None]
    else:
        values = np.stack([numbers(series, column, source) for series in cells], axis=1)
    if column.kind == "binary":
        return values
    low, high = _interval(column)
    return np.asarray(2.0 * (values - low) / (high - low) - 1.0)


def _interval(column: Column) -> tuple[float, float]:
    if column.kind == "ordinal":
        return 0.0, float(len(column.categories) - 1)
    if column.bounds is None:
        raise DataError(f"Schema column {column.name!r}: kind {column.kind!r} needs public bounds.")
    return column.bounds


def _one_hot(indices: Ints, column: Column) -> Floats:
    out = np.zeros((len(indices), len(column.categories)))
    rows = np.flatnonzero(indices >= 0)
    out[rows, indices[rows]] = 1.0
    return out[:, 1:] if column.drop_first else out


def _encoded_names(column: Column) -> tuple[str, ...]:
    if column.kind in ("categorical", "code_set"):
        return tuple(f"{column.name}={value}" for value in column.categories[int(column.drop_first) :])
    return column.record_names


def feature_names(schema: Schema) -> tuple[str, ...]:
    """One name for each encoded column: ``name``, ``name=category``, ``name_03`` (a trajectory's step), or of an indicator
    ``name missing``.
    """
    names: list[str] = []
    for column in schema.features:
        own = _encoded_names(column)
        names += own
        names += [f"{name} missing" for name in own if column.indicator]
    return tuple(names)


def feature_slices(schema: Schema) -> list[tuple[Column, slice]]:
    """The feature columns and where their cells' encoded columns are, without the indicators that follow them."""
    located, start = [], 0
    for column in schema.features:
        width = len(_encoded_names(column))
        located.append((column, slice(start, start + width)))
        start += width * (2 if column.indicator else 1)
    return located


def standardised_mask(schema: Schema) -> Bools:
    """(features,) True for encoded columns that are numeric, hence to be standardised; False for 0/1 columns."""
    return _mask(schema, lambda column: column.kind in NUMERIC_KINDS)


def measured_mask(schema: Schema) -> Bools:
    """(features,) True for numeric encoded columns that the schema gives no centre and spread."""
    return _mask(schema, lambda column: column.kind in NUMERIC_KINDS and column.centre is None)


def nullable_mask(schema: Schema) -> Bools:
    """(features,) True for encoded columns that may hold NaN: those of nullable columns, but never a one-hot's."""
    return _mask(schema, lambda column: column.nullable and column.kind not in ("categorical", "code_set"))


def _mask(schema: Schema, chosen: Callable[[Column], bool]) -> Bools:
    mask = np.zeros(len(feature_names(schema)), dtype=bool)
    for column, at in feature_slices(schema):
        mask[at] = chosen(column)
    return mask


def encoded_fill(column: Column) -> Floats:
    """(width,) the column's declared ``fill`` as it would be encoded."""
    if column.kind == "categorical":
        hot: Floats = _one_hot(np.array([column.categories.index(str(column.fill))]), column)[0]
        return hot
    value = float(column.categories.index(str(column.fill)) if column.categories else column.fill or 0.0)
    if column.kind != "binary":
        low, high = _interval(column)
        value = 2.0 * (value - low) / (high - low) - 1.0
    return np.full(len(_encoded_names(column)), value)


def decode(encoded_x: Floats, schema: Schema) -> pd.DataFrame:
    """Records with the feature columns of the schema, from (rows, features) encoded values.

    Exact for records that ``encode`` accepts: whole numbers and categories always, continuous cells that are written
    with up to 12 digits relative to their bounds. Any other tensor (a generator's) gives the nearest valid records:
    values are clipped to the bounds, a one-hot goes to its largest entry. Raises DataError if the width is wrong.
    """
    width = len(feature_names(schema))
    if encoded_x.ndim != 2 or encoded_x.shape[1] != width:
        raise DataError(f"Encoded records have shape {encoded_x.shape}; schema {schema.name!r} needs (rows, {width}).")
    columns: dict[str, pd.Series] = {}
    for column, at in feature_slices(schema):
        columns.update(_decode_column(np.asarray(encoded_x[:, at], dtype=np.float64), column))
    return pd.DataFrame(columns)


def column_values(encoded_x: Floats, schema: Schema, name: str) -> Floats:
    """Return (rows,) cells of one feature column as numbers in its unit, or as numbers of its categories; NaN where missing.

    Args:
        encoded_x: (rows, features) encoded records.
        schema: The schema by which they were encoded.
        name: The feature column.

    Raises:
        DataError: Unless ``name`` is a feature column that has one cell in a row.
    """
    if any(column.name == name and column.kind in ("code_set", "trajectory") for column in schema.features):
        raise DataError(f"Schema {schema.name!r} has no feature column {name!r} with one cell in a row.")
    return column_cells(encoded_x, schema, name)[:, 0]


def column_cells(encoded_x: Floats, schema: Schema, name: str) -> Floats:
    """Return (rows, cells) of a feature column: one cell, a trajectory's steps, or 0 or 1 for each code.

    Numbers are as in ``column_values``.

    Args:
        encoded_x: (rows, features) encoded records.
        schema: The schema by which they were encoded.
        name: The feature column.

    Raises:
        DataError: Unless ``name`` is a feature column.
    """
    for column, at in feature_slices(schema):
        if column.name == name:
            block: Floats = np.asarray(encoded_x[:, at], dtype=np.float64)
            return block if column.kind == "code_set" else _values(block, column)
    raise DataError(f"Schema {schema.name!r} has no feature column {name!r}.")


def _decode_column(block: Floats, column: Column) -> dict[str, pd.Series]:
    if column.kind == "code_set":
        chosen = np.nan_to_num(block) > 0.5
        cells = [";".join(c for c, on in zip(column.categories, row, strict=True) if on) for row in chosen.tolist()]
        return {column.name: pd.Series(cells, dtype=object)}
    values = _values(block, column)
    if column.categories:
        ranks = np.where(np.isnan(values[:, 0]), -1, np.nan_to_num(values[:, 0])).astype(np.int64)
        return {column.name: _categories(ranks, column)}
    dtype = {"integer": "int64", "binary": "int64"}.get(column.kind, "float64")
    if dtype == "int64" and column.nullable:
        dtype = "Int64"
    return {name: pd.Series(values[:, i]).astype(dtype) for i, name in enumerate(column.record_names)}


def _values(block: Floats, column: Column) -> Floats:
    """(rows, cells) numbers in the column's own unit, or the numbers of its categories; NaN where missing."""
    if column.kind == "categorical":
        indices = _largest(block, column)[:, None]
        return np.where(indices < 0, np.nan, indices.astype(np.float64))
    if column.kind == "binary":
        return np.where(np.isnan(block), np.nan, (block > 0.5).astype(np.float64))
    low, high = _interval(column)
    values = low + (np.clip(block, -1.0, 1.0) + 1.0) / 2.0 * (high - low)
    values = np.round(values) if column.kind in ("integer", "ordinal") or column.whole else _tidy(values, low, high)
    return np.clip(values, low, high)


def _largest(block: Floats, column: Column) -> Ints:
    if column.drop_first:
        block = np.concatenate([0.5 * np.ones((len(block), 1)), block], axis=1)
    best: Ints = np.argmax(block, axis=1).astype(np.int64)
    if column.nullable:
        best[block.max(axis=1) < 0.5 / block.shape[1]] = -1
    return best


def _categories(indices: Ints, column: Column) -> pd.Series:
    return pd.Series([column.categories[i] if i >= 0 else None for i in indices.tolist()], dtype=object)


def _tidy(values: Floats, low: float, high: float) -> Floats:
    # 2 (v - low) / (high - low) - 1 loses the last bits of v; rounding at 12 digits of the scale restores 233.1.
    decimals = _DIGITS - math.ceil(math.log10(max(abs(low), abs(high), high - low)))
    return np.round(values, min(decimals, 22))


#: Mean and std of all encoded columns, (features,) float64 each.
Standardiser = tuple[np.ndarray, np.ndarray]
# Of a numeric column in [-1, 1]: as much as a binary column can have. docs/privacy/choosing.md
_PUBLIC_STD = 0.5


def public_standardiser(schema: Schema) -> Standardiser:
    """Mean and std of all encoded columns, from the schema alone: numeric ones vary as its ``centre`` and ``spread`` say, or by
    half of their scale around its middle.
    """
    numeric = standardised_mask(schema)
    mean, std = np.zeros(len(numeric)), np.where(numeric, _PUBLIC_STD, 1.0)
    for column, at in feature_slices(schema):
        if column.centre is not None and column.spread is not None and column.bounds is not None:
            half = (column.bounds[1] - column.bounds[0]) / 2
            mean[at], std[at] = (column.centre - column.bounds[0]) / half - 1, column.spread / half
    return mean, std


def public_scale(column: Column) -> tuple[float, float]:
    """Centre and spread of a column with bounds, in its unit, from the schema alone: its own, or the middle of its bounds and a
    quarter of their distance.
    """
    if column.centre is not None and column.spread is not None:
        return column.centre, column.spread
    low, high = _interval(column)
    return (low + high) / 2, _PUBLIC_STD * (high - low) / 2
