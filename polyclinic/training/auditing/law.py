"""What rounds ought to show, and what a check says of what they do show.

They ought to show how often a patient is in each of them, and the covariance of the noise of their sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polyclinic.privacy.audit import cyclic_scores, poisson_scores
from polyclinic.training.task import TrainSettings
from polyclinic.types import Reals

#: About the probability with which a check alarms falsely.
SIGNIFICANCE = 1e-6
#: How far above its bound a sensitivity may lie by rounding.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Finding:
    """What a check measured, and between which values it may lie."""

    name: str
    what: str
    measured: float
    least: float
    most: float

    @property
    def passed(self) -> bool:
        return bool(self.least <= self.measured <= self.most)


def scores(sums: Reals, spread: Reals, settings: TrainSettings) -> Reals:
    """(canaries,) log likelihood ratios of having been there, from the counts that the sums show.

    Args:
        sums: (rounds, canaries) the counts.
        spread: (canaries,) the standard deviation of the counts when the sums have noise of standard deviation 1.
        settings: The settings of a round.
    """
    noise = settings.noise_scale * spread
    if settings.batching == "poisson":
        return poisson_scores(sums, noise, settings.sample_rate, settings.local_steps)
    return cyclic_scores(sums, noise, turns(settings, len(sums)), covariance(settings, len(sums)))


def covariance(settings: TrainSettings, rounds: int) -> Reals:
    """(rounds, rounds) covariance of what the noise of a round's steps adds up to, in units of ``noise_scale`` squared."""
    if settings.noise is None:
        return settings.local_steps * np.eye(rounds)
    steps = settings.noise.matrix()[: rounds * settings.local_steps]
    whole = steps.reshape(rounds, settings.local_steps, -1).sum(axis=1)
    return np.asarray(settings.noise.sensitivity(settings.participation) ** 2 * whole @ whole.T)


def turns(settings: TrainSettings, rounds: int) -> Reals:
    """(batches, rounds): how many steps of a round take each of the cyclic batches."""
    batch = (np.arange(rounds * settings.local_steps) % settings.epoch).reshape(rounds, settings.local_steps)
    return np.asarray([(batch == number).sum(axis=1) for number in range(settings.epoch)], dtype=np.float64)


def counts(settings: TrainSettings, shape: tuple[int, int, int], draw: np.random.Generator) -> Reals:
    """(rounds, sites, patients) draws of how many steps of a round have each patient.

    Args:
        settings: The settings of a round.
        shape: (rounds, sites, patients).
        draw: The source of random numbers.
    """
    if settings.batching == "poisson":
        return draw.binomial(settings.local_steps, settings.sample_rate, shape).astype(np.float64)
    return np.moveaxis(turns(settings, shape[0])[draw.integers(settings.epoch, size=shape[1:])], -1, 0)
