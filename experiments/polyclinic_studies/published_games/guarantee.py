"""What a game that is trained as published guarantees: the epsilon that its publication would state, and the true one.

The statements are of the critics' noise alone. Neighbouring relation of every number: add or remove one patient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.events import dpsgd_event
from polyclinic_studies.published_games.claims import composed_epsilon, stated_noise

# Accountants' orders begin too high for less noise than this.
_LITTLE_NOISE = 0.3


def guarantee(
    words: str, noise: float, batch_clip: float | None, patients: Sequence[int], sample_rate: float, critic_steps: int,
    rounds: int, delta: float,
) -> str:  # fmt: skip
    """In words, for hospitals of so many ``patients`` and ``critic_steps`` steps in each of ``rounds``."""
    said = [words]
    fewest = min(patients)
    batch = max(1, round(sample_rate * fewest))
    setting = sample_rate if batch > 1 else 1.0 / fewest, rounds * critic_steps, delta
    if not noise:
        said.append("No noise was added in this run: nobody is guaranteed anything.")
    elif batch_clip is None:
        stated = stated_noise(1.0, setting[0], delta, critic_steps) / (noise * math.sqrt(batch))
        said.append(
            f"With this run's noise the theorem would state epsilon {stated:.2g} at delta {delta:g}, if no patient's gradient "
            "were longer than 1; as nothing bounds a gradient, no epsilon is true."
        )
    elif batch > 1:
        stated = stated_noise(1.0, setting[0], delta, critic_steps) * batch_clip / noise
        true = _composed(noise / (2.0 * batch_clip), *setting)
        said.append(
            f"With this run's noise the theorem would state epsilon {stated:.2g} at delta {delta:g}; one patient can turn a "
            f"batch's clipped average round, and {setting[1]:,} steps of that keep an epsilon of {true:.2g} and no less is known."
        )
    else:
        true = _composed(noise / batch_clip, *setting)
        said.append(
            f"Batches were of one patient, whose gradient is clipped: {setting[1]:,} such steps would keep epsilon {true:.2g} at "
            f"delta {delta:g} if each patient were in a step by a coin of chance {setting[0]:.2g}; here one is always drawn."
        )
    return " ".join([*said, "The label's frequencies were not noised, and nothing was charged to a ledger."])


def _composed(noise: float, rate: float, steps: int, delta: float) -> float:
    if noise < _LITTLE_NOISE:
        return composed_epsilon(noise, rate, steps, delta)
    return epsilon(dpsgd_event(rate, noise, steps), delta, "rdp")
