"""What published private GANs state, and what their own settings come to when every step is counted.

DPGAN: Xie et al. 2018 (arXiv:1802.06739), whose theorem PPGAN (Liu et al. 2019) repeats; AC-GAN: Beaulieu-Jones et al. 2019
with the settings of their code (greenelab/SPRINT_gan). Neighbouring relations are named with each number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from scipy import special

from polyclinic.privacy.accounting import Relation, calibrate_noise_multiplier, epsilon
from polyclinic.privacy.accounting.comparison import shown_epsilon
from polyclinic.privacy.events import dpsgd_event


@dataclass(frozen=True)
class Published:
    """One guarantee: the ``claimed`` epsilon and the ``true`` one at ``delta``, of ``unit`` under ``relation``.

    ``setting``: what it was claimed for. ``true`` counts every step and nothing else; ``why`` says what else fails.
    ``beside``: the same by other accountants, by their names.
    """

    system: str
    setting: str
    claimed: float
    true: float
    delta: float
    relation: Relation
    unit: str
    why: str
    beside: Mapping[str, float] = field(default_factory=dict)


# DPGAN and PPGAN on MNIST: a batch of 64 of 60,000 pictures, 5 critic steps for each of the generator's 500,000.
MNIST_BATCH, CRITIC_STEPS, GENERATOR_STEPS = 64, 5, 500_000
MNIST_RATE, MNIST_STEPS = MNIST_BATCH / 60_000, CRITIC_STEPS * GENERATOR_STEPS
# The SPRINT AC-GAN: one of 6,000 participants a step, 500 epochs.
TRIAL_RATE, TRIAL_STEPS, TRIAL_NOISE = 1 / 6_000, 3_000_000, 1.0
# Its epsilon by PLD and Opacus' PRV, which take half a minute each; a test computes them again.
TRIAL_PLD, TRIAL_PLD_REPLACED, TRIAL_PRV = 1.466, 2.565, 1.476
DELTA = 1e-5
CLAIMED = (1.0, 5.0, 10.0, 20.0)


def stated_noise(
    claimed: float, rate: float = MNIST_RATE, delta: float = DELTA, critic_steps: int = CRITIC_STEPS
) -> float:
    """sigma_n = 2 q sqrt(n_d log(1/delta)) / epsilon: the noise in each record's gradient by DPGAN's theorem."""
    return 2.0 * rate * math.sqrt(critic_steps * math.log(1.0 / delta)) / claimed


def stated_multiplier(claimed: float) -> float:
    """The same on MNIST as a noise multiplier of the batch's sum, which holds as many independent draws as records."""
    return stated_noise(claimed) * math.sqrt(MNIST_BATCH)


def composed_epsilon(noise: float, rate: float = MNIST_RATE, steps: int = MNIST_STEPS, delta: float = DELTA) -> float:
    """An upper bound on epsilon of ``steps`` Poisson sampled Gaussian sums whose noise is small; add or remove one record.

    RDP at orders 1 + s close to 1, where accountants' grids, which begin at 1.01 or 1.1, are a hundred times too large for
    such noise. With L the ratio of a drawn record's Gaussian to that without it, the mean of (1 - q + q L)^s is at most 1
    where the record was not drawn (Jensen), and 2^s (E[(q L)^s] + P(q L < 1 - q)) where it was. Balle et al. 2020, Theorem 21.
    """
    excess = np.logspace(-14, 0, 700)
    undrawn = math.log1p(-rate) if rate < 1.0 else -math.inf
    below = special.log_ndtr((noise**2 * (undrawn - math.log(rate)) - 0.5) / noise)
    drawn = excess * math.log(rate) + excess * (1.0 + excess) / (2.0 * noise**2)
    drawn = math.log(rate) + excess * math.log(2.0) + np.logaddexp(drawn, below)
    divergence = np.logaddexp(undrawn, drawn) / excess
    found = steps * divergence - (math.log(delta) + np.log1p(excess)) / excess + np.log(excess / (1.0 + excess))
    return float(found.min())


@lru_cache(maxsize=16)
def honest_multiplier(target: float) -> float:
    """The noise multiplier with which DPGAN's 2,500,000 steps cost ``target`` at delta 1e-5, by RDP, each record clipped."""
    return calibrate_noise_multiplier(target, DELTA, lambda noise: dpsgd_event(MNIST_RATE, noise, MNIST_STEPS), "rdp")


@lru_cache(maxsize=1)
def published() -> list[Published]:
    """The table."""
    return [*map(_dpgan, CLAIMED), *map(_ppgan, CLAIMED), *_trial()]


def _dpgan(claimed: float) -> Published:
    noise = stated_multiplier(claimed)
    return Published(
        "DPGAN", "MNIST, batch 64, 2,500,000 critic steps", claimed, composed_epsilon(noise), DELTA, "add-remove",
        "picture",
        "The theorem counts the 5 critic steps of one generator step and not those of all 500,000; and no record's gradient "
        "is clipped, so that it rests on a bound from weight clipping that its code does not use.",
        {"rdp": epsilon(dpsgd_event(MNIST_RATE, noise, MNIST_STEPS), DELTA, "rdp")},
    )  # fmt: skip


def _ppgan(claimed: float) -> Published:
    # Only the average is clipped, to C: one record can turn it round, which moves it by 2 C, and the noise is sigma_n C.
    noise = stated_noise(claimed) / 2.0
    return Published(
        "PPGAN", "MNIST, batch 64 (not stated), 2,500,000 critic steps", claimed, composed_epsilon(noise), DELTA,
        "add-remove", "picture",
        "DPGAN's noise without composition; and the clip is of a batch's average, which one record can move by twice the "
        "clip norm and not by its share of the batch.",
        {"rdp": epsilon(dpsgd_event(MNIST_RATE, noise, MNIST_STEPS), DELTA, "rdp")},
    )  # fmt: skip


def _trial() -> list[Published]:
    setting = "SPRINT, one of 6,000 participants a step, noise 1, 3,000,000 steps"
    selected = (
        "The selection among 500 generators draws its noise from a fixed seed, which is none, and the search for settings "
        "is not counted."
    )
    others = {name: shown_epsilon(name, TRIAL_RATE, TRIAL_NOISE, TRIAL_STEPS, DELTA) for name in ("rdp", "gdp")}
    return [
        Published(
            "AC-GAN", setting, 2.0, TRIAL_PLD, DELTA, "add-remove", "participant",
            f"The training keeps its claim for a participant added or removed. {selected}",
            {**others, "prv": TRIAL_PRV},
        ),
        Published(
            "AC-GAN", setting, 2.0, TRIAL_PLD_REPLACED, DELTA, "replace-one", "participant",
            f"The paper says 'differ in one record', under which the training alone costs more than its claim. {selected}",
        ),
    ]  # fmt: skip
