"""What a hospital computes for a question: a mechanism planned from public numbers, and then its answer from the records.

All of a hospital's patients are asked, held-out ones too. Several rows of a patient become one value first, so that a
patient adds one whole unit to the cells of an answer, whatever the statistic: 1 to a cell of a count or histogram, and
for a mean a part each to "low" and "high", by where in the public bounds the value lies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from dp_accounting import DpEvent

from polyclinic.ehr.encoding import column_values
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Shard
from polyclinic.errors import ConfigError, nearest
from polyclinic.privacy.accounting import Accountant, Relation
from polyclinic.privacy.mechanisms import (
    FINE,
    Additive,
    Mechanism,
    RandomisedResponse,
    Selection,
    calibrated,
    discrete_gaussian,
    exponential,
    gaussian,
    laplace,
    randomised_response,
    to_grid,
)  # fmt: skip
from polyclinic.privacy.streams import Stream
from polyclinic.training.question import Question, askable, bounds, categories
from polyclinic.types import Bools, Ints, Reals

MechanismName = Literal["laplace", "gaussian", "discrete-gaussian", "randomised-response", "exponential"]
MECHANISMS: tuple[str, ...] = get_args(MechanismName)
_LEAST_EPSILON, _MOST_EPSILON = 1e-4, 100
_COARSE = 2**10  # grid points of a patient's part in a mean, for noise that is accounted on any grid


@dataclass(frozen=True)
class Plan:
    """How a hospital is to answer: decided before a record is read, as is the ``event`` that it costs.

    points: what one patient weighs in the whole numbers that noise is added to.
    noise_multiplier: noise over one patient's weight; 1 / epsilon where nothing is added.
    """

    question: Question
    mechanism: Mechanism
    points: int
    noise_multiplier: float

    @property
    def event(self) -> DpEvent:
        return self.mechanism.event


@dataclass(frozen=True)
class Answer:
    """Noisy ``cells`` in patients with standard ``errors``; of a choice the one value chosen, and an error of NaN."""

    cells: Reals
    errors: Reals


def default_mechanism(statistic: str) -> str:
    return "exponential" if statistic == "quantile" else "laplace"


def plan(
    question: Question, schema: Schema, mechanism: str, epsilon: float, delta: float, accountant: Accountant = "pld",
    relation: Relation = "add-remove",
) -> Plan:  # fmt: skip
    """The plan with the least noise whose event costs at most ``epsilon`` at ``delta`` under the hospital's relation.

    Laplace noise, randomised response and choices have ``epsilon`` at delta 0, too. Raises ConfigError, before any charge,
    for a question that the schema cannot answer, an unknown mechanism, and one that does not go with the question.
    """
    if mechanism not in MECHANISMS:
        raise ConfigError(
            f"mechanism must be one of {', '.join(MECHANISMS)}, got {mechanism!r}.{nearest(mechanism, MECHANISMS)}"
        )
    if not _LEAST_EPSILON <= epsilon <= _MOST_EPSILON:
        raise ConfigError(f"epsilon must lie between {_LEAST_EPSILON} and {_MOST_EPSILON}, got {epsilon}.")
    question.check(schema)
    replaced = relation == "replace-one"
    whole = question.statistic != "mean"
    entries = 1 if question.statistic == "count" or (whole and not replaced) else 2
    pure = (2.0 if replaced else 1.0) / epsilon

    def planned(make: Callable[[float], Mechanism], points: int = 1, least: float = 0.0) -> Plan:
        return calibrated(lambda z: Plan(question, make(z), points, z), epsilon, delta, accountant, relation, least)

    if mechanism == "exponential":
        if question.statistic != "quantile":
            raise ConfigError(
                f"The exponential mechanism chooses a quantile; a {question.statistic} takes added noise."
            )
        level = question.level
        sensitivity = max(level.numerator, level.denominator - level.numerator)
        return planned(lambda z: exponential(1.0 / z, sensitivity), least=pure)
    if mechanism == "randomised-response":
        _check_response(question, relation)
        answers = 2 if question.statistic == "count" else len(question.cells(schema))
        return planned(lambda z: randomised_response(1.0 / z, answers), least=0.5 * pure)
    if mechanism == "laplace":
        points = 1 if whole else FINE
        return planned(lambda z: laplace(z, points, entries), points, pure)
    if mechanism == "gaussian":
        return planned(gaussian, FINE)
    points = 1 if whole else _COARSE
    return planned(lambda z: discrete_gaussian(z, points, entries), points)


def _check_response(question: Question, relation: Relation) -> None:
    if relation != "replace-one":
        raise ConfigError(
            "Randomised response does not hide who is there: it needs a hospital whose relation is 'replace-one', "
            f"not {relation!r}."
        )
    if question.statistic not in ("count", "histogram"):
        raise ConfigError(f"Randomised response gives a count or a histogram, not a {question.statistic}.")
    if question.statistic == "histogram" and question.where:
        raise ConfigError("Randomised response asks every patient; a histogram by it takes no condition.")


def answer(plan: Plan, shard: Shard, stream: Stream) -> Answer:
    """The hospital's answer, to be called only after ``plan.event`` was charged."""
    question, mechanism = plan.question, plan.mechanism
    if isinstance(mechanism, Selection):
        chosen = mechanism.choose(quantile_scores(question, shard), stream).value
        return Answer(candidates(question, shard.schema)[[chosen]], np.array([np.nan]))
    if isinstance(mechanism, RandomisedResponse):
        found = mechanism.counts(mechanism.answers(cell_numbers(question, shard), stream))
        # A count's two answers are no and yes.
        kept = slice(1, None) if question.statistic == "count" else slice(None)
        return Answer(found.value[kept], found.standard_error[kept])
    assert isinstance(mechanism, Additive)
    noisy = mechanism.release(totals(question, shard, plan.points), stream)
    return Answer(noisy.value / plan.points, noisy.standard_error / plan.points)


def totals(question: Question, shard: Shard, points: int) -> Ints:
    """(cells,) exact sums of the patients' parts, in grid points. One patient added or removed changes them by at most
    ``points`` in L1; one replaced by at most twice that.
    """
    if question.statistic == "mean":
        low, high = bounds(askable(shard.schema, question.column))
        value = patient_values(shard, question.column)[selected(question, shard)]
        upper = to_grid((value[~np.isnan(value)] - low) / (high - low), 1.0, points)
        return np.array([(points - upper).sum(), upper.sum()], dtype=np.int64)
    numbers = cell_numbers(question, shard)
    if question.statistic == "count":
        return np.array([numbers.sum()], dtype=np.int64) * points
    cells = len(question.cells(shard.schema))
    return np.bincount(numbers[selected(question, shard) & (numbers >= 0)], minlength=cells).astype(np.int64) * points


def cell_numbers(question: Question, shard: Shard) -> Ints:
    """(patients,) each patient's cell of a histogram, -1 for none; for a count 1 if the patient is counted, else 0."""
    if question.statistic == "count":
        counted = selected(question, shard)
        if question.column:
            counted &= ~np.isnan(patient_values(shard, question.column))
        return counted.astype(np.int64)
    column = askable(shard.schema, question.column)
    value = patient_values(shard, question.column)
    missing = np.isnan(value)
    if column.kind in ("continuous", "integer"):
        low, high = bounds(column)
        value = np.minimum(np.floor((value - low) / (high - low) * question.bins), question.bins - 1)
    last = len(question.cells(shard.schema)) - 1
    none = last if question.statistic == "histogram" and column.nullable else -1
    return np.asarray(np.where(missing, none, np.nan_to_num(value)), dtype=np.int64)


def selected(question: Question, shard: Shard) -> Bools:
    """(patients,) bool: who fulfils every condition."""
    chosen = np.ones(shard.patients, dtype=bool)
    for condition in question.conditions(shard.schema):
        chosen &= condition.holds(patient_values(shard, condition.column.name))
    return chosen


def candidates(question: Question, schema: Schema) -> Reals:
    """The public values of which a quantile is chosen: the bins' edges, whole for a column of whole numbers."""
    edges = question.edges(schema)
    return np.unique(np.rint(edges)) if askable(schema, question.column).kind == "integer" else edges


def quantile_scores(question: Question, shard: Shard) -> Ints:
    """(candidates,) minus |(b - a) patients below - a patients above| for the quantile a / b: whole numbers, of which one
    patient added or removed changes each by at most max(a, b - a) (Smith 2011, Section 4).
    """
    value = patient_values(shard, question.column)[selected(question, shard)]
    value = np.sort(value[~np.isnan(value)])
    at = candidates(question, shard.schema)
    below, above = np.searchsorted(value, at, "left"), len(value) - np.searchsorted(value, at, "right")
    a, b = question.level.numerator, question.level.denominator
    excess: Ints = ((b - a) * below - a * above).astype(np.int64)
    return np.negative(np.abs(excess))


def patient_values(shard: Shard, name: str) -> Reals:
    """(patients,) one value for each patient: the mean of the observed numbers, the commonest observed category (the
    first of those equally common), NaN where none is observed. In the column's unit; categories by their numbers.
    """
    column = askable(shard.schema, name)
    label = name == shard.schema.label.name
    rows = shard.y.astype(np.float64) if label else column_values(shard.x, shard.schema, name)
    seen = ~np.isnan(rows)
    value, patient = rows[seen], shard.patient[seen]
    found = np.full(shard.patients, np.nan)
    if column.kind in ("continuous", "integer"):
        count = np.bincount(patient, minlength=shard.patients)
        total = np.bincount(patient, value, minlength=shard.patients)
        found[count > 0] = np.clip(total[count > 0] / count[count > 0], *bounds(column))
        return found
    width = len(categories(column))
    votes = np.bincount(patient * width + value.astype(np.int64), minlength=shard.patients * width)
    votes = votes.reshape(shard.patients, width)
    found[votes.any(axis=1)] = votes[votes.any(axis=1)].argmax(axis=1)
    return found
