"""A statistic of one column: a count, a mean, a histogram or a quantile, over one value for each patient.

All of a hospital's patients are asked, held-out ones too. Several rows of a patient become one value first, so that a
patient adds one whole unit to the cells of an answer, whatever the statistic. It adds 1 to a cell of a count or histogram.
For a mean it adds a part each to "low" and "high", by where in the public bounds the value lies.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import field
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
import pandas as pd
from dp_accounting import DpEvent
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from polyclinic.ehr.checks import texts
from polyclinic.ehr.encoding import column_values
from polyclinic.ehr.expressions import LONGEST, Expression, numbers, parse
from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import Shard
from polyclinic.errors import ConfigError, DataError, nearest
from polyclinic.privacy.accounting import event_to_json
from polyclinic.privacy.mechanisms import (
    FINE,
    Additive,
    Mechanism,
    RandomisedResponse,
    Selection,
    discrete_gaussian,
    exponential,
    gaussian,
    laplace,
    randomised_response,
    to_grid,
)  # fmt: skip
from polyclinic.privacy.streams import Stream
from polyclinic.releases.question import Answer, Conclusion, HospitalAnswer, Pricing, check_epsilon
from polyclinic.types import Bools, Ints, Reals

STATISTICS = ("count", "mean", "histogram", "quantile")
MechanismName = Literal["laplace", "gaussian", "discrete-gaussian", "randomised-response", "exponential"]
MECHANISMS: tuple[str, ...] = get_args(MechanismName)
MISSING = "missing"
LISTED = ("binary", "categorical", "ordinal")
_NUMERIC = ("continuous", "integer")
_MOST_BINS = 10_000
_COARSE = 2**10  # grid points of a patient's part in a mean, for noise that is accounted on any grid


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a hospital is to answer.

    points: what one patient weighs in the whole numbers that noise is added to.
    policy_noise: noise over one patient's weight; 1 / epsilon where nothing is added.

    Examples:
        >>> Plan(laplace(2.0), points=1, policy_noise=2.0).event
        ApproximateDpEvent(epsilon=0.5, delta=0.0)
    """

    mechanism: Mechanism
    points: int
    policy_noise: float

    @property
    def event(self) -> DpEvent:
        return self.mechanism.event


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Statistic:
    """A statistic over one value for each patient: the mean of a patient's numbers, the commonest of their categories.

    where: conditions (``ehr.expressions``), all of which a patient must fulfil.
    bins: equal parts of the column's public bounds, for histograms and quantiles. quantile: 0.001 to 0.999, to three digits.
    mechanism: one of ``MECHANISMS``; empty takes the one that is usual for the statistic.

    Examples:
        >>> Statistic("count", where=("age >= 60", "sex == 'F'"), epsilon=0.5).mechanism
        'laplace'
    """

    task: ClassVar[str] = "query"
    everyone: ClassVar[bool] = True

    statistic: Annotated[str, Field(max_length=20)]
    column: Annotated[str, Field(max_length=1000)] = ""
    where: Annotated[tuple[Annotated[str, Field(max_length=LONGEST)], ...], Field(max_length=100)] = ()
    bins: int = 10
    quantile: float = 0.5
    mechanism: Annotated[str, Field(max_length=40)] = field(default="", kw_only=True)
    epsilon: float = field(kw_only=True)
    kind: Literal["statistic"] = field(default="statistic", kw_only=True)

    def __post_init__(self) -> None:
        usual = "exponential" if self.statistic == "quantile" else "laplace"
        object.__setattr__(self, "mechanism", self.mechanism or usual)

    @property
    def purpose(self) -> str:
        return f"query-{self.statistic}"

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
                raise ConfigError(
                    f"A {self.statistic} needs a column; askable are {', '.join(askable_columns(schema))}."
                )
            return
        kind = askable(schema, self.column).kind
        allowed = {"mean": (*_NUMERIC, "binary"), "quantile": _NUMERIC}.get(self.statistic, (*_NUMERIC, *LISTED))
        if kind not in allowed:
            raise ConfigError(
                f"A {self.statistic} of column {self.column!r} of kind {kind!r} is not defined; it takes {', '.join(allowed)}."
            )

    def conditions(self, schema: Schema) -> list[Expression]:
        """Raises ConfigError for a condition that is none, or that no public value of a column can answer."""
        return [_condition(text, schema) for text in self.where]

    def cells(self, schema: Schema) -> tuple[str, ...]:
        """The names of the numbers that an answer by added noise consists of."""
        if self.statistic == "count":
            return ("patients",)
        if self.statistic == "mean":
            return ("low", "high")
        column = askable(schema, self.column)
        if column.kind in LISTED:
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

    def plan(self, schema: Schema, pricing: Pricing) -> Plan:
        """The plan with the least noise whose event costs at most ``epsilon``.

        Laplace noise, randomised response and choices have ``epsilon`` at delta 0, too. Raises ConfigError, before any charge,
        for a question that the schema cannot answer, an unknown mechanism, and one that does not go with the question.
        """
        mechanism = self.mechanism
        if mechanism not in MECHANISMS:
            raise ConfigError(
                f"mechanism must be one of {', '.join(MECHANISMS)}, got {mechanism!r}.{nearest(mechanism, MECHANISMS)}"
            )
        check_epsilon(self.epsilon)
        self.check(schema)
        replaced = pricing.relation == "replace-one"
        whole = self.statistic != "mean"
        entries = 1 if self.statistic == "count" or (whole and not replaced) else 2
        pure = (2.0 if replaced else 1.0) / self.epsilon

        def plan_of(make: Callable[[float], Mechanism], points: int = 1, least: float = 0.0) -> Plan:
            return pricing.calibrate(lambda z: Plan(make(z), points, z), self.epsilon, least)

        if mechanism == "exponential":
            if self.statistic != "quantile":
                raise ConfigError(
                    f"The exponential mechanism chooses a quantile; a {self.statistic} takes added noise."
                )
            level = self.level
            sensitivity = max(level.numerator, level.denominator - level.numerator)
            return plan_of(lambda z: exponential(1.0 / z, sensitivity), least=pure)
        if mechanism == "randomised-response":
            self._check_response(replaced, pricing.relation)
            answers = 2 if self.statistic == "count" else len(self.cells(schema))
            return plan_of(lambda z: randomised_response(1.0 / z, answers), least=0.5 * pure)
        if mechanism == "laplace":
            points = 1 if whole else FINE
            return plan_of(lambda z: laplace(z, points, entries), points, pure)
        if mechanism == "gaussian":
            return plan_of(gaussian, FINE)
        points = 1 if whole else _COARSE
        return plan_of(lambda z: discrete_gaussian(z, points, entries), points)

    def _check_response(self, replaced: bool, relation: str) -> None:
        if not replaced:
            raise ConfigError(
                "Randomised response does not hide who is there: it needs a hospital whose relation is 'replace-one', "
                f"not {relation!r}."
            )
        if self.statistic not in ("count", "histogram"):
            raise ConfigError(f"Randomised response gives a count or a histogram, not a {self.statistic}.")
        if self.statistic == "histogram" and self.where:
            raise ConfigError("Randomised response asks every patient; a histogram by it takes no condition.")

    def answer(self, plan: Plan, shard: Shard, stream: Stream) -> Answer:
        """Noisy ``cells`` in patients with standard ``errors``; of a choice the one value chosen, and an error of NaN.

        To be called only after ``plan.event`` was charged.

        Args:
            plan: As the method ``plan`` gives it.
            shard: The hospital's records.
            stream: Draws noise, choices and randomised responses.
        """
        mechanism = plan.mechanism
        if isinstance(mechanism, Selection):
            chosen = mechanism.choose(quantile_scores(self, shard), stream).value
            return _answer(candidates(self, shard.schema)[[chosen]], np.array([np.nan]))
        if isinstance(mechanism, RandomisedResponse):
            counts = mechanism.counts(mechanism.answers(cell_numbers(self, shard), stream))
            # A count's two answers are no and yes.
            of_yes = slice(1, None) if self.statistic == "count" else slice(None)
            return _answer(counts.value[of_yes], counts.standard_error[of_yes])
        assert isinstance(mechanism, Additive)
        noisy = mechanism.release(totals(self, shard, plan.points), stream)
        return _answer(noisy.value / plan.points, noisy.standard_error / plan.points)

    def conclude(self, schema: Schema, answers: Sequence[HospitalAnswer]) -> Conclusion:
        """The statistic of all hospitals and of each."""
        value, error = self._estimate(schema, answers)
        by_site = [
            dict(zip(("value", "standard_error"), self._estimate(schema, [answer]), strict=True)) for answer in answers
        ]
        return Conclusion({
            "statistic": self.statistic, "column": self.column or None, "where": list(self.where),
            "quantile": self.quantile if self.statistic == "quantile" else None, "value": value, "standard_error": error,
            "mechanism": self.mechanism, "event": event_to_json(answers[0].event),
        }, by_site)  # fmt: skip

    def _estimate(self, schema: Schema, answers: Sequence[HospitalAnswer]) -> tuple[Any, Any]:
        """Value and standard error from the cells added up; of values that hospitals chose each for itself, their median."""
        cells, errors = (np.array([answer.answer.arrays[name] for answer in answers]) for name in ("cells", "errors"))
        if np.isnan(errors).all():
            return float(np.median(cells)), None
        return self.estimate(schema, cells.sum(axis=0), np.sqrt((errors**2).sum(axis=0)))

    def estimate(self, schema: Schema, cells: Reals, errors: Reals) -> tuple[Any, Any]:
        """The statistic and its standard error from noisy cells and theirs.

        A mean lies within the public bounds; counts are as they are, also below zero, so that sums of them stay unbiased.

        Args:
            schema: Of the hospitals.
            cells: (cells,) in patients, of one hospital or of several added up.
            errors: (cells,) their standard errors.

        Returns:
            Of a histogram both by cell; of a quantile None as the error.
        """
        if self.statistic == "count":
            return float(cells[0]), float(errors[0])
        if self.statistic == "histogram":
            names = self.cells(schema)
            return dict(zip(names, cells.tolist(), strict=True)), dict(zip(names, errors.tolist(), strict=True))
        if self.statistic == "mean":
            return _mean(*bounds(askable(schema, self.column)), cells, errors)
        weights = np.maximum(cells, 0.0)
        share = np.concatenate([[0.0], np.cumsum(weights)]) / max(weights.sum(), np.finfo(float).tiny)
        return float(np.interp(float(self.level), share, self.edges(schema))), None


def _answer(cells: Reals, errors: Reals) -> Answer:
    return Answer({"cells": cells, "errors": errors})


def _mean(low: float, high: float, cells: Reals, errors: Reals) -> tuple[float, float]:
    """From the patients' weights towards the two bounds, which add up to their number."""
    patients = max(float(cells.sum()), 1.0)
    share = min(max(float(cells[1]) / patients, 0.0), 1.0)
    # The quotient's error to first order.
    error = math.hypot((1 - share) * errors[1], share * errors[0]) / patients
    return low + (high - low) * share, (high - low) * error


def askable(schema: Schema, name: str) -> Column:
    """The column of that name. Raises ConfigError when there is none, or one cell of it is not one number or category.

    Examples:
        >>> columns = Column(name="age", kind="integer", bounds=(0, 100)), Column(name="died", kind="binary", role="label")
        >>> schema = Schema(name="ward", unit="record", columns=columns)
        >>> askable(schema, "age").bounds
        (0.0, 100.0)
        >>> askable(schema, "aeg")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        polyclinic.errors.ConfigError: There is no column 'aeg' that can be asked for; askable are ...
    """
    columns = askable_columns(schema)
    if name not in columns:
        raise ConfigError(
            f"There is no column {name!r} that can be asked for; askable are {', '.join(columns)}.{nearest(name, columns)}"
        )
    return columns[name]


def askable_columns(schema: Schema) -> dict[str, Column]:
    """The features and labels that have one number or category in a row, by name.

    Examples:
        >>> columns = Column(name="age", kind="integer", bounds=(0, 100)), Column(name="died", kind="binary", role="label")
        >>> schema = Schema(name="ward", unit="record", columns=columns)
        >>> list(askable_columns(schema))
        ['age', 'died']
    """
    columns = (*schema.features, *schema.labels)
    return {column.name: column for column in columns if column.kind in (*_NUMERIC, *LISTED)}


def categories(column: Column) -> tuple[str, ...]:
    """The public categories in the order of their numbers; a binary column without names has 0 and 1.

    Examples:
        >>> sex, died = Column(name="sex", kind="categorical", categories=("F", "M")), Column(name="died", kind="binary")
        >>> categories(sex), categories(died)
        (('F', 'M'), ('0', '1'))
    """
    return column.categories or ("0", "1")


def bounds(column: Column) -> tuple[float, float]:
    """The public bounds of a numeric or binary column, in its unit.

    Examples:
        >>> bounds(Column(name="age", kind="integer", bounds=(0, 100))), bounds(Column(name="died", kind="binary"))
        ((0.0, 100.0), (0.0, 1.0))
    """
    return column.bounds or (0.0, 1.0)


def _condition(text: str, schema: Schema) -> Expression:
    """A condition that every patient's values answer, so that no error after a charge depends on a record."""
    columns = askable_columns(schema)
    condition = parse(text, columns, f"The condition {text!r}")
    for name, value in condition.compared:
        _check_compared(text, columns[name], value)
    for name, form in condition.reads:
        allowed = categories(columns[name]) if columns[name].kind in LISTED else ()
        if form not in ("number", "text") or (form == "number" and not _are_numbers(allowed)):
            hint = f"; {name} is one of {', '.join(allowed)}" if allowed else ""
            raise ConfigError(
                f"The condition {text!r} reads column {name!r} as a {form}; numbers are compared by < <= > >= == !=, and "
                f"categories by ==, != or in{hint}."
            )
    return condition


def _check_compared(text: str, column: Column, value: str | float) -> None:
    """Raises ConfigError for a value that the column can never have."""
    (written,) = texts(pd.Series([value]))
    if column.kind in LISTED:
        allowed = categories(column)
        if written not in allowed:
            raise ConfigError(
                f"The condition {text!r} must compare {column.name} with one of {', '.join(allowed)}.{nearest(written, allowed)}"
            )
        return
    low, high = bounds(column)
    if isinstance(value, str) or not low <= value <= high:
        raise ConfigError(
            f"The condition {text!r} must compare {column.name} with a number in the public bounds {low:g} to {high:g}."
        )


def _are_numbers(names: Sequence[str]) -> bool:
    """Whether an expression can read every one of these as a number."""
    try:
        return bool(np.isfinite(numbers(pd.Series(names, dtype=object), "")).all())
    except DataError:
        return False


def totals(question: Statistic, shard: Shard, points: int) -> Ints:
    """(cells,) exact sums of the patients' parts, in grid points.

    One patient added or removed changes them by at most ``points`` in L1; one replaced by at most twice that.

    Args:
        question: The statistic that is asked for.
        shard: The hospital's records.
        points: What one patient weighs.

    Examples:
        >>> columns = Column(name="age", kind="integer", bounds=(0, 100)), Column(name="died", kind="binary", role="label")
        >>> schema = Schema(name="ward", unit="record", columns=columns)
        >>> ages, died = np.array([[-0.4], [0.2], [0.8]]), np.array([0, 0, 1])  # 30, 60 and 90 years, as encoded
        >>> shard = Shard("north", schema, ages, died, patient=np.arange(3), is_test=np.zeros(3, dtype=bool))
        >>> totals(Statistic("count", where=("age >= 50",), epsilon=1.0), shard, points=1).tolist()
        [2]
        >>> totals(Statistic("mean", "age", epsilon=1.0), shard, points=100).tolist()  # towards 0 and towards 100 years
        [120, 180]
    """
    if question.statistic == "mean":
        low, high = bounds(askable(shard.schema, question.column))
        value = patient_values(shard, question.column)[select_patients(question, shard)]
        upper = to_grid((value[~np.isnan(value)] - low) / (high - low), 1.0, points)
        return np.array([(points - upper).sum(), upper.sum()], dtype=np.int64)
    numbers = cell_numbers(question, shard)
    if question.statistic == "count":
        return np.array([numbers.sum()], dtype=np.int64) * points
    cells = len(question.cells(shard.schema))
    return (
        np.bincount(numbers[select_patients(question, shard) & (numbers >= 0)], minlength=cells).astype(np.int64)
        * points
    )


def cell_numbers(question: Statistic, shard: Shard) -> Ints:
    """(patients,) each patient's cell of a histogram, -1 for none; for a count 1 if the patient is counted, else 0.

    Examples:
        >>> columns = Column(name="age", kind="integer", bounds=(0, 100)), Column(name="died", kind="binary", role="label")
        >>> schema = Schema(name="ward", unit="record", columns=columns)
        >>> ages, died = np.array([[-0.4], [0.2], [0.8]]), np.array([0, 0, 1])  # 30, 60 and 90 years, as encoded
        >>> shard = Shard("north", schema, ages, died, patient=np.arange(3), is_test=np.zeros(3, dtype=bool))
        >>> cell_numbers(Statistic("histogram", "age", bins=4, epsilon=1.0), shard).tolist()
        [1, 2, 3]
    """
    if question.statistic == "count":
        counted = select_patients(question, shard)
        if question.column:
            counted &= ~np.isnan(patient_values(shard, question.column))
        return counted.astype(np.int64)
    column = askable(shard.schema, question.column)
    value = patient_values(shard, question.column)
    missing = np.isnan(value)
    if column.kind in _NUMERIC:
        low, high = bounds(column)
        value = np.minimum(np.floor((value - low) / (high - low) * question.bins), question.bins - 1)
    last = len(question.cells(shard.schema)) - 1
    none = last if question.statistic == "histogram" and column.nullable else -1
    return np.asarray(np.where(missing, none, np.nan_to_num(value)), dtype=np.int64)


def select_patients(question: Statistic, shard: Shard) -> Bools:
    """(patients,) bool: who fulfils every condition.

    Examples:
        >>> columns = Column(name="age", kind="integer", bounds=(0, 100)), Column(name="died", kind="binary", role="label")
        >>> schema = Schema(name="ward", unit="record", columns=columns)
        >>> ages, died = np.array([[-0.4], [0.2], [0.8]]), np.array([0, 0, 1])  # 30, 60 and 90 years, as encoded
        >>> shard = Shard("north", schema, ages, died, patient=np.arange(3), is_test=np.zeros(3, dtype=bool))
        >>> select_patients(Statistic("count", where=("age >= 50", "died == 0"), epsilon=1.0), shard).tolist()
        [False, True, False]
    """
    conditions = question.conditions(shard.schema)
    table = pd.DataFrame(index=range(shard.patients))
    for name in {name for condition in conditions for name in condition.names}:
        column, value = askable(shard.schema, name), patient_values(shard, name)
        if column.kind in LISTED:
            names = np.array([*categories(column), None], dtype=object)
            value = names[np.where(np.isnan(value), len(names) - 1, np.nan_to_num(value)).astype(np.int64)]
        table[name] = value
    chosen = np.ones(shard.patients, dtype=bool)
    for condition in conditions:
        chosen &= condition.holds(table)
    return chosen


def candidates(question: Statistic, schema: Schema) -> Reals:
    """The public values of which a quantile is chosen: the bins' edges, whole for a column of whole numbers.

    Examples:
        >>> columns = Column(name="age", kind="integer", bounds=(0, 100)), Column(name="died", kind="binary", role="label")
        >>> schema = Schema(name="ward", unit="record", columns=columns)
        >>> candidates(Statistic("quantile", "age", bins=4, epsilon=1.0), schema).tolist()
        [0.0, 25.0, 50.0, 75.0, 100.0]
    """
    edges = question.edges(schema)
    return np.unique(np.rint(edges)) if askable(schema, question.column).kind == "integer" else edges


def quantile_scores(question: Statistic, shard: Shard) -> Ints:
    """(candidates,) minus |(b - a) patients below - a patients above| for the quantile a / b, as whole numbers.

    One patient added or removed changes each by at most max(a, b - a) (Smith 2011, Section 4).

    Examples:
        >>> columns = Column(name="age", kind="integer", bounds=(0, 100)), Column(name="died", kind="binary", role="label")
        >>> schema = Schema(name="ward", unit="record", columns=columns)
        >>> ages, died = np.array([[-0.4], [0.2], [0.8]]), np.array([0, 0, 1])  # 30, 60 and 90 years, as encoded
        >>> shard = Shard("north", schema, ages, died, patient=np.arange(3), is_test=np.zeros(3, dtype=bool))
        >>> quantile_scores(Statistic("quantile", "age", bins=4, epsilon=1.0), shard).tolist()  # of 0, 25, 50, 75 and 100
        [-3, -3, -1, -1, -3]
    """
    value = patient_values(shard, question.column)[select_patients(question, shard)]
    value = np.sort(value[~np.isnan(value)])
    at = candidates(question, shard.schema)
    below, above = np.searchsorted(value, at, "left"), len(value) - np.searchsorted(value, at, "right")
    a, b = question.level.numerator, question.level.denominator
    excess: Ints = ((b - a) * below - a * above).astype(np.int64)
    return np.negative(np.abs(excess))


def patient_values(shard: Shard, name: str) -> Reals:
    """(patients,) one value for each patient: the mean of the observed numbers, the commonest observed category (the
    first of those equally common), NaN where none is observed. In the column's unit; categories by their numbers.

    Examples:
        >>> columns = Column(name="age", kind="integer", bounds=(0, 100)), Column(name="died", kind="binary", role="label")
        >>> schema = Schema(name="ward", unit="record", columns=columns)
        >>> ages, died = np.array([[-0.4], [0.2], [0.8]]), np.array([0, 0, 1])  # 30, 60 and 90 years, as encoded
        >>> shard = Shard("north", schema, ages, died, patient=np.arange(3), is_test=np.zeros(3, dtype=bool))
        >>> patient_values(shard, "age").round(1).tolist()
        [30.0, 60.0, 90.0]
    """
    column = askable(shard.schema, name)
    labels = [label.name for label in shard.schema.labels]
    if name in labels:
        rows = shard.y.reshape(len(shard.y), -1)[:, labels.index(name)].astype(np.float64)
    else:
        rows = column_values(shard.x, shard.schema, name)
    seen = ~np.isnan(rows)
    value, patient = rows[seen], shard.patient[seen]
    values = np.full(shard.patients, np.nan)
    if column.kind in _NUMERIC:
        count = np.bincount(patient, minlength=shard.patients)
        total = np.bincount(patient, value, minlength=shard.patients)
        values[count > 0] = np.clip(total[count > 0] / count[count > 0], *bounds(column))
        return values
    width = len(categories(column))
    votes = np.bincount(patient * width + value.astype(np.int64), minlength=shard.patients * width)
    votes = votes.reshape(shard.patients, width)
    values[votes.any(axis=1)] = votes[votes.any(axis=1)].argmax(axis=1)
    return values
