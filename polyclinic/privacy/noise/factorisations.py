"""Factorisations A = B C of the prefix sums: independent noise, the square root, bands, buffers, and a dense one; and how
those that are optimised are found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.privacy.noise.sensitivity import (
    Participation,
    check_count,
    gram_sensitivity,
    toeplitz,
    toeplitz_sensitivity,
    worst_move,
)
from polyclinic.types import Reals

Objective = Literal["max", "mean"]
MOST_STEPS = 256


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
        return combine(memory, draws, lambda end: self.inverse[end - 1 :: -1])


@dataclass(frozen=True)
class Banded:
    """C = the lower triangular Toeplitz matrix of ``bands`` optimised coefficients, each column scaled to norm 1.

    C has few diagonals, so that a patient who returns after as many steps adds up orthogonally.
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
    def design(
        cls, steps: int, participation: Participation, bands: int | None = None, objective: Objective = "max"
    ) -> Banded:
        """A banded factorisation for a participation.

        Args:
            steps: Number of steps.
            participation: What its bands suit.
            bands: As many as the separation by default; as many as steps where a patient takes part only once.
            objective: The error that the coefficients minimise, "max" or "mean".

        Raises:
            ConfigError: for bands or an objective out of range.
        """
        widest = steps if participation.within(steps) == 1 else min(participation.separation, steps)
        return cls(steps, widest if bands is None else bands, objective)

    @cached_property
    def coefficients(self) -> Reals:
        """(bands,) first column of the Toeplitz matrix, of norm 1."""
        return _optimal_bands(self.steps, self.bands, self.objective)

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
            earlier = min(row, self.bands - 1)
            rows[row] /= self.coefficients[0]
            rows[row] -= weights[self.bands - 1 - earlier :] @ rows[row - earlier : row]
        noise = rows[len(memory) :] * self.norms[step : step + len(draws), None].astype(rows.dtype)
        return noise, rows[len(rows) - self.rows_kept(step + len(draws)) :].copy()


@lru_cache(maxsize=64)
def _optimal_bands(steps: int, bands: int, objective: Objective) -> Reals:
    from scipy.signal import lfilter

    once = Participation(1, 1)
    column = np.eye(1, steps)[0]

    def loss(tail: Reals) -> tuple[float, Reals]:
        column[1:bands] = tail
        value, gradient = log_loss(column, lambda x: lfilter([1.0], column[:bands], x), once, objective)
        return value, gradient[1:bands]

    column[1:bands] = minimise(loss, SquareRoot(bands).coefficients[1:])
    return freeze(column[:bands] / np.linalg.norm(column[:bands]))


@dataclass(frozen=True)
class Buffered:
    """C Toeplitz with coefficients 1 and sum_i scale_i decay_i^(t-1). Keeps ``buffers`` vectors.

    Optimised for ``participation``; the sensitivity is true for any other. At every-step participation C tends to 1. Nearly
    the square root's error from a handful of vectors of memory.
    Dvijotham et al. 2024, "Efficient and Near-Optimal Noise Generation for Streaming Differential Privacy"; McMahan, Xu and
    Zhang 2024, "A Hassle-free Algorithm for Private Learning in Practice", for repeated participation.
    """

    steps: int
    participation: Participation
    buffers: int = 3
    objective: Objective = "max"

    def __post_init__(self) -> None:
        check_count("buffers", self.buffers, 8)
        check_objective(self.objective)

    @cached_property
    def scale_decay(self) -> tuple[Reals, Reals]:
        """Two arrays (buffers,), the slowest decay first."""
        return _optimal_buffers(self.steps, self.buffers, self.participation, self.objective)

    @cached_property
    def coefficients(self) -> Reals:
        """(steps,) first column of C."""
        return _column(self.steps, *self.scale_decay)

    def sensitivity(self, participation: Participation) -> float:
        return toeplitz_sensitivity(self.coefficients, participation)

    def variances(self) -> Reals:
        inverse = _solve(*self.scale_decay, np.eye(1, self.steps)[0])
        return np.cumsum(np.cumsum(inverse) ** 2)

    def rows_kept(self, step: int) -> int:
        return self.buffers

    def advance(self, step: int, memory: Reals, draws: Reals) -> tuple[Reals, Reals]:
        scale, decay = (values.astype(draws.dtype) for values in self.scale_decay)
        noise = np.empty_like(draws)
        for row, draw in enumerate(draws):
            noise[row] = draw - scale @ memory
            memory = decay[:, None] * memory + noise[row]
        return noise, memory


@lru_cache(maxsize=64)
def _optimal_buffers(
    steps: int, buffers: int, participation: Participation, objective: Objective
) -> tuple[Reals, Reals]:
    lag = np.arange(steps - 1)

    def unpack(values: Reals) -> tuple[Reals, Reals]:
        return np.exp(values[:buffers]), 1 / (1 + np.exp(-values[buffers:]))

    def loss(values: Reals) -> tuple[float, Reals]:
        scale, decay = unpack(values)
        column = _column(steps, scale, decay)
        value, gradient = log_loss(column, lambda x: _solve(scale, decay, x), participation, objective)
        powers = decay[:, None] ** lag
        by_decay = (powers[:, :-1] * lag[1:]) @ gradient[2:]
        return value, np.concatenate([scale * (powers @ gradient[1:]), scale * by_decay * decay * (1 - decay)])

    # Memories from two steps to all of them, with scales as the square root's coefficients would have them.
    gap = np.geomspace(0.5, 1 / (steps + 1), buffers + 1)[:buffers]
    scale = 0.5 * np.sqrt(gap) / np.sqrt(gap).sum()
    start = np.concatenate([np.log(scale), np.log((1 - gap) / gap)])
    scale, decay = unpack(minimise(loss, start, [(-30.0, 0.0)] * buffers + [(-20.0, 20.0)] * buffers))
    order = np.argsort(-decay)
    return freeze(scale[order]), freeze(decay[order])


def _column(steps: int, scale: Reals, decay: Reals) -> Reals:
    return np.concatenate([[1.0], scale @ decay[:, None] ** np.arange(steps - 1)])


def _solve(scale: Reals, decay: Reals, x: Reals) -> Reals:
    """C^-1 x, with C as the power series 1 + sum_i scale_i x / (1 - decay_i x) brought to one fraction."""
    from scipy.signal import lfilter

    below = np.poly(decay)
    above = below.copy()
    for buffer, weight in enumerate(scale):
        above[1:] += weight * np.poly(np.delete(decay, buffer))
    solved: Reals = lfilter(below, above, x)
    return solved


@dataclass(frozen=True)
class Dense:
    """C of any lower triangular form, its columns of norm 1; at most 256 steps. Keeps all past draws.

    Of least mean error over all lower triangular ones, for a patient who takes part once.
    Repeated participation is bounded, not exact (``gram_sensitivity``), and not what it is optimal for.
    """

    steps: int

    def __post_init__(self) -> None:
        check_count("steps of dense noise", self.steps, MOST_STEPS)

    def sensitivity(self, participation: Participation) -> float:
        return gram_sensitivity(_optimal_dense(self.steps)[0], participation)

    def variances(self) -> Reals:
        prefix = np.cumsum(_optimal_dense(self.steps)[1], axis=0)
        variances: Reals = np.square(prefix).sum(axis=1)
        return variances

    def rows_kept(self, step: int) -> int:
        return step

    def advance(self, step: int, memory: Reals, draws: Reals) -> tuple[Reals, Reals]:
        inverse = _optimal_dense(self.steps)[1]
        return combine(memory, draws, lambda end: inverse[end - 1, :end])


@lru_cache(maxsize=4)
def _optimal_dense(steps: int) -> tuple[Reals, Reals]:
    """C and C^-1, (T, T), that minimise tr(A^T A (C^T C)^-1) where C^T C has a unit diagonal.

    With M = A^T A the optimum is C^T C = D^-1/2 (D^1/2 M D^1/2)^1/2 D^-1/2. D is the diagonal matrix of the v with
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
    return freeze(c), freeze(np.linalg.inv(c))


def combine(past: Reals, draws: Reals, weights: Callable[[int], Reals]) -> tuple[Reals, Reals]:
    """Rows ``weights(end)`` times the first ``end`` draws, for each new draw, and all draws so far.

    Args:
        past: (t, P) draws before.
        draws: (n, P) new draws.
        weights: Gives the (end,) weights of the first ``end`` draws.
    """
    all_draws = np.concatenate([past, draws])
    noise = np.empty_like(draws)
    for row, end in enumerate(range(len(past) + 1, len(all_draws) + 1)):
        noise[row] = weights(end).astype(all_draws.dtype) @ all_draws[:end]
    return noise, all_draws


def check_objective(objective: str) -> None:
    """Raises ConfigError if ``objective`` is neither "max" nor "mean"."""
    if objective not in ("max", "mean"):
        raise ConfigError(f"objective must be 'max' or 'mean', the prefix sums' error, got {objective!r}.")


def log_loss(
    column: Reals, solve: Callable[[Reals], Reals], participation: Participation, objective: Objective
) -> tuple[float, Reals]:
    """Logarithm of sensitivity^2 times the largest or mean variance of the prefix sums, and its (T,) gradient.

    The sensitivity is that of a non-negative column that does not rise. With w the first column of C^-1 and b = A w,
    dw = -w * w * dc (products of power series).

    Args:
        column: (T,) first column of C.
        solve: C^-1 times a (T,) vector.
        participation: By which a patient moves the sums.
        objective: "max" takes the largest variance, "mean" the mean.
    """
    from scipy.signal import correlate

    steps = len(column)
    moved, shifts = worst_move(column, participation)
    inverse = solve(np.eye(1, steps)[0])
    prefix = np.cumsum(inverse)
    # b_t is in the prefix sums from t on.
    share = np.ones(steps) if objective == "max" else np.arange(steps, 0, -1) / steps
    variance = share @ prefix**2
    squared = moved @ moved
    gradient = -2 * correlate(share * prefix, np.cumsum(solve(inverse)))[steps - 1 :] / variance
    for shift in shifts:
        gradient[: steps - shift] += 2 * moved[shift:] / squared
    return float(np.log(squared) + np.log(variance)), gradient


def minimise(
    loss: Callable[[Reals], tuple[float, Reals]], start: Reals, bounds: list[tuple[float, float]] | None = None
) -> Reals:
    """The point near ``start`` where the loss has a minimum: L-BFGS-B to the last digits it finds.

    Args:
        loss: Gives the loss and its gradient.
        start: Where the search begins.
        bounds: The least and largest value of each coordinate; None sets no bounds.
    """
    from scipy.optimize import minimize

    options = {"maxiter": 5000, "maxfun": 10000, "ftol": 1e-15, "gtol": 1e-10, "maxcor": 30}
    minimiser: Reals = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    return minimiser


def freeze(values: Reals) -> Reals:
    """The same array, no longer to be written to: what processes share must not change under one of them."""
    values.setflags(write=False)
    return values
