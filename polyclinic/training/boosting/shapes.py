"""Shape functions by rounds of sums: what each round asks of a patient, and the model that follows from the sums.

Cyclic boosting with a small learning rate (Nori et al. 2021) takes the same steps, to first order, as all features at
once (batched updates, Maddock et al. 2022). A round here is such a step for all features, over smooth functions of the
bins (``models.additive.Basis``) in place of a count for each bin. Noise in a bin's sum is the same however few patients
it has. A slow change over thirty bins rests on thirty noisy numbers there, and on one here.

The first round sums second moments of the functions and their products with the residuals. They give coordinates that
are uncorrelated. Each has as much of a patient's vector as it is worth under the noise. So fast changes and rare
directions are not asked for where noise would hide them. Each later round sums gradients. The server combines all
rounds as a Kalman filter does (``logistic.newton``): every noisy gradient is a measurement of the best coefficients,
weighted by its noise, beside a public normal prior. The shape functions that follow are smooth as far as the noise
demands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol, cast

import numpy as np
import torch

from polyclinic.ehr.encoding import feature_slices
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.models.additive import Basis
from polyclinic.privacy.streams import generator
from polyclinic.privacy.sums import mean_of_rows
from polyclinic.synthesis.layout import Layout
from polyclinic.training.boosting.outcome import Outcome
from polyclinic.training.logistic.moments import drawn_in_by_pair, products, shorten_rows
from polyclinic.training.modules import check_fit, load
from polyclinic.training.synthesis import SumsTask
from polyclinic.types import Arrays, Builder, Floats, Ints, Labels

#: With more functions of features only their squares are asked for.
MOST_CORRELATED = 300
# Variance of all that the columns add to the outputs, under the prior, and of the intercept.
_PRIOR, _MEAN = 1.0, 9.0
# Shares of the squared length of a patient's first vector: gradients, means, products.
_SHARES = (0.4, 0.3, 0.3)
# Shortening leaves at least this much of a mean row.
_LEAST_LEVEL = 0.3
# How much of a gradient's mean square counts as error of the linear approximation.
_CURVED = 0.5
# An exact sum counts as uncertain by so much of what its patients leave uncertain.
_LEAST_ERROR = 0.05
# The least part of a coordinate that is asked for.
_LEAST_GAIN = 1e-6
# However noisy, a direction has so much of the variance that is assumed of it.
_LEAST_SEEN = 0.25
_DRAWS = 256
_ROWS_AT_ONCE = 4096


class Functions(Protocol):
    """Functions of a row.

    ``usual``: (q,) their variances among patients before any is seen
    ``farthest``: the length that no row exceeds
    ``rows``: (n, q) their values for (n, features) rows, NaN where a cell is missing
    """

    usual: Floats

    @property
    def farthest(self) -> float: ...

    def rows(self, x: Floats) -> Floats: ...


class Table(Layout):
    """A record as the values of ``basis``, and its labels as columns of numbers."""

    basis: Functions
    outcome: Outcome

    @classmethod
    def of_functions(cls, schema: Schema, basis: Functions, outcome: Outcome) -> Table:
        """The layout of rows that are standardised, NaN where a cell is missing.

        Args:
            schema: The public schema.
            basis: The functions of a row.
            outcome: What becomes of a label.
        """
        count = len(basis.usual)
        table = cls(schema, np.zeros(count), np.ones(count), np.zeros(count, dtype=bool))
        vars(table).update(basis=basis, outcome=outcome)
        return table

    @property
    def classes(self) -> int:
        """Of a label without classes 1."""
        return self.schema.num_classes if self.outcome.objective.has_classes else 1

    def rows(self, x: Floats, y: Labels, hospital: int = 0) -> Floats:
        return np.concatenate([self.basis.rows(x), self.outcome.labels(y)], axis=1)

    def labels(self, z: Floats) -> Ints:
        first = z[:, self.features]
        return first.astype(np.int64) if self.outcome.objective.has_classes else np.zeros(len(z), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Shapes:
    """``synthesis.sums.SumsMethod`` of an additive model with q functions of features, I levels and L contrasts.

    rounds: 1 or more.
    private: Whether sums get noise; without it patients' vectors are scaled so far that none is clipped.

    A question after the first round's holds these:

    ``centre``: (q,), what is taken from rows
    ``basis``: (q, q), whose columns are the coordinates of rows less the centre
    ``weights``, ``intercept``: the model, (q, L) of the functions and (I,)
    ``radius``: (1,), the longest gradient in these coordinates

    Neighbouring relation: add or remove one patient, who moves a sum by at most 1.
    """

    layout: Table
    outcome: Outcome
    rounds: int
    private: bool = True
    name: ClassVar[str] = "ebm"

    def question(self, round: int, state: Arrays) -> Arrays:
        """Nothing in the first round; then coordinates and model."""
        return {name: state[name] for name in self._shapes_asked} if "basis" in state else {}

    def size(self, round: int, question: Arrays) -> int:
        """Numbers of the sum that answers ``question``."""
        gradient = self._levels + self._functions * self._contrasts
        return gradient + (0 if question else 1 + self._functions + len(self._pairs[0]))

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size) vectors of length at most 1.

        Args:
            round: The round, from 1 on.
            question: What ``question`` gave for the round.
            z: (n, D) rows of the layout.
            patient: (n,) the patient of each row.
            patients: The number of patients.

        Raises:
            ConfigError: The question's arrays are of other shapes.
        """
        self.check(question)
        functions, labels = z[:, : self._functions], z[:, self._functions :]
        vectors = self._gradients(question, functions, labels) if question else self._moments(functions, labels)
        return mean_of_rows(vectors, patient, patients)

    def check(self, question: Arrays) -> None:
        """Raises ConfigError for arrays of other shapes than a round asks."""
        if question and set(question) != set(self._shapes_asked):
            raise ConfigError(f"The question holds {', '.join(sorted(question))}, which no round of {self.name} asks.")
        for name, value in question.items():
            if value.shape != self._shapes_asked[name] or value.dtype != np.float64:
                raise ConfigError(f"The question's {name!r} must be float64 of shape {self._shapes_asked[name]}.")
        if question and not question["radius"][0] > 0:
            raise ConfigError(f"The question's 'radius' is {question['radius'][0]:g}; allowed are numbers above 0.")

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        """The next state.

        Args:
            round: The round, from 1 on.
            state: What was made of the sums so far.
            mean: (size,) noisy sum by the number of patients.
            noise: Standard deviation in each entry of ``mean``.
        """
        if "basis" not in state:
            return self._begin(state, mean, noise)
        scale = float(state["radius"][0])
        level, gradient = np.split(mean * scale, [self._levels])
        errors = noise * scale, np.full(self._functions, noise * scale)
        return self._step(state, level, gradient.reshape(self._functions, self._contrasts), errors)

    def arrays(self, state: Arrays, like: Arrays) -> Arrays:
        """The model as the arrays of ``models.additive.Additive``; those of ``like`` before there is one."""
        if "weights" not in state:
            return like
        basis, weights, contrasts = cast(Basis, self.layout.basis), state["weights"], self.outcome.contrasts
        values = basis.tables[:, :, None] * (weights @ contrasts.T)[:, None, :]
        middles = state["centre"][:, None] * (weights @ contrasts.T)
        shapes, spreads = np.zeros(like["shapes"].shape), np.zeros(like["deviations"].shape)
        np.add.at(shapes, basis.feature, values - middles[:, None, :])  # 0 on average over patients
        errors = state["basis"] * np.sqrt(state["uncertain"])
        for number in range(len(shapes)):
            own = basis.feature == number
            moved = (basis.tables[own] - state["centre"][own, None]).T @ errors[own]
            spreads[number] = np.linalg.norm(moved, axis=1) * np.linalg.norm(contrasts[0])
        arrays = {
            "shapes": shapes, "intercept": self.outcome.levels @ state["intercept"], "deviations": spreads,
            "importances": self._importances(state),
        }  # fmt: skip
        return {name: np.ascontiguousarray(arrays[name]).astype(value.dtype) for name, value in like.items()}

    def _importances(self, state: Arrays) -> Floats:
        """(columns,) standard deviation of what each column adds to the outputs."""
        feature, starts = (
            cast(Basis, self.layout.basis).feature,
            [at.start for _, at in feature_slices(self.layout.schema)],
        )
        column, squares = np.searchsorted(starts, feature, "right") - 1, np.zeros(len(starts))
        for number in range(len(starts)):
            own = column == number
            weights = state["weights"][own]
            squares[number] = np.einsum("il,ij,jl->", weights, state["moments"][np.ix_(own, own)], weights)
        return np.asarray(np.sqrt(np.maximum(squares, 0.0)) * np.linalg.norm(self.outcome.contrasts[0]))

    @cached_property
    def _functions(self) -> int:
        return self.layout.features

    @cached_property
    def _levels(self) -> int:
        return int(self.outcome.levels.shape[1])

    @cached_property
    def _contrasts(self) -> int:
        return int(self.outcome.contrasts.shape[1])

    @cached_property
    def _shapes_asked(self) -> Mapping[str, tuple[int, ...]]:
        q = self._functions
        return {
            "centre": (q,), "basis": (q, q), "weights": (q, self._contrasts), "intercept": (self._levels,), "radius": (1,),
        }  # fmt: skip

    @cached_property
    def _pairs(self) -> tuple[Ints, Ints]:
        """Products of which functions are asked for: of all, or where they are many each with itself."""
        at = np.arange(self._functions)
        return np.triu_indices(len(at)) if len(at) <= MOST_CORRELATED else (at, at)

    @cached_property
    def _farthest(self) -> float:
        """The length of the longest row that there can be, behind a 1."""
        return math.hypot(1.0, self.layout.basis.farthest)

    @cached_property
    def _usual(self) -> float:
        """The length of a usual row behind a 1, from which on rows are shortened in the first round."""
        return math.sqrt(1.0 + float(self.layout.basis.usual.sum())) if self.private else self._farthest

    @cached_property
    def _first_reach(self) -> float:
        """The longest residual of the first round, in which the model is its intercept."""
        return float(self.outcome.longest(self._first_outputs)[0])

    @cached_property
    def _first_outputs(self) -> Floats:
        """(1, O)"""
        return (self.outcome.levels @ self.outcome.start)[None]

    @cached_property
    def _first_scales(self) -> tuple[float, float, float]:
        """By which gradients, means and products are divided in the first round, each with its share of the length."""
        parts = (self._usual * self._first_reach, self._usual, self._usual**2)
        gradient, means, squares = (part / math.sqrt(share) for part, share in zip(parts, _SHARES, strict=True))
        return gradient, means, squares

    def _gradient(self, rows: Floats, residuals: Floats) -> Floats:
        """(n, I + (rows - 1) L) of rows whose first number is that of the intercept."""
        along = residuals @ self.outcome.contrasts
        each = (rows[:, 1:, None] * along[:, None, :]).reshape(len(rows), (rows.shape[1] - 1) * along.shape[1])
        return np.concatenate([rows[:, :1] * (residuals @ self.outcome.levels), each], axis=1)

    def _moments(self, functions: Floats, labels: Floats) -> Floats:
        residuals = self.outcome.residuals(np.repeat(self._first_outputs, len(functions), axis=0), labels)
        rows = shorten_rows(np.concatenate([np.ones((len(functions), 1)), functions], axis=1), self._usual)
        parts = (self._gradient(rows, residuals), rows, products(rows[:, 1:], MOST_CORRELATED))
        return np.concatenate([part / scale for part, scale in zip(parts, self._first_scales, strict=True)], axis=1)

    def _gradients(self, question: Arrays, functions: Floats, labels: Floats) -> Floats:
        """Rows are shortened so that the gradient is within the radius whatever the label is."""
        centred, radius = functions - question["centre"], question["radius"][0]
        moved = centred @ question["weights"] @ self.outcome.contrasts.T
        outputs = np.clip(moved + self.outcome.levels @ question["intercept"], -1e3, 1e3)
        rows = np.concatenate([np.ones((len(centred), 1)), centred @ question["basis"]], axis=1)
        rows = shorten_rows(rows, radius / self.outcome.longest(outputs)[:, None])
        return np.asarray(self._gradient(rows, self.outcome.residuals(outputs, labels)) / radius)

    def _begin(self, state: Arrays, mean: Floats, noise: float) -> Arrays:
        """Coordinates by the noisy moments, and the first model."""
        q, contrasts, levels = self._functions, self._contrasts, self._levels
        ends = np.cumsum([levels + q * contrasts, 1 + q])
        scales = self._first_scales
        gradient, means, squares = (part * scale for part, scale in zip(np.split(mean, ends), scales, strict=True))
        share = min(max(float(means[0]), _LEAST_LEVEL), 1.0)
        centre = means[1:] / share / (1 + (noise * scales[1] / share) ** 2)
        first, second = self._pairs
        moments = np.zeros((q, q))
        moments[first, second] = squares / np.where(first == second, 1.0, math.sqrt(2.0))
        moments[first, second] -= share**2 * centre[first] * centre[second]
        moments += np.triu(moments, 1).T
        moments, noisy = drawn_in_by_pair(moments, self.layout.basis.usual, noise * scales[2])
        values, vectors = np.linalg.eigh(moments)
        variances = np.maximum(values, np.maximum(np.sqrt((vectors**2).T @ noisy), 1e-6))
        gains = self._gains(variances, noise)
        basis = vectors * np.sqrt(gains / variances)
        seen = gains * np.clip(values / variances, _LEAST_SEEN, 1.0)
        length = math.sqrt(1.0 + float((gains * np.clip(values / variances, 0.0, 1.0)).sum()))
        level, each = gradient[:levels], gradient[levels:].reshape(q, contrasts)
        each = basis.T @ (each - np.outer(centre, level @ self.outcome.bridge))
        zero = {
            **state, "centre": centre, "basis": basis, "gains": seen, "length": np.array([length]), "moments": moments,
            "prior": gains / variances * max(float(np.trace(moments)), 1e-6) / _PRIOR,
            "precision": np.zeros(q), "noisy": np.zeros(q), "informed": np.zeros((q, contrasts)),
            "coefficients": np.zeros((q, contrasts)), "intercept": self.outcome.start, "level_precision": np.zeros(levels),
            "level_informed": np.zeros(levels),
        }  # fmt: skip
        error = noise * math.hypot(scales[0], scales[1] / share * float(np.abs(level @ self.outcome.bridge).max()))
        return self._step(zero, level, each, (noise * scales[0], error * np.sqrt(gains / variances)))

    def _gains(self, variances: Floats, noise: float) -> Floats:
        """(q,) the variance that each coordinate is to have in a patient's vector, at most 1: as much as it is worth.

        The sum of the coefficients' variances, 1 / (prior precision + gain x information), is smallest where the denominators of
        all that are asked for are equal.
        """
        prior = float(variances.sum()) / _PRIOR / variances
        gains = np.ones(len(variances))
        reach = float(self._first_reach)
        curvature = self.outcome.information(self._first_outputs)[0]
        for _ in range(30 if noise else 0):
            information = self.rounds * (curvature / (noise * reach)) ** 2 / (1 + float(gains.sum()))
            information = max(information, 2 * float(prior.min()))
            gains = (gains + np.clip(1 - prior / information, 0.0, 1.0)) / 2
        return np.maximum(gains, _LEAST_GAIN)

    def _step(self, state: Arrays, level: Floats, gradient: Floats, errors: tuple[float, Floats]) -> Arrays:
        """The best coefficients by all gradients so far. errors: standard deviations of the noise in ``level`` and (q,) in each
        row of ``gradient``."""
        patients, gains = max(float(state.get("patients", np.ones(1))[0]), 1.0), state["gains"]
        _, by_level = self.outcome.information(self._usual_outputs(state))
        variance = errors[0] ** 2 + by_level / patients + _CURVED * level**2
        level_precision = state["level_precision"] + by_level**2 / variance
        level_informed = state["level_informed"] + by_level * (by_level * state["intercept"] + level) / variance
        # Centred functions tell of the outputs around the intercept that follows, not around the first round's.
        intercept = (level_informed + self.outcome.start / _MEAN) / (level_precision + 1 / _MEAN)
        along, _ = self.outcome.information(self._usual_outputs({**state, "intercept": intercept}))
        curved = _CURVED * float((gradient**2).sum()) / (float(gains.sum()) * gradient.shape[1])
        # A coordinate that is far off has a large gradient, by which the approximation errs there.
        own = _CURVED * np.maximum((gradient**2).mean(axis=1) - errors[1] ** 2, 0.0)
        variance = errors[1] ** 2 + gains * (_LEAST_ERROR * along / patients + curved) + own
        seen = along * gains
        precision = state["precision"] + seen**2 / variance
        informed = state["informed"] + (seen / variance)[:, None] * (seen[:, None] * state["coefficients"] + gradient)
        # The sums are of some patients, however exactly they are known.
        noisy = state["noisy"] + (seen / variance) ** 2 * errors[1] ** 2
        whole, certain = (
            1 / (error + 1 / (patients * along * gains)) for error in (noisy / precision**2, 1 / precision)
        )
        coefficients = informed * (whole / (whole + state["prior"]) / precision)[:, None]
        after = {
            **state, "level_precision": level_precision, "level_informed": level_informed, "precision": precision,
            "informed": informed, "intercept": intercept, "coefficients": coefficients,
            "noisy": noisy, "uncertain": 1 / (certain + state["prior"]), "weights": state["basis"] @ coefficients,
        }  # fmt: skip
        return {**after, "radius": np.array([self._radius(after)])}

    def _radius(self, state: Arrays) -> float:
        """The length of a usual gradient; without noise one that none exceeds."""
        outputs = self._usual_outputs(state)
        if self.private:
            return float(state["length"][0]) * float(self.outcome.longest(outputs).mean())
        far = (self._farthest + float(np.linalg.norm(state["centre"]))) * float(np.linalg.norm(state["basis"], 2))
        return math.hypot(1.0, far) * max(float(self.outcome.longest(outputs).max()), math.sqrt(2.0))

    def _usual_outputs(self, state: Arrays) -> Floats:
        """(draws, O) outputs of patients, were what the columns add normal."""
        spread = math.sqrt(float((state["gains"][:, None] * state["coefficients"] ** 2).sum()) / self._contrasts)
        middle = self.outcome.levels @ state["intercept"]
        return np.asarray(np.clip(middle + spread * self._draws @ self.outcome.contrasts.T, -1e3, 1e3))

    @cached_property
    def _draws(self) -> Floats:
        """(draws, L) standard normal, each beside its opposite."""
        draws = generator(0, "ebm", "outputs").standard_normal((_DRAWS // 2, self._contrasts))
        return np.concatenate([draws, -draws])


@dataclass(frozen=True, eq=False)
class ShapesTask(SumsTask):
    """A round of ``Shapes`` at a hospital, which is sent the model beside the question."""

    method: Shapes
    question: Mapping[str, np.ndarray] = field(default_factory=dict)
    name: str = "classification"

    def check(self, build: Builder, arrays: Arrays, features: int, engine: str = "auto", private: bool = True) -> None:
        """Checks that the arrays are the model's.

        Args:
            build: Makes the model's module.
            arrays: The model's arrays, if there are any.
            features: The width of a row.
            engine: Of no weight here.
            private: Of no weight here.

        Raises:
            ConfigError: Names or shapes differ.
        """
        if arrays:
            check_fit({name: tuple(value.shape) for name, value in build().state_dict().items()}, arrays)

    def evaluate(self, build: Builder, arrays: Arrays, rows: Sequence[Rows]) -> list[np.ndarray]:
        """Each site's (rows, columns) float64 predictions under the model ``arrays``.

        Args:
            build: Makes the model's module.
            arrays: The model's arrays.
            rows: Each site's rows.
        """
        module, predictions = load(build, arrays).eval(), self.method.outcome.objective.predictions

        def scores(x: Floats) -> Floats:
            return np.asarray(predictions(module(torch.from_numpy(x.astype(np.float32))).double()).numpy())

        with torch.no_grad():
            return [
                np.concatenate([scores(part) for part in np.array_split(site.x, len(site.x) // _ROWS_AT_ONCE + 1)])
                for site in rows
            ]

    def _probe(self) -> None:
        """Ours adds up rows that it reads one by one, and needs no made-up records to show it."""
        self.method.check(self._given)
