"""Patients of each class as a Gaussian, by one sum of first and second moments, or as a Gaussian copula, by a sum before it.

The moments that the released sum holds are those of u (``Basis``), a row turned so that noise hurts all of it alike.
What is made of them costs no privacy. Cells that are missing are divided out, noise is taken from covariances, and 0/1
numbers stand on normals that are cut where their frequency says. In a copula numbers are normal scores, by histograms
over all patients, so that neither loose bounds nor skewed columns spoil their moments.
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
from polyclinic.synthesis.methods.covariance import class_covariances, class_means, pairs, shrunk
from polyclinic.synthesis.methods.normal import Gaussian, Places, one_class
from polyclinic.synthesis.methods.options import check_number
from polyclinic.types import Arrays, Floats, Ints

#: Numbers of a row before its label that the method takes: it asks for one sum for each pair of them.
MOST_NUMBERS = 1500
# Of the squared length of a vector, what first moments have.
_FIRST = 0.3
# Pairs of cells that are both there less often than this are taken as unrelated.
_SELDOM = 0.05


@dataclass(frozen=True, eq=False)
class Moments:
    """A patient's vector, in the block of the label: [first moments, second moments], of length 1 at most.

    radius: a row is shortened to so many times the root of the square that is expected of it.
    bins: of a numeric column, in the histograms of round 1 of 2.
    rounds: 2 asks first for histograms of numeric columns over all patients, and then for moments of their normal
        scores. 1 needs a schema with ``centre`` and ``spread``, or close bounds.

    Raises ConfigError, naming the option, for one out of range, and for a schema of more than ``MOST_NUMBERS`` numbers.
    """

    layout: Layout
    radius: float = 1.2
    bins: int = 64
    rounds: int = 1
    name: ClassVar[str] = "moments"
    separate: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_number(self.name, "radius", self.radius, 0.1, 10.0)
        check_number(self.name, "bins", self.bins, 2, 1000, whole=True)
        check_number(self.name, "rounds", self.rounds, 1, 2, whole=True)
        if self._width > MOST_NUMBERS:
            raise ConfigError(
                f"Schema {self.layout.schema.name!r} has {self._width} numbers in a row; method {self.name!r} takes at most "
                f"{MOST_NUMBERS}, as it needs a sum for each pair: 'latent' or 'independent' would do."
            )

    def question(self, round: int, state: Arrays) -> Arrays:
        """Of a second round the histograms by which numbers become scores."""
        return {"histograms": state["histograms"]} if round == 2 else {}

    def size(self, round: int, question: Arrays) -> int:
        return (
            self._bins.used.size if round < self.rounds else self.layout.classes * (self._width + len(self._pairs[0]))
        )

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size); of length at most 1 whatever the rows hold.

        Args:
            round: The round, from 1 on.
            question: The histograms of a copula; empty otherwise.
            z: (n, D) rows of the layout.
            patient: (n,) the patient of each row.
            patients: The number of patients.

        Raises:
            ConfigError: The question's histograms are of another shape.
        """
        if round < self.rounds:
            binned = self._bins.histograms(z).reshape(len(z), self._bins.used.size)
            return mean_of_rows(binned / np.sqrt(max(len(self._bins.places), 1)), patient, patients)
        if question and question["histograms"].shape != self._bins.used.shape:
            raise ConfigError(f"The question's histograms must have shape {self._bins.used.shape}.")
        u = self._basis.forward(self._scores(z, question) if question else z)
        u = u * np.minimum(1.0, self._longest / np.maximum(np.linalg.norm(u, axis=1, keepdims=True), 1e-300))
        first, second = self._weights
        rows, columns, twice = self._pairs
        vectors = np.concatenate([first * u, second * twice * u[:, rows] * u[:, columns]], axis=1)
        return mean_of_rows(self.layout.by_class(z, vectors), patient, patients)

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        if round == self.rounds:
            return {**state, "mean": mean, "noise": np.array([noise])}
        root = np.sqrt(max(len(self._bins.places), 1))
        means = mean.reshape(self._bins.used.shape) * root
        return {**state, "histograms": distributions(means, self._bins.standing_out(means, noise * root))}

    def synthesizer(self, state: Arrays) -> Gaussian:
        basis, (first, second) = self._basis, self._weights
        shares, noise = np.asarray(state["classes"], dtype=np.float64), float(state["noise"][0])
        parts = np.split(state["mean"].reshape(len(shares), -1), [self._width], axis=1)
        raw = parts[0] / first / shares[:, None], self._squares(parts[1] / second) / shares[:, None, None]
        raw_means, covariances, longer = present(basis, *raw, shares, (noise / first, noise / second))
        # The square of a noisy mean is too large by the noise.
        covariances += np.einsum("k,ij->kij", (noise / first / shares) ** 2, np.eye(self._width))
        covariances = class_covariances(covariances, shares, noise / second * longer)
        within = np.einsum("k,kij->ij", shares, covariances)
        means = class_means(raw_means, shares, noise / first, within)
        places, means = Places.of(self.layout), basis.turn_back(means) + basis.centre
        covariances = np.stack([basis.turned_square(covariance) for covariance in covariances])
        if self.rounds == 2:
            varying = int((~self._bins.constant(state["histograms"])).sum())
            means, covariances = self._standard(means, covariances, shares, varying)
        made = [one_class(places, *moments) for moments in zip(means, covariances, strict=True)]
        arrays = {name: np.stack([moments_of_class[name] for moments_of_class in made]) for name in made[0]}
        scored = {"histograms": state["histograms"]} if self.rounds == 2 else {}
        return Gaussian(self.layout, {"classes": shares, **arrays, **scored}, self.bins)

    def hidden(self, noise: float, shares: Floats) -> Floats:
        """(K,) standard deviation of the eigenvalues that the noise alone gives each class' covariance (Wigner's semicircle).

        noise: standard deviation in each entry of the last sum, by the number of patients; shares: (K,) frequencies of the
        classes.
        """
        return np.asarray(noise / self._weights[1] / shares * np.sqrt(self._width / 2))

    @property
    def _width(self) -> int:
        return int(self.layout.label.start)

    @cached_property
    def _basis(self) -> Basis:
        basis = Basis.of(self.layout)
        return basis.of_scores() if self.rounds == 2 else basis

    @cached_property
    def _bins(self) -> Bins:
        return Bins.of(self.layout, self.bins)

    @cached_property
    def _longest(self) -> float:
        return self.radius * float(np.sqrt(max(self._basis.square, 1.0)))

    @property
    def _weights(self) -> tuple[float, float]:
        """Of first moments and of second ones."""
        first, second = np.sqrt([_FIRST, 1.0 - _FIRST]) / (self._longest, self._longest**2)
        return float(first), float(second)

    def _scores(self, z: Floats, question: Arrays) -> Floats:
        """(n, D) rows whose numbers are normal scores."""
        rows = np.array(z)
        rows[:, self._bins.places] = self._bins.scores(z, question["histograms"])
        return rows

    def _standard(self, means: Floats, covariances: Floats, shares: Floats, varying: int) -> tuple[Floats, Floats]:
        """Moments of scores whose mean square is 1 in the ``varying`` columns, which shortening lowers."""
        at = self._bins.places
        squares = shares @ (np.diagonal(covariances, axis1=1, axis2=2)[:, at] + means[:, at] ** 2)
        longer = np.ones(self._width)
        longer[at] = np.sqrt(varying / max(float(squares.sum()), _SELDOM))
        return means * longer, covariances * np.outer(longer, longer)

    @cached_property
    def _pairs(self) -> tuple[Ints, Ints, Floats]:
        return pairs(self._width)

    def _squares(self, triangle: Floats) -> Floats:
        """(K, P, P) of (K, pairs)."""
        rows, columns, twice = self._pairs
        full = np.zeros((len(triangle), self._width, self._width))
        full[:, rows, columns] = full[:, columns, rows] = triangle / twice
        return full


def present(
    basis: Basis, means: Floats, squares: Floats, shares: Floats, noise: tuple[float, float]
) -> tuple[Floats, Floats, Floats]:
    """Means and covariances of u in cells that are there, from moments in which missing cells are 0.

    How often cells are missing together is at least and at most what their frequencies allow (Frechet 1951). How
    numbers differ where others are missing is ``shrunk``: divided by noisy frequencies, a rare class' moments would
    else be noise many times over.

    Args:
        basis: The coordinates u.
        means: (K, P) means of classes.
        squares: (K, P, P) second moments of classes.
        shares: (K,) the share of each class.
        noise: Standard deviations in each entry of share x means, and in each diagonal one of share x squares.

    Returns:
        (K, P) means, (K, P, P) covariances in cells that are there in both, and (K,) how many times the noise of
        covariances is that of squares.
    """
    if not len(basis.nullable):
        return means, squares - means[:, :, None] * means[:, None, :], np.ones(len(shares))
    here, missing, every = basis.nullable, basis.missing, np.arange(means.shape[1])
    linear, quadratic = basis.turn_back(means), np.stack([basis.turned_square(square) for square in squares])
    absent, together = np.zeros(linear.shape), np.zeros(quadratic.shape)
    absent[:, here] = np.clip(class_means(linear[:, missing], shares, noise[0]), 0.0, 1.0 - _SELDOM)
    rows, columns = np.triu_indices(len(here), 1)
    pair = class_means(quadratic[:, missing, missing][:, rows, columns], shares, noise[1] / np.sqrt(2.0))
    together[:, here[rows], here[columns]] = together[:, here[columns], here[rows]] = pair
    first, second = absent[:, :, None], absent[:, None, :]
    together = np.clip(together, np.maximum(first + second - 1.0, 0.0), np.minimum(first, second))
    together[:, every, every] = absent
    both = 1.0 - first - second + together
    seen = linear / (1.0 - absent)
    # (i, j): the sum of number i where j is missing, less what it would be if i were there as elsewhere; a cell is never both.
    apart = np.zeros(quadratic.shape)
    lost = quadratic[:, :, missing] - seen[:, :, None] * (second - together)[:, :, here]
    lost[:, here, np.arange(len(here))] = 0.0
    apart[:, :, here] = [
        shrunk(sums.ravel(), noise[1] / np.sqrt(2.0) / share).reshape(sums.shape)
        for sums, share in zip(lost, shares, strict=True)
    ]
    seldom, both = both < _SELDOM, np.maximum(both, _SELDOM)
    where = seen[:, :, None] - apart / both
    covariances = np.where(seldom, 0.0, quadratic / both - where * where.transpose(0, 2, 1))
    longer = np.sqrt((np.where(seldom, 0.0, 1.0 / both) ** 2).mean(axis=(1, 2)))
    return basis.turn(seen), np.stack([basis.square_of(covariance) for covariance in covariances]), longer
