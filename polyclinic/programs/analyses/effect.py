"""The average effect of a treatment by inverse-probability weights, with an interval that counts the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from polyclinic.ehr.schema import BOUNDED_KINDS, Column, Schema
from polyclinic.errors import ConfigError, nearest
from polyclinic.programs.analyses import Analysis, Cell, Result, Table
from polyclinic.programs.program import State
from polyclinic.synthesis.layout import Layout
from polyclinic.training.logistic.weighting import CONTROL, TREATED, Weighting
from polyclinic.types import Arrays, Floats, Ints

# A share of clipped weights is stated where its noise has at most this standard deviation.
_MAY_BE_SAID = 0.02


@dataclass(frozen=True)
class Effect(Analysis):
    """Task ``effect``: the mean outcome if all patients were treated and if none were; the outcome is the label.

    Args:
        treatment: A column with yes or no, or ``COLUMN=CATEGORY``.
        control: With a category, the category of the same column with which it is compared, without the patients of others; empty
            compares it with all other patients.
        covariates: Columns of the propensity model, joined by ``+``; empty takes all features but the treatment.
        propensity: The probability of treatment by design, as 0.5 in a trial with two equal arms; 0 estimates it.
        most_weight: The largest weight of a patient; a larger one counts as this. With a known propensity no weight is larger.

    Examples:
        >>> from polyclinic.config import RunConfig
        >>> from polyclinic.plugins import dataset_named
        >>> config = RunConfig.build({"dataset": "trial", "task": "effect"})
        >>> Effect(config, treatment="intensive", covariates="age+male").method(dataset_named("trial").schema).names
        ['age', 'male']
    """

    treatment: str = ""
    control: str = ""
    covariates: str = ""
    propensity: float = 0.0
    most_weight: float = 10.0

    def method(self, schema: Schema) -> Weighting:
        return _method(self, schema)

    def made(self, schema: Schema) -> Weighting:
        """What hospitals are asked. Raises ConfigError for an option that is out of range, or a column that is not there."""
        for name, value, low, high in (
            ("propensity", self.propensity, 0.0, 0.99), ("most-weight", self.most_weight, 2.0, 1000.0),
        ):  # fmt: skip
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise ConfigError(
                    f"Option {name!r} of task effect is {value!r}; allowed are numbers from {low:g} to {high:g}."
                )
        layout = Layout.of(schema, label_may_be_number=True)
        if layout.classes > 2:
            raise ConfigError(
                f"The label {schema.label.name!r} has {layout.classes} classes; the outcome of task effect is yes or no, or a "
                "number."
            )
        least = 2 if self.propensity else 4
        if self.config.rounds < least:
            raise ConfigError(
                f"Configuration key 'rounds' has the value {self.config.rounds}, but task effect needs {least} or more."
            )
        arms, treated = self._arms(layout)
        known = self.propensity or None
        most = max(1 / known, 1 / (1 - known)) * (1 + 1e-9) if known else float(self.most_weight)
        return Weighting(
            layout, self._places(layout, treated), arms, self.config.rounds, known, most, self.config.privacy.dp
        )

    def result(self, method: Weighting, state: State) -> Result:
        """Effect, balance and overlap. Raises DataError where the noise or the records leave none."""
        arrays: Arrays = state["arrays"]
        label = method.layout.schema.label
        low, high = label.bounds or (0.0, 1.0)
        tables = (
            _effects(method.result(arrays), self._names(), label, (low, high - low)),
            _balance(method, arrays),
            _overlap(method, arrays, self._names()),
        )
        before, after, noise = method.standardised(arrays)
        rows = [
            {"name": name, "before": float(b), "after": float(a), "noise": float(n)}
            for name, b, a, n in zip(method.names, before, after, noise, strict=True)
        ]
        known = "known by design" if self.propensity else "estimated by logistic regression"
        notes = (
            f"The propensity is {known}; the interval counts for who the patients are"
            f"{'' if self.propensity else ', that the propensity is estimated'} and the noise that privacy added.",
            "It says what the treatment does only if no cause of both treatment and outcome is missing from the covariates"
            if not self.propensity
            else "Patients were treated by chance, so that the difference is the treatment's",
        )
        return Result(
            f"Effect of {self._names()[TREATED]} on {label.name}", tables, {"balance": rows}, (notes[0], f"{notes[1]}.")
        )

    def _names(self) -> tuple[str, str]:
        """What the two arms are called."""
        column, _, category = self.treatment.partition("=")
        if not category:
            return column, f"no {column}"
        return self.treatment, f"{column}={self.control}" if self.control else f"other {column}"

    def _arms(self, layout: Layout) -> tuple[Floats, str]:
        """(D + 1, 2) as ``Weighting.arms``, and the treatment's column."""
        name, _, category = (part.strip() for part in self.treatment.partition("="))
        column, at = self._column(layout, name, "treatment")
        binary = column.kind == "binary"
        if not (binary or column.kind == "categorical"):
            raise ConfigError(
                f"Option 'treatment' of task effect names {name!r}, a column of kind {column.kind!r}; allowed are yes or no "
                "(binary) and COLUMN=CATEGORY (categorical)."
            )
        if column.nullable and not self.control:
            raise ConfigError(
                f"Option 'treatment' of task effect names {name!r}, which may be missing; name the control too, and patients "
                "with neither are left out."
            )
        categories = column.categories or ("0", "1")
        chosen = [category or (categories[1] if binary else ""), self.control or (categories[0] if binary else "")]
        for option, value in zip(("treatment", "control"), chosen, strict=True):
            if value not in categories and (value or option == "treatment"):
                raise ConfigError(
                    f"Option {option!r} of task effect has the category {value!r}; {name} has {', '.join(categories)}."
                    f"{nearest(value, categories)}"
                )
        arms = np.zeros((layout.width + 1, 2))
        for arm, value in enumerate(chosen):
            if not value:
                arms[:, arm] = -arms[:, TREATED]
                arms[0, arm] += 1
                continue
            place = categories.index(value) - int(binary or column.drop_first)
            if place >= 0:
                arms[1 + at.start + place, arm] = 1.0
            else:
                arms[0, arm] = 1.0
                arms[1 + at.start : 1 + at.stop, arm] = -1.0
        return arms, name

    def _places(self, layout: Layout, treated: str) -> Ints:
        """(q,) of the covariates: of categories that are never missing all but the first, of other columns where they are missing
        too."""
        given = [part.strip() for part in self.covariates.split("+")] if self.covariates else []
        names = given or [column.name for column, _ in layout.columns if column.name != treated]
        places: list[int] = []
        for name in names:
            column, at = self._column(layout, name, "covariates")
            if name == treated or names.count(name) > 1:
                raise ConfigError(
                    f"Option 'covariates' of task effect names {name!r}, which is the treatment or named twice."
                )
            own = list(range(at.start, at.stop))
            places += own[1:] if column.kind == "categorical" and not (column.nullable or column.drop_first) else own
            absent = [f"{layout.names[place]} missing" for place in own]
            places += [place for place, there in enumerate(layout.names) if there in absent]
        if not places and not self.propensity:
            raise ConfigError("Option 'covariates' of task effect leaves no column; name one, or give the propensity.")
        return np.array(places, dtype=np.int64)

    @staticmethod
    def _column(layout: Layout, name: str, option: str) -> tuple[Column, slice]:
        known = {column.name: (column, at) for column, at in layout.columns}
        if name not in known:
            raise ConfigError(
                f"Option {option!r} of task effect names {name!r}, which is no feature of schema {layout.schema.name!r}."
                f"{nearest(name, known)}"
            )
        return known[name]


@lru_cache(maxsize=16)
def _method(program: Effect, schema: Schema) -> Weighting:
    """Every round and hospital asks for it."""
    return program.made(schema)


def _effects(effect: Any, names: tuple[str, str], label: Column, scale: tuple[float, float]) -> Table:
    """Both means, their difference and of yes or no their ratio. scale: what stands for an outcome of 0, and for 1 more."""
    low, width = scale
    number = label.kind in BOUNDED_KINDS
    rows: list[tuple[Cell, ...]] = []

    def add(name: str, value: float, gradient: list[float], start: float, unit: float) -> None:
        error, share, factor = effect.along(np.array(gradient))
        around = factor * error
        rows.append(
            (name, start + unit * value, *(start + unit * (value + s * around) for s in (-1, 1)), unit * error, share)
        )

    what = "Mean" if number else "Risk"
    add(f"{what}, {names[TREATED]}", effect.means[TREATED], [1.0, 0.0], low, width)
    add(f"{what}, {names[CONTROL]}", effect.means[CONTROL], [0.0, 1.0], low, width)
    add(f"{what} difference", effect.means[TREATED] - effect.means[CONTROL], [1.0, -1.0], 0.0, width)
    if not number and (effect.means > 0).all():
        error, share, factor = effect.along(np.array([1.0, -1.0]) / effect.means)
        ratio = math.log(effect.means[TREATED] / effect.means[CONTROL])
        limits = (math.exp(ratio + sign * factor * error) for sign in (-1, 1))
        rows.append(("Risk ratio", math.exp(ratio), *limits, math.exp(ratio) * error, share))
    headings = ("", "Estimate", "95 % from", "to", "SE", "By noise")
    formats = dict.fromkeys(headings[1:5], ".4g" if number else ".4f") | {headings[5]: ".0%"}
    unit = f" In {label.unit}." if number and label.unit else ""
    note = (
        f"Means if all patients were in the arm, by inverse-probability weights (Hájek).{unit} By noise: the share of the "
        "squared standard error (SE) that privacy added."
    )
    return Table("effect", f"Average treatment effect on {label.name}", headings, tuple(rows), formats, note)


def _balance(method: Weighting, arrays: Arrays) -> Table:
    columns = zip(method.names, *(map(float, values) for values in method.standardised(arrays)), strict=True)
    headings = ("Covariate", "Before weighting", "After", "Noise")
    note = "Standardised differences between the arms; beyond 0.1 is usually called unbalanced. Noise: its standard deviation."
    return Table("balance", "Balance", headings, tuple(columns), dict.fromkeys(headings[1:], ".3f"), note)


def _overlap(method: Weighting, arrays: Arrays, names: tuple[str, str]) -> Table:
    """Of how many patients the arms are, and the shares of weights that were clipped where the noise lets them be said."""
    parts, noise, patients = method.balance(arrays), float(arrays["noise"][0]), float(arrays["patients"][0])
    rows: list[tuple[Cell, ...]] = []
    for name, count, clipped in zip(names, parts["x"][:, 0], parts["numbers"][:, 2], strict=True):
        said = noise <= _MAY_BE_SAID * count
        rows.append((name, round(patients * count), max(float(clipped / count), 0.0) if said else None, noise / count))
    headings = ("Arm", "Patients", "Weights clipped", "Noise")
    most = f"{method.most:g}"
    note = (
        f"Weights above {most}, of patients whose probability to be in their arm is below {1 / method.most:.2g}, count as {most}."
        " Where many are clipped, the arms overlap too little for weighting."
    )
    if method.known is not None:
        note = f"The probability of treatment is {method.known:g} by design, so that no weight is clipped."
    return Table("overlap", "Overlap", headings, tuple(rows), dict.fromkeys(headings[2:], ".1%"), note)
