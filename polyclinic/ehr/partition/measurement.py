"""Hospitals that measure differently: the same patients, read with a bias or in another unit.

A site's cells are changed after the patients are dealt, and stay inside the schema's public bounds and kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from polyclinic.ehr.schema import BOUNDED_KINDS, Column, Schema
from polyclinic.errors import ConfigError
from polyclinic.types import Floats, Ints

#: At strength 1: the standard deviation of a site's gain (of its logarithm), and of its offset relative to the bounds.
GAIN, OFFSET = 0.1, 0.02
#: unit -> another one for the same thing, and what a cell is multiplied by. All make cells smaller.
OTHER_UNIT: dict[str, tuple[str, float]] = {
    "mg/dl": ("g/l", 0.01),
    "mmHg": ("kPa", 0.133322),
    "cm": ("m", 0.01),
    "ml/day": ("l/day", 0.001),
    "%": ("fraction", 0.01),
}


def bias(values: Floats, column: Column, rng: np.random.Generator, strength: float) -> Floats:
    """Return one site's cells with a gain and an offset of its own, clipped to the bounds.

    The gain is exp(N(0, 0.1 strength)); the offset is N(0, 0.02 strength) times the width of the bounds.

    Args:
        values: (rows,) cells in the column's unit, NaN where missing.
        column: The column of the schema, whose kind says whether cells are whole.
        rng: Draws the gain and the offset.
        strength: Factor of both standard deviations.
    """
    low, high = column.bounds or (0.0, 1.0)
    gain, offset = np.exp(GAIN * strength * rng.standard_normal()), OFFSET * strength * rng.standard_normal()
    changed = np.clip(gain * values + offset * (high - low), low, high)
    return np.asarray(np.round(changed) if column.kind == "integer" else changed)


def units(values: Floats, column: Column, rng: np.random.Generator, strength: float) -> Floats:
    """Return one site's cells, in the other unit with probability 1/2.

    Args:
        values: (rows,) cells in the column's unit, NaN where missing.
        column: The column of the schema, whose unit is one of ``OTHER_UNIT``.
        rng: Draws the unit.
        strength: Unused.
    """
    return values * OTHER_UNIT[column.unit][1] if rng.random() < 0.5 else values


def _is_numeric(column: Column) -> bool:
    return column.kind in BOUNDED_KINDS


def _has_other_unit(column: Column) -> bool:
    # A lower bound above 0 would refuse the smaller numbers of the other unit.
    return _is_numeric(column) and column.kind != "integer" and column.unit in OTHER_UNIT and column.bounds is not None \
        and column.bounds[0] <= 0.0 <= column.bounds[1]  # fmt: skip


_CHANGES: dict[str, tuple[Callable[[Floats, Column, np.random.Generator, float], Floats], Callable[[Column], bool]]] = {
    "bias": (bias, _is_numeric),
    "units": (units, _has_other_unit),
}
SHIFTS = tuple(_CHANGES)


def remeasure(
    records: pd.DataFrame, schema: Schema, shift: str, sites: Mapping[str, Ints], seed: int, strength: float
) -> pd.DataFrame:
    """Return a new table: ``records`` as each of the sites would have measured them, other columns as they are.

    Each site and column has a draw of its own, the same for the same arguments; the steps of a trajectory share it.
    Cells that are not numbers stay as they are.

    Args:
        records: The table, one row for each record.
        schema: The schema of the records.
        shift: "bias" changes every numeric feature, "units" those whose unit and bounds admit another unit.
        sites: Each site's row indices, by its name.
        seed: Of the draws.
        strength: Of a bias.

    Raises:
        ConfigError: Where no feature can be changed.
    """
    change, admits = _CHANGES[shift]
    columns = [column for column in schema.features if admits(column)]
    if not columns:
        needed = "numeric" if shift == "bias" else f"in {', '.join(OTHER_UNIT)} with a lower bound of 0"
        raise ConfigError(
            f"partitioner '+{shift}' needs a feature that is {needed}; schema {schema.name!r} has none such."
        )
    records = records.copy()
    for column in columns:
        for name in column.record_names:
            cells = records[name]
            values = pd.to_numeric(cells, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
            changed = values.copy()
            for place, site in enumerate(sorted(sites)):
                key = [seed, place, *f"{shift} {column.name}".encode()]
                rng = np.random.default_rng(np.random.SeedSequence(key))
                changed[sites[site]] = change(values[sites[site]], column, rng, strength)
            text = cells.notna() & np.isnan(values)
            records[name] = cells.astype(object).where(text, changed) if text.any() else changed
    return records
