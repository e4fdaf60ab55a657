"""Noise over time: what is added to the clipped sums of successive steps so that their running sum stays accurate.

Prefix sums are factorised as A = B C. Releasing C x + z, with z of independent normal draws, is a Gaussian mechanism,
and B (C x + z) = A (x + C^-1 z). So step t adds row t of C^-1 z. SGD with that noise is DP-FTRL by post-processing
(Kairouz et al. 2021; Denisov et al. 2022 for sums that depend on earlier releases).
There is no amplification by sampling here: the bound is over every pattern that the declared participation allows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from dp_accounting import DpEvent

from polyclinic.errors import ConfigError
from polyclinic.privacy.events import gaussian_event
from polyclinic.privacy.noise.sensitivity import Participation
from polyclinic.privacy.streams import Stream
from polyclinic.types import Reals

State = dict[str, npt.NDArray[Any]]


class Factorisation(Protocol):
    """A = B C over ``steps`` steps, with lower triangular B and C, and C^-1 z computed as a stream."""

    def __hash__(self) -> int: ...

    @property
    def steps(self) -> int: ...

    def sensitivity(self, participation: Participation) -> float:
        """The L2 norm of C applied to the worst participation of vectors of norm 1, or an upper bound on it."""
        ...

    def variances(self) -> Reals:
        """(steps,) variance of the noise in each prefix sum: the squared row norms of B."""
        ...

    def rows_kept(self, step: int) -> int:
        """How many vectors must be remembered after ``step`` steps."""
        ...

    def advance(self, step: int, memory: Reals, draws: Reals) -> tuple[Reals, Reals]:
        """Rows step, step + 1, ... of C^-1 z from their (n, P) draws, and the memory after them.

        Each row is computed as if it came alone.

        Args:
            step: Number of steps before.
            memory: (rows_kept(step), P), zeros before the first step.
            draws: (n, P) independent normal draws z of the next n steps.
        """
        ...


@dataclass(frozen=True)
class NoiseProcess:
    """Noise of ``steps`` steps: a factorisation, begun anew when it is used up.

    Scaled by noise_multiplier * sensitivity * max_grad_norm, the noise of all steps is accounted by ``event``. Both
    neighbouring relations hold: replacing a patient moves C x by up to twice the sensitivity, as everywhere.

    Examples:
        >>> from polyclinic.privacy.noise import noise_process
        >>> process, twice = noise_process("tree", steps=8, restart=4), Participation(separation=4, times=2)
        >>> process.releases(twice), round(process.sensitivity(twice), 2), process.event(4.0, twice)
        (2, 1.73, SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=4.0), count=2))
    """

    name: str
    steps: int
    factorisation: Factorisation

    def sensitivity(self, participation: Participation) -> float:
        """L2 norm of the worst move by one patient between two restarts, in units of the clip norm."""
        return _sensitivity(self.factorisation, participation)

    def releases(self, participation: Participation) -> int:
        """How many of the restarts can hold a given patient's data.

        With more than one participation in a restart this overstates, for not all of them can be as full as the fullest.
        """
        return min(participation.times, math.ceil(self.steps / self.factorisation.steps))

    def event(self, noise_multiplier: float, participation: Participation) -> DpEvent:
        """All ``steps`` steps for a patient who takes part as declared: one Gaussian for each restart that holds them.

        Raises ConfigError if the noise multiplier is not positive and finite.
        """
        return gaussian_event(noise_multiplier, self.releases(participation))

    def draw(
        self, stream: Stream, state: Mapping[str, npt.NDArray[Any]], steps: int, width: int
    ) -> tuple[Reals, State]:
        """(steps, width) noise of the next steps, in the stream's dtype, and the state to go on from.

        Drawing in pieces is drawing at once. The state holds past noise, from which the released sums could be cleared of
        it: keep it where the patients' data are, and send it nowhere.

        Args:
            stream: Draws the independent normal numbers.
            state: As the last call returned it; {} begins.
            steps: Number of next steps.
            width: Number of values in a step's sum.

        Raises:
            ConfigError: if the steps go beyond the last, or the state is not one of this process at this width.
        """
        step, memory = self._restore(state, width)
        if steps < 0 or step + steps > self.steps:
            raise ConfigError(
                f"The noise process {self.name!r} has {self.steps} steps, of which {step} are drawn; {steps} more were asked."
            )
        draws = stream.normal((steps, width))
        noise, length = [draws[:0]], self.factorisation.steps
        last = step + steps
        while step < last:
            part = draws[steps - (last - step) :][: length - step % length]
            rows, memory = self.factorisation.advance(step % length, memory.astype(draws.dtype, copy=False), part)
            noise.append(rows)
            step += len(part)
            if step % length == 0:
                memory = self._fresh(width)
        return np.concatenate(noise), {"step": np.asarray(step), "memory": memory}

    def variances(self) -> Reals:
        """(steps,) variance of the noise in each prefix sum at unit base draws."""
        once, length = self.factorisation.variances(), self.factorisation.steps
        done = np.arange(self.steps) // length
        variances: Reals = once[np.arange(self.steps) % length] + done * once[-1]
        return variances

    def matrix(self) -> Reals:
        """(steps, steps) linear map from base draws to noise; for small ``steps``."""
        length = self.factorisation.steps
        once, _ = self.factorisation.advance(0, self._fresh(length), np.eye(length))
        whole: Reals = np.kron(np.eye(math.ceil(self.steps / length)), once)
        return whole[: self.steps, : self.steps]

    def _fresh(self, width: int) -> Reals:
        return np.zeros((self.factorisation.rows_kept(0), width))

    def _restore(self, state: Mapping[str, npt.NDArray[Any]], width: int) -> tuple[int, Reals]:
        if not state:
            return 0, self._fresh(width)
        torn = ConfigError(f"The kept state is not one of the noise process {self.name!r} with {width} parameters.")
        if set(state) != {"step", "memory"}:
            raise torn
        step, memory = np.asarray(state["step"]), np.asarray(state["memory"])
        if step.shape != () or step.dtype.kind not in "iu" or not 0 <= step <= self.steps:
            raise torn
        rows = self.factorisation.rows_kept(int(step) % self.factorisation.steps)
        if memory.shape != (rows, width) or memory.dtype.kind != "f" or not np.isfinite(memory).all():
            raise torn
        return int(step), memory


@lru_cache(maxsize=256)
def _sensitivity(factorisation: Factorisation, participation: Participation) -> float:
    # Asked by every site in every round, and some bounds take T^2 time.
    return factorisation.sensitivity(participation)


@dataclass(frozen=True)
class PrefixError:
    """Standard deviation of the noise in the prefix sums at noise multiplier and clip norm 1, at equal privacy.

    ``rms_max``: at the worst step; ``rms_mean``: root of the mean square over the steps.

    Examples:
        >>> from polyclinic.privacy.noise import noise_process
        >>> error(noise_process("independent", steps=4), Participation(1, 1)).rms_max
        2.0
    """

    rms_max: float
    rms_mean: float


def error(process: NoiseProcess, participation: Participation) -> PrefixError:
    """The error of all prefix sums, scaled so that the events of all restarts together amount to noise multiplier 1.

    Examples:
        >>> from polyclinic.privacy.noise import noise_process
        >>> once = Participation(separation=100, times=1)
        >>> [round(error(noise_process(name, 100), once).rms_max, 1) for name in ("independent", "tree", "sqrt-toeplitz")]
        [10.0, 5.2, 2.5]
    """
    scale = process.sensitivity(participation) * math.sqrt(process.releases(participation))
    variances = process.variances()
    return PrefixError(scale * math.sqrt(variances.max()), scale * math.sqrt(variances.mean()))


def warning(process: NoiseProcess, participation: Participation) -> str | None:
    """A sentence for the user where the process is worse than independent noise, else None.

    Compared by the error of the worst prefix sum. The comparison knows no amplification by sampling, which only
    independent noise would gain from.

    Examples:
        >>> from polyclinic.privacy.noise import noise_process
        >>> once, always = Participation(1, 1), Participation(1, 100)
        >>> print(warning(noise_process("tree", 100), once))
        None
        >>> warning(noise_process("tree", 100), always).rpartition("; ")[2]
        'independent noise is better.'
    """
    ours = error(process, participation).rms_max
    independent = math.sqrt(participation.within(process.steps) * process.steps)
    if ours <= independent * (1 + 1e-9):
        return None
    often = "every step" if participation.separation == 1 else f"one step in {participation.separation}"
    return (
        f"With a patient in {often} of {process.steps}, at most {participation.times:,} times, {process.name} noise leaves"
        f" {ours / independent:.2f} times the error of independent noise at the same privacy; independent noise is better."
    )
