"""Buffered linear Toeplitz noise: nearly the square root's error from a handful of vectors of memory.

Dvijotham et al. 2024, "Efficient and Near-Optimal Noise Generation for Streaming Differential Privacy"; McMahan, Xu and
Zhang 2024, "A Hassle-free Algorithm for Private Learning in Practice", for repeated participation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from polyclinic.privacy.noise.design import Objective, check_objective, log_loss, minimised, shared
from polyclinic.privacy.noise.sensitivity import Participation, check_count, toeplitz_sensitivity
from polyclinic.types import Reals


@dataclass(frozen=True)
class Buffered:
    """C Toeplitz with coefficients 1 and sum_i scale_i decay_i^(t-1). Keeps ``buffers`` vectors.

    Optimised for ``participation``; the sensitivity is true for any other. At every-step participation C tends to 1.
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
        return _optimal(self.steps, self.buffers, self.participation, self.objective)

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
def _optimal(steps: int, buffers: int, participation: Participation, objective: Objective) -> tuple[Reals, Reals]:
    lag = np.arange(steps - 1)

    def unpacked(values: Reals) -> tuple[Reals, Reals]:
        return np.exp(values[:buffers]), 1 / (1 + np.exp(-values[buffers:]))

    def loss(values: Reals) -> tuple[float, Reals]:
        scale, decay = unpacked(values)
        column = _column(steps, scale, decay)
        value, gradient = log_loss(column, lambda x: _solve(scale, decay, x), participation, objective)
        powers = decay[:, None] ** lag
        by_decay = (powers[:, :-1] * lag[1:]) @ gradient[2:]
        return value, np.concatenate([scale * (powers @ gradient[1:]), scale * by_decay * decay * (1 - decay)])

    # Memories from two steps to all of them, with scales as the square root's coefficients would have them.
    gap = np.geomspace(0.5, 1 / (steps + 1), buffers + 1)[:buffers]
    scale = 0.5 * np.sqrt(gap) / np.sqrt(gap).sum()
    start = np.concatenate([np.log(scale), np.log((1 - gap) / gap)])
    scale, decay = unpacked(minimised(loss, start, [(-30.0, 0.0)] * buffers + [(-20.0, 20.0)] * buffers))
    order = np.argsort(-decay)
    return shared(scale[order]), shared(decay[order])


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
