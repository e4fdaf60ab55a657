"""What an auditor sees of a round: each noisy sum of clipped gradients that a task makes of the records, told apart.

Plain steps make one kind of sum. A strategy's half at hospitals may make several passes over the records; each is charged, so
that each is audited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from torch import Tensor

from polyclinic.training.local import PLAIN, LocalHalf, Pass, Penalty, Sites, Trained
from polyclinic.training.sites import pass_settings
from polyclinic.training.synthesis import SumsTask
from polyclinic.training.task import SiteUpdate, Task, TrainSettings
from polyclinic.types import Arrays, Reals


@dataclass(frozen=True)
class View:
    """One noisy sum of a round; ``settings``: by which it is made.

    read: what it says of the arrays of these names, one after the other. It is given the names, the arrays that were
        sent, the update after a round of plain steps, and the size of these.
    reported: whether a hospital counts its steps among those of the round.
    """

    name: str
    settings: TrainSettings
    read: Callable[[Sequence[str], Arrays, SiteUpdate, float], Reals]
    reported: bool = True

    def check_name(self, check: str) -> str:
        """The name of a check of this sum."""
        return f"{check} ({self.name})" if self.name else check


def views(task: Task, settings: TrainSettings) -> list[View]:
    """The noisy sums of a round of ``task``."""
    if settings.local == PLAIN:
        return [View("", settings, _sum if isinstance(task, SumsTask) else _update)]
    return [_view(local_pass, pass_settings(settings, local_pass)) for local_pass in settings.local.passes(settings)]


def _view(local_pass: Pass, settings: TrainSettings) -> View:
    def read(names: Sequence[str], sent: Arrays, update: SiteUpdate, size: float) -> Reals:
        return np.concatenate([np.ravel(update.beside[_SEEN + local_pass.name][name]) for name in names])

    return View(local_pass.name, settings, read, reported=not local_pass.all_patients)


def _update(names: Sequence[str], sent: Arrays, update: SiteUpdate, size: float) -> Reals:
    return np.concatenate([np.ravel((sent[name] - update.arrays[name]) / size) for name in names])


def _sum(names: Sequence[str], sent: Arrays, update: SiteUpdate, size: float) -> Reals:
    """A sum is what it is, and no step whose size would matter."""
    return np.concatenate([np.ravel(update.arrays[name]) for name in names])


_SEEN = "seen-"


class Around:
    """Hospitals as they are; a subclass changes what it says. To a half they are ``Sites``."""

    def __init__(self, sites: Sites) -> None:
        self.sites = sites

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sites, name)

    def gradient(self, models: Tensor, name: str = "", penalty: Penalty | None = None) -> Tensor:
        return self.sites.gradient(models, name, penalty)


class _Watching(Around):
    """Adds up the noisy sums of each pass, which are made at the model that was sent, wherever the half wants them.

    The guarantee holds for any model, so that the auditor, who plays the server, may choose it.
    """

    def __init__(self, sites: Sites) -> None:
        super().__init__(sites)
        self.seen: dict[str, Tensor] = {}

    def gradient(self, models: Tensor, name: str = "", penalty: Penalty | None = None) -> Tensor:
        mean = super().gradient(self.model, name, penalty)
        (local_pass,) = (
            local_pass for local_pass in self.settings.local.passes(self.settings) if local_pass.name == name
        )
        total = mean * pass_settings(self.settings, local_pass).sample_rate
        self.seen[name] = self.seen[name] + total if name in self.seen else total
        return mean


@dataclass(frozen=True)
class HalfAround(LocalHalf):
    """A half as it is; a subclass changes its round."""

    half: LocalHalf

    def __post_init__(self) -> None:
        for name in ("receives", "takes", "penalises", "passes", "stays"):
            object.__setattr__(self, name, getattr(self.half, name))

    def check_returned(self, trained: Trained, like: Tensor) -> None:
        return  # what an audit sees of a round leaves beside what the half sends


@dataclass(frozen=True)
class Watched(HalfAround):
    """A half whose passes are seen: the sum of each leaves beside the model."""

    def round(self, sites: Sites) -> Trained:
        watching = _Watching(sites)
        trained = self.half.round(cast(Sites, watching))
        return Trained(
            sites.model, trained.own, trained.state, {_SEEN + name: sums for name, sums in watching.seen.items()}
        )
