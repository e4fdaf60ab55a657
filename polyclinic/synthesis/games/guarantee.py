"""What a preset as published guarantees with a run's settings: the epsilon that its publication would state, and the true one.

The statements are of the critics' noise alone. Neighbouring relation of every number: add or remove one patient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.events import dpsgd_event
from polyclinic.privacy.published import composed_epsilon, stated_noise
from polyclinic.synthesis.games.game import Game

# Accountants' orders begin too high for less noise than this.
_LITTLE_NOISE = 0.3


def guarantee(
    game: Game, patients: Sequence[int], sample_rate: float, critic_steps: int, rounds: int, delta: float
) -> str:
    """In words, for hospitals of so many ``patients`` and ``critic_steps`` steps in each of ``rounds``; "" for preset "sound"."""
    if game.preset != "paper" or not patients:
        return ""
    said = [game.guarantee] if game.guarantee else []
    fewest = min(patients)
    batch = max(1, round(sample_rate * fewest))
    setting = sample_rate if batch > 1 else 1.0 / fewest, rounds * critic_steps, delta
    if not game.noise:
        said.append("No noise was added in this run: nobody is guaranteed anything.")
    elif game.batch_clip is None:
        stated = stated_noise(1.0, setting[0], delta, critic_steps) / (game.noise * math.sqrt(batch))
        said.append(
            f"With this run's noise the theorem would state epsilon {stated:.2g} at delta {delta:g}, if no patient's gradient "
            "were longer than 1; as nothing bounds a gradient, no epsilon is true."
        )
    elif batch > 1:
        stated = stated_noise(1.0, setting[0], delta, critic_steps) * game.batch_clip / game.noise
        true = _composed(game.noise / (2.0 * game.batch_clip), *setting)
        said.append(
            f"With this run's noise the theorem would state epsilon {stated:.2g} at delta {delta:g}; one patient can turn a "
            f"batch's clipped average round, and {setting[1]:,} steps of that keep an epsilon of {true:.2g} and no less is known."
        )
    else:
        true = _composed(game.noise / game.batch_clip, *setting)
        said.append(
            f"Batches were of one patient, whose gradient is clipped: {setting[1]:,} such steps would keep epsilon {true:.2g} at "
            f"delta {delta:g} if each patient were in a step by a coin of chance {setting[0]:.2g}; here one is always drawn."
        )
    return " ".join([*said, "The label's frequencies were not noised, and nothing was charged to a ledger."])


def _composed(noise: float, rate: float, steps: int, delta: float) -> float:
    if noise < _LITTLE_NOISE:
        return composed_epsilon(noise, rate, steps, delta)
    return epsilon(dpsgd_event(rate, noise, steps), delta, "rdp")
