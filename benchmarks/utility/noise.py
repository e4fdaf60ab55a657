"""How much noise a run's mean gradient has, whatever the model, in multiples of what full batches have at the same privacy.

Of T steps with batches of a share q, the mean of all steps' gradients has noise of standard deviation
``noise_multiplier * clip norm / patients`` times a number that the batches and the noise process alone decide. With full
batches it is the same for any T: no way of training has less.
"""

from __future__ import annotations

import math
from typing import Any

from polyclinic.privacy.accounting import calibrate_noise_multiplier, dpsgd_event, gaussian_event
from polyclinic.privacy.noise import Participation, noise_process

DELTA = 1e-4
SHAPES = ((4, 5), (4, 20), (10, 5), (10, 20), (50, 5), (50, 20))
PROCESSES = ("independent", "tree", "sqrt-toeplitz", "banded", "blt")


def noise_rows() -> list[dict[str, Any]]:
    """A row for each number of batches and of passes."""
    return [
        {"batches": batches, "passes": passes}
        | {f"poisson {epsilon:g}": poisson(batches, passes, epsilon) for epsilon in (1.0, 3.0)}
        | {name: over_time(name, batches, passes) for name in PROCESSES}
        for batches, passes in SHAPES
    ]


def poisson(batches: int, passes: int, epsilon: float) -> float:
    """Poisson batches of 1 / ``batches`` of the patients, at ``DELTA``."""
    steps = batches * passes
    whole = calibrate_noise_multiplier(epsilon, DELTA, gaussian_event)
    part = calibrate_noise_multiplier(epsilon, DELTA, lambda noise: dpsgd_event(1 / batches, noise, steps))
    return part * batches / math.sqrt(steps) / whole


def over_time(name: str, batches: int, passes: int) -> float:
    """Batches that take turns, with the noise process of that name; the same at every epsilon."""
    participation = Participation(batches, passes)
    process = noise_process(name, batches * passes, participation=participation)
    scale = process.sensitivity(participation)
    return scale * math.sqrt(process.variances()[-1]) / passes
