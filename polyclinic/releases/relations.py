"""How the encoded features go together, in one noisy release of each hospital: what an ``Imputer`` is made of.

A hospital gives sums over its training patients of the products of what each row shows. A row shows a one, for each feature
that may be missing whether it is there, and the features themselves (0 where missing). With Gaussian noise on these products,
least squares and everything after it are free: the regressions of chained equations, any number of imputed sets. Dwork,
Talwar, Thakurta and Zhang 2014, "Analyze Gauss"; Wang 2018, AdaSSP.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import field
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
from dp_accounting import DpEvent, NonPrivateDpEvent
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from polyclinic.ehr.encoding import feature_names, feature_slices
from polyclinic.ehr.imputation import Imputer, missing
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Shard
from polyclinic.errors import ConfigError
from polyclinic.privacy.events import gaussian_event
from polyclinic.privacy.mechanisms import FINE
from polyclinic.privacy.streams import Stream
from polyclinic.releases.question import Answer, Conclusion, HospitalAnswer, Pricing, check_epsilon, noisy
from polyclinic.types import Floats, Ints, Reals

_MOST_FEATURES = 500
_PATIENTS_AT_ONCE = 64
_LEAST_VARIANCE = 1e-3
_ROUNDING = 1 - 1e-9  # so that a patient's products, rounded, never weigh more than they may


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where a schema's features are among what a row shows, of which entry 0 is always one.

    ``shown``: their numbers in the encoding. Code sets are left out, since no code is ever missing.
    ``flag``: for each the entry that says whether it is there.
    ``square``: the largest squared length of what a row shows.

    Examples:
        >>> from polyclinic.ehr.schema import Column
        >>> columns = Column(name="age", kind="integer", bounds=(0, 100)), Column(name="died", kind="binary", role="label")
        >>> how = layout(Schema(name="ward", unit="record", columns=columns))
        >>> how.size, how.square  # a one and the age
        (2, 2.0)
    """

    shown: tuple[int, ...]
    flag: tuple[int, ...]
    flags: int
    square: float

    @property
    def size(self) -> int:
        return 1 + self.flags + len(self.shown)


def layout(schema: Schema) -> Layout:
    """A function of the schema alone.

    Examples:
        >>> from polyclinic.ehr.schema import Column
        >>> lab = Column(name="crp", kind="continuous", bounds=(0, 300), nullable=True)
        >>> schema = Schema(name="ward", unit="record", columns=(lab, Column(name="died", kind="binary", role="label")))
        >>> layout(schema)
        Layout(shown=(0,), flag=(1,), flags=1, square=3.0)
    """
    shown: list[int] = []
    flag: list[int] = []
    flags, square = 0, 1.0
    coded = {number for c, at in feature_slices(schema) if c.kind == "code_set" for number in range(at.start, at.stop)}
    own = {number: c for c, at in feature_slices(schema) for number in range(at.start, at.stop)}
    for number in range(len(feature_names(schema))):
        if number in coded:
            continue
        column = own.get(number)  # None: an indicator
        one_hot = column is not None and column.kind == "categorical"
        first = column is None or not one_hot or number - 1 not in own or own[number - 1] is not column
        if column is not None and column.nullable and first:
            flags += 1
        square += (1.0 if first else 0.0) + (1.0 if first and column is not None and column.nullable else 0.0)
        shown.append(number)
        flag.append(flags if column is not None and column.nullable else 0)
    return Layout(tuple(shown), tuple(flag), flags, square)


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a hospital answers, decided before a record is read. policy_noise: the noise multiplier; None is exact.

    Examples:
        >>> Plan(4.0).event, Plan(None).event
        (GaussianDpEvent(noise_multiplier=4.0), NonPrivateDpEvent())
    """

    policy_noise: float | None

    @property
    def event(self) -> DpEvent:
        return NonPrivateDpEvent() if self.policy_noise is None else gaussian_event(self.policy_noise)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Relations:
    """Products of what rows show of the features, which together cost ``epsilon``; without one they are exact.

    Examples:
        >>> from polyclinic.ehr.schema import Column
        >>> columns = Column(name="age", kind="integer", bounds=(0, 100)), Column(name="died", kind="binary", role="label")
        >>> schema = Schema(name="ward", unit="record", columns=columns)
        >>> round(Relations(epsilon=1.0).plan(schema, Pricing(delta=1e-5)).policy_noise, 2)
        3.73
    """

    task: ClassVar[str] = "survey"
    everyone: ClassVar[bool] = False
    purpose: ClassVar[str] = "relations"

    epsilon: float | None
    kind: Literal["relations"] = field(default="relations", kw_only=True)

    def plan(self, schema: Schema, pricing: Pricing) -> Plan:
        """The plan with the least noise that costs at most ``epsilon``.

        Raises ConfigError, before any charge, for an impossible epsilon or a schema of too many features.
        """
        return _plan(self, schema, pricing)

    def answer(self, plan: Plan, shard: Shard, stream: Stream) -> Answer:
        """(k,) the hospital's ``products`` in units of one patient's largest.

        To be called only after ``plan.event`` was charged.

        Args:
            plan: As the method ``plan`` gives it.
            shard: The hospital's records, of which training patients count.
            stream: Draws the noise.
        """
        return Answer({"products": noisy(totals(shard), plan.policy_noise, stream) / FINE})

    def conclude(self, schema: Schema, answers: Sequence[HospitalAnswer]) -> Conclusion:
        """The imputer that the products of all hospitals make."""
        noise = [self.plan(schema, answer.pricing).policy_noise for answer in answers]
        imputer = imputer_of([answer.answer.arrays["products"] for answer in answers], noise, schema)
        exact = self.epsilon is None
        facts = {"exact": exact, "mechanism": "exact" if exact else "gaussian", "features": list(imputer.features)}
        return Conclusion(facts, [{"noise_multiplier": multiplier} for multiplier in noise], {"imputer": imputer})


@lru_cache(maxsize=16)
def _plan(question: Relations, schema: Schema, pricing: Pricing) -> Plan:
    if len(layout(schema).shown) > _MOST_FEATURES:
        raise ConfigError(f"Schema {schema.name!r} has more than {_MOST_FEATURES} encoded features; leave columns out.")
    check_epsilon(question.epsilon)
    return Plan(None) if question.epsilon is None else pricing.calibrate(Plan, question.epsilon)


def totals(shard: Shard) -> Ints:
    """(k,) sums of the training patients' products, in grid points; each of ``FINE`` at most in L2, whatever their rows.

    The upper triangle of the products' matrix, entries beside the diagonal times sqrt(2), so that its length is the matrix's.

    Examples:
        >>> from polyclinic.ehr.schema import Column
        >>> columns = Column(name="age", kind="integer", bounds=(0, 100)), Column(name="died", kind="binary", role="label")
        >>> schema = Schema(name="ward", unit="record", columns=columns)
        >>> ages, died = np.array([[-0.4], [0.2], [0.8]]), np.array([0, 0, 1])  # 30, 60 and 90 years, as encoded
        >>> shard = Shard("north", schema, ages, died, patient=np.arange(3), is_test=np.zeros(3, dtype=bool))
        >>> (totals(shard) / FINE).round(2).tolist()  # the first: 3 patients over the square of 2
        [1.5, 0.42, 0.42]
    """
    how, train = layout(shard.schema), shard.train
    rows, scale = _row_vectors(train.x, shard.schema, how), _scale(how.size)
    order = np.argsort(train.patient, kind="stable")
    counts = np.bincount(train.patient, minlength=train.patients)
    ends = np.cumsum(counts)
    total = np.zeros(len(scale), dtype=np.int64)
    at = np.triu_indices(how.size)
    for begin in range(0, train.patients, _PATIENTS_AT_ONCE):
        end = min(begin + _PATIENTS_AT_ONCE, train.patients)
        chosen = order[ends[begin] - counts[begin] : ends[end - 1]]
        products = rows[chosen][:, at[0]] * rows[chosen][:, at[1]] / counts[train.patient[chosen], None]
        of_patient = np.add.reduceat(products, (ends - counts)[begin:end] - (ends - counts)[begin], axis=0)
        total += np.trunc(of_patient * (scale / how.square * FINE * _ROUNDING)).astype(np.int64).sum(axis=0)
    return total


def _row_vectors(x: Floats, schema: Schema, how: Layout) -> Floats:
    """(rows, size): what each row shows, of squared length ``how.square`` at most."""
    gone = missing(x, schema)
    shown = np.ones((len(x), how.size))
    for place, (number, flag) in enumerate(zip(how.shown, how.flag, strict=True)):
        if flag:
            shown[:, flag] = ~gone[:, number]
        shown[:, 1 + how.flags + place] = np.where(gone[:, number], 0.0, np.clip(x[:, number], -1.0, 1.0))
    return shown


def _scale(size: int) -> Floats:
    row, column = np.triu_indices(size)
    return np.where(row == column, 1.0, math.sqrt(2.0))


def imputer_of(answers: Sequence[Reals], noise_multipliers: Sequence[float | None], schema: Schema) -> Imputer:
    """The imputer that the hospitals' answers, added up, make. Pure post-processing.

    A covariance is of the rows in which both features are there. So it is right where what is missing does not depend on
    values. It is made positive definite, with a ridge as wide as the noise.

    Args:
        answers: Of each hospital its (k,) ``products``.
        noise_multipliers: Of each answer; None is exact.
        schema: Of the hospitals.

    Examples:
        >>> from polyclinic.ehr.schema import Column
        >>> columns = Column(name="age", kind="integer", bounds=(0, 100)), Column(name="died", kind="binary", role="label")
        >>> schema = Schema(name="ward", unit="record", columns=columns)
        >>> ages, died = np.array([[-0.4], [0.2], [0.8]]), np.array([0, 0, 1])  # 30, 60 and 90 years, as encoded
        >>> shard = Shard("north", schema, ages, died, patient=np.arange(3), is_test=np.zeros(3, dtype=bool))
        >>> imputer_of([totals(shard) / FINE], [None], schema).mean.round(2).tolist()  # of the ages as encoded
        [0.2]
    """
    how = layout(schema)
    matrix = np.zeros((how.size, how.size))
    matrix[np.triu_indices(how.size)] = np.sum(answers, axis=0) * how.square / _scale(how.size)
    matrix = matrix + np.triu(matrix, 1).T
    error = how.square * math.sqrt(sum((noise or 0.0) ** 2 for noise in noise_multipliers))
    flag, value = np.array(how.flag), 1 + how.flags + np.arange(len(how.shown))
    both = np.maximum(matrix[np.ix_(flag, flag)], max(2 * error, 1.0))
    sums = matrix[np.ix_(value, flag)] / both  # of one feature, where the other is there
    covariance = matrix[np.ix_(value, value)] / both - sums * sums.T
    uncertain = error / float(np.median(both)) * math.sqrt(len(value))
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    covariance = (vectors * (np.maximum(values, 0.0) + max(uncertain, _LEAST_VARIANCE))) @ vectors.T
    size = len(feature_names(schema))
    mean, whole = np.zeros(size), np.eye(size)
    mean[list(how.shown)] = np.clip(np.diag(sums), -1.0, 1.0)
    whole[np.ix_(how.shown, how.shown)] = (covariance + covariance.T) / 2
    return Imputer.from_moments(feature_names(schema), mean, whole)
