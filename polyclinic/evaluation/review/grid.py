"""Real and synthetic records as whole numbers on one grid, so that digits and types cannot tell which is which.

A generator writes 63.4172 where a hospital wrote 63, or rounds where the hospital does not. Both are put on the grid of the
hospital's own readings, and whatever is shown of a cell is computed from its whole number there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from polyclinic.ehr.encoding import column_cells
from polyclinic.ehr.schema import RECORDED_ROLES, Column, Schema
from polyclinic.ehr.shard import Checked
from polyclinic.types import Floats, Ints

MISSING = np.iinfo(np.int64).min
# The share of a column's different readings that must lie on a grid; a few odd ones do not make it finer.
ON_GRID = 0.95
# Grids wider than a decimal (every second, every fifth) are taken for one only of so many different readings.
FEWEST_READINGS = 10
DIGITS = 4  # of the public range: a tenth of 200 mmHg, a hundredth of 20 mg/dl
_WIDTHS = (5.0, 2.5, 2.0, 1.0)


@dataclass(frozen=True, eq=False)
class Table:
    """Records on a grid: ``cells`` (rows, width) int64, MISSING where missing, and patient (rows,) from 0.

    A cell's value is its whole number times the column's step; of a category or a class it is the category's number, of a
    code 0 or 1.
    """

    cells: Ints
    patient: Ints

    @property
    def patients(self) -> int:
        return int(self.patient.max(initial=-1)) + 1

    def rows_of(self, patient: int) -> Ints:
        """The patient's rows in the table's order."""
        return np.flatnonzero(self.patient == patient)


def shown_columns(schema: Schema) -> tuple[Column, ...]:
    """What reviewers see, in the schema's order: features and label; no patient's id, no site, no time."""
    return tuple(column for column in schema.columns if column.role in RECORDED_ROLES)


def bare(schema: Schema) -> Schema:
    """The schema without what reviewers do not see; the patient's id stays, by which rows belong together."""
    columns = tuple(column for column in schema.columns if column.role in (*RECORDED_ROLES, "patient_id"))
    return Schema(name=schema.name, columns=columns, unit=schema.unit)


def slices(schema: Schema) -> list[tuple[Column, slice]]:
    """The shown columns and where their cells are in a ``Table``."""
    located, start = [], 0
    for column in shown_columns(schema):
        width = len(column.categories) if column.kind == "code_set" else len(column.record_names)
        located.append((column, slice(start, start + width)))
        start += width
    return located


def steps(records: Checked, schema: Schema) -> dict[str, float]:
    """The step of each column's grid, of real records: the widest on which nearly all different readings lie.

    Of columns of numbers; no finer than four digits of the public range, but 1 at most. It is not public, being from records.
    """
    values = ((column, _values(records, schema, column)) for column in shown_columns(schema))
    return {column.name: _step(cells, column) for column, cells in values if column.bounds is not None}


def on_grid(records: Checked, schema: Schema, grid: Mapping[str, float]) -> Table:
    """Return the records as whole numbers; patients are numbered in order of their first row.

    Args:
        records: Encoded records that fit the schema.
        schema: The schema.
        grid: The steps of columns, as ``steps`` gives them.
    """
    blocks = [_snap(_values(records, schema, column), column, grid) for column in shown_columns(schema)]
    return Table(np.concatenate(blocks, axis=1), pd.factorize(records.patients)[0].astype(np.int64))


def _values(records: Checked, schema: Schema, column: Column) -> Floats:
    if column.is_label:
        return records.y.astype(np.float64)[:, None]
    return column_cells(records.x, schema, column.name)


def _step(values: Floats, column: Column) -> float:
    low, high = column.bounds or (0.0, 1.0)
    different = np.unique(values[np.isfinite(values)])
    whole = column.kind == "integer" or column.whole
    finest = 1.0 if whole else min(1.0, float(10.0 ** np.ceil(np.log10((high - low) / 10**DIGITS))))
    for step in (width * 10.0**power for power in range(0, -13, -1) for width in _WIDTHS):
        if step <= finest:
            break
        if step > 1 and len(different) < FEWEST_READINGS:
            continue
        away = np.abs(different / step - np.round(different / step))
        if different.size and (away < 1e-6).mean() >= ON_GRID:
            return step
    return finest


def _snap(values: Floats, column: Column, grid: Mapping[str, float]) -> Ints:
    step = grid.get(column.name, 1.0)
    whole = np.round(np.nan_to_num(values) / step)
    if column.bounds is not None:  # rounding must not leave the bounds
        low, high = (bound / step for bound in column.bounds)
        whole = np.clip(whole, np.ceil(low - 1e-9), np.floor(high + 1e-9))
    return np.where(np.isnan(values), MISSING, whole.astype(np.int64))


def decimals(step: float) -> int:
    """Digits after the point that a multiple of the step needs: 0 for 5, 1 for 0.5, 2 for 0.25."""
    return next(digits for digits in range(16) if abs(round(step, digits) - step) <= 1e-9 * step)
