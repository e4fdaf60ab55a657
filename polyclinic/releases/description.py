"""A description of patients: of each column how many of each group are in each cell, in one release. A Table 1 is made of it.

All of a hospital's patients are asked. Several rows of a patient become one value first, as for a ``Statistic``, so that a
patient is in one cell of each column, in one group. The budget is divided evenly: every column's counts have the same noise. All
figures follow from these counts, each with the interval that holds the number without noise in 95 % of releases.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import combinations
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from polyclinic.ehr import running
from polyclinic.ehr.prepared import edges
from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import Shard
from polyclinic.errors import ConfigError
from polyclinic.privacy.mechanisms import FINE
from polyclinic.privacy.streams import Stream
from polyclinic.releases.question import Answer, Conclusion, HospitalAnswer, Pricing, check_epsilon, noisy
from polyclinic.releases.relations import Plan
from polyclinic.releases.statistics import LISTED, askable, askable_columns, categories, patient_values
from polyclinic.types import Floats, Ints, Reals

#: Standard deviations of a normal distribution within which 95 % lie.
CERTAIN = 1.959963984540054
QUARTILES = {"lower quartile": 0.25, "median": 0.5, "upper quartile": 0.75}
_MOST_BINS = 1000
# Half of an interval of a standardised difference, beyond which it says nothing: 0.1 is usually called unbalanced.
_WIDEST = 1.0


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Description:
    """Columns that are described, overall and for each group of patients.

    columns: Names; none asks for all features and labels that have one number or category in a row.
    by: A column of categories whose groups are compared.
    bins: Equal parts of a numeric column's public bounds.
    fewest: Smaller counts are not shown; hospitals are not sent it.
    epsilon: What the answer may cost; None asks, without privacy, how often each number occurs.

    Examples:
        >>> Description(("age", "sex"), "treatment", epsilon=1.0).bins
        64
    """

    task: ClassVar[str] = "query"
    everyone: ClassVar[bool] = True
    purpose: ClassVar[str] = "query-description"

    columns: tuple[Annotated[str, Field(max_length=1000)], ...] = ()
    by: Annotated[str, Field(max_length=1000)] = ""
    bins: int = 64
    fewest: Annotated[int, Field(exclude=True)] = 5
    epsilon: float | None = field(kw_only=True)
    kind: Literal["description"] = field(default="description", kw_only=True)

    def parts(self, schema: Schema) -> tuple[Column, ...]:
        """The columns. Raises ConfigError for names that cannot be asked for, or stand twice."""
        names = self.columns or tuple(name for name in askable_columns(schema) if name != self.by)
        if twice := [name for name in names if names.count(name) > 1 or name == self.by]:
            raise ConfigError(
                f"A description takes each column once, that of the groups too; {twice[0]!r} stands twice."
            )
        return tuple(askable(schema, name) for name in names)

    def groups(self, schema: Schema) -> tuple[str, ...]:
        """The names of the groups; those of whom none is known, and all where none are compared, are in the group "", last."""
        if not self.by:
            return ("",)
        column = askable(schema, self.by)
        if column.kind not in LISTED:
            raise ConfigError(f"by is {self.by!r}, of kind {column.kind!r}; groups are of kinds {', '.join(LISTED)}.")
        return (*categories(column), "") if column.nullable else categories(column)

    def plan(self, schema: Schema, pricing: Pricing) -> Plan:
        """The plan with the least noise whose event costs at most ``epsilon``.

        Raises ConfigError, before any charge, for a description that the schema cannot give.
        """
        if not 2 <= self.bins <= _MOST_BINS:
            raise ConfigError(f"bins must lie between 2 and {_MOST_BINS}, got {self.bins}.")
        check_epsilon(self.epsilon)
        self.groups(schema)
        self.parts(schema)
        return Plan(None) if self.epsilon is None else _plan(self.epsilon, pricing)

    def noise(self, schema: Schema, plan: Plan) -> float | None:
        """The noise multiplier of each column's counts: all columns are one release, of which a patient has 1 in each."""
        return plan.policy_noise and plan.policy_noise * math.sqrt(len(self.parts(schema)))

    def answer(self, plan: Plan, shard: Shard, stream: Stream) -> Answer:
        """Noisy ``patients`` of all columns in order, each (groups, cells), and each column's number of ``cells``.

        Exact counts are of the ``values`` that occur. To be called only after ``plan.event`` was charged.

        Args:
            plan: As the method ``plan`` gives it.
            shard: The hospital's records.
            stream: Draws the noise.
        """
        noise, names = self.noise(shard.schema, plan), self.groups(shard.schema)
        group = patient_values(shard, self.by) if self.by else np.zeros(shard.patients)
        groups = np.nan_to_num(group, nan=len(names) - 1).astype(np.int64)
        blocks, values = [], []
        for column in self.parts(shard.schema):
            value = patient_values(shard, column.name)
            occurring = noise is None and _is_numeric(column)
            values.append(np.unique(value[~np.isnan(value)]) if occurring else _values(column, self.bins))
            counts = _count_cells(column, value, values[-1], groups, len(names))
            blocks.append(_noisy(column, counts, noise, stream).reshape(-1))
        arrays = {"patients": np.concatenate(blocks), "cells": np.array([len(at) for at in values], dtype=np.int64)}
        return Answer(arrays if noise is not None else arrays | {"values": np.concatenate(values)})

    def conclude(self, schema: Schema, answers: Sequence[HospitalAnswer]) -> Conclusion:
        """The columns of all hospitals together and of each, overall and by group, and how much groups and hospitals differ."""
        by_site = [self._read(schema, answer) for answer in answers]
        together = [[add_cells(group) for group in zip(*column, strict=True)] for column in zip(*by_site, strict=True)]
        sites = [answer.site for answer in answers]
        between = {
            column.name: _largest(dict(zip(sites, map(add_cells, of_sites), strict=True)))
            for column, of_sites in zip(self.parts(schema), zip(*by_site, strict=True), strict=True)
        }
        facts = {"exact": self.epsilon is None, "by": self.by or None, "bins": self.bins, "fewest": self.fewest}
        figures = facts | self._figures(schema, together) | {"between_hospitals": between}
        return Conclusion(figures, [self._figures(schema, site) for site in by_site])

    def _read(self, schema: Schema, hospital: HospitalAnswer) -> list[list[Cells]]:
        """By column and group, the cells of one hospital's answer."""
        noise, groups = self.noise(schema, self.plan(schema, hospital.pricing)) or 0.0, len(self.groups(schema))
        sizes, rest = hospital.answer.arrays["cells"].astype(int), hospital.answer.arrays["patients"]
        values = np.split(hospital.answer.arrays["values"], np.cumsum(sizes)[:-1]) if not noise else []
        columns = []
        for place, (column, size) in enumerate(zip(self.parts(schema), sizes.tolist(), strict=True)):
            width = size + column.nullable
            counts, rest = rest[: groups * width].reshape(groups, width), rest[groups * width :]
            at = values[place] if values else _values(column, self.bins)
            is_mixed, missing_error = bool(noise) and _is_numeric(column), noise * column.nullable
            error = noise * running.norm(size) / running.ONE if is_mixed else noise
            step = float(at[1] - at[0]) if is_mixed else 0.0
            columns.append([
                Cells(column, at, row[:size], float(row[size:].sum()), error, missing_error, step) for row in counts
            ])  # fmt: skip
        return columns

    def _figures(self, schema: Schema, columns: Sequence[Sequence[Cells]]) -> dict[str, Any]:
        """How many patients there are, and of each column its figures, overall and by group."""
        names = self.groups(schema)
        by_column = [{name: part for name, part in zip(names, groups, strict=True) if name} for groups in columns]
        wholes, few = [add_cells(groups) for groups in columns], self.fewest
        everyone, sizes = _size(wholes), {name: _size([groups[name] for groups in by_column]) for name in names if name}
        figures = {
            whole.column.name: {
                "kind": whole.column.kind, "unit": whole.column.unit, "overall": whole.figures(everyone[0], few),
                "groups": {name: part.figures(sizes[name][0], few) for name, part in groups.items()},
                "difference": _largest(groups),
            }
            for groups, whole in zip(by_column, wholes, strict=True)
        }  # fmt: skip
        counts = {name: count(*size, few) for name, size in sizes.items()}
        return {"patients": count(*everyone, few), "groups": counts, "columns": figures}


@lru_cache(maxsize=16)
def _plan(epsilon: float, pricing: Pricing) -> Plan:
    return pricing.calibrate(Plan, epsilon)


def _is_numeric(column: Column) -> bool:
    return column.kind not in LISTED


def _values(column: Column, bins: int) -> Floats:
    """(cells,) the middle of each bin, or the numbers of the categories."""
    if not _is_numeric(column):
        return np.arange(len(categories(column)), dtype=np.float64)
    at = edges(column, bins)
    return np.asarray((at[:-1] + at[1:]) / 2)


def _count_cells(column: Column, value: Reals, at: Reals, group: Ints, groups: int) -> Ints:
    """(groups, cells) patients by the nearest of the cells ``at``, those without a value last where one may be missing.

    One patient added or removed changes one count by 1.
    """
    width, missing = len(at) + column.nullable, np.isnan(value)
    cell = np.where(missing, width - 1, np.searchsorted((at[:-1] + at[1:]) / 2, np.nan_to_num(value), side="right"))
    counts = np.bincount(group * width + cell, minlength=groups * width)
    return counts.astype(np.int64).reshape(groups, width)


def _noisy(column: Column, counts: Ints, noise_multiplier: float | None, stream: Stream) -> Floats:
    """The counts with noise; those of a numeric column are mixed before and unmixed after it, so that sums of many stay good."""
    if noise_multiplier is None or not _is_numeric(column):
        return noisy(counts.reshape(-1) * FINE, noise_multiplier, stream).reshape(counts.shape) / FINE
    cells = counts.shape[1] - column.nullable
    points = math.floor(FINE / running.norm(cells) * (1 - 1e-12))
    rows = noisy(mix_cells(counts, cells, points).reshape(-1), noise_multiplier, stream).reshape(counts.shape)
    return np.stack([np.append(running.unmix(row[:cells] / points / running.ONE), row[cells:] / FINE) for row in rows])


def mix_cells(counts: Ints, cells: int, points: int) -> Ints:
    """(groups, cells) whole numbers that noise is added to; the missing cell is not mixed.

    One patient, who is in one cell of one group, moves them by ``FINE`` in L2 at most.

    Args:
        counts: (groups, cells) patients, and the missing cell if there is one.
        cells: Number of cells without the missing one.
        points: Grid points of one patient before the cells are mixed.
    """
    return np.stack([np.append(running.mix(row[:cells]) * points, row[cells:] * FINE) for row in counts])


@dataclasses.dataclass(frozen=True)
class Cells:
    """How many patients of one group have each value of a column. What is made of them has the error of their noise alone.

    values: (cells,) in the column's unit, increasing, or the numbers of its categories.
    patients: (cells,).
    missing: Patients without a value.
    error, missing_error: Standard deviations of the noise in each count; of a numeric column's before they were unmixed.
    step: Width of its bins; 0 where each value has a cell.
    """

    column: Column
    values: Floats
    patients: Floats
    missing: float
    error: float
    missing_error: float
    step: float

    def deviation(self, weights: Floats) -> float:
        """Standard deviation of the noise in the sum of ``patients`` times (cells,) ``weights``."""
        if not self.error or not _is_numeric(self.column):
            return self.error * float(np.linalg.norm(weights))
        return float(running.errors(weights[None], self.error)[0])

    @property
    def observed(self) -> tuple[float, float]:
        """How many patients have a value, and the deviation of the noise in that."""
        return float(self.patients.sum()), self.deviation(np.ones(len(self.patients)))

    def figures(self, patients: float, fewest: float) -> dict[str, Any]:
        """The column's figures in a group of so many ``patients``."""
        total, error = self.observed
        if not _is_numeric(self.column):
            # Every patient is in one cell, and how many there are is known better from all columns than from one.
            nullable = self.column.nullable
            more = (patients - total - self.missing) / (len(self.patients) + nullable)
            levels = dataclasses.replace(self, patients=self.patients + more)._levels(fewest)
            return {"missing": count(self.missing + more * nullable, self.missing_error, fewest), "levels": levels}
        shown: dict[str, Any] = {"missing": count(self.missing, self.missing_error, fewest)}
        if total < max(fewest, CERTAIN * error, 1.0):
            return shown | dict.fromkeys(("mean", "sd", *QUARTILES))
        mean, variance = self.moments()
        low, high = self.column.bounds or (-math.inf, math.inf)
        largest = (high - low) ** 2 / 4 * total / max(total - 1, 1.0)
        spread = estimate(variance, self.deviation(self.variance_weights(mean)) / total, 0.0, largest)
        return shown | {
            "mean": estimate(mean, self.deviation(self.values - mean) / total, low, high),
            "sd": {name: math.sqrt(end) for name, end in spread.items()}
            if spread and (spread["low"] or not error)
            else None,
            **{name: self._quantile(level) for name, level in QUARTILES.items()},
        }

    def moments(self) -> tuple[float, float]:
        """Mean and sample variance; the variance of numbers spread over a bin (of whole ones, over those in it) is taken off."""
        total = self.observed[0]
        mean = float(np.clip(self.values @ self.patients / total, self.values[0], self.values[-1]))
        within = max(self.step**2 - (1.0 if self.column.kind == "integer" else 0.0), 0.0) / 12
        variance = float((self.values - mean) ** 2 @ self.patients) / total - within
        return mean, max(variance, 0.0) * total / max(total - 1, 1.0)

    def variance_weights(self, mean: float) -> Floats:
        """(cells,) how the variance times the patients grows with each count."""
        squared = (self.values - mean) ** 2
        return np.asarray(squared - squared @ self.patients / self.observed[0])

    def _levels(self, fewest: float) -> dict[str, Any]:
        """Of each category its count and its share of those with a value; of a small count neither."""
        levels, total = {}, max(self.observed[0], 1.0)
        shares = self.patients / total
        errors = self.error * np.linalg.norm(np.eye(len(shares)) - shares[:, None], axis=1) / total
        for place, name in enumerate(categories(self.column)):
            shown = count(float(self.patients[place]), self.error, fewest)
            share = estimate(float(shares[place]), float(errors[place]), 0.0, 1.0)
            levels[name] = {"count": shown, "share": None if shown["value"] is None else share}
        return levels

    def _quantile(self, level: float) -> dict[str, float] | None:
        """Of exact counts as ``numpy.quantile``; of noisy ones where a running sum that never falls reaches the level."""
        if not self.error:
            return estimate(float(np.quantile(np.repeat(self.values, np.rint(self.patients).astype(int)), level)), 0.0)
        at = np.append(self.values - self.step / 2, self.values[-1] + self.step / 2)
        below, errors = _below(len(self.values), level)
        excess, half = below @ self.patients, CERTAIN * self.error * errors
        rising = (np.maximum.accumulate(excess) + np.minimum.accumulate(excess[::-1])[::-1]) / 2
        value = float(np.interp(0.0, rising, at))
        # Within the interval the quantile may lie anywhere in the bins at its ends.
        first = max(int(np.argmax(excess + half >= 0)) - 1, 0)
        last = min(len(at) - int(np.argmax((excess - half <= 0)[::-1])), len(at) - 1)
        if (first, last) == (0, len(at) - 1):
            return None
        return {"value": value, "low": min(float(at[first]), value), "high": max(float(at[last]), value)}


@lru_cache(maxsize=64)
def _below(cells: int, level: float) -> tuple[Floats, Floats]:
    """(cells + 1, cells) how counts say how many more lie below each edge than a share of all, and its errors for one of 1."""
    weights = np.tri(cells + 1, cells, -1) - level
    return weights, running.errors(weights, 1.0)


def add_cells(parts: Sequence[Cells]) -> Cells:
    """Several groups' or hospitals' cells of one column, whose patients are different ones, together."""
    values = np.unique(np.concatenate([part.values for part in parts]))
    patients = np.zeros(len(values))
    for part in parts:
        patients[np.searchsorted(values, part.values)] += part.patients
    error, missing_error = (math.hypot(*(getattr(part, name) for part in parts)) for name in ("error", "missing_error"))
    missing = sum(part.missing for part in parts)
    return Cells(parts[0].column, values, patients, missing, error, missing_error, parts[0].step)


def _size(columns: Sequence[Cells]) -> tuple[float, float]:
    """How many patients a group has, by all columns together, each weighed by its noise, and the deviation of that."""
    totals = np.array([part.observed[0] + part.missing for part in columns])
    errors = np.array([math.hypot(part.observed[1], part.missing_error) for part in columns])
    weights = errors**-2.0 if errors.all() else np.ones(len(columns))
    return float(weights @ totals / weights.sum()), float(weights.sum() ** -0.5) if errors.all() else 0.0


def estimate(value: float, error: float, least: float = -math.inf, most: float = math.inf) -> dict[str, float] | None:
    """``value`` with the ends of its 95 % interval, ``low`` and ``high``, all three cut to the range of possible values.

    Args:
        value: The noisy value.
        error: Standard deviation of the noise in it.
        least: The smallest possible value.
        most: The largest possible value.

    Returns:
        None where the interval is wider than from ``least`` to ``most``.
    """
    if 2 * CERTAIN * error > most - least:
        return None
    ends = {"value": value, "low": value - CERTAIN * error, "high": value + CERTAIN * error}
    return {name: min(max(end, least), most) for name, end in ends.items()}


def count(value: float, error: float, fewest: float) -> dict[str, float | None]:
    """The estimate of a count, or no value and the threshold that it is ``below``.

    Args:
        value: The noisy count.
        error: Standard deviation of the noise in it. A count below 1.96 times that may as well be noise, and is not shown.
        fewest: Smaller counts are not shown either, but an exact 0 is.
    """
    threshold, hidden = max(float(fewest), math.ceil(CERTAIN * error)), dict.fromkeys(("value", "low", "high"))
    if value < threshold and (error or value):
        return {**hidden, "below": threshold}
    return {**(estimate(value, error, 0.0) or hidden), "below": None}


def _largest(groups: Mapping[str, Cells]) -> dict[str, Any] | None:
    """The largest standardised difference between two of the groups, and which these are; None where none is defined."""
    differences: list[dict[str, Any]] = [
        {**difference, "groups": [first, other]}
        for first, other in combinations(groups, 2)
        if (difference := standardised_difference(groups[first], groups[other]))
    ]
    return max(differences, key=lambda each: abs(each["value"]), default=None)


def standardised_difference(group: Cells, other: Cells) -> dict[str, float] | None:
    """How much larger ``other`` is by the common deviation: of means, with a sign, or of the shares of all categories, without.

    None where the noise hides a group or the difference, or nothing varies. Austin 2009, Equations 1 and 2; Yang and Dalton 2012
    for several categories. The interval of shares has the length that noise reaches in 95 % (by two moments of a quadratic form),
    so that it holds differences near 0 too.
    """
    if any(part.observed[0] < max(2.0, CERTAIN * part.observed[1]) for part in (group, other)):
        return None
    difference = _of_means(group, other) if _is_numeric(group.column) else _of_shares(group, other)
    return difference if difference and difference["high"] - difference["value"] <= _WIDEST else None


def _of_means(group: Cells, other: Cells) -> dict[str, float] | None:
    (mean, variance), (mean_other, variance_other) = group.moments(), other.moments()
    common = math.sqrt((variance + variance_other) / 2)
    if not common > 0:
        return None
    value, errors = (mean_other - mean) / common, []
    for part, centre, sign in ((group, mean, -1.0), (other, mean_other, 1.0)):
        weights = sign * (part.values - centre) / common - value / (4 * common**2) * part.variance_weights(centre)
        errors.append(part.deviation(weights) / part.observed[0])
    return estimate(value, math.hypot(*errors))


def _of_shares(group: Cells, other: Cells) -> dict[str, float] | None:
    shares, spread, noise = [], np.zeros(()), np.zeros(())
    for part in (group, other):
        positive = np.maximum(part.patients, 0.0)
        share = positive / positive.sum()
        weights = (np.eye(len(share)) - share[:, None])[1:] * part.error / positive.sum()
        shares.append(share[1:])
        spread, noise = spread + (np.diag(share) - np.outer(share, share))[1:, 1:] / 2, noise + weights @ weights.T
    if not np.trace(spread) > 0:
        return None
    inverse, difference = np.linalg.pinv(spread, hermitian=True), shares[0] - shares[1]
    from scipy.stats import chi2  # no hospital needs it

    form = inverse @ noise
    first, second = float(np.trace(form)), float(np.trace(form @ form))
    half = math.sqrt(second / first * chi2.ppf(0.95, first**2 / second)) if first > 0 else 0.0
    return estimate(math.sqrt(max(float(difference @ inverse @ difference), 0.0)), half / CERTAIN, 0.0)
