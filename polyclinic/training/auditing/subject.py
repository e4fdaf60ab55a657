"""What is audited: a task's own ``train``, called as hospitals call it, with a run's settings.

The auditor plays the server: it may choose the model that a round starts from, since the guarantee holds for any, and it
sees every update. Nothing here scores or judges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from polyclinic.ehr.shard import Rows
from polyclinic.models.tabular import initialise
from polyclinic.privacy.streams import Floats, Stream, keyed_stream, system_stream, torch_seed
from polyclinic.training.auditing.faults import NO_FAULT, Builder, Fault
from polyclinic.training.modules import load
from polyclinic.training.task import Arrays, SiteUpdate, SiteWork, Task, TrainSettings

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
    """The hospitals' updates by the task's own code, with the fault where one is planted; always in float64."""
    work = [
        SiteWork(site.rows, site.sampling, site.noise, public_patients, own, site.layers)
        for site, own in zip(hospitals, kept, strict=True)
    ]
    run = subject.fault.train or subject.task.train
    return run(build, arrays, work, replace(subject.fault.settings(settings), double=True))


def noisy_sums(
    subject: Subject, build: Builder, arrays: Arrays, hospitals: Sequence[Hospital], settings: TrainSettings,
    rounds: int = 1,
) -> Floats:  # fmt: skip
    """(rounds, S, P): what each hospital's noisy sums of clipped gradients at ``arrays`` add up to in each round.

    Tiny steps of plain SGD show them; any optimizer or filter only reworks what has become private before.
    """
    scale = _SMALL / settings.max_grad_norm
    plain = replace(
        settings, learning_rate=scale * settings.sample_rate, optimizer="sgd", momentum=0.0, weight_decay=0.0,
        proximal_mu=0.0, denoise="none",
    )  # fmt: skip
    names = privatised(subject, build, arrays)
    kept: Sequence[Arrays] = [{} for _ in hospitals]
    moved = []
    for _ in range(rounds):
        updates = train(subject, build, arrays, hospitals, plain, 1.0, kept)
        kept = [update.kept for update in updates]
        moved.append([np.concatenate([(arrays[n] - update.arrays[n]).ravel() for n in names]) for update in updates])
    return np.asarray(moved) / scale


def privatised(subject: Subject, build: Builder, arrays: Arrays) -> list[str]:
    """The arrays that records reach, through noise: all trainable ones, unless the task has a ``privatised`` of its own."""
    if hasattr(subject.task, "privatised"):
        return list(subject.task.privatised(build, arrays))
    return [name for name, value in load(build, arrays).named_parameters() if value.requires_grad]
