"""The posterior of the model of largest entropy, given noisy marginals: what sampling and the noise of privacy leave open.

Source: NAPSU-MQ (Räisä, Jälkö, Kaski and Honkela 2023, "Noise-Aware Statistical Inference with Differentially Private
    Synthetic Data"). There the frequencies of n patients in the measured cells are about normal around the model's,
    with the model's covariance by n. What was released is these plus noise of known deviation. Here noise differs from
    table to table and tables may be of groups of cells, potentials have a normal prior, and the covariance is taken
    where the posterior is highest. It is post-processing: it sees what was released alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular
from scipy.sparse import csr_matrix

from polyclinic.errors import DataError
from polyclinic.synthesis.checks import Numbers, check_arrays
from polyclinic.synthesis.marginals.estimation import Clique, Measured, sum_matrix
from polyclinic.synthesis.marginals.field import Field
from polyclinic.types import Arrays, Floats, Ints

#: Released numbers up to which a posterior is drawn from: memory grows with their square, time with their cube.
MOST_NUMBERS = 4000
# Deviation of a potential beforehand: of a column alone or with the last one, where shares may be of any size; and of another
# pair, whose odds ratios then lie between exp(-4) and exp(4), as a rule.
_WIDE, _NARROW = 3.0, 1.0
# Deviation of a count beside its noise, which keeps the covariance of what was released regular.
_ROUNDING = 0.3
_CLIMBS, _SMALL = 30, 1e-3
_WARM, _STEPS, _LENGTH, _TARGET = 40, 80, 1.5, 0.8


@dataclass(frozen=True, eq=False)
class Evidence:
    """What was released of ``patients`` patients: noisy marginals over columns after cells were merged.

    patients: of rounds that were of different numbers the smallest, as fewer leave more open.
    alone, spread: (all cells,) noisy frequencies of each column before cells were merged, and the deviation of their noise.
    """

    patients: float
    measured: tuple[Measured, ...]
    alone: Floats
    spread: Floats

    def arrays(self) -> Arrays:
        arrays: Arrays = {"patients": np.array(self.patients), "alone": self.alone, "spread": self.spread}
        for number, marginal in enumerate(self.measured):
            arrays[f"clique {number}"] = np.array(marginal.clique, dtype=np.int64)
            arrays[f"values {number}"] = marginal.values.astype(np.float64)
            arrays[f"deviation {number}"] = marginal.deviation.astype(np.float64)
            for axis, groups in enumerate(marginal.groups or ()):
                arrays[f"groups {number} {axis}"] = groups
        return arrays

    @classmethod
    def load(cls, arrays: Mapping[str, np.ndarray], sizes: Ints, cells: int, families: Sequence[Clique]) -> Evidence:
        """Makes evidence again of what its ``arrays`` gave.

        Args:
            arrays: The arrays by name.
            sizes: (A,) cells of each column after merging.
            cells: The number of all cells before merging.
            families: A column with its parents, for each column.

        Raises:
            DataError: An array is missing or cannot be.
        """
        _check(arrays, sizes, cells, families)
        measured: list[Measured] = []
        while f"clique {len(measured)}" in arrays:
            number = len(measured)
            clique = tuple(int(column) for column in arrays[f"clique {number}"])
            groups = tuple(
                np.asarray(arrays[name], dtype=np.int64)
                for axis in range(len(clique)) if (name := f"groups {number} {axis}") in arrays
            )  # fmt: skip
            values, deviation = (np.asarray(arrays[f"{part} {number}"]) for part in ("values", "deviation"))
            measured.append(Measured(clique, values, deviation, groups or None))
        return cls(float(arrays["patients"]), tuple(measured), arrays["alone"], arrays["spread"])

    @property
    def cliques(self) -> tuple[Clique, ...]:
        """Each measured clique once."""
        return tuple(dict.fromkeys(marginal.clique for marginal in self.measured))

    @property
    def numbers(self) -> int:
        """How many numbers were released."""
        return sum(marginal.values.size for marginal in self.measured)


def _check(arrays: Mapping[str, np.ndarray], sizes: Ints, cells: int, families: Sequence[Clique]) -> None:
    """Raises DataError where ``arrays`` cannot be those of an ``Evidence``."""
    allowed = {"patients": Numbers((), 1e-9), "alone": Numbers((cells,)), "spread": Numbers((cells,), 0.0)}
    number, numbers, drawn = 0, 0, dict[tuple[int, ...], int]()
    while (name := f"clique {number}") in arrays:
        clique, shape = [int(column) for column in np.ravel(arrays[name])], []
        if not clique or len(set(clique)) < len(clique) or not any(set(clique) <= set(family) for family in families):
            raise DataError(f"the array {name!r} must hold columns of which each depends on the others")
        allowed[name] = Numbers((len(clique),), whole=True)
        for axis, column in enumerate(clique):
            shape.append(int(sizes[column]))
            if f"groups {number} 0" in arrays:
                groups = np.ravel(arrays.get(part := f"groups {number} {axis}", np.zeros(1)))
                allowed[part] = Numbers((int(sizes[column]),), 0, int(sizes[column]) - 1, whole=True)
                shape[-1] = int(groups.max(initial=0)) + 1
        size = int(np.prod(shape))
        numbers, drawn[tuple(clique)] = numbers + size, int(np.prod(sizes[clique]))
        if max(numbers, sum(drawn.values())) > MOST_NUMBERS:
            raise DataError(f"the arrays 'clique' may stand for at most {MOST_NUMBERS} cells in all")
        allowed |= {f"values {number}": Numbers((size,)), f"deviation {number}": Numbers((size,), 1e-12)}
        number += 1
    check_arrays(arrays, allowed)


@dataclass(frozen=True, eq=False)
class Posterior:
    """Of the potentials of ``field``, given ``evidence``. d potentials, e released numbers.

    Examples:
        >>> from polyclinic.synthesis.marginals.estimation import Measured
        >>> shares, error = np.array([0.3, 0.7]), np.full(2, 0.05)
        >>> coin = Evidence(100.0, (Measured((0,), shares, error),), shares, error)
        >>> field = Field(np.array([2]), (0,), ((),), ((0,),))
        >>> draws = field.marginals(Posterior(field, coin).draw(4, np.random.default_rng(0)))
        >>> draws.shape, bool(np.all(abs(draws[:, 0] - 0.3) < 0.3))
        ((4, 2), True)
    """

    field: Field
    evidence: Evidence
    wide: float = _WIDE
    narrow: float = _NARROW

    @cached_property
    def _prior(self) -> Floats:
        """(d,) precision of each potential beforehand."""
        last = len(self.field.sizes) - 1
        deviation = [self.wide if len(clique) == 1 or last in clique else self.narrow for clique in self.field.cliques]
        return np.repeat(np.array(deviation) ** -2.0, self.field.cells)

    @cached_property
    def _asked(self) -> csr_matrix:
        """(e, d) which cells each released number adds up."""
        return sum_matrix(self.field.sizes, self.evidence.measured, self.field.cliques)

    @cached_property
    def _values(self) -> Floats:
        return np.concatenate([marginal.values.ravel() for marginal in self.evidence.measured])

    @cached_property
    def _noise(self) -> Floats:
        """(e,) variance of the noise of each released number."""
        rounding = (_ROUNDING / self.evidence.patients) ** 2
        return np.concatenate([marginal.deviation.ravel() ** 2 for marginal in self.evidence.measured]) + rounding

    def _weights(self, covariance: Floats) -> tuple[Floats, Floats, Floats]:
        """Of (d, d) covariance of a row's cells: (e, e) precision of what was released, and (d, e) that by cell."""
        sampled = self._asked @ (self._asked @ covariance).T / self.evidence.patients
        sampled[np.diag_indices(len(sampled))] += self._noise
        precision = cho_solve(cho_factor(sampled, lower=True), np.eye(len(sampled)))
        by_cell = self._asked.T @ precision
        return precision, by_cell, (self._asked.T @ by_cell.T).T

    @cached_property
    def highest(self) -> tuple[Floats, Floats, Floats]:
        """(d,) potentials where the posterior is highest, (e, e) precision of what was released, and (d, d) a root.

        The root is of the covariance of the potentials there: its product with its transpose.
        """
        place = self._start()
        for climb in range(_CLIMBS):
            covariance = self.field.covariance(place)
            precision, by_cell, squared = self._weights(covariance)
            curvature = covariance @ squared @ covariance
            curvature[np.diag_indices(len(place))] += self._prior
            left = self._values - self._asked @ self.field.marginals(place[None])[0]
            slope = covariance @ (by_cell @ left) - place * self._prior
            step = cho_solve(cho_factor(curvature, lower=True), slope)
            gain = float(slope @ step)
            if gain < _SMALL or climb == _CLIMBS - 1:
                break
            place = self._climb(place, step, precision)
        lower = cholesky(curvature, lower=True)
        root = solve_triangular(lower, np.eye(len(place)), lower=True).T
        return place, precision, root

    def _climb(self, place: Floats, step: Floats, precision: Floats) -> Floats:
        """The best of ever shorter steps."""
        shares = 0.5 ** np.arange(8)
        tried = np.concatenate([place[None], place + shares[:, None] * step])
        with np.errstate(all="ignore"):  # a step that is far too long has no finite energy, and is not taken
            energy = self._energy(tried, precision)[0]
        return np.asarray(tried[int(np.argmin(np.where(np.isfinite(energy), energy, np.inf)))])

    def _start(self) -> Floats:
        """(d,) potentials of independence within the classes of the last column, as far as noise shows them."""
        potentials, last = [], len(self.field.sizes) - 1
        floor = np.sqrt(self._noise.min())
        for clique in self.field.cliques:
            own = [
                marginal for marginal in self.evidence.measured if marginal.clique == clique and marginal.groups is None
            ]
            if not own or clique[-1] != last:
                potentials.append(np.zeros(int(np.prod(self.field.sizes[list(clique)]))))
                continue
            values = np.maximum(own[0].values, floor).reshape(self.field.sizes[list(clique)])
            potentials.append(np.log(values / values.sum(axis=0) if len(clique) == 2 else values).ravel())
        return np.concatenate(potentials)

    def _energy(self, places: Floats, precision: Floats) -> tuple[Floats, Floats]:
        """(c,) negative logarithm of the density at (c, d) potentials, but for a number; and (c, e) what pulls there."""
        left = self._values - (self._asked @ self.field.marginals(places).T).T
        pull = left @ precision
        return 0.5 * np.sum(left * pull, axis=1) + 0.5 * np.sum(self._prior * places**2, axis=1), pull

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        """(count, d) independent draws of potentials: each the end of its own chain of Hamiltonian Monte Carlo.

        Chains begin at the top and move in the scale of the posterior's curvature there (Neal 2011, Sections 3 and 4).
        """
        top, precision, root = self.highest

        def energy(z: Floats) -> tuple[Floats, Floats]:
            places = top + z @ root.T
            energies, pull = self._energy(places, precision)
            slope = places * self._prior - self.field.slope(places, (self._asked.T @ pull.T).T)
            return energies, slope @ root

        z = np.zeros((count, len(top)))
        level, slope = energy(z)
        step = 0.5
        for turn in range(_WARM + _STEPS):
            length = step * rng.uniform(0.7, 1.3)
            momentum = rng.standard_normal(z.shape)
            before = level + 0.5 * np.sum(momentum**2, axis=1)
            end, pace, new_slope, new_level = z, momentum, slope, level
            for _ in range(int(np.clip(np.ceil(_LENGTH / length), 1, 30))):
                pace = pace - length / 2 * new_slope
                end = end + length * pace
                with np.errstate(all="ignore"):  # a chain that flies off is turned back below
                    new_level, new_slope = energy(end)
                pace = pace - length / 2 * new_slope
            with np.errstate(all="ignore"):
                chance = np.exp(np.minimum(before - new_level - 0.5 * np.sum(pace**2, axis=1), 0.0))
            chance = np.nan_to_num(chance)
            taken = rng.random(count) < chance
            z, slope = np.where(taken[:, None], end, z), np.where(taken[:, None], new_slope, slope)
            level = np.where(taken, new_level, level)
            if turn < _WARM:
                step *= float(np.exp((chance.mean() - _TARGET) / np.sqrt(turn / 4 + 1)))
        return np.asarray(top + z @ root.T)
