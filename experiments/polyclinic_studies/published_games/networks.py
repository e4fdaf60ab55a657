"""The critic of a trial's AC-GAN: Beaulieu-Jones et al. 2019, as their SPRINT_gan code has it (greenelab/SPRINT_gan).

Padding is that of Keras' "same".
"""

from __future__ import annotations

from torch import nn

from polyclinic.models.gan import Leading
from polyclinic.models.gan_trials import SPRINT, Form, glorot

_SLOPE, _DROPPED = 0.3, 0.3  # Keras' leaky slope


def trial_critic(form: Form = SPRINT, labels: int = 2, label_columns: int = 0) -> nn.Sequential:
    """(n, series * visits + label_columns) to (n, 1 + labels): the logit of real, and those of the labels.

    It is not shown the label, which it has to tell: the last ``label_columns`` are left out.
    """
    height, width = -(-form.series // 2), -(-form.visits // 2)
    seen = [Leading(form.columns)] if label_columns else []
    module = nn.Sequential(
        *seen, nn.Unflatten(1, (1, form.series, form.visits)),
        _same(form.series, form.visits), nn.Conv2d(1, 32, 3, 2), nn.LeakyReLU(_SLOPE), nn.Dropout(_DROPPED),
        nn.Conv2d(32, 64, 3, padding=1), nn.LeakyReLU(_SLOPE), nn.Dropout(_DROPPED), nn.Flatten(),
        nn.Linear(64 * height * width, 1024), nn.ReLU(), nn.Dropout(_DROPPED),
        nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1 + labels),
    )  # fmt: skip
    glorot(module)
    return module


def _same(height: int, width: int) -> nn.ZeroPad2d:
    """Keras' "same" padding of a 3 x 3 kernel in steps of 2: an odd cell goes to the right and below."""
    (above, below), (left, right) = (
        (total // 2, total - total // 2) for size in (height, width) for total in ((-(-size // 2) - 1) * 2 + 3 - size,)
    )
    return nn.ZeroPad2d((left, right, above, below))
