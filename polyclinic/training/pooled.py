"""DP-GD over all hospitals' patients at once: each gives its clipped gradient sum to a secure sum, which alone has the noise.

A hospital's sum is not private by itself: it leaves under masks and with a share of the noise
(``privacy.secure.distributed``). With H hospitals the noise is a square root of H below that of hospitals which each add the
whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from dp_accounting import DpEvent, NonPrivateDpEvent

from polyclinic.ehr.shard import Rows
from polyclinic.privacy.events import zcdp_event
from polyclinic.training.local import PLAIN
from polyclinic.training.task import SiteUpdate, SiteWork, Task, TrainSettings
from polyclinic.types import Arrays, Builder


def price(settings: TrainSettings) -> DpEvent:
    """What one opened sum costs each patient in it."""
    from polyclinic.privacy.secure.distributed import patient_rho  # loaded by runs with secure sums

    noise = settings.noise_multiplier
    return NonPrivateDpEvent() if noise is None else zcdp_event(patient_rho(noise))


@dataclass(frozen=True)
class Pooled:
    """``task``, of which a hospital computes one clipped gradient sum and takes no step of its own."""

    task: Task

    @property
    def name(self) -> str:
        return self.task.name

    def event(self, settings: TrainSettings, begun: bool = False) -> DpEvent:
        """What one opened sum spends of each patient in it (add/remove one patient), by concentrated differential privacy."""
        return price(settings)

    def check(self, build: Builder, arrays: Arrays, features: int, engine: str = "auto", private: bool = True) -> None:
        """As the task does.

        Args:
            build: Makes the model's module.
            arrays: The model's arrays.
            features: The width of a row.
            engine: How per-patient gradients are computed.
            private: Whether patients must be kept apart.
        """
        self.task.check(build, arrays, features, engine, private)

    def train(
        self, build: Builder, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings
    ) -> list[SiteUpdate]:
        """Each site's ``arrays`` less its sum of clipped gradients, without noise, in float64.

        A float32 would round the sums of two neighbours apart by more than one patient's part is worth.

        Args:
            build: Makes the model's module.
            arrays: The model's arrays.
            work: Each site's part.
            settings: The settings of the round; learning rate, noise, weight decay and the strategy's half are
                replaced.
        """
        exact = {name: value.astype(np.float64) if value.dtype.kind == "f" else value for name, value in arrays.items()}
        alone = [replace(site, public_patients=1.0) for site in work]
        return self.task.train(
            build,
            exact,
            alone,
            replace(settings, learning_rate=1.0, noise_multiplier=0.0, weight_decay=0.0, double=True, local=PLAIN),
        )

    def evaluate(self, build: Builder, arrays: Arrays, rows: Sequence[Rows]) -> list[np.ndarray]:
        """As the task does.

        Args:
            build: Makes the model's module.
            arrays: The model's arrays.
            rows: Each site's rows.
        """
        return self.task.evaluate(build, arrays, rows)
