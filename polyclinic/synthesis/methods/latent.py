"""Latent classes by private EM: every round a sum of what patients have, by how likely each is in which class.

Rounds: 1 sums over all patients; 2 the second moments of the most telling columns, whose largest directions start the classes;
then steps of EM (Dempster, Laird, Rubin 1977), the last half of them averaged, as in online EM (Cappe and Moulines 2009), so that
more steps cost little accuracy. Differences between classes that noise explains are taken out at each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.basis import Basis
from polyclinic.synthesis.methods.classes import LatentClasses, Sums, calibrated, distributions, evidence
from polyclinic.synthesis.methods.covariance import denoised, pairs
from polyclinic.synthesis.methods.hot import Hot
from polyclinic.synthesis.methods.options import check_number
from polyclinic.synthesis.sums import mean_of_rows
from polyclinic.types import Arrays, Floats, Ints

# Numeric components are shortened to so many times the root of the square that is expected of them.
_RADIUS = 1.2
# Directions that start the classes, at most.
_DIRECTIONS = 10


@dataclass(frozen=True, eq=False)
class Latent:
    """A patient's vector: for each class [1, 0/1 numbers, numbers of codes, first and second moments] times its chance.

    classes: latent ones. rounds: sums in all, of which two precede EM. most: codes of a set that count. watched: columns in
    the second moments of round 2. start: number of the public random directions that start the classes. Raises ConfigError
    for an option out of range.
    """

    layout: Layout
    classes: int = 12
    rounds: int = 8
    most: int = 20
    watched: int = 80
    start: int = 0
    name: ClassVar[str] = "latent"
    separate: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_number(self.name, "classes", self.classes, 1, 200, whole=True)
        check_number(self.name, "rounds", self.rounds, 3, 200, whole=True)
        check_number(self.name, "most", self.most, 1, 10_000, whole=True)
        check_number(self.name, "watched", self.watched, 2, 1000, whole=True)
        check_number(self.name, "start", self.start, 0, 2**31, whole=True)

    def question(self, round: int, state: Arrays) -> Arrays:
        """Of round 2 the ``watched`` columns; then ``bias`` and ``weights`` of each class' logarithmic chance."""
        if round == 1:
            return {}
        if round == 2:
            return {"watched": state["watched"]}
        if round == 3:
            return dict(zip(("bias", "weights"), self._beginning(state), strict=True))
        return dict(zip(("bias", "weights"), evidence(self._classes_of(state), self._hot), strict=True))

    def size(self, round: int, question: Arrays) -> int:
        if round == 2:
            watched = len(question["watched"])
            return watched * (watched + 1) // 2
        return (1 if round == 1 else self.classes) * (1 + len(self._scale))

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size); of length at most 1 whatever the rows hold."""
        features = self._features(z)
        if round == 2:
            chosen = features[:, question["watched"]]
            rows, columns, twice = pairs(chosen.shape[1])
            return mean_of_rows(twice * chosen[:, rows] * chosen[:, columns] / self._watched_square, patient, patients)
        vectors = np.concatenate([np.full((len(z), 1), self._one), features * self._scale], axis=1)
        if round == 1:
            return mean_of_rows(vectors, patient, patients)
        height = features @ question["weights"].T + question["bias"]
        chance = np.exp(height - height.max(axis=1, keepdims=True))
        chance /= chance.sum(axis=1, keepdims=True)
        split = (chance[:, :, None] * vectors[:, None, :]).reshape(len(z), self.size(round, question))
        return mean_of_rows(split, patient, patients)

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        if round == 1:
            return {**state, "pooled": mean, "noise": np.array([noise]), "watched": self._watch(mean)}
        if round == 2:
            return {**state, "moments": mean, "moments_noise": np.array([noise])}
        kept = max((self.rounds - 2) // 2, 1)
        weight = 1.0 / max(round - 2 - kept + 1, 1)
        before, level = (state["sums"], float(state["sums_noise"][0])) if weight < 1.0 else (np.zeros(mean.shape), 0.0)
        level = float(np.hypot((1.0 - weight) * level, weight * noise))
        return {**state, "sums": (1.0 - weight) * before + weight * mean, "sums_noise": np.array([level])}

    def synthesizer(self, state: Arrays) -> LatentClasses:
        found = self._classes_of(state)
        absent = self._absent(found["frequencies"])
        # Missing cells stood at 0 in the sums.
        square = (found["variance"] + found["mean"] ** 2) / (1.0 - absent)
        mean = found["mean"] / (1.0 - absent)
        variance = np.maximum(square - mean**2, found["variance"])
        frequencies = found["frequencies"].copy()
        of_all = self._hot.frequencies(self._split(state["pooled"][None]).hot)[0]
        for number, at in enumerate(self._hot.sets):
            frequencies[:, at] = calibrated(frequencies[:, at], found["shares"], found["counts"][:, number], of_all[at])
        changed = {"frequencies": frequencies, "mean": mean, "variance": variance}
        return LatentClasses(self.layout, {**found, **changed}, self.most)

    @cached_property
    def _basis(self) -> Basis:
        return Basis.of(self.layout)

    @cached_property
    def _hot(self) -> Hot:
        return Hot.of(self.layout, self.most)

    @cached_property
    def _reach(self) -> float:
        """The longest that the numeric components of a row are."""
        return _RADIUS * float(np.sqrt(max(self._basis.of_numeric, 1.0)))

    @property
    def _widths(self) -> tuple[int, int, int, int]:
        """Of 0/1 numbers, of numbers of codes, of first and of second moments."""
        numbers = int(self._basis.numeric.sum())
        return len(self._hot.places), len(self._hot.sets) * (self.most + 1), numbers, numbers

    @property
    def _watched_square(self) -> float:
        return self._hot.square + (self._reach**2 if self._basis.numeric.any() else 0.0)

    @cached_property
    def _one(self) -> float:
        """What a share, a 0/1 number and a number of codes count for."""
        hot = 1.0 + self._hot.square + len(self._hot.sets)
        numbers = float(self._basis.numeric.sum())
        return float(np.sqrt(1.0 / (hot + numbers)))

    @cached_property
    def _scale(self) -> Floats:
        """(features,) what they are multiplied by in a vector, so that it is no longer than 1."""
        numbers = float(self._basis.numeric.sum())
        each = np.sqrt(0.5 * numbers) * self._one
        return np.repeat([self._one, self._one, each / self._reach, each / self._reach**2], self._widths)

    def _features(self, z: Floats) -> Floats:
        """(n, features): 0/1 numbers, one-hot numbers of codes, numeric components and their squares."""
        hot = self._hot.values(z)
        parts = [hot, self._hot.counts(z).reshape(len(z), self._widths[1])]
        if self._basis.numeric.any():
            u = self._basis.forward(z)[:, self._basis.numeric]
            u *= np.minimum(1.0, self._reach / np.maximum(np.linalg.norm(u, axis=1, keepdims=True), 1e-300))
            parts += [u, u**2]
        return np.concatenate(parts, axis=1)

    def _split(self, means: Floats) -> Sums:
        """Of (C, 1 + features) sums of vectors."""
        cuts = np.cumsum((1, *self._widths))[:-1]
        shares, hot, counts, first, second = np.split(means / np.append(self._one, self._scale), cuts, axis=1)
        return Sums(shares[:, 0], hot, counts.reshape(len(means), len(self._hot.sets), self.most + 1), first, second)

    def _classes_of(self, state: Arrays) -> Arrays:
        """The classes of the sums so far."""
        sums = state["sums"].reshape(self.classes, -1)
        noise = np.full((1, sums.shape[1]), float(state["sums_noise"][0]))
        split, pooled, level = self._split(sums), self._split(state["pooled"][None]), self._split(noise)
        return distributions(split, pooled, level, self._hot, np.asarray(state["classes"], dtype=np.float64))

    def _watch(self, pooled: Floats) -> Ints:
        """Numeric components, and of the 0/1 numbers those that vary most: ``watched`` features."""
        hot = np.clip(self._split(pooled[None]).hot[0], 0.0, 1.0)
        numeric = np.arange(self._widths[2]) + sum(self._widths[:2])
        varying = np.argsort(-hot * (1.0 - hot), kind="stable")
        return np.concatenate([numeric, varying])[: self.watched].astype(np.int64)

    def _beginning(self, state: Arrays) -> tuple[Floats, Floats]:
        """Bias and weights that part patients at random along the largest directions of what is correlated."""
        watched = state["watched"]
        rows, columns, twice = pairs(len(watched))
        square = np.zeros((len(watched), len(watched)))
        square[rows, columns] = square[columns, rows] = state["moments"] / twice * self._watched_square
        pooled = state["pooled"][1:] / self._scale
        covariance = denoised(
            square - np.outer(pooled[watched], pooled[watched]), float(state["moments_noise"][0]) * self._watched_square
        )
        deviation = np.sqrt(np.maximum(np.diag(covariance), 1e-3))
        correlation = covariance / np.outer(deviation, deviation)
        np.fill_diagonal(correlation, 0.0)
        values, vectors = np.linalg.eigh(correlation)
        largest = slice(-min(_DIRECTIONS, len(values)), None)
        directions = vectors[:, largest] * np.sqrt(np.maximum(values[largest], 1e-3)) / deviation[:, None]
        # The same for every run: public numbers, not a patient's.
        draws = np.random.default_rng([self.start, *b"latent"]).standard_normal((self.classes, directions.shape[1]))
        weights = np.zeros((self.classes, len(self._scale)))
        weights[:, watched] = draws @ directions.T
        return -weights @ pooled, weights

    def _absent(self, frequencies: Floats) -> Floats:
        """(C, Q) how often the cells behind each numeric component are missing."""
        layout = self.layout
        absent = np.zeros((len(frequencies), layout.label.start))
        here = np.cumsum(~layout.numeric) - 1
        absent[:, np.flatnonzero(layout.nullable)] = frequencies[:, here[layout.missing]]
        for at in layout.trajectories:
            absent[:, at] = absent[:, at].mean(axis=1, keepdims=True)
        return np.clip(absent[:, self._basis.numeric], 0.0, 0.9)
