"""What is audited: a task's own ``train``, called as hospitals call it, with a run's settings.

The auditor plays the server: it may choose the model that a round starts from, since the guarantee holds for any, and it
sees all that a hospital makes of its records. Nothing here scores or judges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from polyclinic.ehr.shard import Rows
from polyclinic.models.tabular import initialise
from polyclinic.privacy.streams import Stream, keyed_stream, system_stream, torch_seed
from polyclinic.training.auditing.faults import NO_FAULT, Fault
from polyclinic.training.auditing.views import View, Watched, views
from polyclinic.training.local import PLAIN, LocalHalf
from polyclinic.training.modules import load
from polyclinic.training.task import SiteUpdate, SiteWork, Task, TrainSettings
from polyclinic.types import Arrays, Builder, Reals

# A step this small leaves every gradient as it was, and is still far above the rounding of float64.
_SMALL = 1e-6


@dataclass(frozen=True, eq=False)
class Claim:
    """What training claims at a hospital, a round's settings, and the patients of ``classes`` among whom canaries hide.

    epsilon, delta: what ``rounds`` rounds of ``settings`` claim to spend on each patient (add/remove one). seed: None
    draws from the operating system, as a hospital does. fault: what is planted between the audit and the task.
    """

    settings: TrainSettings
    rounds: int
    patients: Rows
    classes: int
    epsilon: float
    delta: float
    seed: int | None = None
    fault: Fault = NO_FAULT


@dataclass(frozen=True, eq=False)
class Subject(Claim):
    """A task, its model for any number of features, and what they claim."""

    task: Task = field(kw_only=True)
    build: Callable[[int], Builder] = field(kw_only=True)

    @property
    def features(self) -> int:
        return int(self.patients.x.shape[1])

    @property
    def canaries(self) -> Callable[[int, int, int, float, Stream], Rows] | None:
        """(features, classes, count, scale, stream) to canaries; None where each has a column of its own or the task has some."""
        return None

    def views(self, settings: TrainSettings | None = None) -> list[View]:
        """The noisy sums of a round, as ``settings`` or the run's make them."""
        # A fault that trains by itself makes the first only.
        asked = settings or self.settings
        return views(self.task, replace(asked, local=PLAIN) if self.fault.train else asked)

    def stream(self, *key: str | int) -> Stream:
        return system_stream() if self.seed is None else keyed_stream(self.seed, "audit", *key)

    def model(self, extra: int = 0) -> tuple[Builder, Arrays]:
        """A builder for the patients' features and ``extra`` columns more, and a new model's arrays in float64."""
        build = self.fault.build(self.build(self.features + extra), self.features + extra)
        first = initialise(build, torch_seed(self.seed or 0, "audit", "model"))
        return build, {name: value.double().numpy() for name, value in first.items()}

    def hospital(self, rows: Rows, settings: TrainSettings, *key: str | int) -> Hospital:
        """A hospital with ``rows`` and streams of its own."""
        return Hospital(
            rows, self.fault.sampling(self.stream("batches", *key), settings.sample_rate),
            self.fault.noise(self.stream("noise", *key)), self.stream("layers", *key),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Hospital:
    """Rows, and the streams that go on from round to round."""

    rows: Rows
    sampling: Stream
    noise: Stream
    layers: Stream


def train(
    subject: Subject, build: Builder, arrays: Arrays, hospitals: Sequence[Hospital], settings: TrainSettings,
    public_patients: float, kept: Sequence[Mapping[str, np.ndarray]],
) -> list[SiteUpdate]:  # fmt: skip
    """The hospitals' updates by the task's own code, with the fault where one is planted; always in float64.

    What the strategy sends beside the model is zero.
    """
    beside = {
        name: {label: np.zeros_like(value) for label, value in arrays.items()} for name in settings.local.receives
    }
    work = [
        SiteWork(site.rows, site.sampling, site.noise, public_patients, own, site.layers, beside=beside)
        for site, own in zip(hospitals, kept, strict=True)
    ]
    run = subject.fault.train or subject.task.train
    return run(build, arrays, work, replace(subject.fault.settings(settings), double=True))


def noisy_sums(
    subject: Subject, build: Builder, arrays: Arrays, hospitals: Sequence[Hospital], settings: TrainSettings,
    rounds: int = 1,
) -> list[Reals]:  # fmt: skip
    """For each view (rounds, S, P): what each hospital's noisy sums of clipped gradients at ``arrays`` add up to in each round.

    Tiny steps of plain SGD show them; any optimizer or filter only reworks what has become private before.
    """
    scale = _SMALL / settings.max_grad_norm
    plain = replace(
        settings, learning_rate=scale * settings.sample_rate, optimizer="sgd", momentum=0.0, weight_decay=0.0,
        denoise="none", local=_watched(subject, settings.local),
    )  # fmt: skip
    names, seen = privatised(subject, build, arrays), subject.views(settings)
    kept: list[Arrays] = [{} for _ in hospitals]
    shown: list[list[list[Reals]]] = [[] for _ in seen]
    for _ in range(rounds):
        updates = train(subject, build, arrays, hospitals, plain, 1.0, kept)
        for view, sums in zip(seen, shown, strict=True):
            sums.append([view.read(names, arrays, update, scale) for update in updates])
        kept = [update.kept for update in updates]
    return [np.asarray(sums) for sums in shown]


def _watched(subject: Subject, half: LocalHalf) -> LocalHalf:
    # A fault that trains by itself takes plain steps.
    return PLAIN if half == PLAIN or subject.fault.train else Watched(half)


def privatised(subject: Subject, build: Builder, arrays: Arrays) -> list[str]:
    """The arrays that records reach, through noise: all trainable ones, unless the task has a ``privatised`` of its own."""
    if hasattr(subject.task, "privatised"):
        return list(subject.task.privatised(build, arrays))
    return [name for name, value in load(build, arrays).named_parameters() if value.requires_grad]
