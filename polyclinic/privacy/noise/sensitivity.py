"""How far one patient can move C x, where C is the matrix whose product with the clipped sums is released with noise.

A patient moves row t of x by a vector of norm at most 1 at each step t of a participation, and by nothing elsewhere. The
vectors of different steps are different gradients, so every bound here holds for the worst of them, not only for equal
ones: sens^2 = sum over i, j of the pattern of G_ij <u_i, u_j> <= sum of |G_ij|, with G = C^T C.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.privacy.streams import Floats


@dataclass(frozen=True)
class Participation:
    """How often one patient's data may enter: every ``separation`` steps at the most, and at most ``times`` times.

    Raises ConfigError if either is not a whole number of at least 1.
    """

    separation: int
    times: int

    def __post_init__(self) -> None:
        for name, value in (("separation", self.separation), ("times", self.times)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} of a participation must be a whole number of at least 1, got {value!r}.")

    def within(self, steps: int) -> int:
        """The most times that a patient takes part in ``steps`` consecutive steps."""
        return min(self.times, math.ceil(steps / self.separation))


def toeplitz_sensitivity(coefficients: Floats, participation: Participation) -> float:
    """L2 sensitivity of the lower triangular Toeplitz matrix with this (T,) first column.

    Exact where the column is non-negative and does not rise: the worst participation begins at the first step and
    returns as soon and as often as it may (Kalinin and Lampert 2024, Theorem 2). Else the bound of ``gram_sensitivity``.
    """
    steps = len(coefficients)
    if (coefficients < 0).any() or (np.diff(coefficients) > 0).any():
        return gram_sensitivity(toeplitz(coefficients), participation)
    moved = np.zeros(steps)
    for times in range(participation.within(steps)):
        shift = times * participation.separation
        moved[shift:] += coefficients[: steps - shift]
    return float(np.linalg.norm(moved))


def gram_sensitivity(matrix: Floats, participation: Participation) -> float:
    """An upper bound on the L2 sensitivity of any matrix of shape (rows, T).

    The squared sensitivity of a pattern is at most its steps' sum of u_i, where u_i is the most that sum_j |G_ij| can be
    over the patterns through i. Exact for one participation, and where the columns of a pattern are orthogonal
    (bands no more than the separation): then it is the largest sum of squared column norms.
    Choquette-Choo et al. 2023, Section 3, for the sum of |G_ij|; memory and time T^2 times the participations.
    """
    gram = np.abs(matrix.T @ matrix)
    steps = len(gram)
    own = np.diagonal(gram)
    times = participation.within(steps)
    if times == 1:
        return float(np.sqrt(own.max()))
    apart = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps))) >= participation.separation
    through = own + _heaviest(np.where(apart, gram, 0.0), participation.separation, times - 1)
    return float(np.sqrt(_heaviest(through[None], participation.separation, times)[0]))


def _heaviest(weights: Floats, separation: int, times: int) -> Floats:
    """(n,) most that a pattern of at most ``times`` steps, ``separation`` apart, collects of each row of (n, T)."""
    rows, steps = weights.shape
    best = np.zeros((steps + 1, times + 1, rows))  # of the first steps, with at most so many taken
    for step in range(1, steps + 1):
        taken = best[max(step - separation, 0), :-1] + weights[:, step - 1]
        best[step, 1:] = np.maximum(best[step - 1, 1:], taken)
    heaviest: Floats = best[steps, times]
    return heaviest


def toeplitz(coefficients: Floats) -> Floats:
    """The (T, T) lower triangular Toeplitz matrix with this (T,) first column."""
    steps = len(coefficients)
    lag = np.subtract.outer(np.arange(steps), np.arange(steps))
    return np.where(lag >= 0, coefficients[lag], 0.0)
