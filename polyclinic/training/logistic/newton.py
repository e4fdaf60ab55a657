"""Logistic regression by noisy Newton steps: what each round asks of a patient, and the model that follows from the sums.

The first round sums second moments of the features and their products with the outcome. They give coordinates in which the
features are uncorrelated, and a first model. Each later round sums gradients in these coordinates, and the last one what shifts
and stretches all logits so that risks are calibrated. The server combines the rounds as a Kalman filter does: every noisy
gradient is a measurement of the best coefficients, weighted by its noise, beside a public normal prior.

Rows are shortened by their features alone, never by their outcome (Mallows's weights, Künsch et al. 1989): so far that the
gradient is within the bound whichever outcome the patient has. Clipping would shorten gradients of rare events most, which
biases every risk.

A patient's rows count as one by their mean. Where patients clearly have several, the recalibration counts up to four of them, as
risks are judged row by row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy.linalg import solve_sylvester

from polyclinic.errors import ConfigError
from polyclinic.models.tabular import logistic_shapes
from polyclinic.privacy.streams import generator
from polyclinic.privacy.sums import mean_of_rows
from polyclinic.synthesis.layout import Layout
from polyclinic.training.logistic.moments import drawn_in, products, shorten_rows
from polyclinic.training.modules import check_fit
from polyclinic.training.synthesis import SumsTask
from polyclinic.types import Arrays, Builder, Floats, Ints

#: With more features only variances are asked for, since the noise in all products would hide them.
MOST_CORRELATED = 300
#: So many rounds come before one that recalibrates.
LEAST_ROUNDS = 2
#: Variance of all logits together under the prior of the coefficients of standardised features.
PRIOR_VARIANCE = 1.0
# Shares of the squared length of a patient's first vector: products with the outcome, means, products of features, rows.
_SHARES = (0.4, 0.2, 0.35, 0.05)
# The recalibration weighs a patient by at most this many rows, if their mean number exceeds 1 by so many standard errors and the
# noise then is at most this part of the rarest class.
_MOST_ROWS, _SURELY, _CHEAP = 4.0, 2.0, 0.1
# A class has at least this share. Shortening leaves at least this much of a mean row.
_RAREST, _LEAST_LEVEL = 0.002, 0.3
# The usual variance of a feature that is 0 or 1.
_OF_YES_OR_NO = 0.2
# However noisy, a direction has so much of the variance that is assumed of it.
_LEAST_SEEN = 0.5
# Standard deviation of the mean logit around that of the first round's shares, and how much of a gradient's mean square counts as
# error of the linear approximation.
_MEAN, _CURVED = 1.5, 0.5
# A logit further from the mean than this many standard deviations counts in the stretch as if it lay there.
_FARTHEST = 4.0
# Standard deviations of the recalibration's shift and stretch under their priors, the longest step, and the least stretch.
_SHIFT, _STRETCH, _LONGEST, _LEAST_STRETCH = 1.0, 0.25, 2.0, 0.3
# Normal draws by which means over patients' logits are computed.
_DRAWS = 512


class Table(Layout):
    """A record as one row of standardised features, zero where missing, and the one-hot class."""

    def rows(self, x: Floats, y: Ints, hospital: int = 0) -> Floats:
        return np.concatenate([np.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0), np.eye(self.classes)[y]], axis=1)


@dataclass(frozen=True, eq=False)
class Newton:
    """``synthesis.sums.SumsMethod`` of a logistic regression with ``layout.features`` features.

    rounds: 1 or more.
    recalibrates: Whether the last of three rounds or more shifts and stretches the logits.

    A question holds these, the last three only in such a last round:

    ``basis``: (q, q), whose columns are the coordinates, the intercept's first and then one for each feature
    ``weights``: (q, K-1), coefficients of orthonormal contrasts of the K classes' logits
    ``radius``: (1,), the longest gradient in these coordinates
    ``centre``, ``spread``: (K-1,) and (1,) of the contrasts
    ``most_rows``: (1,), by how many rows a patient is weighed at most

    Neighbouring relation: add or remove one patient, who moves a sum by at most 1.
    """

    layout: Layout
    rounds: int
    recalibrates: bool = True
    name: ClassVar[str] = "newton"

    def question(self, round: int, state: Arrays) -> Arrays:
        """Nothing in the first round; then coordinates and model; in the last also the logits' mean and deviation."""
        if "basis" not in state:
            return {}
        asked = {name: state[name] for name in ("basis", "weights", "radius")}
        if self.recalibrates and round == self.rounds > LEAST_ROUNDS:
            asked |= {name: state[name] for name in ("centre", "spread", "most_rows")}
        return asked

    def size(self, round: int, question: Arrays) -> int:
        """Numbers of the sum that answers ``question``."""
        if "spread" in question:
            return self._logits + 1
        return self._width * self._logits + (0 if question else self._width + len(self._pairs[0]) + 1)

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
        features, outcome = self._split(z)
        rows = np.bincount(patient, minlength=patients).astype(np.float64)
        if not question:
            more = math.sqrt(_SHARES[3]) * (np.clip(rows, 1.0, _MOST_ROWS) - 1) / (_MOST_ROWS - 1)
            return np.concatenate(
                [mean_of_rows(self._moments(features, outcome), patient, patients), more[:, None]], axis=1
            )
        logits = features @ question["weights"]
        if "spread" not in question:
            return mean_of_rows(self._gradients(question, features, outcome, self._chances(logits)), patient, patients)
        most = float(question["most_rows"][0])
        scores = mean_of_rows(self._calibration(question, logits, outcome), patient, patients)
        return np.asarray(scores * (np.minimum(rows, most) / most)[:, None])

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        """The next state.

        Args:
            round: The round, from 1 on.
            state: What was made of the sums so far.
            mean: (size,) noisy sum by the number of patients.
            noise: Standard deviation in each entry of ``mean``.
        """
        asked = self.question(round, state)
        patients = max(float(state.get("patients", np.ones(1))[0]), 1.0)
        if not asked:
            return self._begin(state, mean, noise, patients)
        if "spread" in asked:
            return self._calibrate(state, mean, noise, patients)
        scale = float(state["radius"][0])
        gradient = mean.reshape(self._width, self._logits) * scale
        return self._step(state, gradient, noise * scale, patients)

    def arrays(self, state: Arrays, like: Arrays) -> Arrays:
        """The model as the two arrays, weight and bias, of ``models.tabular.logistic``; those of ``like`` before there is one."""
        if "weights" not in state:
            return like
        every = self._contrasts @ state["weights"].T
        parts = {2: every[:, 1:], 1: every[:, 0]}
        return {name: np.ascontiguousarray(parts[value.ndim]).astype(value.dtype) for name, value in like.items()}

    @cached_property
    def _width(self) -> int:
        return self.layout.features + 1

    @cached_property
    def _logits(self) -> int:
        return self.layout.classes - 1

    @cached_property
    def _contrasts(self) -> Floats:
        """(K, K-1) orthonormal columns that add up to 0, each class beside those before it (Helmert)."""
        columns = np.triu(np.ones((self._logits + 1, self._logits)))
        columns[np.arange(1, self._logits + 1), np.arange(self._logits)] = -np.arange(1.0, self._logits + 1)
        return np.asarray(-columns / np.linalg.norm(columns, axis=0))

    def _chances(self, logits: Floats) -> Floats:
        """(n, K) probabilities of the classes by (n, K-1) contrasts of their logits."""
        grown = logits @ self._contrasts.T
        grown = np.exp(grown - grown.max(axis=1, keepdims=True))
        chances: Floats = grown / grown.sum(axis=1, keepdims=True)
        return chances

    @property
    def _outcome(self) -> float:
        """The length of an outcome's contrasts."""
        return math.sqrt(1 - 1 / (self._logits + 1))

    @cached_property
    def _radius(self) -> float:
        """The length of a row of standardised features that is usual, and from which on rows are shortened."""
        return math.sqrt(1.0 + float(self._usual_variances.sum()))

    @cached_property
    def _usual_variances(self) -> Floats:
        """(q-1,) variances of features before any is seen: standardised numbers, and what is 0 or 1."""
        return np.where(self.layout.numeric[: self.layout.features], 1.0, _OF_YES_OR_NO)

    @cached_property
    def _pairs(self) -> tuple[Ints, Ints]:
        """Products of which features are asked for: of all, or where they are many each with itself."""
        at = np.arange(self._width - 1)
        return np.triu_indices(len(at)) if len(at) <= MOST_CORRELATED else (at, at)

    def check(self, question: Arrays) -> None:
        """Raises ConfigError for arrays of other shapes than a round asks."""
        q = self._width
        shapes = {"basis": (q, q), "weights": (q, self._logits), "radius": (1,)}
        shapes |= {"centre": (self._logits,), "spread": (1,), "most_rows": (1,)} if "spread" in question else {}
        if question and set(question) != set(shapes):
            raise ConfigError(f"The question holds {', '.join(sorted(question))}, which no round of newton asks.")
        for name, value in question.items():
            if value.shape != shapes[name] or value.dtype != np.float64:
                raise ConfigError(f"The question's {name!r} must be float64 of shape {shapes[name]}.")
        for name in ("radius", "spread", "most_rows"):
            if name in question and not question[name][0] > 0:
                raise ConfigError(f"The question's {name!r} is {question[name][0]:g}; allowed are numbers above 0.")

    def _split(self, z: Floats) -> tuple[Floats, Floats]:
        """(n, q) features behind a 1, and (n, K) outcomes."""
        features = np.concatenate([np.ones((len(z), 1)), z[:, : self.layout.features]], axis=1)
        return features, z[:, self.layout.label]

    def _moments(self, features: Floats, outcome: Floats) -> Floats:
        short = shorten_rows(features, self._radius) / self._radius
        contrasts = outcome @ self._contrasts / self._outcome
        crossed = (short[:, :, None] * contrasts[:, None, :]).reshape(len(short), -1)
        parts = zip(_SHARES[:3], (crossed, short, products(short[:, 1:], MOST_CORRELATED)), strict=True)
        return np.concatenate([math.sqrt(share) * part for share, part in parts], axis=1)

    def _gradients(self, question: Arrays, features: Floats, outcome: Floats, chances: Floats) -> Floats:
        """Rows shortened so that the gradient is within the radius whatever the outcome is."""
        radius, residual = question["radius"][0], (outcome - chances) @ self._contrasts
        short = shorten_rows(features @ question["basis"], radius / _longest(chances)[:, None])
        return np.asarray((short[:, :, None] * residual[:, None, :]).reshape(len(short), -1) / radius)

    def _calibration(self, question: Arrays, logits: Floats, outcome: Floats) -> Floats:
        """The score of a shift of each logit and a stretch of all."""
        slopes, chances = self._slopes(question, logits)
        residual = (outcome - chances) @ self._contrasts
        scores: Floats = np.einsum("nkj,nk->nj", slopes, residual) / self._longest_scores
        return scores

    def _slopes(self, question: Arrays, logits: Floats) -> tuple[Floats, Floats]:
        """(n, K-1, K) how logits depend on shift and stretch, where far ones count as nearer, and their probabilities."""
        scaled = shorten_rows((logits - question["centre"]) / question["spread"], _FARTHEST)
        shifts = np.broadcast_to(np.eye(self._logits), (len(logits), self._logits, self._logits))
        return np.concatenate([shifts, scaled[:, :, None]], axis=2), self._chances(logits)

    @property
    def _longest_scores(self) -> Floats:
        """(K,) by which the scores of shifts and of the stretch are divided: both parts are as long at the most, together 1."""
        return 2.0 * np.array([*[1.0] * self._logits, _FARTHEST])

    def _begin(self, state: Arrays, mean: Floats, noise: float, patients: float) -> Arrays:
        """Coordinates by the noisy moments, and the first model."""
        q, k, radius = self._width, self._logits, self._radius
        scales = [
            self._outcome * radius / math.sqrt(_SHARES[0]),
            radius / math.sqrt(_SHARES[1]),
            radius**2 / math.sqrt(_SHARES[2]),
        ]
        crossed, means, squares = (
            part * scale for part, scale in zip(np.split(mean[:-1], [q * k, q * k + q]), scales, strict=True)
        )
        more, error = (entry * (_MOST_ROWS - 1) / math.sqrt(_SHARES[3]) for entry in (float(mean[-1]), noise))
        level = min(max(float(means[0]), _LEAST_LEVEL), 1.0)
        centre = means[1:] / level / (1 + (noise * scales[1] / level) ** 2)  # as if they were usually 0, give or take 1
        first, second = self._pairs
        moments = np.zeros((q - 1, q - 1))
        moments[first, second] = squares / np.where(first == second, 1.0, math.sqrt(2.0))
        moments[first, second] -= level**2 * centre[first] * centre[second]
        moments += np.triu(moments, 1).T
        moments, spectrum = drawn_in(moments, self._usual_variances, noise * scales[2])
        values, vectors = np.linalg.eigh(moments)
        floored = np.maximum(values, max(spectrum, 1e-6))
        basis = np.eye(q)
        basis[1:, 1:] = vectors / np.sqrt(floored)
        basis[0, 1:] = -centre @ basis[1:, 1:]
        crossed = crossed.reshape(q, k)
        seen = crossed[0] / level @ self._contrasts.T + 1 / (k + 1)
        share = _shares(seen, noise * scales[0] / level)
        several = more > max(_SURELY * error, 1e-9) and noise * _MOST_ROWS < _CHEAP * float(share.min())
        usual = np.log(share) @ self._contrasts
        begun = {
            **state, "basis": basis, "weights": np.concatenate([usual[None], np.zeros((q - 1, k))]), "usual": usual,
            "length": np.array([math.sqrt(1 + max(float((np.clip(values, 0.0, None) / floored).sum()), 1.0))]),
            "seen": np.concatenate([[1.0], np.clip(values / floored, _LEAST_SEEN, 1.0)]),
            "precision": np.zeros((k, k)), "informed": np.zeros((q, k)), "total": np.trace(moments)[None],
            "rows": np.array([1 + more * several]), "most_rows": np.array([_MOST_ROWS if several else 1.0]),
        }  # fmt: skip
        gradient = basis.T @ (crossed - np.outer(np.concatenate([[1.0], centre]), level * share @ self._contrasts))
        error = noise * math.hypot(scales[0], scales[1] * float(share.max())) * math.sqrt(float((basis**2).sum()) / q)
        return self._step(begun, gradient, error, patients)

    def _step(self, state: Arrays, gradient: Floats, noise: float, patients: float) -> Arrays:
        """The best coefficients by all gradients so far. noise: standard deviation in each entry of ``gradient``."""
        basis, seen = state["basis"], state["seen"][:, None]
        inverse = np.linalg.inv(basis)
        here = inverse @ state["weights"]
        curvature = self._curvature(state, here)
        typical = float(np.trace(curvature)) / self._logits
        variance = noise**2 + typical / patients + _CURVED * float((gradient**2).mean())
        precision = state["precision"] + curvature @ curvature / variance
        informed = state["informed"] + (seen * here @ curvature + gradient) @ curvature / variance
        prior = basis[1:].T @ basis[1:] * (state["total"][0] / PRIOR_VARIANCE)
        prior[0, 0] = _MEAN**-2
        wanted = informed.copy()
        wanted[0] += state["usual"] / _MEAN**2
        there = solve_sylvester(prior / seen / seen.T, precision, wanted) / seen
        centre, spread = self._logits_of(state, there)
        return {
            **state, "weights": basis @ there, "precision": precision, "informed": informed, "centre": centre,
            "radius": state["length"] * _longest(self._chances(self._typical_logits(state, there))).mean(),
            "spread": np.array([math.sqrt(max(float(np.trace(spread)) / self._logits, 1e-4))]),
        }  # fmt: skip

    def _logits_of(self, state: Arrays, here: Floats) -> tuple[Floats, Floats]:
        """Mean (K-1,) and covariance (K-1, K-1) of the patients' logits by the second moments."""
        return here[0], here[1:].T @ (state["seen"][1:, None] * here[1:])

    def _typical_logits(self, state: Arrays, here: Floats) -> Floats:
        """(draws, K-1) logits of patients, were these normal."""
        mean, covariance = self._logits_of(state, here)
        values, vectors = np.linalg.eigh(covariance)
        draws = self._draws * np.sqrt(np.clip(values, 0.0, None))
        return np.asarray(mean + draws @ vectors.T)

    @cached_property
    def _draws(self) -> Floats:
        """(draws, K-1) standard normal, each beside its opposite."""
        draws = generator(0, "newton", "logits").standard_normal((_DRAWS // 2, self._logits))
        return np.concatenate([draws, -draws])

    def _curvature(self, state: Arrays, here: Floats) -> Floats:
        """(K-1, K-1) mean covariance of the outcome."""
        chances = self._chances(self._typical_logits(state, here))
        whole = np.diag(chances.mean(axis=0)) - chances.T @ chances / len(chances)
        return self._contrasts.T @ whole @ self._contrasts + 1e-3 * np.eye(self._logits)

    def _calibrate(self, state: Arrays, mean: Floats, noise: float, patients: float) -> Arrays:
        """The model after one noisy Newton step of shift and stretch, drawn towards none by their priors."""
        longest = self._longest_scores * (state["most_rows"][0] / state["rows"][0])
        score, errors = mean * longest, noise * longest
        typical = self._typical_logits(state, np.linalg.solve(state["basis"], state["weights"]))
        slopes, chances = self._slopes(state, typical)
        slopes = np.einsum("kc,ncj->nkj", self._contrasts, slopes)
        along = np.einsum("nkj,nk->nj", slopes, chances)
        information = np.einsum("nki,nk,nkj->ij", slopes, chances, slopes) - along.T @ along
        information = information / len(typical) + 1e-3 * np.eye(len(score))
        weight = information @ np.linalg.inv(np.diag(errors**2) + information / patients)
        prior = np.diag([*[_SHIFT**-2] * self._logits, _STRETCH**-2])
        step = np.linalg.solve(weight @ information + prior, weight @ score)
        step *= min(1.0, _LONGEST / max(float(np.linalg.norm(step)), 1e-12))
        centre, spread = state["centre"], float(state["spread"][0])
        stretch = max((spread + step[-1]) / spread, _LEAST_STRETCH)
        weights = state["weights"] * stretch
        weights[0] += centre + step[:-1] - stretch * centre
        return {**state, "weights": weights, "centre": centre + step[:-1], "spread": np.array([spread * stretch])}


@dataclass(frozen=True, eq=False)
class NewtonTask(SumsTask):
    """A round of ``Newton`` at a hospital, which is sent the model beside the question."""

    method: Newton

    def check(self, build: Builder, arrays: Arrays, features: int, engine: str = "auto", private: bool = True) -> None:
        """Checks that the arrays are the model's.

        Args:
            build: Of no weight here.
            arrays: The model's arrays, if there are any.
            features: The width of a row.
            engine: Of no weight here.
            private: Of no weight here.

        Raises:
            ConfigError: Names or shapes differ.
        """
        if arrays:
            check_fit(logistic_shapes(features, self.method.layout.classes), arrays)

    def _probe(self) -> None:
        """Ours adds up rows that it reads one by one, and needs no made-up records to show it."""
        self.method.check(self._given)


def _shares(noisy: Floats, error: float) -> Floats:
    """(K,) shares of the classes: of each the mean under a uniform prior, where it was seen with ``error``."""
    grid = np.linspace(_RAREST, 1 - _RAREST, 999)
    far = (grid - noisy[:, None]) ** 2 / (2 * max(error, 1e-6) ** 2)
    weight = np.exp(far.min(axis=1, keepdims=True) - far)
    shares: Floats = (weight @ grid) / weight.sum(axis=1)
    return shares / float(shares.sum())


def _longest(chances: Floats) -> Floats:
    """(n,) the length of outcome less ``chances`` for the outcome of which it is longest: the least likely."""
    return np.asarray(np.sqrt(1 + (chances**2).sum(axis=1) - 2 * chances.min(axis=1)))
