"""A better public schema from counts of a draft schema's cells: bounds, vocabularies, fills, centres and spreads.

Everything here is public: it knows a schema and counts that were paid for (or are of public records), never a record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from polyclinic.ehr import running
from polyclinic.ehr.rules import kept_rules
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError, DataError, several
from polyclinic.types import Floats

NUMERIC = ("continuous", "integer", "trajectory")
_OTHER = "other"
_SURE, _LIKELY = 4.0, 2.0  # standard errors that a count is surely within, and likely
_CUT_OFF = 0.05  # the most of the patients that the bounds may leave outside, half of it on either side
_MIDDLE = 0.5  # as much of centre and spread, which a few patients at the ends, or noise there, would else decide
_NARROWEST = 1 / 25  # spread, of half the range
# Of half the range, (usual value, spread), before any record is seen.
_USUAL_MEAN, _USUAL_VARIANCE = (0.0, 0.3), (0.1, 0.05)


@dataclass(frozen=True)
class Counted:
    """How many ``patients`` are in each cell of a column, (cells,), each with the same standard ``error`` (0 if exact).

    A numeric column's are unmixed, and ``error`` is that of the mixed ones (``running``). An open column's cells are those that
    were found, by their ``names``.
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
    cells = len(edges(column, bins)) - 1 if column.kind in NUMERIC else len(column.categories) or 2
    return cells + int(column.nullable)


def check_columns(schema: Schema, names: tuple[str, ...]) -> None:
    """Raises ConfigError for a name that is not a feature, and for none."""
    features = [column.name for column in schema.features]
    if strange := [name for name in names if name not in features]:
        raise ConfigError(f"There is no feature column {strange[0]!r} to prepare; there are {several(features, 20)}.")
    if not names:
        raise ConfigError("There is no column to prepare; name at least one.")


def prepare_schema(
    schema: Schema, counted: Mapping[str, Counted], rules: Rules
) -> tuple[Schema, dict[str, dict[str, Any]]]:
    """Return the schema with what ``counted`` says of its columns, and for each of those what changed.

    A numeric column gets the bounds of its quantiles (and ``clip``), centre, spread and fill. A categorical one or a
    code set gets the categories that enough patients have, the rest as ``other``. Every column gets a fill, its mean or
    commonest category. A column with too much missing gets the role "ignore". Where the counts are too uncertain to
    tell, the draft's value stays.

    Args:
        schema: The draft.
        counted: By column, the counts of its cells and their error.
        rules: How counts become bounds, categories and roles.

    Returns:
        The better schema, and by column the share ``missing``, whether it was ``dropped``, and the fields that changed.

    Raises:
        DataError: When no feature is left.
    """
    columns: list[Column] = []
    reports: dict[str, dict[str, Any]] = {}
    for column in schema.columns:
        if column.name not in counted:
            columns.append(column)
            continue
        better, report = _prepare(column, counted[column.name], rules)
        columns.append(better)
        reports[column.name] = report
    if all(column.role != "feature" for column in columns):
        raise DataError("Every feature column has more missing cells than most_missing allows; allow more.")
    still = kept_rules(schema.rules, columns)
    return Schema(name=schema.name, unit=schema.unit, columns=tuple(columns), rules=still), reports


def standard_error(column: Column, counted: Counted) -> float:
    """That of each count; of a numeric column the largest that a number of patients below an edge has."""
    if column.kind not in NUMERIC:
        return counted.error
    return float(running.errors(np.tri(len(counted.patients)), counted.error).max())


def _prepare(column: Column, counted: Counted, rules: Rules) -> tuple[Column, dict[str, Any]]:
    patients, share = counted.patients, 0.0
    if column.nullable and column.kind != "code_set" and not column.is_open:
        patients, missing = patients[:-1], float(patients[-1])
        share = float(np.clip(missing / max(missing + patients.sum(), 1.0), 0.0, 1.0))
    report: dict[str, Any] = {"missing": share, "dropped": share > rules.most_missing}
    if report["dropped"]:
        return column.model_copy(update={"role": "ignore"}), report
    if column.kind in NUMERIC:
        changes = _numeric(column, patients, counted.error, rules)
    elif column.kind in ("categorical", "code_set"):
        changes = _category_changes(column, patients, counted.names, rules)
    else:
        names = column.categories or (0.0, 1.0)
        changes = {"fill": names[int(patients.argmax())]}
    better = Column.model_validate(column.model_dump() | changes)
    return better, report | {name: getattr(better, name) for name in changes}


def _numeric(column: Column, patients: Floats, error: float, rules: Rules) -> dict[str, Any]:
    at, shares = edges(column, len(patients)), (rules.low, 1 - rules.high)
    cells = len(patients) + int(column.nullable)
    bounds = _between(at, _inside(patients, error, cells, shares, _CUT_OFF))
    if column.kind == "integer":
        bounds = math.ceil(bounds[0]) + 0.0, math.floor(bounds[1]) + 0.0
        if bounds[0] == bounds[1]:  # all patients have one number; a column needs two
            bounds = bounds[0] - 1.0, bounds[1] + 1.0
    middle = _inside(patients, error, cells, shares, _MIDDLE)
    weights = np.zeros((2, cells))
    place = np.arange(cells)
    low, high = _between(at, middle)
    half = (high - low) / 2
    inside = (place >= middle.start) & (place < middle.stop)
    weights[:, inside] = (((at[:-1] + at[1:]) / 2)[middle] - low) / half - 1, np.ones(middle.stop - middle.start)
    centre, spread = _moments(weights, patients, error)
    centre = low + half * (1 + centre)
    spread = max(half * spread, float(at[1] - at[0]) / math.sqrt(12))  # that of numbers spread over one cell
    fill = float(round(centre)) if column.kind == "integer" else centre
    return {"bounds": bounds, "clip": True, "centre": centre, "spread": spread, "fill": fill}


def _between(at: Floats, inside: slice) -> tuple[float, float]:
    return float(at[inside.start]), float(at[inside.stop])


def _moments(weights: Floats, patients: Floats, error: float) -> tuple[float, float]:
    """Mean and standard deviation of places, drawn towards usual ones the more the noisier the counts are.

    weights: (2, cells) each cell's place from -1 to 1, and 1 where it counts, 0 elsewhere.
    """
    place, counts = weights[:, : len(patients)]
    total = max(float(patients @ counts), max(error, 1.0))

    def shrink(values: Floats, usual: tuple[float, float]) -> float:
        padded = np.concatenate([values, np.zeros(weights.shape[1] - len(values))])
        return _shrink(float(values @ patients) / total, float(running.errors(padded[None], error)[0]) / total, *usual)

    mean = float(np.clip(shrink(place, _USUAL_MEAN), -1, 1))
    variance = shrink(counts * (place - mean) ** 2, _USUAL_VARIANCE)
    return mean, float(np.clip(variance, _NARROWEST**2, 1)) ** 0.5


def _shrink(value: float, error: float, usual: float, spread: float) -> float:
    """The best guess of a number near ``usual``, give or take ``spread``, that was seen with an ``error``."""
    return float(usual + (value - usual) * spread**2 / (spread**2 + error**2))


def _inside(patients: Floats, error: float, cells: int, shares: tuple[float, float], most: float) -> slice:
    """The cells between the quantiles that leave ``shares`` of the patients below and above, as far as that is sure.

    What lies outside on either side has surely at most half of ``most`` of all patients, or the share asked for where
    that is more. Surely means its share's estimate and ``_SURE`` standard errors. ``error``: as in ``Counted``;
    ``cells``: with the missing one.
    """
    number, limits = len(patients), [max(share, most / 2) for share in shares]
    begin = _last(patients, *_outside(number, cells, False, limits[0]), error, shares[0], limits[0])
    above = _last(patients, *_outside(number, cells, True, limits[1]), error, shares[1], limits[1])
    return slice(begin, number - above) if begin + above < number else slice(0, number)


def _last(
    patients: Floats, outside: Floats, beyond: Floats, about: Floats, error: float, share: float, most: float
) -> int:
    """The last row of ``outside`` that has about a ``share`` of the patients at most, and surely no more than ``most``."""
    total, sums = float(patients.sum()), outside @ patients
    slack = 1e-9 * abs(total)
    sure = sums - most * total + _SURE * error * beyond <= slack
    wanted = sums <= share * total + _LIKELY * error * about + slack
    return int(np.flatnonzero(sure & wanted).max(initial=0)) if total > 0 else 0


@lru_cache(maxsize=32)
def _outside(number: int, cells: int, above: bool, most: float) -> tuple[Floats, Floats, Floats]:
    """(number, number) whose row k is 1 in the k outermost cells, with two standard errors for an ``error`` of 1.

    The first is that of the patients in these cells beyond ``most`` of all patients, the second that of the patients in
    them.
    """
    outside = np.tri(number, k=-1)[:, :: -1 if above else 1]
    missing = np.zeros((number, cells - number))
    beyond, about = (running.errors(np.hstack([weights, missing]), 1.0) for weights in (outside - most, outside))
    return outside, beyond, about


def _category_changes(column: Column, patients: Floats, seen: tuple[str, ...], rules: Rules) -> dict[str, Any]:
    names = seen if column.is_open else column.categories
    named = {name: float(n) for name, n in zip(names, patients, strict=True) if name != column.other}
    enough = [name for name, count in named.items() if count >= rules.fewest or not rules.fewest]
    commonest = set(sorted(enough, key=lambda name: (-named[name], name))[: rules.most_categories])
    listed = tuple(name for name in names if name in commonest)
    other = column.other
    if not other and len(listed) < len(named):
        other = next(name for name in (_OTHER, "any other", "not listed") if name not in listed)
    changes: dict[str, Any] = {"categories": (*listed, other) if other else listed, "other": other}
    if column.kind == "categorical":
        changes["drop_first"] = column.drop_first and bool(listed)
        changes["fill"] = max(listed, key=lambda name: named[name]) if listed else other
    return changes
