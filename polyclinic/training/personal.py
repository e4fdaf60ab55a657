"""Ditto: beside the shared model each hospital trains one of its own, held near the shared one (Li et al. 2021b).

The personal model is trained on the same patients a second time, which is charged; it never leaves its hospital, and is
what the hospital evaluates with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from dp_accounting import DpEvent, SelfComposedDpEvent
from torch import nn

from polyclinic.ehr.shard import Rows
from polyclinic.training.task import OWN, SiteUpdate, SiteWork, Task, TrainSettings, own_arrays
from polyclinic.types import Arrays

_KEPT = "personal."


def price(once: DpEvent, settings: TrainSettings) -> DpEvent:
    """What a round costs in which the shared model alone costs so much."""
    return once if settings.noise_multiplier is None else SelfComposedDpEvent(once, 2)


@dataclass(frozen=True)
class Personal:
    """``task`` done twice: for the shared model, and for the site's own, which ``mu`` (the paper's lambda) pulls to the model
    that was sent.
    """

    task: Task
    mu: float

    @property
    def name(self) -> str:
        return self.task.name

    def event(self, settings: TrainSettings, begun: bool = False) -> DpEvent:
        """Twice what the task spends (add/remove one patient): both models are trained on the same patients."""
        return price(self.task.event(settings, begun), settings)

    def check(self, build: Callable[[], nn.Module], arrays: Arrays, features: int, engine: str = "auto") -> None:
        """As the task does."""
        self.task.check(build, arrays, features, engine)

    def train(
        self, build: Callable[[], nn.Module], arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings
    ) -> list[SiteUpdate]:
        """Each site's update of the shared model; its personal one is in what it keeps. Algorithm 1."""
        shared = self.task.train(build, arrays, [replace(site, kept=_shared(site)) for site in work], settings)
        near = replace(settings, proximal_mu=self.mu)
        own = self.task.train(build, arrays, [_beginning_at_own(site) for site in work], near)
        return [_together(ours, mine) for ours, mine in zip(shared, own, strict=True)]

    def evaluate(self, build: Callable[[], nn.Module], arrays: Arrays, rows: Sequence[Rows]) -> list[np.ndarray]:
        """As the task does."""
        return self.task.evaluate(build, arrays, rows)


def _shared(site: SiteWork) -> Arrays:
    return {name: value for name, value in site.kept.items() if not name.startswith((OWN, _KEPT))}


def _beginning_at_own(site: SiteWork) -> SiteWork:
    kept = {name.removeprefix(_KEPT): value for name, value in site.kept.items() if name.startswith(_KEPT)}
    return replace(site, kept=kept, begin=own_arrays(site.kept))


def _together(shared: SiteUpdate, own: SiteUpdate) -> SiteUpdate:
    """The shared update; a personal model that is not finite is not kept, so that its site begins anew."""
    kept = dict(shared.kept)
    if all(np.isfinite(value).all() for value in own.arrays.values()):
        kept |= {OWN + name: value for name, value in own.arrays.items()}
        kept |= {_KEPT + name: value for name, value in own.kept.items()}
    return replace(shared, steps=shared.steps + own.steps, kept=kept)
