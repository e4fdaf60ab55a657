"""What is audited: a task's own ``train``, called as hospitals call it, with a run's settings.

The auditor plays the server: it may choose the model that a round starts from, since the guarantee holds for any, and it
sees all that a hospital makes of its records. Nothing here scores or judges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from polyclinic.ehr.shard import Rows
from polyclinic.models.tabular import initialise
from polyclinic.privacy.streams import Stream, keyed_stream, system_stream, torch_seed
from polyclinic.training.auditing.faults import NO_FAULT, Builder, Fault
from polyclinic.training.auditing.views import Before, View, inner, views
from polyclinic.training.control import Controlled
from polyclinic.training.modules import load
from polyclinic.training.task import SiteUpdate, SiteWork, Task, TrainSettings
from polyclinic.types import Arrays, Reals

# A step this small leaves every gradient as it was, and is still far above the rounding of float64.
_SMALL = 1e-6


@dataclass(frozen=True, eq=False)
class Subject:
    """A task, its model for any number of features, a round's settings, and the patients among whom canaries hide.

    epsilon, delta: what ``rounds`` rounds of ``settings`` claim to spend on each patient (add/remove one). seed: None
    draws from the operating system, as a hospital does. fault: what is planted between the audit and the task.
    """

    task: Task
    build: Callable[[int], Builder]
    settings: TrainSettings
    rounds: int
    patients: Rows
    classes: int
    epsilon: float
    delta: float
    seed: int | None = None
    fault: Fault = NO_FAULT

    @property
    def features(self) -> int:
        return int(self.patients.x.shape[1])

    @property
    def own_task(self) -> Task:
        """The task without what the strategy has hospitals do beside it."""
        return inner(self.task)

    @property
    def canaries(self) -> Callable[[int, int, int, float, Stream], Rows] | None:
        """(features, classes, count, scale, stream) to canaries; None where each has a column of its own or the task has some."""
        return None

    def views(self, settings: TrainSettings | None = None) -> list[View]:
        """The noisy sums of a round, as ``settings`` or the run's make them."""
        # A fault that trains by itself makes the first only.
        return views(self.own_task if self.fault.train else self.task, settings or self.settings)

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
    public_patients: float, kept: Sequence[Mapping[str, np.ndarray]], variates: Sequence[Arrays] | None = None,
) -> list[SiteUpdate]:  # fmt: skip
    """The hospitals' updates by the task's own code, with the fault where one is planted; always in float64.

    variates: what each hospital is sent as the server's control variate.
    """
    work = [
        SiteWork(site.rows, site.sampling, site.noise, public_patients, own, site.layers, control=sent)
        for site, own, sent in zip(hospitals, kept, variates or [{}] * len(hospitals), strict=True)
    ]
    run = subject.fault.train or subject.fault.task(subject.task).train
    return run(build, arrays, work, replace(subject.fault.settings(settings), double=True))


def noisy_sums(
    subject: Subject, build: Builder, arrays: Arrays, hospitals: Sequence[Hospital], settings: TrainSettings,
    rounds: int = 1,
) -> list[Reals]:  # fmt: skip
    """For each view (rounds, S, P): what each hospital's noisy sums of clipped gradients at ``arrays`` add up to in each round.

    Tiny steps of plain SGD show them; any optimizer or filter only reworks what has become private before. Each hospital is
    sent its own control variate, which the server knows from its changes, so that it corrects nothing.
    """
    scale = _SMALL / settings.max_grad_norm
    plain = replace(
        settings, learning_rate=scale * settings.sample_rate, optimizer="sgd", momentum=0.0, weight_decay=0.0,
        proximal_mu=0.0, denoise="none",
    )  # fmt: skip
    names, seen = privatised(subject, build, arrays), subject.views(settings)
    corrected = names if isinstance(subject.task, Controlled) and not subject.fault.train else []
    before = [Before(arrays, {}, {name: np.zeros_like(arrays[name]) for name in corrected}) for _ in hospitals]
    shown: list[list[list[Reals]]] = [[] for _ in seen]
    for _ in range(rounds):
        kept, variates = [site.kept for site in before], [site.variate for site in before]
        updates = train(subject, build, arrays, hospitals, plain, 1.0, kept, variates)
        for view, sums in zip(seen, shown, strict=True):
            sums.append([
                np.concatenate([view.read(name, site, update, scale).ravel() for name in names])
                for site, update in zip(before, updates, strict=True)
            ])  # fmt: skip
        before = [
            Before(arrays, update.kept, {name: value + update.control[name] for name, value in site.variate.items()})
            for site, update in zip(before, updates, strict=True)
        ]
    return [np.asarray(sums) for sums in shown]


def privatised(subject: Subject, build: Builder, arrays: Arrays) -> list[str]:
    """The arrays that records reach, through noise: all trainable ones, unless the task has a ``privatised`` of its own."""
    if hasattr(subject.own_task, "privatised"):
        return list(subject.own_task.privatised(build, arrays))
    return [name for name, value in load(build, arrays).named_parameters() if value.requires_grad]
