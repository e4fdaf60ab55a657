"""Patients of each class as a Gaussian, by one sum of first and second moments; or as a Gaussian copula.

The moments that the released sum holds are those of u (``Basis``), a row turned so that noise hurts all of it alike. What is made
of them costs no privacy: cells that are missing are divided out, noise is taken from covariances, 0/1 numbers stand on normals
that are cut where their frequency says.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.basis import Basis
from polyclinic.synthesis.methods.bins import Bins
from polyclinic.synthesis.methods.covariance import class_covariances, class_means, pairs
from polyclinic.synthesis.methods.normal import Gaussian, Places, one_class
from polyclinic.synthesis.methods.options import check_number, check_switch
from polyclinic.synthesis.sums import mean_of_rows
from polyclinic.types import Arrays, Floats, Ints

#: Numbers of a row before its label that the method takes: it asks for one sum for each pair of them.
MOST_NUMBERS = 1500
# Of the squared length of a vector, what first moments and a copula's histograms have.
_FIRST, _HISTOGRAMS = 0.15, 0.2
# A wave in a histogram counts if it is so many standard deviations of its noise.
_ABOVE_NOISE = 3.5
# Pairs of cells that are both there less often than this are taken as unrelated.
_SELDOM = 0.05


@dataclass(frozen=True, eq=False)
class Moments:
    """A patient's vector, in the block of the label: [first moments, second moments, histograms], of length 1 at most.

    radius: a row is shortened to so many times the root of the square that is expected of it. copula: marginals of numeric
    columns are histograms of ``bins`` bins, in a copula of the covariance. rounds: 2 asks first for the mean and the square of
    each column and then for moments of columns scaled by them: for schemas whose bounds say little and that have no ``spread``.
    Raises ConfigError, naming the option, for one out of range, and for a schema of more than ``MOST_NUMBERS`` numbers.
    """

    layout: Layout
    radius: float = 1.2
    copula: bool = False
    bins: int = 24
    rounds: int = 1
    name: ClassVar[str] = "moments"
    separate: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_number(self.name, "radius", self.radius, 0.1, 10.0)
        check_switch(self.name, "copula", self.copula)
        check_number(self.name, "bins", self.bins, 2, 1000, whole=True)
        check_number(self.name, "rounds", self.rounds, 1, 2, whole=True)
        if self._width > MOST_NUMBERS:
            raise ConfigError(
                f"Schema {self.layout.schema.name!r} has {self._width} numbers in a row; method {self.name!r} takes at most "
                f"{MOST_NUMBERS}, as it needs a sum for each pair: 'latent' or 'independent' would do."
            )

    def question(self, round: int, state: Arrays) -> Arrays:
        """Of a second round: mean and variance of u, and how often cells are missing."""
        return {name: state[name] for name in ("centre", "variance", "absent")} if round == 2 else {}

    def size(self, round: int, question: Arrays) -> int:
        return 2 * self._width if round < self.rounds else self.layout.classes * sum(self._parts)

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size); of length at most 1 whatever the rows hold."""
        basis = self._basis(question)
        longest = self._longest(basis)
        u = basis.forward(z)
        u = u * np.minimum(1.0, longest / np.maximum(np.linalg.norm(u, axis=1, keepdims=True), 1e-300))
        if round < self.rounds:
            return mean_of_rows(
                np.concatenate([u / longest, (u / longest) ** 2], axis=1) / np.sqrt(2.0), patient, patients
            )
        first, second, each = self._weights(basis)
        rows, columns, twice = self._pairs
        parts = [first * u, second * twice * u[:, rows] * u[:, columns]]
        if self.copula:
            parts.append(each * self._bins.histograms(z).reshape(len(z), self._parts[2]))
        vectors = np.concatenate(parts, axis=1)
        return mean_of_rows(self.layout.by_class(z, vectors), patient, patients)

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        if round == self.rounds:
            return {**state, "mean": mean, "noise": np.array([noise])}
        basis = self._basis({})
        longest = self._longest(basis)
        first, square = np.split(mean * np.sqrt(2.0), 2)
        first, square = first * longest, square * longest**2
        absent = np.zeros(self._width)
        absent[basis.nullable] = np.clip(first[basis.missing], 0.0, 1.0 - _SELDOM)
        return {**state, "centre": first, "variance": square - first**2, "absent": absent}

    def synthesizer(self, state: Arrays) -> Gaussian:
        basis = self._basis(state)
        first, second, each = self._weights(basis)
        shares, noise = np.asarray(state["classes"], dtype=np.float64), float(state["noise"][0])
        parts = np.split(state["mean"].reshape(len(shares), -1), np.cumsum(self._parts)[:2], axis=1)
        raw = parts[0] / first / shares[:, None], self._squares(parts[1] / second) / shares[:, None, None]
        there = [present(basis, mean, square) for mean, square in zip(*raw, strict=True)]
        means = class_means(np.stack([mean for mean, _ in there]), shares, noise / first)
        covariances = np.stack([covariance for _, covariance in there])
        # The square of a noisy mean is too large by the noise.
        covariances += np.einsum("k,ij->kij", (noise / first / shares) ** 2, np.eye(self._width))
        covariances = class_covariances(covariances, shares, noise / second)
        places = Places.of(self.layout)
        made = [
            one_class(places, basis.turned(mean) + basis.centre, basis.turned_square(covariance))
            for mean, covariance in zip(means, covariances, strict=True)
        ]
        arrays = {name: np.stack([one[name] for one in made]) for name in made[0]}
        if self.copula and len(self._bins.places):
            arrays["histograms"] = self._marginals(parts[2] / each, arrays, noise / each, shares)
        return Gaussian(self.layout, {"classes": shares, **arrays}, self.bins)

    @property
    def _width(self) -> int:
        return int(self.layout.label.start)

    @cached_property
    def _public(self) -> Basis:
        return Basis.of(self.layout)

    @cached_property
    def _bins(self) -> Bins:
        return Bins.of(self.layout, self.bins)

    def _basis(self, told: Arrays) -> Basis:
        if "centre" not in told:
            return self._public
        return self._public.refined(told["centre"], told["variance"], told["absent"])

    def _longest(self, basis: Basis) -> float:
        return self.radius * float(np.sqrt(max(basis.square, 1.0)))

    def _weights(self, basis: Basis) -> tuple[float, float, float]:
        """Of first moments, of second ones, and of each histogram."""
        longest, columns = self._longest(basis), len(self._bins.places)
        histograms = _HISTOGRAMS if self.copula and columns else 0.0
        first, second = np.sqrt((1.0 - histograms) * np.array([_FIRST, 1.0 - _FIRST])) / (longest, longest**2)
        return float(first), float(second), float(np.sqrt(histograms / max(columns, 1)))

    @cached_property
    def _pairs(self) -> tuple[Ints, Ints, Floats]:
        return pairs(self._width)

    @property
    def _parts(self) -> tuple[int, int, int]:
        return self._width, len(self._pairs[0]), len(self._bins.places) * self._bins.most if self.copula else 0

    def _squares(self, triangle: Floats) -> Floats:
        """(K, P, P) of (K, pairs)."""
        rows, columns, twice = self._pairs
        full = np.zeros((len(triangle), self._width, self._width))
        full[:, rows, columns] = full[:, columns, rows] = triangle / twice
        return full

    def _marginals(self, sums: Floats, arrays: Arrays, noise: float, shares: Floats) -> Floats:
        """(K, columns, bins) distributions: noisy histograms, the Gaussian's where noise hides the difference."""
        bins = self._bins
        noisy = sums.reshape(len(shares), len(bins.places), bins.most)
        there = np.maximum(np.where(bins.used, noisy, 0.0).sum(axis=2, keepdims=True), _SELDOM * shares[:, None, None])
        normal = bins.of_normal(arrays["mean"][:, bins.places], arrays["deviation"][:, bins.places])
        found = np.zeros_like(normal)
        for place in np.ndindex(normal.shape[:2]):
            used = bins.used[place[1]]
            found[place][used] = unhidden(normal[place][used], (noisy / there)[place][used], noise / there[place][0])
        return found


def present(basis: Basis, mean: Floats, square: Floats) -> tuple[Floats, Floats]:
    """(P,) mean and (P, P) covariance of u in cells that are there (in both), from moments in which missing cells are 0."""
    if not len(basis.nullable):
        return mean, square - np.outer(mean, mean)
    here, missing = basis.nullable, basis.missing
    one, two = basis.turned(mean), basis.turned_square(square)
    absent, together = np.zeros(len(one)), np.zeros(two.shape)
    absent[here] = np.clip(one[missing], 0.0, 1.0 - _SELDOM)
    together[np.ix_(here, here)] = two[missing, missing]
    together[here, here] = absent[here]
    both = 1.0 - absent[:, None] - absent[None, :] + together
    # (i, j): the mean of number i where j is missing; a cell is never both.
    lost = np.zeros(two.shape)
    lost[:, here] = two[:, missing]
    lost[here, here] = 0.0
    where = (one[:, None] - lost) / np.maximum(both, _SELDOM)
    covariance = np.where(both < _SELDOM, 0.0, two / np.maximum(both, _SELDOM) - where * where.T)
    return basis.turn((one / (1.0 - absent))[None])[0], basis.square_of(covariance)


def unhidden(expected: Floats, noisy: Floats, noise: float) -> Floats:
    """(bins,) distribution: ``expected``, changed as ``noisy`` says where that is above its noise.

    Their ratio is a sum of waves over the quantiles of what is expected, from slow to fast, orthonormal under it; so tails stay
    thin, which noise alone would fatten.
    """
    root = np.sqrt(np.maximum(expected, 1e-12))
    middle = np.cumsum(expected) - expected / 2
    waves = np.cos(np.pi * np.arange(len(expected)) * middle[:, None])
    basis = np.linalg.qr(root[:, None] * waves)[0]
    heights = (basis / root[:, None]).T @ (noisy - expected)
    hidden = np.abs(heights) <= _ABOVE_NOISE * noise * np.linalg.norm(basis / root[:, None], axis=0)
    found = np.maximum(expected + root * (basis @ np.where(hidden, 0.0, heights)), 0.0)
    return np.asarray(found / found.sum()) if found.sum() > 0 else expected
