"""What an auditor sees of a round: each noisy sum of clipped gradients that a task makes of the records, told apart.

Most tasks make one in a round. Ditto's hospitals train a personal model too, and SCAFFOLD's may look at all patients once
more for their control variate; both are charged, so that both are audited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from polyclinic.training.control import Controlled
from polyclinic.training.personal import Personal
from polyclinic.training.synthesis import SumsTask
from polyclinic.training.task import OWN, SiteUpdate, Task, TrainSettings
from polyclinic.types import Arrays, Reals


@dataclass(frozen=True)
class Before:
    """What a hospital's round began from: the model sent, what it kept, and its control variate as the server knows it."""

    arrays: Arrays
    kept: Mapping[str, np.ndarray]
    variate: Arrays


@dataclass(frozen=True)
class View:
    """One noisy sum of a round; ``settings``: by which it is made.

    read: what it says of an array, from before and after a round of plain steps of the size given. reported: whether a
    hospital counts its steps among those of the round.
    """

    name: str
    settings: TrainSettings
    read: Callable[[str, Before, SiteUpdate, float], Reals]
    reported: bool = True

    def named(self, check: str) -> str:
        """The name of a check of this sum."""
        return f"{check} ({self.name})" if self.name else check


def views(task: Task, settings: TrainSettings) -> list[View]:
    """The noisy sums of a round of ``task``, the one that all tasks make first."""
    found = [View("", settings, _sum if isinstance(task, SumsTask) else _update)]
    if isinstance(task, Personal):
        found.append(View("personal model", settings, _personal))
    if isinstance(task, Controlled) and task.variate == "gradient":
        found.append(View("control variate", task.gradient_settings(settings), _variate, reported=False))
    return found


def inner(task: Task) -> Task:
    """The task that a strategy's own has done by hospitals, whose canaries and losses count."""
    return task.task if isinstance(task, Personal | Controlled) else task


def _update(name: str, before: Before, update: SiteUpdate, size: float) -> Reals:
    return np.asarray((before.arrays[name] - update.arrays[name]) / size)


def _sum(name: str, before: Before, update: SiteUpdate, size: float) -> Reals:
    """A sum is no step, so that no size changes it."""
    return np.asarray(before.arrays[name] - update.arrays[name])


def _personal(name: str, before: Before, update: SiteUpdate, size: float) -> Reals:
    """A personal model that is not kept was not finite."""
    begun = before.kept.get(OWN + name, before.arrays[name])
    return np.asarray((begun - update.kept.get(OWN + name, np.full_like(begun, np.nan))) / size)


def _variate(name: str, before: Before, update: SiteUpdate, size: float) -> Reals:
    """The gradient itself, whatever the steps' size."""
    return np.asarray(before.variate[name] + update.control[name])
