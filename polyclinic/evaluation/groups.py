"""Groups of patients by a column of the schema: the categories of a column that lists them, quarters of one with bounds."""

from __future__ import annotations

import numpy as np

from polyclinic.ehr.encoding import column_values
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError, nearest
from polyclinic.types import Floats, Ints

QUARTERS = 4
MISSING = "missing"


def group_names(schema: Schema, column: str) -> list[str]:
    """The groups that ``column`` makes of patients, from public bounds or categories alone; the last holds the missing.

    Raises ConfigError unless it is a feature column with one cell in a row.
    """
    grouping = _column(schema, column)
    if grouping.kind == "binary":
        return [*(grouping.categories or ("0", "1")), MISSING]
    if grouping.categories:
        return [*grouping.categories, MISSING]
    edges = [f"{edge:g}" for edge in np.linspace(*(grouping.bounds or (0.0, 1.0)), QUARTERS + 1)]
    unit = f" {grouping.unit}" if grouping.unit else ""
    return [*(f"{low} to {high}{unit}" for low, high in zip(edges, edges[1:], strict=False)), MISSING]


def group_numbers(x: Floats, schema: Schema, column: str) -> Ints:
    """Return (rows,) which of ``group_names`` each row is in; a cell between two quarters is in the upper one.

    Args:
        x: (rows, features) encoded, before imputation.
        schema: The schema of the records.
        column: The column that groups are by.

    Raises:
        ConfigError: As ``group_names`` does.
    """
    grouping, names = _column(schema, column), group_names(schema, column)
    values = column_values(x, schema, column)
    if grouping.bounds:
        low, high = grouping.bounds
        values = np.minimum(np.floor(QUARTERS * (values - low) / (high - low)), QUARTERS - 1)
    return np.asarray(np.where(np.isnan(values), len(names) - 1, np.nan_to_num(values)), dtype=np.int64)


def _column(schema: Schema, name: str) -> Column:
    able = [column for column in schema.features if column.kind not in ("code_set", "trajectory")]
    for column in able:
        if column.name == name:
            return column
    names = [column.name for column in able]
    raise ConfigError(
        f"Configuration key 'evaluation.groups' has the value {name!r}, which must be a feature column of schema {schema.name!r} "
        f"with one cell in a row.{nearest(name, names)}"
    )
