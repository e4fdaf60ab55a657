"""Banded Toeplitz noise: C has few diagonals, so that a patient who returns after as many steps adds up orthogonally."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from polyclinic.privacy.noise.design import Objective, check_objective, log_loss, minimised, shared
from polyclinic.privacy.noise.sensitivity import Participation, check_count, gram_sensitivity, toeplitz
from polyclinic.privacy.noise.toeplitz import SquareRoot
from polyclinic.types import Reals


@dataclass(frozen=True)
class Banded:
    """C = the lower triangular Toeplitz matrix of ``bands`` optimised coefficients, each column scaled to norm 1.

    At a separation of ``bands`` or more the columns of a participation are orthogonal, and k participations have
    sensitivity sqrt(k) exactly; at less it is bounded by ``gram_sensitivity``. Keeps bands - 1 vectors.
    The column norms are those of C, the right factor: with C C^T in the place of C^T C the noise is too small.
    McKenna et al. 2024, "Scaling up the Banded Matrix Factorization Mechanism"; the scaled columns are theirs too.
    """

    steps: int
    bands: int
    objective: Objective = "max"

    def __post_init__(self) -> None:
        check_count("bands", self.bands, self.steps)
        check_objective(self.objective)

    @classmethod
    def designed(
        cls, steps: int, participation: Participation, bands: int | None = None, objective: Objective = "max"
    ) -> Banded:
        """As many bands as the separation by default; as many as steps where a patient takes part only once."""
        widest = steps if participation.within(steps) == 1 else min(participation.separation, steps)
        return cls(steps, widest if bands is None else bands, objective)

    @cached_property
    def coefficients(self) -> Reals:
        """(bands,) first column of the Toeplitz matrix, of norm 1."""
        return _optimal(self.steps, self.bands, self.objective)

    @cached_property
    def norms(self) -> Reals:
        """(steps,) column norms of the Toeplitz matrix: 1 but for the last columns, which the matrix' end cuts short."""
        norms = np.ones(self.steps)
        tail = min(self.bands, self.steps)
        norms[self.steps - tail :] = np.sqrt(np.cumsum(self.coefficients[:tail] ** 2))[::-1]
        return norms

    def strategy(self) -> Reals:
        """(steps, steps) C."""
        column = np.zeros(self.steps)
        column[: self.bands] = self.coefficients
        return toeplitz(column) / self.norms

    def sensitivity(self, participation: Participation) -> float:
        if participation.separation >= self.bands:
            return float(np.sqrt(participation.within(self.steps)))
        return gram_sensitivity(self.strategy(), participation)

    def variances(self) -> Reals:
        from scipy.signal import lfilter

        inverse = lfilter([1.0], self.coefficients, np.eye(1, self.steps)[0])
        variances = np.cumsum(np.cumsum(inverse) ** 2)
        uncut = self.steps - self.bands + 1
        row = np.cumsum(inverse[:uncut])[::-1] if uncut else inverse[:0]
        for step in range(uncut, self.steps):
            row = np.append(row, 0.0) + self.norms[step] * inverse[step::-1]
            variances[step] = row @ row
        return variances

    def rows_kept(self, step: int) -> int:
        return min(step, self.bands - 1)

    def advance(self, step: int, memory: Reals, draws: Reals) -> tuple[Reals, Reals]:
        # Rows of T^-1 z, for C = T / norms.
        rows = np.concatenate([memory, draws])
        weights = (self.coefficients[:0:-1] / self.coefficients[0]).astype(rows.dtype)
        for row in range(len(memory), len(rows)):
            kept = min(row, self.bands - 1)
            rows[row] /= self.coefficients[0]
            rows[row] -= weights[self.bands - 1 - kept :] @ rows[row - kept : row]
        noise = rows[len(memory) :] * self.norms[step : step + len(draws), None].astype(rows.dtype)
        return noise, rows[len(rows) - self.rows_kept(step + len(draws)) :].copy()


@lru_cache(maxsize=64)
def _optimal(steps: int, bands: int, objective: Objective) -> Reals:
    from scipy.signal import lfilter

    once = Participation(1, 1)
    column = np.eye(1, steps)[0]

    def loss(tail: Reals) -> tuple[float, Reals]:
        column[1:bands] = tail
        value, gradient = log_loss(column, lambda x: lfilter([1.0], column[:bands], x), once, objective)
        return value, gradient[1:bands]

    column[1:bands] = minimised(loss, SquareRoot(bands).coefficients[1:])
    return shared(column[:bands] / np.linalg.norm(column[:bands]))
