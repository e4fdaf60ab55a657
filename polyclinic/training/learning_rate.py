"""The learning rate of a run that names none: as large as the noise of all its steps allows.

What is known without a record, or was paid for, decides it: the noise, the number of patients and of hospitals. Its constants
were chosen by measurement: docs/privacy/choosing.md.
"""

from __future__ import annotations

import math

from polyclinic.training.task import TrainSettings

# How far noise may carry a parameter over all steps, in standard deviations of it; and a step over a clipped mean gradient.
_MOST_DRIFT, _LONGEST_STEP = 0.35, 0.7
_WITHOUT_NOISE = 0.2
# Optimizers whose steps are as long as the rate, whatever the gradient's length; RMSprop's first are ten times as long.
_ADAPTIVE = {"adam": 0.1, "adamw": 0.1, "rmsprop": 0.03}


def usual_rate(
    settings: TrainSettings, steps: int = 1, patients: float = 1.0, sites: int = 1, longest: float = math.inf
) -> float:
    """The learning rate at which noise carries a parameter of the mean model by 0.35 over all ``steps``.

    It is at most 0.7 / max_grad_norm. Each site adds noise of noise_multiplier * max_grad_norm to a batch's sum. In the
    mean sample_rate * patients divides it, and momentum repeats every step 1 / (1 - momentum) times. Without privacy
    the rate is 0.2. Optimizers that scale gradients by themselves have a rate of their own: 0.1, and 0.03 for RMSprop.

    Args:
        settings: The settings of a round.
        steps: The number of steps of the whole run.
        patients: The number of patients of all ``sites`` of a round.
        sites: The number of sites of a round.
        longest: The longest step that momentum repeats, rate / (1 - momentum), over the clipping norm.
    """
    if settings.optimizer != "sgd":
        return _ADAPTIVE[settings.optimizer]
    if settings.noise_multiplier is None:
        return _WITHOUT_NOISE
    noise = settings.noise_multiplier * math.sqrt(sites * steps) / (settings.sample_rate * patients)
    rate = min(_LONGEST_STEP, _MOST_DRIFT * (1 - settings.momentum) / noise, longest * (1 - settings.momentum))
    return rate / settings.max_grad_norm
