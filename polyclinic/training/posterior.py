"""A posterior as a method of sums: which numbers of a record the likelihood is of, and what the last state says.

A record's numbers are those of ``synthesis.layout``: scaled by the public schema, a missing number at its public centre. A
patient with several rows counts once, by the mean of the rows' vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np

from polyclinic.ehr.schema import NUMERIC_KINDS
from polyclinic.errors import ConfigError, nearest
from polyclinic.inference.gauss_newton import GaussNewton
from polyclinic.inference.likelihood import Likelihood
from polyclinic.inference.private_flow import OPTIONS, FlowSums, flow_settings
from polyclinic.privacy.sums import mean_of_rows
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Arrays, Floats, Ints

#: A way to a posterior by rounds of sums, over records of a likelihood's columns.
Method = GaussNewton | FlowSums
#: Of a likelihood, and of its prior's (k,) means and standard deviations.
Make = Callable[[Likelihood, Floats, Floats], Method]


def chosen_method(given: Mapping[str, Any], rounds: int, seed: int) -> tuple[Make, dict[str, Any]]:
    """The method that ``posterior.options`` choose, and the options that are left to the likelihood.

    Args:
        given: The options by name.
        rounds: The number of rounds.
        seed: The seed of what is public.

    Raises:
        ConfigError: The method is unknown, or an option of one is out of range.
    """
    options = dict(given)
    name = options.pop("method", "gauss-newton")
    if name == "gauss-newton":
        return lambda likelihood, start, scale: GaussNewton(likelihood, start, scale, rounds), options
    if name != "flow":
        raise ConfigError(f"Method option 'method' is {name!r}; allowed are gauss-newton and flow.")
    settings = flow_settings({key: options.pop(key) for key in OPTIONS if key in options}, rounds)
    return lambda likelihood, start, scale: FlowSums(likelihood, start, scale, settings, seed), options


@dataclass(frozen=True, eq=False)
class PosteriorSums:
    """``synthesis.sums.SumsMethod`` of a posterior. places: (d,) where in a row of ``layout`` the likelihood's columns are."""

    method: Method
    layout: Layout
    places: Ints

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def rounds(self) -> int:
        return self.method.rounds

    def question(self, round: int, state: Arrays) -> Arrays:
        """What the method asks of the state."""
        return self.method.question(self._full_state(state))

    def size(self, round: int, question: Arrays) -> int:
        """Numbers of a sum, in all rounds."""
        return self.method.width

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size) means of the rows' vectors.

        Args:
            round: The round, from 1 on.
            question: What ``question`` gave for the round.
            z: (n, D) rows of the layout.
            patient: (n,) the patient of each row.
            patients: The number of patients.

        Raises:
            ConfigError: The question's arrays are not of this many parameters.
        """
        for name, shape in self.method.shapes.items():
            value = question.get(name)
            if value is None or value.shape != shape or value.dtype != np.float64:
                raise ConfigError(f"The question's {name!r} must be float64 of shape {shape}.")
        return mean_of_rows(self.method.contributions(question, z[:, self.places]), patient, patients)

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        """The next state; ``patients`` in ``state`` says of how many the mean is.

        Args:
            round: The round, from 1 on.
            state: What was made of the sums so far.
            mean: (size,) noisy sum by the number of patients.
            noise: Standard deviation in each entry of ``mean``.
        """
        return self.method.absorb(round, self._full_state(state), mean, noise)

    def result(self, state: Arrays) -> dict[str, Any]:
        """The method's result as JSON. Raises DataError where there is no result."""
        return self.method.posterior(self._full_state(state)).as_json(self.method.likelihood.names)

    def prior(self) -> dict[str, dict[str, float]]:
        """Mean and standard deviation by parameter."""
        names = self.method.likelihood.names
        return {
            name: {"mean": float(mean), "sd": float(sd)}
            for name, mean, sd in zip(names, self.method.start, self.method.scale, strict=True)
        }

    def scales(self) -> dict[str, dict[str, Any]]:
        """By the likelihood's columns: a number z stands for ``centre + scale * z`` in the column's ``unit``."""
        return {
            name: number_scale(self.layout, int(place))
            for name, place in zip(self.method.likelihood.columns, self.places, strict=True)
        }

    def _full_state(self, state: Arrays) -> Arrays:
        return {**self.method.begin(1.0), **state}


def posterior_sums(
    make: Callable[..., Any], layout: Layout, text: str, options: Mapping[str, Any], prior: tuple[list[float], list[float]],
    method: Make,
) -> PosteriorSums:  # fmt: skip
    """The method of what ``make`` gives with ``options``.

    Args:
        make: Makes a likelihood, of columns where it takes any.
        layout: The layout of the rows.
        text: The columns, as ``posterior.columns`` has them; empty where the model has its own.
        options: The likelihood's options.
        prior: Means and standard deviations, one for all parameters or one for each.
        method: Makes the method of a likelihood and its prior.

    Raises:
        ConfigError: Something cannot be; the message names it.
    """
    named = "columns" in signature(make).parameters
    if text and not named:
        raise ConfigError(
            f"Configuration key 'posterior.columns' has the value {text!r}, but the model has its own columns; leave the key out."
        )
    likelihood = make(**({"columns": choose_columns(layout, text)} if named else {}), **options)
    if not isinstance(likelihood, Likelihood):
        raise ConfigError("Configuration key 'model' names what makes no polyclinic Likelihood.")
    where = places(layout, likelihood.columns)
    if named and (where >= layout.label.start).sum() > 1:
        raise ConfigError(
            f"Configuration key 'posterior.columns' has the label more than once among {', '.join(likelihood.columns)}."
        )
    if likelihood.yes_or_no and layout.numeric[where[-1]]:
        raise ConfigError(
            f"Configuration key 'posterior.columns' has {likelihood.columns[-1]!r} last, which is a number; the model's "
            f"outcome is 0 or 1."
        )
    start, scale = (
        _of_each(key, given, likelihood)
        for key, given in zip(("posterior.prior-mean", "posterior.prior-sd"), prior, strict=True)
    )
    return PosteriorSums(method(likelihood, start, scale), layout, where)


def _of_each(key: str, given: list[float], likelihood: Likelihood) -> Floats:
    """(k,) numbers of the parameters, from one for all or one for each."""
    names = likelihood.names
    if len(given) not in (1, len(names)):
        raise ConfigError(
            f"Configuration key {key!r} has {len(given)} numbers; allowed are 1, or {len(names)} for {', '.join(names)}."
        )
    return np.full(len(names), given[0]) if len(given) == 1 else np.array(given)


def places(layout: Layout, columns: Sequence[str]) -> Ints:
    """(d,) where in a row of ``layout`` the named numbers are; the name of a label of two classes is the second one's.

    Raises ConfigError for a name that is not there.
    """
    places_by_name = {name: place for place, name in enumerate(layout.names)} | _outcome(layout)
    for name in columns:
        if name not in places_by_name:
            why = (
                f" The label has {layout.classes} classes; name one of them as '{layout.schema.label.name}=1'."
                if name == layout.schema.label.name
                else nearest(name, places_by_name)
            )
            raise ConfigError(
                f"Configuration key 'posterior.columns': the schema has no number {name!r} in a record.{why}"
            )
    return np.array([places_by_name[name] for name in columns], dtype=np.int64)


def choose_columns(layout: Layout, text: str) -> tuple[str, ...]:
    """The columns that the configuration names, or all features and the label; a column of several numbers stands for them.

    Of a column of categories the first is the reference and left out: with all of them and an intercept, no one of them would
    say anything. Raises ConfigError for a name that stands twice, or an outcome that may be missing.
    """
    whole = {column.name: _numbers_of(layout, column.name) for column, _ in layout.columns}
    given = [part.strip() for part in text.split(",")] if text.strip() else [*whole, layout.schema.label.name]
    names = [name for part in given for name in (whole.get(part) or [part])]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"Configuration key 'posterior.columns' names {twice!r} twice.")
    outcome = names[-1]
    if outcome in layout.names and _may_miss(layout, outcome):
        raise ConfigError(
            f"Configuration key 'posterior.columns' has {outcome!r} last, which may be missing: an outcome is not "
            "filled in; name one that every record has."
        )
    return tuple(names)


def _numbers_of(layout: Layout, name: str) -> list[str]:
    for column, at in layout.columns:
        if column.name == name:
            names = list(layout.names[at])
            return names[1:] if column.kind == "categorical" and not column.drop_first else names
    return []


def _outcome(layout: Layout) -> dict[str, int]:
    return {layout.schema.label.name: layout.label.start + 1} if layout.classes == 2 else {}


def _may_miss(layout: Layout, name: str) -> bool:
    place = layout.names.index(name)
    return any(column.nullable for column, at in layout.columns if at.start <= place < at.stop)


def number_scale(layout: Layout, place: int) -> dict[str, Any]:
    """A number's place in the record's own unit; 0 and 1 of what is there or not."""
    if layout.label_scale and place == layout.label.start:
        centre, scale = layout.label_scale
        return {"centre": float(centre), "scale": float(scale), "unit": layout.schema.label.unit}
    for column, at in layout.columns:
        if at.start <= place < at.stop and column.kind in NUMERIC_KINDS:
            low, high = column.bounds or (0.0, float(len(column.categories) - 1))
            half = (high - low) / 2
            return {
                "centre": float(low + half * (1 + layout.mean[place])), "scale": float(half * layout.std[place]),
                "unit": column.unit,
            }  # fmt: skip
    return {"centre": 0.0, "scale": 1.0, "unit": ""}
