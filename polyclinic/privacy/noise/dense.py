"""The factorisation of least mean error over all lower triangular ones, for a patient who takes part once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from polyclinic.privacy.noise.design import shared
from polyclinic.privacy.noise.sensitivity import Participation, check_count, gram_sensitivity
from polyclinic.privacy.noise.toeplitz import combined
from polyclinic.types import Reals

MOST_STEPS = 256


@dataclass(frozen=True)
class Dense:
    """C of any lower triangular form, its columns of norm 1; at most 256 steps. Keeps all past draws.

    Repeated participation is bounded, not exact (``gram_sensitivity``), and not what it is optimal for.
    """

    steps: int

    def __post_init__(self) -> None:
        check_count("steps of dense noise", self.steps, MOST_STEPS)

    def sensitivity(self, participation: Participation) -> float:
        return gram_sensitivity(_optimal(self.steps)[0], participation)

    def variances(self) -> Reals:
        prefix = np.cumsum(_optimal(self.steps)[1], axis=0)
        variances: Reals = np.square(prefix).sum(axis=1)
        return variances

    def rows_kept(self, step: int) -> int:
        return step

    def advance(self, step: int, memory: Reals, draws: Reals) -> tuple[Reals, Reals]:
        inverse = _optimal(self.steps)[1]
        return combined(memory, draws, lambda end: inverse[end - 1, :end])


@lru_cache(maxsize=4)
def _optimal(steps: int) -> tuple[Reals, Reals]:
    """C and C^-1, (T, T), that minimise tr(A^T A (C^T C)^-1) where C^T C has a unit diagonal.

    With M = A^T A the optimum is C^T C = D^-1/2 (D^1/2 M D^1/2)^1/2 D^-1/2, D the diagonal matrix of the v with
    v = diag((D^1/2 M D^1/2)^1/2). The iteration of that equation converges (Yuan et al. 2016; Denisov et al. 2022).
    """
    last = np.arange(steps, 0, -1.0)
    gram = np.minimum.outer(last, last)
    v = np.ones(steps)
    for _ in range(10_000):
        scale = np.sqrt(v)
        values, vectors = np.linalg.eigh(scale[:, None] * gram * scale)
        root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        before, v = v, np.diagonal(root).copy()
        if np.abs(v / before - 1).max() < 1e-9:
            break
    strategy = root / np.outer(np.sqrt(v), np.sqrt(v))  # of unit diagonal, also short of convergence
    # The lower triangular C with C^T C = X is the Cholesky factor of X read backwards, transposed and read backwards.
    c = np.linalg.cholesky(strategy[::-1, ::-1]).T[::-1, ::-1]
    return shared(c), shared(np.linalg.inv(c))
