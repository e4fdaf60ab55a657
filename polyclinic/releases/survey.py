"""A survey: how many of a hospital's patients are in each cell of each column, in one release with Gaussian noise.

What a schema is prepared with (``ehr.prepared``) all follows from these counts, so that they are paid for once. Training
patients are asked, held-out ones are not. A patient weighs 1 in a column, spread evenly over the cells of all their rows.
For codes or unlisted values it is 1 for each of at most so many, chosen at random. The cells of a numeric column are mixed
before the noise (``ehr.running``), so that sums over many of them, which quantiles are read from, stay good.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from statistics import NormalDist
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from dp_accounting import ComposedDpEvent, DpEvent, NonPrivateDpEvent, SelfComposedDpEvent
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from polyclinic.ehr import running
from polyclinic.ehr.encoding import column_cells
from polyclinic.ehr.prepared import (
    NUMERIC,
    Counted,
    Rules,
    cell_count,
    check_columns,
    edges,
    prepare_schema,
    standard_error,
)  # fmt: skip
from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import Shard
from polyclinic.errors import ConfigError
from polyclinic.privacy.events import approximate_event, gaussian_event
from polyclinic.privacy.ledger.file import finite
from polyclinic.privacy.mechanisms import FINE
from polyclinic.privacy.streams import Stream
from polyclinic.releases.question import Answer, Conclusion, HospitalAnswer, Pricing, check_epsilon, noisy
from polyclinic.types import Ints, Reals

_MOST_BINS, _MOST_CODES = 1000, 1000
_THRESHOLDS = 0.01  # share of delta for names of unlisted values that few patients have


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Survey:
    """Columns whose cells are counted, and the public rules by which the counts make a schema.

    bins: equal parts of a numeric column's public bounds. codes: the most codes of a code set that a patient counts for.
    epsilon: what the answer may cost; None asks for exact numbers, without privacy. rules: hospitals are not sent them.

    Examples:
        >>> columns = Column(name="age", kind="integer", bounds=(0, 100)), Column(name="died", kind="binary", role="label")
        >>> schema = Schema(name="ward", unit="record", columns=columns)
        >>> survey = Survey(("age",), epsilon=1.0).of(schema)
        >>> round(survey.plan(schema, Pricing(delta=1e-5)).noise_multiplier, 2)
        3.73
    """

    task: ClassVar[str] = "survey"
    everyone: ClassVar[bool] = False
    purpose: ClassVar[str] = "survey"

    columns: tuple[str, ...]
    epsilon: float | None
    bins: int = 256
    codes: int = 10
    rules: Annotated[Rules, Field(exclude=True)] = Rules()
    kind: Literal["survey"] = field(default="survey", kw_only=True)

    def of(self, schema: Schema) -> Survey:
        """The survey of all of the schema's features where it names no columns."""
        every = tuple(column.name for column in schema.features)
        return self if self.columns else dataclasses.replace(self, columns=every)

    def check(self, schema: Schema) -> None:
        """Raises ConfigError naming what is wrong and what is allowed."""
        check_columns(schema, self.columns)
        if not 2 <= self.bins <= _MOST_BINS:
            raise ConfigError(f"bins must lie between 2 and {_MOST_BINS}, got {self.bins}.")
        if not 1 <= self.codes <= _MOST_CODES:
            raise ConfigError(f"codes must lie between 1 and {_MOST_CODES}, got {self.codes}.")
        check_epsilon(self.epsilon)

    def parts(self, schema: Schema) -> tuple[Column, ...]:
        """The columns, in the schema's order."""
        return tuple(column for column in schema.features if column.name in self.columns)

    def most(self, column: Column) -> int:
        """In how many cells of a column a patient may weigh 1."""
        return self.codes if column.kind == "code_set" else 1

    def points(self, column: Column) -> int:
        """Grid points of such a 1, so that a patient's whole part in a column, mixed if need be, has L2 norm ``FINE`` at most.

        A part spread over cells of a numeric column is a mean of whole ones, so its norm is none's above the largest.
        """
        if column.kind in NUMERIC:
            return math.floor(FINE / running.norm(cell_count(column, self.bins)) * (1 - 1e-12))
        return math.floor(FINE / math.sqrt(self.most(column)))

    def plan(self, schema: Schema, pricing: Pricing) -> Plan:
        """The plan with the least noise whose event costs at most ``epsilon``.

        Raises ConfigError, before any charge, for a survey that the schema cannot answer.
        """
        return _plan(dataclasses.replace(self, rules=Rules()), schema, pricing)

    def answer(self, plan: Plan, shard: Shard, stream: Stream) -> Answer:
        """Noisy ``patients`` in the cells of all columns in order, and names of the open columns' values that are told.

        Beside them are how many ``cells`` each column has, and the ``errors`` of its counts. To be called only after
        ``plan.event`` was charged.

        Args:
            plan: As the method ``plan`` gives it.
            shard: The hospital's records, of which training patients count.
            stream: Draws the noise, and which codes and values a patient with many counts for.
        """
        by_column = [_column_answer(plan, column, shard, stream) for column in plan.columns]
        return Answer({
            "patients": np.concatenate([patients for patients, _ in by_column]),
            "cells": np.array([len(patients) for patients, _ in by_column], dtype=np.int64),
            "errors": np.array([plan.error(column) for column in plan.columns]),
        }, tuple(name for _, names in by_column for name in names))  # fmt: skip

    def conclude(self, schema: Schema, answers: Sequence[HospitalAnswer]) -> Conclusion:
        """The prepared schema, and for each column what was counted and what it alone cost."""
        columns = self.parts(schema)
        by_column = zip(*(_split_counts(answer.answer, columns) for answer in answers), strict=True)
        added = {column.name: _add_counts(counts) for column, counts in zip(columns, by_column, strict=True)}
        product, figures_of_columns = prepare_schema(schema, added, self.rules)
        plans = [self.plan(schema, answer.pricing) for answer in answers]
        figures: dict[str, Any] = {}
        for column in columns:
            cost = max(answer.pricing.cost(plan.part(column)) for plan, answer in zip(plans, answers, strict=True))
            mechanism = "exact" if self.epsilon is None else "gaussian, thresholded" if column.is_open else "gaussian"
            figures[column.name] = {
                "mechanism": mechanism, "cells": len(added[column.name].patients),
                "standard_error": standard_error(column, added[column.name]), "most": self.most(column),
                "epsilon": finite(cost),
                "threshold_delta": max(plan.threshold_delta for plan in plans) if column.is_open else 0.0,
                "threshold": plans[0].threshold(column) if column.is_open else None, **figures_of_columns[column.name],
            }  # fmt: skip
        facts = {"exact": self.epsilon is None, "bins": self.bins, "codes": self.codes, "columns": figures}
        return Conclusion(facts, [{"noise_multiplier": plan.noise_multiplier} for plan in plans], {"schema": product})


def _split_counts(answer: Answer, columns: Sequence[Column]) -> list[Counted]:
    """One hospital's counts, column by column."""
    names = iter(answer.names)
    parts = np.split(answer.arrays["patients"], np.cumsum(answer.arrays["cells"])[:-1])
    return [
        Counted(part, float(error), tuple(next(names) for _ in part) if column.is_open else ())
        for part, error, column in zip(parts, answer.arrays["errors"], columns, strict=True)
    ]


def _add_counts(counts: Sequence[Counted]) -> Counted:
    """Several hospitals' counts of one column; a value that a hospital tells nothing of counts as none there."""
    error = float(np.sqrt(sum(counted.error**2 for counted in counts)))
    if not any(counted.names for counted in counts):
        return Counted(np.sum([counted.patients for counted in counts], axis=0), error)
    names = sorted({name for counted in counts for name in counted.names})
    patients = np.zeros(len(names))
    for counted in counts:
        if counted.names:
            patients[np.searchsorted(names, counted.names)] += counted.patients
    return Counted(patients, error, tuple(names))


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a hospital answers, and what that costs, decided before a record is read.

    noise_multiplier: of each column's part; None is exact. threshold_delta: of each open column, the chance that the name
    of a value that a single patient has is told.

    Examples:
        >>> columns = Column(name="age", kind="integer", bounds=(0, 100)), Column(name="died", kind="binary", role="label")
        >>> schema = Schema(name="ward", unit="record", columns=columns)
        >>> plan = Survey(("age",), epsilon=1.0).plan(schema, Pricing(delta=1e-5))
        >>> round(plan.noise_multiplier, 2), round(plan.error(schema.features[0]), 1)  # in patients, of each cell
        (3.73, 5.9)
    """

    survey: Survey
    columns: tuple[Column, ...]
    noise_multiplier: float | None
    threshold_delta: float

    @property
    def event(self) -> DpEvent:
        """Gaussian releases, one a column, and the thresholds' delta.

        Of an open column, given a pair of neighbours, the values that both have are a Gaussian release. Of the values that one
        alone has, independently, none is told but with probability ``threshold_delta``. Gopi et al. 2020, Theorem 5.1;
        Wilson et al. 2020, Section 3.1.
        """
        if self.noise_multiplier is None:
            return NonPrivateDpEvent()
        counts = SelfComposedDpEvent(gaussian_event(self.noise_multiplier), len(self.columns))
        opened = sum(column.is_open for column in self.columns)
        return ComposedDpEvent([counts, approximate_event(0.0, opened * self.threshold_delta)]) if opened else counts

    @property
    def policy_noise(self) -> float | None:
        """The noise multiplier of all columns taken as one release."""
        return None if self.noise_multiplier is None else self.noise_multiplier / math.sqrt(len(self.columns))

    def part(self, column: Column) -> DpEvent:
        """What one column alone would cost."""
        return Plan(self.survey, (column,), self.noise_multiplier, self.threshold_delta).event

    def error(self, column: Column) -> float:
        """Standard error of each of the column's counts, in patients; of a numeric column's before they are unmixed."""
        scale = self.survey.points(column) * (running.ONE if column.kind in NUMERIC else 1)
        return (self.noise_multiplier or 0.0) * FINE / scale

    def threshold(self, column: Column) -> float:
        """Noisy patients below which an open column's value is not told: one patient's ``most`` values, each had by nobody
        else, all stay below it but with probability ``threshold_delta``.
        """
        if self.noise_multiplier is None:
            return 0.0
        probability = -math.expm1(math.log1p(-self.threshold_delta) / self.survey.most(column))
        return 1.0 + self.error(column) * -NormalDist().inv_cdf(probability) * (1 + 1e-9)


@lru_cache(maxsize=16)
def _plan(survey: Survey, schema: Schema, pricing: Pricing) -> Plan:
    survey.check(schema)
    columns = survey.parts(schema)
    opened = sum(column.is_open for column in columns)
    threshold_delta = _THRESHOLDS * pricing.delta / max(opened, 1)
    if survey.epsilon is None:
        return Plan(survey, columns, None, threshold_delta)
    return pricing.calibrate(lambda noise: Plan(survey, columns, noise, threshold_delta), survey.epsilon)


def _column_answer(plan: Plan, column: Column, shard: Shard, stream: Stream) -> tuple[Reals, tuple[str, ...]]:
    points = plan.survey.points(column)
    if column.kind in NUMERIC and plan.noise_multiplier is not None:
        mixed = noisy(running.mix(totals(plan.survey, column, shard, stream)), plan.noise_multiplier, stream)
        return running.unmix(mixed / (points * running.ONE)), ()
    if not column.is_open:
        return noisy(totals(plan.survey, column, shard, stream), plan.noise_multiplier, stream) / points, ()
    counts = value_counts(plan.survey, column, shard, stream)
    # In order of their names, so that noise does not follow the records' order.
    names = sorted(counts)
    total = np.array([counts[name] * points for name in names], dtype=np.int64)
    noised = noisy(total, plan.noise_multiplier, stream) / points
    shown = np.flatnonzero(noised >= plan.threshold(column))
    return noised[shown], tuple(names[index] for index in shown)


def totals(survey: Survey, column: Column, shard: Shard, stream: Stream) -> Ints:
    """(cells,) sums over the training patients, in grid points.

    One patient added or removed changes them by at most ``FINE`` in L2.

    Args:
        survey: What is asked.
        column: One of its columns that are not open.
        shard: The hospital's records.
        stream: Where patients are to choose among their codes, each does so by draws of its own.

    Examples:
        >>> from polyclinic.privacy.streams import keyed_stream
        >>> columns = Column(name="age", kind="integer", bounds=(0, 100)), Column(name="died", kind="binary", role="label")
        >>> schema = Schema(name="ward", unit="record", columns=columns)
        >>> ages, died = np.array([[-0.4], [0.2], [0.8]]), np.array([0, 0, 1])  # 30, 60 and 90 years, as encoded
        >>> shard = Shard("north", schema, ages, died, patient=np.arange(3), is_test=np.zeros(3, dtype=bool))
        >>> counted = totals(survey := Survey(("age",), epsilon=1.0, bins=4), columns[0], shard, keyed_stream(0, "codes"))
        >>> (counted / survey.points(columns[0])).tolist()
        [0.0, 1.0, 1.0, 1.0]
    """
    points, cells = survey.points(column), cell_count(column, survey.bins)
    rows = ~shard.is_test[shard.patient]
    values, patient = column_cells(shard.x[rows], shard.schema, column.name), shard.patient[rows]
    if column.kind == "code_set":
        row, code = np.nonzero(values > 0.5)
        of, value = np.divmod(np.unique(patient[row] * cells + code), cells)
        chosen = _at_most(survey.most(column), of, value, stream)
        return np.bincount(chosen, minlength=cells).astype(np.int64) * points
    if column.kind in NUMERIC:
        at = edges(column, survey.bins)
        number = np.clip(np.searchsorted(at, values, "right") - 1, 0, len(at) - 2)
    else:
        number = np.nan_to_num(values).astype(np.int64)
    number = np.where(np.isnan(values), cells - 1, number)
    counted = ~np.isnan(values) | column.nullable
    entry, times = np.unique((patient[:, None] * cells + number)[counted], return_counts=True)
    of, cell = np.divmod(entry, cells)
    total: Ints = np.zeros(cells, dtype=np.int64)
    # Rounded down, so that a patient's parts never add up to more than the whole.
    np.add.at(total, cell, times * points // np.bincount(of, times).astype(np.int64)[of])
    return total


def value_counts(survey: Survey, column: Column, shard: Shard, stream: Stream) -> Mapping[str, int]:
    """How many training patients have each value of an open column.

    Args:
        survey: Says at most how many values each patient chooses.
        column: The open column.
        shard: The hospital's records.
        stream: Draws which values a patient with more of them chooses.

    Examples:
        >>> from polyclinic.privacy.streams import keyed_stream
        >>> city = Column(name="city", kind="categorical", categories=("other",), other="other")
        >>> schema = Schema(name="ward", unit="record", columns=(city, Column(name="died", kind="binary", role="label")))
        >>> cells = {"city": np.array(["Ulm", "Bonn", "Ulm"], dtype=object)}
        >>> shard = Shard("north", schema, np.ones((3, 1)), np.zeros(3), np.arange(3), np.zeros(3, dtype=bool), cells)
        >>> value_counts(Survey(("city",), epsilon=1.0), city, shard, keyed_stream(0, "values"))
        {'Bonn': 1, 'Ulm': 2}
    """
    rows = ~shard.is_test[shard.patient]
    pairs: set[tuple[int, str]] = set()
    for cell, patient in zip(shard.cells[column.name][rows].tolist(), shard.patient[rows].tolist(), strict=True):
        values = cell.split(";") if column.kind == "code_set" else [cell]
        pairs.update((patient, text) for value in values if (text := value.strip()))
    ordered = sorted(pairs)
    names = sorted({value for _, value in ordered})
    number = {name: index for index, name in enumerate(names)}
    patients = np.array([patient for patient, _ in ordered], dtype=np.int64)
    codes = np.array([number[value] for _, value in ordered], dtype=np.int64)
    counts = np.bincount(_at_most(survey.most(column), patients, codes, stream), minlength=len(names))
    return {name: count for name, count in zip(names, counts.tolist(), strict=True) if count}


def _at_most(most: int, patient: Ints, value: Ints, stream: Stream) -> Ints:
    """Of each patient's values at most ``most``, chosen at random; patients in order."""
    if not len(patient):
        return value
    order = np.lexsort((stream.uniform(len(patient)), patient))
    begins = np.flatnonzero(np.diff(patient[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    return value[order][rank < most]
