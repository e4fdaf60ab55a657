"""SCAFFOLD at a hospital: gradients corrected by control variates, so that hospitals that differ do not drift apart.

Each step's gradient g becomes g - c_i + c, where c is the server's control variate and c_i the hospital's own, which it
keeps. Neither is more than a function of what was clipped and noised before. Karimireddy et al. 2020, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from dp_accounting import ComposedDpEvent, DpEvent
from torch import nn

from polyclinic.ehr.shard import Rows
from polyclinic.privacy.events import gaussian_event
from polyclinic.training.task import SiteUpdate, SiteWork, Task, TrainSettings
from polyclinic.types import Arrays

_KEPT = "control."
Variate = Literal["update", "gradient"]


def price(steps: DpEvent, settings: TrainSettings, variate: Variate) -> DpEvent:
    """What a round costs whose own ``steps`` cost so much."""
    if variate == "update" or settings.noise_multiplier is None:
        return steps
    return ComposedDpEvent([steps, gaussian_event(settings.noise_multiplier / settings.sample_rate)])


@dataclass(frozen=True)
class Controlled:
    """``task`` with SCAFFOLD's correction; plain SGD only, since a step must be the learning rate times a gradient.

    variate: where a hospital's new control variate comes from. "update" (option II): the mean of the round's own
    gradients, read off the model's way; no record is looked at again. "gradient" (option I): the gradient at the server's
    model over all patients, a clipped sum of its own, with noise that makes it as noisy as one step's; it is charged.
    """

    task: Task
    variate: Variate = "update"

    @property
    def name(self) -> str:
        return self.task.name

    def event(self, settings: TrainSettings, begun: bool = False) -> DpEvent:
        """What the task spends, and with "gradient" one Gaussian sum over all patients more (add/remove one patient)."""
        return price(self.task.event(settings, begun), settings, self.variate)

    def check(self, build: Callable[[], nn.Module], arrays: Arrays, features: int, engine: str = "auto") -> None:
        """As the task does."""
        self.task.check(build, arrays, features, engine)

    def train(
        self, build: Callable[[], nn.Module], arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings
    ) -> list[SiteUpdate]:
        """Each site's update with the change of its control variate. ``control`` of the work is the server's variate."""
        own = [_own(site) for site in work]
        shifted = [
            replace(
                site, control={name: value - mine[name] for name, value in site.control.items()}, kept=_others(site)
            )
            for site, mine in zip(work, own, strict=True)
        ]
        updates = self.task.train(build, arrays, shifted, settings)
        if self.variate == "update":
            steps = settings.local_steps * settings.learning_rate
            with np.errstate(over="ignore", invalid="ignore"):  # of a model that has diverged
                found = [
                    {name: (arrays[name] - update.arrays[name]) / steps - value for name, value in site.control.items()}
                    for site, update in zip(shifted, updates, strict=True)
                ]
        else:
            found = self._gradients(build, arrays, work, settings)
        return [_changed(update, mine, new, settings) for update, mine, new in zip(updates, own, found, strict=True)]

    def evaluate(self, build: Callable[[], nn.Module], arrays: Arrays, rows: Sequence[Rows]) -> list[np.ndarray]:
        """As the task does."""
        return self.task.evaluate(build, arrays, rows)

    def gradient_settings(self, settings: TrainSettings) -> TrainSettings:
        """By which a gradient over all patients is made: one step of length 1, with noise as large as one step's."""
        noise = settings.noise_multiplier
        return replace(
            settings, sample_rate=1.0, local_steps=1, learning_rate=1.0, proximal_mu=0.0, denoise="none",
            noise_multiplier=None if noise is None else noise / settings.sample_rate,
        )  # fmt: skip

    def _gradients(
        self, build: Callable[[], nn.Module], arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings
    ) -> list[Arrays]:
        """Each site's private gradient at ``arrays``: what one step of length 1 over all patients takes off them."""
        whole = self.gradient_settings(settings)
        still = [replace(site, control={}, kept={}) for site in work]
        return [
            {name: arrays[name] - update.arrays[name] for name in site.control}
            for site, update in zip(work, self.task.train(build, arrays, still, whole), strict=True)
        ]


def _own(site: SiteWork) -> Arrays:
    """The site's control variate, zero before its first round."""
    return {name: np.asarray(site.kept.get(_KEPT + name, np.zeros_like(value))) for name, value in site.control.items()}


def _others(site: SiteWork) -> Arrays:
    return {name: value for name, value in site.kept.items() if not name.startswith(_KEPT)}


def _changed(update: SiteUpdate, own: Arrays, new: Arrays, settings: TrainSettings) -> SiteUpdate:
    """The update with its control variate; one that is not finite leaves the site's as it was."""
    if not all(np.isfinite(value).all() for value in new.values()):
        new = own
    change = {name: (value - own[name]).astype(own[name].dtype) for name, value in new.items()}
    kept = {_KEPT + name: own[name] + value for name, value in change.items()}
    return replace(update, kept=update.kept | kept, control=change)
