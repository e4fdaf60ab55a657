"""Logistic regression by noisy Newton steps: what each round asks of a patient, and the model that follows from the sums.

The first round sums second moments of the features and their products with the outcome. They give coordinates in which the
features are uncorrelated, and a first model. Each later round sums gradients in these coordinates, and the last one what shifts
and stretches all logits so that risks are calibrated. The server combines the rounds as a Kalman filter does: every noisy
gradient is a measurement of the best coefficients, weighted by its noise, beside a public normal prior.

Extreme rows are shortened by their features alone, never by their outcome (Mallows's weights, Künsch et al. 1989).
Clipping gradients would shorten those of rare events most and bias every risk; here every gradient is within the bound already.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.linalg import solve_sylvester

from polyclinic.errors import ConfigError
from polyclinic.privacy.streams import generator
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.sums import mean_of_rows
from polyclinic.training.modules import load
from polyclinic.training.synthesis import SumsTask
from polyclinic.types import Arrays, Builder, Floats, Ints

#: With more features only variances are asked for, since the noise in all products would hide them.
MOST_CORRELATED = 300
#: So many rounds come before one that recalibrates.
LEAST_ROUNDS = 2
#: Variance of all logits together under the prior of the coefficients of standardised features.
PRIOR_VARIANCE = 2.0
# Shares of the squared length of a patient's first vector: products with the outcome, means, products of features.
_SHARES = (0.4, 0.2, 0.4)
# A class has at least this share. Shortening leaves at least this much of a mean row.
_RAREST, _LEAST_LEVEL = 0.002, 0.3
# The usual variance of a feature that is 0 or 1. Variances are as usual, give or take a share of it, and within these shares.
_OF_YES_OR_NO, _USUALLY, _LEAST_VARIANCE, _MOST_VARIANCE = 0.2, 0.5, 0.02, 2.0
# However noisy, products of features count for so much, and a direction has so much of the variance that is assumed of it.
_LEAST_TRUST, _LEAST_SEEN = 1e-3, 0.5
# Standard deviation of the mean logit around that of the first round's shares, and how much of a gradient's mean square counts as
# error of the linear approximation.
_MEAN, _CURVED = 1.5, 0.5
# Logits further from their mean than this many standard deviations are moved there before they are recalibrated.
_FARTHEST = 4.0
# Standard deviations of the recalibration's shift and stretch under their priors, the longest step, and the least stretch.
_SHIFT, _STRETCH, _LONGEST, _LEAST_STRETCH = 1.0, 1.0, 2.0, 0.3
# Normal draws by which means over patients' logits are computed.
_DRAWS = 512


class Table(Layout):
    """A record as one row of standardised features, zero where missing, and the one-hot class."""

    def rows(self, x: Floats, y: Ints, hospital: int = 0) -> Floats:
        return np.concatenate([np.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0), np.eye(self.classes)[y]], axis=1)


@dataclass(frozen=True, eq=False)
class Newton:
    """``synthesis.sums.SumsMethod`` of a logistic regression with ``layout.features`` features.

    rounds: 1 or more. recalibrates: Whether the last of three rounds or more shifts and stretches the logits.

    A question holds ``basis`` (q, q), whose columns are the coordinates, the intercept's first and then one for each feature;
    ``weights`` (q, K-1), coefficients of orthonormal contrasts of the K classes' logits; and ``radius`` (1,), from which length
    on rows are shortened in these coordinates. The last one also has ``centre`` (K-1,) and ``spread`` (1,) of the contrasts.
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
            asked |= {name: state[name] for name in ("centre", "spread")}
        return asked

    def size(self, round: int, question: Arrays) -> int:
        """Numbers of the sum that answers ``question``."""
        if "spread" in question:
            return self._logits + 1
        return self._width * self._logits + (0 if question else self._width + len(self._pairs[0]))

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size) vectors of length at most 1. Raises ConfigError for arrays of other shapes."""
        self._check(question)
        features, outcome = self._split(z)
        if not question:
            given = self._moments(features, outcome)
        else:
            logits = features @ question["weights"]
            if "spread" in question:
                given = self._calibration(question, logits, outcome)
            else:
                given = self._gradients(question, features, (outcome - self._chances(logits)) @ self._contrasts)
        return mean_of_rows(given, patient, patients)

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        """The next state. mean: (size,) noisy sum by the number of patients; noise: standard deviation in each entry."""
        asked = self.question(round, state)
        patients = max(float(state.get("patients", np.ones(1))[0]), 1.0)
        if not asked:
            return self._begun(state, mean, noise, patients)
        if "spread" in asked:
            return self._calibrated(state, mean, noise, patients)
        scale = float(state["radius"][0]) * self._longest
        gradient = mean.reshape(self._width, self._logits) * scale
        return self._step(state, gradient, noise * scale, patients)

    def arrays(self, state: Arrays, like: Arrays) -> Arrays:
        """The model as the two arrays, weight and bias, of ``models.tabular.logistic``; those of ``like`` before there is one."""
        if "weights" not in state:
            return like
        every = self._contrasts @ state["weights"].T
        parts = {2: every[:, 1:], 1: every[:, 0]}
        return {name: np.ascontiguousarray(parts[value.ndim]).astype(value.dtype) for name, value in like.items()}

    @property
    def _width(self) -> int:
        return self.layout.features + 1

    @property
    def _logits(self) -> int:
        return self.layout.classes - 1

    @property
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
    def _longest(self) -> float:
        """The longest that outcomes less probabilities are: of two classes at all, of more usually, so that few are clipped."""
        return math.sqrt(2.0) if self._logits == 1 else 1.0

    @property
    def _radius(self) -> float:
        """The length of a row of standardised features that is usual, and from which on rows are shortened."""
        return math.sqrt(1.0 + float(self._usual_variances.sum()))

    @property
    def _usual_variances(self) -> Floats:
        """(q-1,) variances of features before any is seen: standardised numbers, and what is 0 or 1."""
        return np.where(self.layout.numeric[: self.layout.features], 1.0, _OF_YES_OR_NO)

    @property
    def _pairs(self) -> tuple[Ints, Ints]:
        """Products of which features are asked for: of all, or where they are many each with itself."""
        at = np.arange(self._width - 1)
        return np.triu_indices(len(at)) if len(at) <= MOST_CORRELATED else (at, at)

    def _check(self, question: Arrays) -> None:
        q = self._width
        shapes = {"basis": (q, q), "weights": (q, self._logits), "radius": (1,)}
        shapes |= {"centre": (self._logits,), "spread": (1,)} if "spread" in question else {}
        if question and set(question) != set(shapes):
            raise ConfigError(f"The question holds {', '.join(sorted(question))}, which no round of newton asks.")
        for name, value in question.items():
            if value.shape != shapes[name] or value.dtype != np.float64:
                raise ConfigError(f"The question's {name!r} must be float64 of shape {shapes[name]}.")
        for name in ("radius", "spread"):
            if name in question and not question[name][0] > 0:
                raise ConfigError(f"The question's {name!r} is {question[name][0]:g}; allowed are numbers above 0.")

    def _split(self, z: Floats) -> tuple[Floats, Floats]:
        """(n, q) features behind a 1, and (n, K) outcomes."""
        features = np.concatenate([np.ones((len(z), 1)), z[:, : self.layout.features]], axis=1)
        return features, z[:, self.layout.label]

    def _moments(self, features: Floats, outcome: Floats) -> Floats:
        short = _shortened(features, self._radius) / self._radius
        crossed = (short[:, :, None] * (outcome @ self._contrasts)[:, None, :]).reshape(len(short), -1)
        parts = zip(_SHARES, (crossed, short, self._products(short[:, 1:])), strict=True)
        return np.concatenate([math.sqrt(share) * part for share, part in parts], axis=1)

    def _products(self, rows: Floats) -> Floats:
        """(n, pairs) products as ``_pairs`` has them, those of two features by the square root of 2."""
        width = rows.shape[1]
        if width > MOST_CORRELATED:
            return rows**2
        products = np.empty((len(rows), width * (width + 1) // 2))
        scaled, start = math.sqrt(2.0) * rows, 0
        for at in range(width):
            products[:, start] = rows[:, at] ** 2
            np.multiply(rows[:, at, None], scaled[:, at + 1 :], out=products[:, start + 1 : start + width - at])
            start += width - at
        return products

    def _gradients(self, question: Arrays, features: Floats, residual: Floats) -> Floats:
        radius = float(question["radius"][0])
        short = _shortened(features @ question["basis"], radius)
        return (short[:, :, None] * residual[:, None, :]).reshape(len(short), -1) / (radius * self._longest)

    def _calibration(self, question: Arrays, logits: Floats, outcome: Floats) -> Floats:
        """The score of a shift of each logit and a stretch of all."""
        slopes, chances = self._slopes(question, logits)
        residual = (outcome - chances) @ self._contrasts
        scores: Floats = np.einsum("nkj,nk->nj", slopes, residual) / self._longest_scores
        return scores

    def _slopes(self, question: Arrays, logits: Floats) -> tuple[Floats, Floats]:
        """(n, K-1, K) how logits that were moved within reach depend on shift and stretch, and their probabilities."""
        scaled = (logits - question["centre"]) / question["spread"]
        scaled = _shortened(scaled, _FARTHEST)
        shifts = np.broadcast_to(np.eye(self._logits), (len(logits), self._logits, self._logits))
        return np.concatenate([shifts, scaled[:, :, None]], axis=2), self._chances(
            question["centre"] + question["spread"] * scaled
        )

    @property
    def _longest_scores(self) -> Floats:
        """(K,) by which the scores of shifts and of the stretch are divided, so that both parts are as long at the most."""
        return self._longest * math.sqrt(2.0) * np.array([*[1.0] * self._logits, _FARTHEST])

    def _begun(self, state: Arrays, mean: Floats, noise: float, patients: float) -> Arrays:
        """Coordinates by the noisy moments, and the first model."""
        q, k, radius = self._width, self._logits, self._radius
        scales = [radius / math.sqrt(_SHARES[0]), radius / math.sqrt(_SHARES[1]), radius**2 / math.sqrt(_SHARES[2])]
        crossed, means, products = (
            part * scale for part, scale in zip(np.split(mean, [q * k, q * k + q]), scales, strict=True)
        )
        level = min(max(float(means[0]), _LEAST_LEVEL), 1.0)
        centre = means[1:] / level / (1 + (noise * scales[1] / level) ** 2)  # as if they were usually 0, give or take 1
        first, second = self._pairs
        moments = np.zeros((q - 1, q - 1))
        moments[first, second] = products / np.where(first == second, 1.0, math.sqrt(2.0))
        moments[first, second] -= level**2 * centre[first] * centre[second]
        moments += np.triu(moments, 1).T
        moments, spectrum = _drawn_in(moments, self._usual_variances, noise * scales[2])
        values, vectors = np.linalg.eigh(moments)
        floored = np.maximum(values, max(spectrum, 1e-6))
        basis = np.eye(q)
        basis[1:, 1:] = vectors / np.sqrt(floored)
        basis[0, 1:] = -centre @ basis[1:, 1:]
        crossed = crossed.reshape(q, k)
        seen = crossed[0] / level @ self._contrasts.T + 1 / (k + 1)
        share = _shares(seen, noise * scales[0] / level)
        usual = np.log(share) @ self._contrasts
        begun = {
            **state, "basis": basis, "weights": np.concatenate([usual[None], np.zeros((q - 1, k))]), "usual": usual,
            "radius": np.array([math.sqrt(1 + max(float((np.clip(values, 0.0, None) / floored).sum()), 1.0))]),
            "seen": np.concatenate([[1.0], np.clip(values / floored, _LEAST_SEEN, 1.0)]),
            "precision": np.zeros((k, k)), "informed": np.zeros((q, k)), "total": np.trace(moments)[None],
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
            "spread": np.array([math.sqrt(max(float(np.trace(spread)) / self._logits, 1e-4))]),
        }  # fmt: skip

    def _logits_of(self, state: Arrays, here: Floats) -> tuple[Floats, Floats]:
        """Mean (K-1,) and covariance (K-1, K-1) of the patients' logits by the second moments."""
        return here[0], here[1:].T @ (state["seen"][1:, None] * here[1:])

    def _typical_logits(self, state: Arrays, here: Floats) -> Floats:
        """(draws, K-1) logits of patients, were these normal."""
        mean, covariance = self._logits_of(state, here)
        values, vectors = np.linalg.eigh(covariance)
        draws = generator(0, "newton", "logits").standard_normal((_DRAWS // 2, self._logits))
        draws = np.concatenate([draws, -draws]) * np.sqrt(np.clip(values, 0.0, None))
        return np.asarray(mean + draws @ vectors.T)

    def _curvature(self, state: Arrays, here: Floats) -> Floats:
        """(K-1, K-1) mean covariance of the outcome."""
        chances = self._chances(self._typical_logits(state, here))
        whole = np.diag(chances.mean(axis=0)) - chances.T @ chances / len(chances)
        return self._contrasts.T @ whole @ self._contrasts + 1e-3 * np.eye(self._logits)

    def _calibrated(self, state: Arrays, mean: Floats, noise: float, patients: float) -> Arrays:
        """The model after one noisy Newton step of shift and stretch, drawn towards none by their priors."""
        score, errors = mean * self._longest_scores, noise * self._longest_scores
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
        return {**state, "weights": weights}


@dataclass(frozen=True, eq=False)
class NewtonTask(SumsTask):
    """A round of ``Newton`` at a hospital, which is sent the model beside the question."""

    def check(self, build: Builder, arrays: Arrays, features: int, engine: str = "auto", private: bool = True) -> None:
        """Raises ConfigError for arrays that are not the model's."""
        if arrays:
            load(build, arrays)


def _shares(noisy: Floats, error: float) -> Floats:
    """(K,) shares of the classes: of each the mean under a uniform prior, where it was seen with ``error``."""
    grid = np.linspace(_RAREST, 1 - _RAREST, 999)
    far = (grid - noisy[:, None]) ** 2 / (2 * max(error, 1e-6) ** 2)
    weight = np.exp(far.min(axis=1, keepdims=True) - far)
    shares: Floats = (weight @ grid) / weight.sum(axis=1)
    return shares / float(shares.sum())


def _shortened(rows: Floats, radius: float) -> Floats:
    """Rows that are longer than ``radius``, scaled to that length."""
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.asarray(rows * np.minimum(1.0, radius / np.maximum(lengths, 1e-300)))


def _drawn_in(moments: Floats, usual: Floats, error: float) -> tuple[Floats, float]:
    """Noisy covariances, drawn towards those of independent features of ``usual`` variances as far as they are noise, and the
    largest eigenvalue of the noise that is left. error: standard deviation of the noise in a square."""
    variances, count = np.diag(moments), len(moments)
    products = moments - np.diag(variances)
    entries = products[np.triu_indices(count, 1)]
    square = float((entries**2).mean()) if len(entries) else 0.0
    trust = max(_LEAST_TRUST, 1 - error**2 / 2 / max(square, 1e-12))
    spread = (_USUALLY * usual) ** 2
    variances = usual + (variances - usual) * spread / (spread + error**2)
    variances = np.clip(variances, _LEAST_VARIANCE * usual, _MOST_VARIANCE * usual)
    return trust * products + np.diag(variances), trust * error * math.sqrt(2 * count)
