"""Questions for a statistic of one column: what may be asked of a schema, the cells of an answer, and what follows from them.

Everything here is public: it knows the schema and noisy answers, never a record.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np

from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError, nearest
from polyclinic.types import Bools, Reals

Statistic = Literal["count", "mean", "histogram", "quantile"]
STATISTICS: tuple[str, ...] = get_args(Statistic)
MISSING = "missing"
_LISTED = ("binary", "categorical", "ordinal")
_NUMERIC = ("continuous", "integer")
_CONDITION = re.compile(r"\s*(.+?)\s*(>=|<=|!=|=|>|<)\s*(.+?)\s*")
_MOST_BINS = 10_000
_COMPARE: dict[str, Callable[[Reals, float], Bools]] = {
    "=": np.equal, "!=": np.not_equal, ">=": np.greater_equal, "<=": np.less_equal, ">": np.greater, "<": np.less,
}  # fmt: skip


@dataclass(frozen=True)
class Condition:
    """A column compared with a public value, in the column's unit or as the number of a category."""

    column: Column
    operator: str
    value: float

    def holds(self, values: Reals) -> Bools:
        """(patients,) bool; a missing value, NaN, fulfils no condition."""
        return np.logical_and(_COMPARE[self.operator](values, self.value), ~np.isnan(values))


@dataclass(frozen=True)
class Question:
    """A statistic over one value for each patient: the mean of a patient's numbers, the commonest of their categories.

    where: texts ``column=category`` or ``column>=number`` (also !=, <=, >, <), all of which a patient must fulfil.
    bins: equal parts of the column's public bounds, for histograms and quantiles. quantile: 0.001 to 0.999, to three digits.
    """

    statistic: str
    column: str = ""
    where: tuple[str, ...] = ()
    bins: int = 10
    quantile: float = 0.5

    def check(self, schema: Schema) -> None:
        """Raises ConfigError, naming what is wrong and what is allowed, for a question that the schema cannot answer."""
        if self.statistic not in STATISTICS:
            raise ConfigError(
                f"statistic must be one of {', '.join(STATISTICS)}, got {self.statistic!r}."
                f"{nearest(self.statistic, STATISTICS)}"
            )
        if not 1 <= self.bins <= _MOST_BINS:
            raise ConfigError(f"bins must lie between 1 and {_MOST_BINS}, got {self.bins}.")
        if not 0.001 <= self.quantile <= 0.999:
            raise ConfigError(f"quantile must lie between 0.001 and 0.999, got {self.quantile}.")
        self.conditions(schema)
        if not self.column:
            if self.statistic != "count":
                raise ConfigError(f"A {self.statistic} needs a column; askable are {_names(schema)}.")
            return
        kind = askable(schema, self.column).kind
        allowed = {"mean": (*_NUMERIC, "binary"), "quantile": _NUMERIC}.get(self.statistic, (*_NUMERIC, *_LISTED))
        if kind not in allowed:
            raise ConfigError(
                f"A {self.statistic} of column {self.column!r} of kind {kind!r} is not defined; it takes {', '.join(allowed)}."
            )

    def conditions(self, schema: Schema) -> list[Condition]:
        """Raises ConfigError for a condition that is none, or has no public value of its column."""
        return [_condition(text, schema) for text in self.where]

    def cells(self, schema: Schema) -> tuple[str, ...]:
        """The names of the numbers that an answer by added noise consists of."""
        if self.statistic == "count":
            return ("patients",)
        if self.statistic == "mean":
            return ("low", "high")
        column = askable(schema, self.column)
        if column.kind in _LISTED:
            names = categories(column)
        else:
            edges = self.edges(schema)
            names = tuple(f"{low:g} to {high:g}" for low, high in zip(edges, edges[1:], strict=False))
        return (*names, MISSING) if self.statistic == "histogram" and column.nullable else names

    def has_bins(self, schema: Schema) -> bool:
        """Whether the answer depends on ``bins``."""
        if self.statistic == "histogram":
            return askable(schema, self.column).kind in _NUMERIC
        return self.statistic == "quantile"

    def edges(self, schema: Schema) -> Reals:
        """(bins + 1,) equally spaced from one public bound of the column to the other."""
        return np.linspace(*bounds(askable(schema, self.column)), self.bins + 1)

    @property
    def level(self) -> Fraction:
        """The quantile as a fraction of whole numbers up to 1000."""
        return Fraction(str(self.quantile)).limit_denominator(1000)


def askable(schema: Schema, name: str) -> Column:
    """The column of that name. Raises ConfigError when there is none, or one cell of it is not one number or category."""
    for column in (*schema.features, schema.label):
        if column.name == name and column.kind in (*_NUMERIC, *_LISTED):
            return column
    raise ConfigError(
        f"There is no column {name!r} that can be asked for; askable are {_names(schema)}."
        f"{nearest(name, (column.name for column in schema.features))}"
    )


def _names(schema: Schema) -> str:
    columns = (*schema.features, schema.label)
    return ", ".join(column.name for column in columns if column.kind in (*_NUMERIC, *_LISTED))


def categories(column: Column) -> tuple[str, ...]:
    """The public categories in the order of their numbers; a binary column without names has 0 and 1."""
    return column.categories or ("0", "1")


def bounds(column: Column) -> tuple[float, float]:
    """The public bounds of a numeric or binary column, in its unit."""
    return column.bounds or (0.0, 1.0)


def _condition(text: str, schema: Schema) -> Condition:
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise ConfigError(f"A condition is of the form column=category or column>=number, not {text!r}.")
    column, operator, value = askable(schema, found[1]), found[2], found[3]
    if column.kind in _LISTED:
        known = categories(column)
        if value not in known or (column.kind != "ordinal" and operator not in ("=", "!=")):
            raise ConfigError(
                f"The condition {text!r} must be {column.name}= or {column.name}!= one of {', '.join(known)}."
                f"{nearest(value, known)}"
            )
        return Condition(column, operator, float(known.index(value)))
    low, high = bounds(column)
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        raise ConfigError(
            f"The condition {text!r} must compare with a number in the public bounds {low:g} to {high:g}."
        )
    return Condition(column, operator, number)


def conclude(question: Question, schema: Schema, cells: Reals, errors: Reals) -> tuple[Any, Any]:
    """The statistic and its standard error from noisy cells (in patients) and theirs, of one hospital or of several added up.

    A mean lies within the public bounds; counts are as they are, also below zero, so that sums of them stay unbiased.
    """
    if question.statistic == "count":
        return float(cells[0]), float(errors[0])
    if question.statistic == "histogram":
        names = question.cells(schema)
        return dict(zip(names, cells.tolist(), strict=True)), dict(zip(names, errors.tolist(), strict=True))
    if question.statistic == "mean":
        return _mean(*bounds(askable(schema, question.column)), cells, errors)
    weights = np.maximum(cells, 0.0)
    share = np.concatenate([[0.0], np.cumsum(weights)]) / max(weights.sum(), np.finfo(float).tiny)
    return float(np.interp(float(question.level), share, question.edges(schema))), None


def _mean(low: float, high: float, cells: Reals, errors: Reals) -> tuple[float, float]:
    """From the patients' weights towards the two bounds, which add up to their number."""
    patients = max(float(cells.sum()), 1.0)
    share = min(max(float(cells[1]) / patients, 0.0), 1.0)
    # The quotient's error to first order.
    error = math.hypot((1 - share) * errors[1], share * errors[0]) / patients
    return low + (high - low) * share, (high - low) * error
