"""The base of a flow: normal numbers with a mean and a covariance, which one private sum may correct.

A flow whose numbers f(v) of a record are not quite standard normal draws records of a law that is not quite theirs: clipped
gradients, for one, leave its variance too small. First and second moments of f(v) say how far it is off, and as the law of its
base they mend that without another step; before any step, f(v) = v and the density is a Gaussian.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch

from polyclinic.errors import ConfigError
from polyclinic.privacy.sums import mean_of_rows
from polyclinic.synthesis.flows.synthesizer import FlowRows
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.sums import clipped_total
from polyclinic.types import Arrays, Floats, Ints

# Variances of a corrected base, as shares of those before, below which noise has made them meaningless.
_LEAST = 0.01


@dataclass(frozen=True, eq=False)
class BaseMoments:
    """A method of one sum: how far the base of ``rows``, a flow that is public, is from what records say.

    A patient's vector holds first moments and second ones less those of a standard normal, of u = f(v) whitened by the base as
    it is, F + F (F + 1) / 2 numbers by ``reach``, which is about their length where the base is right. Vectors are clipped to
    length 1, so that adding or removing a patient moves the sum by at most 1.
    Raises ConfigError for a layout of other columns than continuous ones without missing cells: f draws noise into the others.
    """

    rows: FlowRows
    reach: float = 10.0
    name: ClassVar[str] = "base-moments"
    rounds: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for column, _ in self.layout.columns:
            if column.kind != "continuous" or column.nullable:
                raise ConfigError(
                    f"Column {column.name!r} is {column.kind}{', nullable' if column.nullable else ''}: the base of a flow is "
                    "corrected for continuous columns without missing cells alone."
                )

    @property
    def layout(self) -> Layout:
        return self.rows.layout

    def question(self, round: int, state: Arrays) -> Arrays:
        """Nothing: the flow is known."""
        return {}

    def size(self, round: int, question: Arrays) -> int:
        return self._features + len(self._pairs[0])

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size), not yet clipped."""
        u = whitened(self.rows, z)
        first, second, weights = self._pairs
        squares = (u[:, first] * u[:, second] - (first == second)) * weights
        return mean_of_rows(np.concatenate([u, squares], axis=1) / self.reach, patient, patients)

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        return {**state, "mean": mean}

    def synthesizer(self, state: Arrays) -> FlowRows:
        """The rows of the same flow with the corrected base."""
        middle, squares = np.split(np.asarray(state["mean"], dtype=np.float64) * self.reach, [self._features])
        first, second, weights = self._pairs
        square = np.eye(self._features)
        square[first, second] += squares / weights
        square[second, first] = square[first, second]
        values, axes = np.linalg.eigh(square - np.outer(middle, middle))
        root = np.linalg.cholesky((axes * np.maximum(values, _LEAST)) @ axes.T)
        recipe, (mean, before) = self.rows.recipe, self.rows.recipe.base_or_standard
        return replace(self.rows, recipe=replace(recipe, base=(mean + before @ middle, before @ root)))

    @property
    def _features(self) -> int:
        return self.layout.width - self.layout.classes

    @cached_property
    def _pairs(self) -> tuple[Ints, Ints, Floats]:
        """The upper triangle, and weights with which each entry has variance 1 under a standard normal."""
        first, second = np.triu_indices(self._features)
        return first, second, np.where(first == second, np.sqrt(0.5), 1.0)


def whitened(rows: FlowRows, z: Floats) -> Floats:
    """(n, F) what the flow makes of records ``z`` of continuous columns, standard normal numbers if it is right."""
    v, _ = rows.recipe.coordinates.draw(z, np.random.default_rng(0))
    with torch.no_grad():
        return rows.recipe.flow_of(rows.flow).double().whiten_rows(torch.from_numpy(v))[0].numpy()


def corrected(
    rows: FlowRows, z: Floats, patient: Ints, patients: int, noise_multiplier: float, rng: np.random.Generator,
    reach: float = 10.0,
) -> FlowRows:  # fmt: skip
    """``rows`` with a base by the (n, D) records ``z`` of ``patients``, a public number, as a trusted curator would.

    One Gaussian release of ``noise_multiplier``, for one patient added or removed; not private at noise 0.
    Raises ConfigError as ``BaseMoments`` does.
    """
    method = BaseMoments(rows, reach)
    total = clipped_total(method, 1, {}, z, patient, patients)
    noisy = total + noise_multiplier * rng.standard_normal(len(total))
    return method.synthesizer(method.absorb(1, {}, noisy / patients, noise_multiplier / patients))
