"""The average effect of a treatment by inverse-probability weights, with an interval that counts the noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from polyclinic.ehr.schema import BOUNDED_KINDS, Column, Schema
from polyclinic.errors import ConfigError, nearest
from polyclinic.programs.analyses import Analysis, Cell, Result, Table
from polyclinic.programs.program import State
from polyclinic.synthesis.layout import Layout
from polyclinic.training.logistic.weighting import Weighting
from polyclinic.types import Floats

# A share of clipped weights is stated where its noise has at most this standard deviation.
_MAY_BE_SAID = 0.02
# A covariate that surely differs by more after weighting, in standard deviations, tells who was treated; surely: beyond so many
# standard deviations of the noise.
_UNBALANCED, _SURE = 0.5, 3.0
_TELLS = "Leave out what tells who was treated, or compare fewer patients."
_NOTES = {
    True: "Patients were treated by chance, so that the difference between the arms is the treatment's. The interval counts who "
    "the patients are, and the noise that privacy added.",
    False: "Weights by a logistic regression of the treatment make the arms alike in the covariates, and in nothing else: the "
    "difference is the treatment's only if nothing else makes patients likely to be treated and to have the outcome. The "
    "interval counts who the patients are, that the weights are estimated, and the noise that privacy added.",
}  # fmt: skip


@dataclass(frozen=True)
class Effect(Analysis):
    """Task ``effect``: the mean outcome if all patients were treated and if none were. The outcome is the label.

    Args:
        treatment: A column with yes or no, or ``COLUMN=CATEGORY``.
        control: The ``COLUMN=CATEGORY`` of those who are compared; patients of neither are left out. Empty takes all others.
        covariates: Columns of the propensity model, joined by ``+``; empty takes all features but the treatment.
        propensity: The probability of treatment by design, as 0.5 in a trial of two equal arms; 0 estimates it.
        most_weight: The largest weight of a patient. With a known propensity no weight is clipped.

    Examples:
        >>> from polyclinic.config import RunConfig
        >>> from polyclinic.plugins import dataset_named
        >>> config = RunConfig.build({"dataset": "trial", "task": "effect"})
        >>> method = Effect(config, treatment="intensive", covariates="age+male").method(dataset_named("trial").schema)
        >>> [method.layout.names[place] for place in method.places]
        ['age', 'male']
    """

    treatment: str = ""
    control: str = ""
    covariates: str = ""
    propensity: float = 0.0
    most_weight: float = 10.0

    def method(self, schema: Schema) -> Weighting:
        return _method(self, schema)

    def result(self, method: Weighting, state: State) -> Result:
        """Effect, balance and overlap. Raises DataError where the noise or the records leave none."""
        arrays, label = state["arrays"], method.layout.schema.label
        arms = (
            self.treatment,
            self.control or (f"other than {self.treatment}" if "=" in self.treatment else f"no {self.treatment}"),
        )
        effects = _effects(method, arrays, arms)
        names, (before, after, noise) = (
            [method.layout.names[place] for place in method.places],
            method.standardised_differences(arrays),
        )
        rows = tuple(zip(names, before.tolist(), after.tolist(), noise.tolist(), strict=True))
        headings = ("Covariate", "Before weighting", "After", "Noise")
        balance = Table(
            "balance", "Balance", headings, rows, dict.fromkeys(headings[1:], ".3f"),
            "Standardised differences, the treated less the others; beyond 0.1 is usually called unbalanced. Noise: its standard "
            "deviation.",
        )  # fmt: skip
        figure = [dict(zip(("name", "before", "after", "noise"), row, strict=True)) for row in rows]
        tables = (effects, balance, _overlap(method, arrays, arms))
        notes = [_NOTES[bool(self.propensity)]]
        if apart := [name for name, _, left, spread in rows if abs(left) - _SURE * spread > _UNBALANCED]:
            notes.insert(0, f"Weights do not balance {', '.join(apart)}: this is no estimate of the effect. {_TELLS}")
        if not (self.covariates or self.propensity):
            notes.append("The covariates are all features: none of them may have come about after the treatment.")
        return Result(f"Effect of {self.treatment} on {label.name}", tables, {"balance": figure}, tuple(notes))

    def check_noise(self, schema: Schema, noise_multiplier: float, noise: float, fewest: float) -> None:
        """Check that the noise leaves the arms, and that a secure sum would not cut sums short.

        Args:
            schema: Of the run.
            noise_multiplier: Standard deviation of the noise in a sum, over a patient's clip norm.
            noise: Standard deviation of the noise in each entry of the mean.
            fewest: The patients of the smallest hospital.

        Raises:
            ConfigError: where the noise would hide the arms, or a secure sum would cut sums short.
        """
        super().check_noise(schema, noise_multiplier, noise, fewest)
        self.method(schema).check_noise(noise)

    def column(self, layout: Layout, name: str, option: str) -> tuple[Column, slice]:
        """The feature ``name`` and its place.

        Args:
            layout: Of the rows.
            name: Of the feature.
            option: The task's option that names it, for the error's message.

        Raises:
            ConfigError: naming the ``option``, where there is none.
        """
        columns = {column.name: (column, at) for column, at in layout.columns}
        if name not in columns:
            raise ConfigError(
                f"Option {option!r} of task effect names {name!r}, which is not a feature of schema {layout.schema.name!r}."
                f"{nearest(name, columns)}"
            )
        return columns[name]

    def arm(self, layout: Layout, text: str, option: str) -> Floats:
        """(D + 1,) by which a row behind a 1 gives whether a patient is in the arm of a column or a ``COLUMN=CATEGORY``.

        Args:
            layout: Of the rows, of D numbers.
            text: The column or ``COLUMN=CATEGORY``.
            option: The task's option that gives the text, for the error's message.

        Raises:
            ConfigError: for a column of another kind, one that may be missing in both arms, or another category.
        """
        name, _, category = text.partition("=")
        column, at = self.column(layout, name, option)
        if column.kind not in ("binary", "categorical") or (column.nullable and not self.control):
            raise ConfigError(
                f"Option {option!r} of task effect names {name!r}; allowed are columns of yes or no (binary) and "
                "COLUMN=CATEGORY, and of one that may be missing two categories, treatment and control."
            )
        categories = column.categories or ("0", "1")
        if column.kind == "binary" and not category:
            category = categories[1]
        if not category:
            raise ConfigError(
                f"Option {option!r} of task effect names {name!r} without a category; write {name}={categories[-1]} or the like."
            )
        if category not in categories:
            raise ConfigError(
                f"Option {option!r} of task effect has the category {category!r}; those of {name} are {', '.join(categories)}."
            )
        arm, place = (
            np.zeros(layout.width + 1),
            categories.index(category) - (column.kind == "binary" or column.drop_first),
        )
        if place < 0:  # the one that has no number
            arm[0], arm[1 + at.start : 1 + at.stop] = 1.0, -1.0
        else:
            arm[1 + at.start + place] = 1.0
        return arm

    def places(self, layout: Layout) -> list[int]:
        """Where the covariates are: of categories all but one, of other columns also where they are missing."""
        treated, places = self.treatment.partition("=")[0], []
        if "," in self.covariates:
            raise ConfigError(
                f"Option 'covariates' of task effect is {self.covariates!r}; join columns by +, as age+sex."
            )
        names = (
            self.covariates.split("+") if self.covariates else [c.name for c, _ in layout.columns if c.name != treated]
        )
        for name in map(str.strip, names):
            column, at = self.column(layout, name, "covariates")
            if name == treated or names.count(name) > 1:
                raise ConfigError(
                    f"Option 'covariates' of task effect names {name!r}, the treatment or a column named twice."
                )
            own = list(range(at.start, at.stop))
            places += own[1:] if column.kind == "categorical" and not (column.nullable or column.drop_first) else own
            absent = {f"{layout.names[place]} missing" for place in own}
            places += [place for place, there in enumerate(layout.names) if there in absent]
        return places


@lru_cache(maxsize=16)
def _method(program: Effect, schema: Schema) -> Weighting:
    """Of a run, whose rounds and hospitals ask for it many times, the same. Raises ConfigError naming the option."""
    by_design, rounds, layout = program.propensity, program.config.rounds, Layout.of(schema, label_may_be_number=True)
    for name, value, low, high in (
        ("propensity", by_design, 0.0, 0.99), ("most-weight", program.most_weight, 2.0, 1000.0),
        ("rounds", rounds, 2 if by_design else 4, 10_000),
    ):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ConfigError(f"Task effect: {name} is {value!r}; allowed are numbers from {low:g} to {high:g}.")
    if layout.classes > 2:
        raise ConfigError(
            f"Task effect: the outcome {schema.label.name!r} has {layout.classes} categories; allowed are yes or no, and numbers."
        )
    treated = program.arm(layout, program.treatment, "treatment")
    control = program.arm(layout, program.control, "control") if program.control else np.eye(len(treated))[0] - treated
    places = np.array(program.places(layout), dtype=np.int64)
    most = max(1 / by_design, 1 / (1 - by_design)) * (1 + 1e-9) if by_design else float(program.most_weight)
    return Weighting(
        layout, places, np.stack([treated, control], axis=1), rounds, by_design or None, most, program.config.privacy.dp
    )


def _effects(method: Weighting, arrays: dict[str, Floats], arms: tuple[str, str]) -> Table:
    """Both means, their difference and of yes or no their ratio, in the outcome's unit."""
    effect, label = method.result(arrays), method.layout.schema.label
    number, (low, high) = label.kind in BOUNDED_KINDS, label.bounds or (0.0, 1.0)
    rows: list[tuple[Cell, ...]] = []
    what, means = "Mean" if number else "Risk", effect.means
    for name, gradient, start in (
        (f"{what}, {arms[0]}", [1.0, 0.0], low), (f"{what}, {arms[1]}", [0.0, 1.0], low),
        (f"{what} difference", [1.0, -1.0], 0.0),
    ):  # fmt: skip
        error, share, factor = effect.along(np.array(gradient))
        each = start + (high - low) * (means @ gradient + error * factor * np.array([0.0, -1.0, 1.0]))
        rows.append((name, *each.tolist(), (high - low) * error, share))
    if not number and (means > 0).all():
        error, share, factor = effect.along(np.array([1.0, -1.0]) / means)
        ratio = means[0] / means[1] * np.exp(error * factor * np.array([0.0, -1.0, 1.0]))
        rows.append(("Risk ratio", *ratio.tolist(), float(ratio[0]) * error, share))
    headings = ("", "Estimate", "95 % from", "to", "SE", "By noise")
    formats = dict.fromkeys(headings[1:5], ".4g" if number else ".4f") | {"By noise": ".0%"}
    unit = f" In {label.unit}." if label.unit else ""
    note = (
        f"Means if all patients were in the arm, by inverse-probability weights (Hájek).{unit} "
        "By noise: the share of the squared standard error (SE) that privacy added."
    )
    return Table("effect", f"Average treatment effect on {label.name}", headings, tuple(rows), formats, note)


def _overlap(method: Weighting, arrays: dict[str, Floats], arms: tuple[str, str]) -> Table:
    """Of how many patients the arms are, and the shares of weights that were clipped where the noise lets them be said."""
    columns = zip(arms, *(values.tolist() for values in method.overlap(arrays)), strict=True)
    rows = [
        (arm, round(n), max(share, 0.0) if noise <= _MAY_BE_SAID and not method.by_design else None, noise)
        for arm, n, share, noise in columns
    ]
    headings, most = ("Arm", "Patients", "Weights clipped", "Noise"), f"{method.most:g}"
    note = (
        f"Weights above {most}, of patients whose probability to be in their arm is below {1 / method.most:.2g}, count as {most}."
        " Where many are clipped, the arms overlap too little for weighting."
    )
    if method.by_design is not None:
        note = f"The probability of treatment is {method.by_design:g} by design, so that no weight is clipped."
    return Table("overlap", "Overlap", headings, tuple(rows), dict.fromkeys(headings[2:], ".1%"), note)
