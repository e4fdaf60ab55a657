"""A better public schema from counts of a draft schema's cells: bounds, vocabularies, fills, centres and spreads.

Everything here is public: it knows a schema and counts that were paid for (or are of public records), never a record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyclinic.ehr.rules import kept_rules
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError, DataError, several

Floats = NDArray[np.float64]
_NUMERIC = ("continuous", "integer", "trajectory")
_OTHER = "other"
_SURE = 3.0  # standard errors above which patients are taken to be there
_CUT_OFF = 0.05  # share of the patients that a cell may have and not be sure to have any
_NARROWEST = 1 / 25  # spread, of half the range
# Of half the range, (usual value, spread), before any record is seen.
_USUAL_MEAN, _USUAL_VARIANCE = (0.0, 0.3), (0.1, 0.05)


@dataclass(frozen=True)
class Counted:
    """How many ``patients`` are in each cell of a column, (cells,), each with the same standard ``error`` (0 if exact).

    The cells are those of ``cell_names``; of an open column those that were found, by their ``names``.
    """

    patients: Floats
    error: float
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rules:
    """What counts decide, all of it public.

    low, high: quantiles that become bounds. fewest: a category needs so many patients, by their noisy count; 0 keeps all.
    most_categories: the commonest so many stay, ``other`` aside. most_missing: a column of whose cells a larger share is
    missing is left out. Raises ConfigError for a value that is impossible.
    """

    low: float = 0.01
    high: float = 0.99
    fewest: float = 0.0
    most_categories: int = 100
    most_missing: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            raise ConfigError(f"low and high must be quantiles, 0 <= low < high <= 1, got {self.low} and {self.high}.")
        if not self.fewest >= 0:
            raise ConfigError(f"fewest must be 0 or more, got {self.fewest}.")
        if self.most_categories < 1:
            raise ConfigError(f"most_categories must be 1 or more, got {self.most_categories}.")
        if not 0 <= self.most_missing <= 1:
            raise ConfigError(f"most_missing must be a share, from 0 to 1, got {self.most_missing}.")


def edges(column: Column, bins: int) -> Floats:
    """(cells + 1,) edges of equal cells of a numeric column, ``bins`` of them; fewer where it has fewer whole numbers."""
    low, high = column.bounds or (0.0, 1.0)
    if column.kind == "integer":
        return np.linspace(low - 0.5, high + 0.5, min(bins, int(high - low) + 1) + 1)
    return np.linspace(low, high, bins + 1)


def cell_count(column: Column, bins: int) -> int:
    """How many cells are counted of a column whose vocabulary is known; the last is ``missing`` in a nullable one."""
    if column.kind == "code_set":
        return len(column.categories)
    cells = len(edges(column, bins)) - 1 if column.kind in _NUMERIC else len(column.categories) or 2
    return cells + int(column.nullable)


def check_columns(schema: Schema, names: tuple[str, ...]) -> None:
    """Raises ConfigError for a name that is not a feature, and for none."""
    known = [column.name for column in schema.features]
    if strange := [name for name in names if name not in known]:
        raise ConfigError(f"There is no feature column {strange[0]!r} to prepare; there are {several(known, 20)}.")
    if not names:
        raise ConfigError("There is no column to prepare; name at least one.")


def prepared(schema: Schema, counted: Mapping[str, Counted], rules: Rules) -> tuple[Schema, dict[str, dict[str, Any]]]:
    """The schema with what ``counted`` says of its columns, and for each of those what was found.

    A numeric column gets the bounds of its quantiles (and ``clip``), centre, spread and fill; a categorical one or a code
    set the categories that enough patients have, the rest as ``other``; every column a fill, its mean or commonest
    category. A column with too much missing gets the role "ignore". Where the counts are too uncertain to tell, the
    draft's value stays. Raises DataError when no feature is left.
    """
    columns: list[Column] = []
    told: dict[str, dict[str, Any]] = {}
    for column in schema.columns:
        if column.name not in counted:
            columns.append(column)
            continue
        better, found = _prepare(column, counted[column.name], rules)
        columns.append(better)
        told[column.name] = found
    if all(column.role != "feature" for column in columns):
        raise DataError("Every feature column has more missing cells than most_missing allows; allow more.")
    still = kept_rules(schema.rules, columns)
    return Schema(name=schema.name, unit=schema.unit, columns=tuple(columns), rules=still), told


def _prepare(column: Column, counted: Counted, rules: Rules) -> tuple[Column, dict[str, Any]]:
    patients, share = counted.patients, 0.0
    if column.nullable and column.kind != "code_set" and not column.is_open:
        patients, missing = patients[:-1], float(patients[-1])
        share = float(np.clip(missing / max(missing + patients.sum(), 1.0), 0.0, 1.0))
    found: dict[str, Any] = {"missing": share, "dropped": share > rules.most_missing}
    if found["dropped"]:
        return column.model_copy(update={"role": "ignore"}), found
    if column.kind in _NUMERIC:
        changes = _numeric(column, patients, counted.error, rules)
    elif column.kind in ("categorical", "code_set"):
        changes = _listed(column, patients, counted.names, rules)
    else:
        names = column.categories or (0.0, 1.0)
        changes = {"fill": names[int(patients.argmax())]}
    better = Column.model_validate(column.model_dump() | changes)
    return better, found | {name: getattr(better, name) for name in changes}


def _numeric(column: Column, patients: Floats, error: float, rules: Rules) -> dict[str, Any]:
    at = edges(column, len(patients))
    begin = _from_outside(patients, error, rules.low)
    end = len(patients) - _from_outside(patients[::-1], error, 1 - rules.high)
    inside = slice(begin, end) if begin < end else slice(0, len(patients))
    bounds = float(at[inside.start]), float(at[inside.stop])
    if column.kind == "integer":
        bounds = math.ceil(bounds[0]) + 0.0, math.floor(bounds[1]) + 0.0
        if bounds[0] == bounds[1]:  # all patients have one number; a column needs two
            bounds = bounds[0] - 1.0, bounds[1] + 1.0
    low, high = bounds
    centre, spread = _moments((at[:-1] + at[1:])[inside] / 2, patients[inside], error, low, high)
    fill = float(round(centre)) if column.kind == "integer" else centre
    return {"bounds": bounds, "clip": True, "centre": centre, "spread": spread, "fill": fill}


def _moments(middle: Floats, patients: Floats, error: float, low: float, high: float) -> tuple[float, float]:
    """Mean and standard deviation of cells' middles, drawn towards usual ones the more the noisier the counts are."""
    half = (high - low) / 2
    place = np.clip((middle - low) / half - 1, -1, 1)
    total = max(float(patients.sum()), max(error, 1.0))
    mean = _drawn(float(patients @ place) / total, error * float(np.linalg.norm(place)) / total, *_USUAL_MEAN)
    square = (place - mean) ** 2
    variance = _drawn(float(patients @ square) / total, error * float(np.linalg.norm(square)) / total, *_USUAL_VARIANCE)
    return low + half * (1 + float(np.clip(mean, -1, 1))), half * float(np.clip(variance, _NARROWEST**2, 1)) ** 0.5


def _drawn(value: float, error: float, usual: float, spread: float) -> float:
    """The best guess of a number near ``usual``, give or take ``spread``, that was seen with an ``error``."""
    return float(usual + (value - usual) * spread**2 / (spread**2 + error**2))


def _from_outside(patients: Floats, error: float, share: float) -> int:
    """The first cell up to which, from the outside, there are a ``share`` of all patients, in cells that surely have any.

    0, the draft's bound, where cells may have many patients and not be sure.
    """
    total, least = float(patients.sum()), _SURE * error
    up_to = np.cumsum(np.where(patients >= least, patients, 0.0))
    reached = (up_to >= share * total) & (up_to > 0)
    return int(reached.argmax()) if least <= _CUT_OFF * total else 0


def _listed(column: Column, patients: Floats, found: tuple[str, ...], rules: Rules) -> dict[str, Any]:
    names = found if column.is_open else column.categories
    named = {name: float(n) for name, n in zip(names, patients, strict=True) if name != column.other}
    enough = [name for name, count in named.items() if count >= rules.fewest or not rules.fewest]
    commonest = set(sorted(enough, key=lambda name: (-named[name], name))[: rules.most_categories])
    kept = tuple(name for name in names if name in commonest)
    other = column.other
    if not other and len(kept) < len(named):
        other = next(name for name in (_OTHER, "any other", "not listed") if name not in kept)
    changes: dict[str, Any] = {"categories": (*kept, other) if other else kept, "other": other}
    if column.kind == "categorical":
        changes["drop_first"] = column.drop_first and bool(kept)
        changes["fill"] = max(kept, key=lambda name: named[name]) if kept else other
    return changes
