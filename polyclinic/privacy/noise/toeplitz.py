"""Lower triangular Toeplitz factorisations of the prefix sums: independent noise and the square root."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polyclinic.privacy.noise.sensitivity import Participation, toeplitz_sensitivity
from polyclinic.types import Reals


@dataclass(frozen=True)
class Independent:
    """C = 1: the noise of plain DP-SGD. Keeps nothing."""

    steps: int

    def sensitivity(self, participation: Participation) -> float:
        return float(np.sqrt(participation.within(self.steps)))

    def variances(self) -> Reals:
        return np.arange(1.0, self.steps + 1)

    def rows_kept(self, step: int) -> int:
        return 0

    def advance(self, step: int, memory: Reals, draws: Reals) -> tuple[Reals, Reals]:
        return draws, memory


@dataclass(frozen=True)
class SquareRoot:
    """C C = A: coefficients 1, 1/2, 3/8, 5/16, ..., those of (1 - x)^(-1/2). Keeps all past draws.

    Within a constant of the best maximum error (Fichtenberger, Henzinger and Upadhyay 2023).
    """

    steps: int

    @cached_property
    def coefficients(self) -> Reals:
        """(steps,) first column of C."""
        lag = np.arange(1, self.steps)
        return np.cumprod(np.concatenate([[1.0], 1 - 0.5 / lag]))

    @cached_property
    def inverse(self) -> Reals:
        """(steps,) first column of C^-1: 1, -1/2, -1/8, -1/16, ..."""
        lag = np.arange(1, self.steps)
        return np.cumprod(np.concatenate([[1.0], 1 - 1.5 / lag]))

    def sensitivity(self, participation: Participation) -> float:
        return toeplitz_sensitivity(self.coefficients, participation)

    def variances(self) -> Reals:
        # B = A C^-1 = C.
        return np.cumsum(self.coefficients**2)

    def rows_kept(self, step: int) -> int:
        return step

    def advance(self, step: int, memory: Reals, draws: Reals) -> tuple[Reals, Reals]:
        return combined(memory, draws, lambda end: self.inverse[end - 1 :: -1])


def combined(past: Reals, draws: Reals, weights: Callable[[int], Reals]) -> tuple[Reals, Reals]:
    """Rows ``weights(end)`` times the first ``end`` draws, for each new draw, and all draws so far."""
    known = np.concatenate([past, draws])
    noise = np.empty_like(draws)
    for row, end in enumerate(range(len(past) + 1, len(known) + 1)):
        noise[row] = weights(end).astype(known.dtype) @ known[:end]
    return noise, known
