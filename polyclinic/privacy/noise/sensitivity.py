"""How far one patient can move C x, where C is the matrix whose product with the clipped sums is released with noise.

A patient moves row t of x by a vector of norm at most 1 at each step t of a participation, and by nothing elsewhere. The
vectors of different steps are different gradients, so every bound here holds for the worst of them, not only for equal
ones: sens^2 = sum over i, j of the pattern of G_ij <u_i, u_j> <= sum of |G_ij|, with G = C^T C.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from polyclinic.errors import ConfigError
from polyclinic.types import Reals


def check_count(name: str, value: object, most: int | None = None) -> None:
    """Check that ``value`` is a whole number from 1 to ``most``.

    Args:
        name: Begins the error's message.
        value: What was given.
        most: The largest number that is allowed; None sets no limit.

    Raises:
        ConfigError: if it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        allowed = "of at least 1" if most is None else f"from 1 to {most}"
        raise ConfigError(f"{name} must be a whole number {allowed}, got {value!r}.")


@dataclass(frozen=True)
class Participation:
    """How often one patient's data may enter: every ``separation`` steps at the most, and at most ``times`` times.

    Raises ConfigError if either is not a whole number of at least 1.

    Examples:
        >>> Participation(separation=10, times=5).within(steps=30)
        3
    """

    separation: int
    times: int

    def __post_init__(self) -> None:
        check_count("separation of a participation", self.separation)
        check_count("times of a participation", self.times)

    def within(self, steps: int) -> int:
        """The most times that a patient takes part in ``steps`` consecutive steps."""
        return min(self.times, math.ceil(steps / self.separation))


def toeplitz_sensitivity(coefficients: Reals, participation: Participation) -> float:
    """L2 sensitivity of the lower triangular Toeplitz matrix with this (T,) first column.

    Exact where the column is non-negative and does not rise. The worst participation then begins at the first step and
    returns as soon and as often as it may (Kalinin and Lampert 2024). Else the bound of ``gram_sensitivity``.
    """
    if (coefficients < 0).any() or (np.diff(coefficients) > 0).any():
        return gram_sensitivity(toeplitz(coefficients), participation)
    return float(np.linalg.norm(worst_move(coefficients, participation)[0]))


def worst_move(coefficients: Reals, participation: Participation) -> tuple[Reals, list[int]]:
    """(T,) what the worst participation in a column that falls adds up to, and the steps at which it takes part."""
    steps = len(coefficients)
    shifts = [times * participation.separation for times in range(participation.within(steps))]
    moved = np.zeros(steps)
    for shift in shifts:
        moved[shift:] += coefficients[: steps - shift]
    return moved, shifts


def gram_sensitivity(matrix: Reals, participation: Participation) -> float:
    """An upper bound on the L2 sensitivity of any matrix of shape (rows, T).

    The squared sensitivity of a pattern is at most its steps' sum of u_i, where u_i is the most that sum_j |G_ij| can be
    over the patterns through i. Exact for one participation, and where the columns of a pattern are orthogonal
    (bands no more than the separation): then it is the largest sum of squared column norms.
    Choquette-Choo et al. 2023, for the sum of |G_ij|. Memory T^2, time at most T^2 ``times``.
    """
    gram = np.abs(matrix.T @ matrix)
    steps = len(gram)
    separation = min(participation.separation, steps)
    own = np.diagonal(gram)
    if participation.within(steps) == 1:
        return float(np.sqrt(own.max()))
    # The separation alone may already allow no more times.
    times = participation.times if participation.times < math.ceil(steps / separation) else None
    apart = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps))) >= separation
    through = own + _heaviest(np.where(apart, gram, 0.0), separation, times and times - 1)
    return float(np.sqrt(_heaviest(through[None], separation, times)[0]))


def _heaviest(weights: Reals, separation: int, times: int | None) -> Reals:
    """(n,) most that a pattern of at most ``times`` steps, ``separation`` apart, collects of each row of (n, T)."""
    taken = 0 if times is None else 1
    start = np.zeros((1 if times is None else times + 1, len(weights)))
    # The best of the first steps by how many are taken: as far back as the separation, the latest last.
    best = deque([start] * separation, maxlen=separation)
    for weight in weights.T:
        latest = best[-1].copy()
        latest[taken:] = np.maximum(latest[taken:], best[0][: len(start) - taken] + weight)
        best.append(latest)
    heaviest: Reals = best[-1][-1]
    return heaviest


def toeplitz(coefficients: Reals) -> Reals:
    """The (T, T) lower triangular Toeplitz matrix with this (T,) first column."""
    return np.asarray(np.tril(linalg.toeplitz(coefficients)))
