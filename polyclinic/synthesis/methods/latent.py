"""Latent classes by private EM: every round a sum of what patients have, by how likely each is in which class.

Round 1 sums each column alone within each class of the label, by which numbers become normal scores. Round 2 sums the
second moments of the most telling columns, whose largest directions start the classes. Then come steps of EM (Dempster,
Laird, Rubin 1977). The last half of them is averaged, as in online EM (Cappe and Moulines 2009), so that more steps
cost little accuracy. Differences between classes that noise explains are taken out at each step. From round 2 on a part
of each vector is a patient's 0/1 numbers and scores in the block of its label. So what is drawn has in each class of
the label each column as all rounds together say.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.privacy.sums import mean_of_rows
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.basis import Basis
from polyclinic.synthesis.methods.bins import Bins, distributions
from polyclinic.synthesis.methods.classes import LatentClasses, Sums, calibrate, evidence, tilt
from polyclinic.synthesis.methods.classes import distributions as distributions_of
from polyclinic.synthesis.methods.covariance import class_means, denoise, pairs
from polyclinic.synthesis.methods.hot import Hot
from polyclinic.synthesis.methods.options import check_number
from polyclinic.synthesis.sums import MOVED
from polyclinic.types import Arrays, Floats, Ints

# Numeric components are shortened to so many times the root of the square that is expected of them.
_RADIUS = 1.2
# A class of the label in which cells are there less often than this has as many.
_SELDOM = 0.05
# What a vector from round 2 on has of columns by class of the label, as a share of its squared length.
_BY_LABEL = 0.5
# Directions that start the classes, at most.
_DIRECTIONS = 10


@dataclass(frozen=True, eq=False)
class Latent:
    """A patient's vector: for each class [1, 0/1 numbers, numbers of codes, first and second moments] times its chance.

    classes: latent ones.
    rounds: sums in all, of which two precede EM.
    most: codes of a set that count.
    watched: columns in the second moments of round 2.
    start: number of the public random directions that start the classes.
    bins: of a numeric column.

    Raises ConfigError for an option out of range.
    """

    layout: Layout
    classes: int = 12
    rounds: int = 8
    most: int = 20
    watched: int = 80
    start: int = 0
    bins: int = 24
    name: ClassVar[str] = "latent"
    separate: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_number(self.name, "classes", self.classes, 1, 200, whole=True)
        check_number(self.name, "rounds", self.rounds, 3, 200, whole=True)
        check_number(self.name, "most", self.most, 1, 10_000, whole=True)
        check_number(self.name, "watched", self.watched, 2, 1000, whole=True)
        check_number(self.name, "start", self.start, 0, 2**31, whole=True)
        check_number(self.name, "bins", self.bins, 2, 1000, whole=True)

    def question(self, round: int, state: Arrays) -> Arrays:
        """The histograms by which numbers become scores; of round 2 the ``watched`` columns; then ``bias`` and ``weights`` of
        each class' logarithmic chance."""
        if round == 1:
            return {}
        scored = {"histograms": state["histograms"]}
        if round == 2:
            return {**scored, "watched": state["watched"]}
        coefficients = self._beginning(state) if round == 3 else evidence(self._classes_of(state), self._hot)
        return {**scored, **dict(zip(("bias", "weights"), coefficients, strict=True))}

    def size(self, round: int, question: Arrays) -> int:
        if round == 1:
            return self.layout.classes * sum(self._alone)
        if round == 2:
            watched = len(question["watched"])
            return watched * (watched + 1) // 2 + self._labelled
        return self.classes * (1 + len(self._scale)) + self._labelled

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size); of length at most 1 whatever the rows hold.

        Args:
            round: The round, from 1 on.
            question: What the sums so far say: histograms, watched columns, or the weights and bias of classes.
            z: (n, D) rows of the layout.
            patient: (n,) the patient of each row.
            patients: The number of patients.

        Raises:
            ConfigError: Whatever the rows, the question's arrays are of other shapes.
        """
        self._check(round, question)
        if round == 1:
            parts = [self._hot.values(z), self._hot.counts(z), self._bins.histograms(z)]
            shaped = [part.reshape(len(z), size) for part, size in zip(parts, self._alone, strict=True)]
            alone = np.concatenate(shaped, axis=1) / self._length
            return mean_of_rows(self.layout.by_class(z, alone), patient, patients)
        hot, scored = self._hot.values(z), np.array(z)
        scored[:, self._bins.places] = self._bins.scores(z, question["histograms"])
        features = self._features(z, hot, scored)
        if round == 2:
            chosen = features[:, question["watched"]]
            rows, columns, twice = pairs(chosen.shape[1])
            main = twice * chosen[:, rows] * chosen[:, columns] / self._watched_square
        else:
            vectors = np.concatenate([np.full((len(z), 1), self._unit_weight), features * self._scale], axis=1)
            height = features @ question["weights"].T + question["bias"]
            chance = np.exp(height - height.max(axis=1, keepdims=True))
            chance /= chance.sum(axis=1, keepdims=True)
            main = (chance[:, :, None] * vectors[:, None, :]).reshape(len(z), self.classes * vectors.shape[1])
        by_label = self.layout.by_class(
            z, np.concatenate([hot, self._short_scores(z, scored)], axis=1) / self._length_by_label
        )
        parts = [main * np.sqrt(1.0 - _BY_LABEL), by_label * np.sqrt(_BY_LABEL)]
        return mean_of_rows(np.concatenate(parts, axis=1), patient, patients)

    def _check(self, round: int, question: Arrays) -> None:
        features = len(self._scale)
        wanted: dict[str, tuple[int, ...]] = {} if round == 1 else {"histograms": self._bins.used.shape}
        if round > 2:
            wanted |= {"bias": (self.classes,), "weights": (self.classes, features)}
        for name, shape in wanted.items():
            if question[name].shape != shape:
                raise ConfigError(f"The question's {name} must have shape {shape}.")
        if round == 2:
            watched = question["watched"]
            if watched.ndim != 1 or watched.dtype.kind not in "iu" or not ((watched >= 0) & (watched < features)).all():
                raise ConfigError(f"The question's watched must be whole numbers from 0 to {features - 1}.")

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        if round == 1:
            return self._columns(state, mean * self._length, noise * self._length)
        main, by_label = np.split(mean, [len(mean) - self._labelled])
        state = self._average(
            state, "by_label", by_label / np.sqrt(_BY_LABEL), noise / np.sqrt(_BY_LABEL), 1.0 / (round - 1)
        )
        main, noise = main / np.sqrt(1.0 - _BY_LABEL), noise / np.sqrt(1.0 - _BY_LABEL)
        if round == 2:
            return {**state, "moments": main, "moments_noise": np.array([noise])}
        averaged = max((self.rounds - 2) // 2, 1)
        return self._average(state, "sums", main, noise, 1.0 / max(round - 2 - averaged + 1, 1))

    @staticmethod
    def _average(state: Arrays, name: str, mean: Floats, noise: float, weight: float) -> Arrays:
        """The state in which ``name`` is an average in which ``mean`` has this weight, and its noise beside it."""
        before, level = (state[name], float(state[f"{name}_noise"][0])) if weight < 1.0 else (np.zeros(mean.shape), 0.0)
        level = float(np.hypot((1.0 - weight) * level, weight * noise))
        return {**state, name: (1.0 - weight) * before + weight * mean, f"{name}_noise": np.array([level])}

    def _columns(self, state: Arrays, mean: Floats, noise: float) -> Arrays:
        """What round 1 says: ``hot`` and ``counts`` of all patients, ``histograms``, and ``alone``, by class of the label the
        frequencies of 0/1 numbers times its share."""
        shares = np.asarray(state["classes"], dtype=np.float64)
        each = mean.reshape(len(shares), -1)
        hot, counts, binned = np.split(each, np.cumsum(self._alone)[:-1], axis=1)
        binned = binned.reshape(len(shares), *self._bins.used.shape)
        there = self._bins.standing_out(binned.sum(axis=0), noise * np.sqrt(len(shares)))
        histograms = distributions(binned.sum(axis=0), there)
        columns = {
            "hot": hot.sum(axis=0), "counts": counts.sum(axis=0), "histograms": histograms, "alone": hot,
            "alone_noise": np.array([noise]),
        }  # fmt: skip
        # A score's deviation is 1 and that of a 0/1 number at most a half.
        later = noise / self._length * self._length_by_label / np.sqrt(_BY_LABEL * (self.rounds - 1))
        moved = 2.0 * later / float(shares.min())
        return {**state, **columns, "watched": self._watch(columns["hot"]), MOVED: np.array(moved)}

    def synthesizer(self, state: Arrays) -> LatentClasses:
        numbers, labels = self._classes_of(state), self.layout.classes
        absent = self._absent(numbers["frequencies"])
        # Missing cells stood at 0 in the sums.
        square = (numbers["variance"] + numbers["mean"] ** 2) / (1.0 - absent)
        mean = numbers["mean"] / (1.0 - absent)
        variance = np.maximum(square - mean**2, numbers["variance"])
        of_class = self._hot.chances(numbers["frequencies"], len(self._hot.groups) - 1)[:, :-1]
        weights = (numbers["shares"][:, None] * of_class).T
        weights /= weights.sum(axis=1, keepdims=True)
        of_label, scores = self._by_label(state)
        wanted, frequencies = self._hot.frequencies(of_label), np.tile(numbers["frequencies"], (labels, 1, 1))
        for label in range(labels):
            own = frequencies[label]
            own[:] = tilt(own, weights[label], wanted[label])
            for number, at in enumerate(self._hot.sets):
                counts = numbers["counts"][:, number]
                own[:, at] = calibrate(numbers["frequencies"][:, at], weights[label], counts, wanted[label, at])
        mean, variance = self._standard(numbers["shares"], mean, variance)
        middle = self._basis.turn_back(self._in_place(mean))[:, self._bins.places]
        changed = {
            "mean": mean, "variance": variance, "weights": weights, "histograms": state["histograms"],
            "shift": scores - weights @ middle,
            "frequencies": frequencies.reshape(labels * self.classes, -1),
        }  # fmt: skip
        return LatentClasses(self.layout, {**numbers, **changed}, self.most, self.bins)

    def _by_label(self, state: Arrays) -> tuple[Floats, Floats]:
        """(K, H) frequencies of 0/1 numbers and (K, Q) means of scores within the classes of the label, by all rounds."""
        shares, length = np.asarray(state["classes"], dtype=np.float64), self._length_by_label
        noise, alone = float(state["by_label_noise"][0]) * length, float(state["alone_noise"][0])
        hot, scores = np.split(state["by_label"].reshape(len(shares), -1) * length, [len(self._hot.places)], axis=1)
        # Each of the two means of a frequency counts by the inverse of its noise' variance.
        first = noise**2 / max(alone**2 + noise**2, 1e-300)
        hot = first * state["alone"] + (1.0 - first) * hot
        level = np.sqrt(first) * alone
        of_label = class_means(hot / shares[:, None], shares, level)
        absent = np.zeros(scores.shape)
        nullable = self._bins.missing >= 0
        here = np.cumsum(~self.layout.numeric) - 1
        absent[:, nullable] = np.clip(of_label[:, here[self._bins.missing[nullable]]], 0.0, 1.0 - _SELDOM)
        means = class_means(_RADIUS * scores / shares[:, None], shares, _RADIUS * noise)
        return of_label, means / (1.0 - absent)

    def _standard(self, shares: Floats, mean: Floats, variance: Floats) -> tuple[Floats, Floats]:
        """Means and variances of components of scores whose mean square is 1, as shortened rows do not leave it."""
        at = self._bins.places
        middles = self._basis.turn_back(self._in_place(mean))[:, at]
        own = [np.diag(self._basis.turned_square(np.diag(row)))[at] for row in self._in_place(variance)]
        longer = np.sqrt(len(at) / max(float((shares @ (middles**2 + np.array(own))).sum()), _SELDOM))
        return mean * longer, variance * longer**2

    def _in_place(self, components: Floats) -> Floats:
        """(C, P) rows of (C, Q) numeric components."""
        rows = np.zeros((len(components), len(self._basis.numeric)))
        rows[:, self._basis.numeric] = components
        return rows

    @cached_property
    def _basis(self) -> Basis:
        return Basis.of(self.layout).of_scores()

    @cached_property
    def _bins(self) -> Bins:
        return Bins.of(self.layout, self.bins)

    @property
    def _alone(self) -> tuple[int, int, int]:
        """Of 0/1 numbers, of numbers of codes and of bins in a block of round 1."""
        return *self._widths[:2], self._bins.used.size

    @property
    def _length(self) -> float:
        return float(np.sqrt(self._hot.square + len(self._hot.sets) + len(self._bins.places)))

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
    def _labelled(self) -> int:
        """Of columns by class of the label."""
        return self.layout.classes * (len(self._hot.places) + len(self._bins.places))

    @property
    def _length_by_label(self) -> float:
        return float(np.sqrt(max(self._hot.square + len(self._bins.places), 1.0)))

    @property
    def _watched_square(self) -> float:
        return self._hot.square + (self._reach**2 if self._basis.numeric.any() else 0.0)

    @cached_property
    def _unit_weight(self) -> float:
        """What a share, a 0/1 number and a number of codes count for."""
        hot = 1.0 + self._hot.square + len(self._hot.sets)
        numbers = float(self._basis.numeric.sum())
        return float(np.sqrt(1.0 / (hot + numbers)))

    @cached_property
    def _scale(self) -> Floats:
        """(features,) what they are multiplied by in a vector, so that it is no longer than 1."""
        numbers = float(self._basis.numeric.sum())
        each = np.sqrt(0.5 * numbers) * self._unit_weight
        return np.repeat(
            [self._unit_weight, self._unit_weight, each / self._reach, each / self._reach**2], self._widths
        )

    def _features(self, z: Floats, hot: Floats, scored: Floats) -> Floats:
        """(n, features): 0/1 numbers, one-hot numbers of codes, numeric components of ``scored`` rows and their squares."""
        parts = [hot, self._hot.counts(z).reshape(len(z), self._widths[1])]
        if self._basis.numeric.any():
            u = shorten(self._basis.forward(scored)[:, self._basis.numeric], self._reach)
            parts += [u, u**2]
        return np.concatenate(parts, axis=1)

    def _short_scores(self, z: Floats, scored: Floats) -> Floats:
        """(n, Q) scores of rows, 0 where a cell is missing, by ``_RADIUS``: of length at most the root of Q."""
        scores, may_miss = scored[:, self._bins.places], self._bins.missing >= 0
        scores[:, may_miss] *= 1.0 - z[:, self._bins.missing[may_miss]]
        return shorten(scores / _RADIUS, float(np.sqrt(len(self._bins.places))))

    def _split(self, means: Floats) -> Sums:
        """Of (C, 1 + features) sums of vectors."""
        cuts = np.cumsum((1, *self._widths))[:-1]
        shares, hot, counts, first, second = np.split(means / np.append(self._unit_weight, self._scale), cuts, axis=1)
        return Sums(shares[:, 0], hot, counts.reshape(len(means), len(self._hot.sets), self.most + 1), first, second)

    def _classes_of(self, state: Arrays) -> Arrays:
        """The classes of the sums so far."""
        split = self._split(state["sums"].reshape(self.classes, -1))
        noise = np.full((1, 1 + len(self._scale)), float(state["sums_noise"][0]))
        sets = (1, len(self._hot.sets), self.most + 1)
        pooled = Sums(
            np.ones(1), state["hot"][None], state["counts"].reshape(sets), *(
                part.sum(axis=0, keepdims=True) for part in (split.first, split.second)
            ),
        )  # fmt: skip
        return distributions_of(
            split, pooled, self._split(noise), self._hot, np.asarray(state["classes"], dtype=np.float64)
        )

    def _watch(self, hot: Floats) -> Ints:
        """Numeric components, and of the 0/1 numbers those that vary most: ``watched`` features."""
        hot = np.clip(hot, 0.0, 1.0)
        numeric = np.arange(self._widths[2]) + sum(self._widths[:2])
        varying = np.argsort(-hot * (1.0 - hot), kind="stable")
        return np.concatenate([numeric, varying])[: self.watched].astype(np.int64)

    def _beginning(self, state: Arrays) -> tuple[Floats, Floats]:
        """Bias and weights that part patients at random along the largest directions of what is correlated."""
        watched = state["watched"]
        rows, columns, twice = pairs(len(watched))
        square = np.zeros((len(watched), len(watched)))
        square[rows, columns] = square[columns, rows] = state["moments"] / twice * self._watched_square
        # Scores have a mean of 0 and a mean square of 1.
        numeric = np.repeat([0.0, 1.0], self._widths[2:])
        pooled = np.concatenate([state["hot"], state["counts"], numeric])
        covariance = denoise(
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


def shorten(vectors: Floats, length: float) -> Floats:
    """(n, k) vectors, those longer than ``length`` at that."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors * np.minimum(1.0, length / np.maximum(lengths, 1e-300)))
