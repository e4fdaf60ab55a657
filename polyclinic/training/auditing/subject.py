"""What is audited: a task's own ``train``, called as hospitals call it, with a run's settings.

The auditor plays the server. It may choose the model that a round starts from, since the guarantee holds for any, and
it sees all that a hospital makes of its records. Beside it are made-up patients: canaries, and hospitals that differ by
one patient, typical or extreme. Nothing here scores or judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from polyclinic.ehr.schema import Column
from polyclinic.ehr.shard import Rows
from polyclinic.models.tabular import initialise
from polyclinic.privacy.streams import Stream, keyed_stream, system_stream, torch_seed
from polyclinic.training.auditing.faults import NO_FAULT, Fault
from polyclinic.training.auditing.views import View, Watched, views
from polyclinic.training.local import PLAIN
from polyclinic.training.modules import load
from polyclinic.training.task import SiteUpdate, SiteWork, Task, TrainSettings
from polyclinic.types import Arrays, Bools, Builder, Labels, Reals

# A step this small leaves every gradient as it was, and is still far above the rounding of float64.
_SMALL = 1e-6


@dataclass(frozen=True, eq=False)
class Claim:
    """What training claims at a hospital, a round's settings, and the patients among whom canaries hide.

    classes: of the patients' labels.
    epsilon, delta: what ``rounds`` rounds of ``settings`` claim to spend on each patient (add/remove one).
    seed: None draws from the operating system, as a hospital does.
    fault: what is planted between the audit and the task.
    columns: the label's; none for a label of ``classes``.
    """

    settings: TrainSettings
    rounds: int
    patients: Rows
    classes: int
    epsilon: float
    delta: float
    seed: int | None = None
    fault: Fault = NO_FAULT
    columns: tuple[Column, ...] = ()


@dataclass(frozen=True, eq=False)
class Subject(Claim):
    """A task, its model for any number of features, and what they claim.

    labels: (classes, ...) that canaries and strangers have, the first two of which differ; numbers of classes by default.
    """

    task: Task = field(kw_only=True)
    build: Callable[[int], Builder] = field(kw_only=True)
    labels: Labels = field(kw_only=True, default_factory=lambda: np.arange(2))

    def __post_init__(self) -> None:
        if len(self.labels) < self.classes:
            object.__setattr__(self, "labels", np.arange(self.classes))

    @property
    def features(self) -> int:
        return int(self.patients.x.shape[1])

    @property
    def canaries(self) -> Callable[[int, int, int, float, Stream], Rows]:
        """(features, classes, count, scale, stream) to canaries: the task's own, or each with a column of its own."""
        own: Callable[[int, int, int, float, Stream], Rows] = getattr(self.task, "canaries", _one_column_each)
        return own

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
    public_patients: float, states: Sequence[Mapping[str, np.ndarray]],
) -> list[SiteUpdate]:  # fmt: skip
    """The hospitals' updates by the task's own code, with the fault where one is planted; always in float64.

    What the strategy sends beside the model is zero.

    Args:
        subject: What is audited.
        build: Makes the model's module.
        arrays: The model's arrays.
        hospitals: The hospitals, with their rows and streams.
        settings: The settings of the round.
        public_patients: The public number of patients of each hospital.
        states: What each hospital kept from its last round.
    """
    beside = {
        name: {label: np.zeros_like(value) for label, value in arrays.items()} for name in settings.local.receives
    }
    work = [
        SiteWork(site.rows, site.sampling, site.noise, public_patients, own, site.layers, beside=beside)
        for site, own in zip(hospitals, states, strict=True)
    ]
    run = subject.fault.train or subject.task.train
    return run(build, arrays, work, replace(subject.fault.settings(settings), double=True))


def noisy_sums(
    subject: Subject, build: Builder, arrays: Arrays, hospitals: Sequence[Hospital], settings: TrainSettings,
    rounds: int = 1,
) -> list[Reals]:  # fmt: skip
    """What each hospital's noisy sums of clipped gradients at ``arrays`` add up to in each round.

    Tiny steps of plain SGD show them; any optimizer or filter only reworks what has become private before.

    Args:
        subject: What is audited.
        build: Makes the model's module.
        arrays: The model's arrays.
        hospitals: S hospitals, with their rows and streams.
        settings: The settings of a round.
        rounds: The number of rounds.

    Returns:
        For each view (rounds, S, P).
    """
    scale, half = _SMALL / settings.max_grad_norm, settings.local
    # A fault that trains by itself takes plain steps.
    watched = PLAIN if half == PLAIN or subject.fault.train else Watched(half)
    plain = replace(
        settings, learning_rate=scale * settings.sample_rate, optimizer="sgd", momentum=0.0, weight_decay=0.0, radius=0.0,
        denoise="none", local=watched,
    )  # fmt: skip
    names, seen = arrays_with_noise(subject, build, arrays), subject.views(settings)
    states: list[Arrays] = [{} for _ in hospitals]
    shown: list[list[list[Reals]]] = [[] for _ in seen]
    for _ in range(rounds):
        updates = train(subject, build, arrays, hospitals, plain, 1.0, states)
        for view, sums in zip(seen, shown, strict=True):
            sums.append([view.read(names, arrays, update, scale) for update in updates])
        states = [update.state for update in updates]
    return [np.asarray(sums) for sums in shown]


def arrays_with_noise(subject: Subject, build: Builder, arrays: Arrays) -> list[str]:
    """The arrays that records reach, through noise: all trainable ones, unless the task has a ``arrays_with_noise`` of its own.

    Args:
        subject: What is audited.
        build: Makes the model's module.
        arrays: The model's arrays.
    """
    if hasattr(subject.task, "arrays_with_noise"):
        return list(subject.task.arrays_with_noise(build, arrays))
    return [name for name, value in load(build, arrays).named_parameters() if value.requires_grad]


_COMPANY = 100
_MANY = 64


def canaries(subject: Subject, count: int, scale: float) -> Rows:
    """Patients of one row, each alone in having something in a column of its own behind the patients' columns.

    They are the same in every call and no secret: only which of them take part is. A task may have ``canaries(features,
    classes, count, scale, stream)`` of its own, with such columns.

    Args:
        subject: What is audited.
        count: The number of canaries.
        scale: What each has in its own column.
    """
    draw = keyed_stream(0, "audit", "canaries")
    rows = subject.canaries(subject.features, subject.classes, count, scale, draw)
    return replace(rows, y=subject.labels[rows.y])


def _one_column_each(features: int, classes: int, count: int, scale: float, stream: Stream) -> Rows:
    x = np.zeros((count, features + count))
    x[np.arange(count), features + np.arange(count)] = scale
    return Rows(x, (stream.uniform(count) * classes).astype(np.int64), np.arange(count), count)


def join_canaries(patients: Rows, canaries: Rows, included: Bools) -> Rows:
    """The patients, zero in the canaries' columns, and behind them the canaries that are ``included``.

    Args:
        patients: The patients' rows.
        canaries: The canaries' rows, with more columns.
        included: (canaries,) which take part.
    """
    extra = np.zeros((len(patients.y), canaries.x.shape[1] - patients.x.shape[1]))
    return Rows.join([replace(patients, x=np.hstack([patients.x, extra])), canaries.of_patients(included)])


def nobody(subject: Subject, extra: int = 0) -> Rows:
    """No patients, with ``extra`` columns behind the subject's."""
    none = np.zeros(0, dtype=np.int64)
    return Rows(np.zeros((0, subject.features + extra)), subject.labels[:0], none, 0)


def neighbours(subject: Subject) -> dict[str, tuple[Rows, Rows]]:
    """Pairs of hospitals by what tells them apart, one patient who is in the first alone."""
    # The first few patients, all of one label: their gradients do not cancel, if another patient shifts them all.
    company = subject.patients.of_patients(np.arange(subject.patients.patients) < _COMPANY)
    company = replace(company, y=np.repeat(subject.labels[:1], len(company.y), axis=0))
    number = np.arange(company.patients)
    without = {f"patient {i + 1}": company.of_patients(number != i) for i in range(min(4, company.patients - 1))}
    return {**{name: (company, rest) for name, rest in without.items()},
            **{name: (Rows.join([company, stranger]), company) for name, stranger in strangers(subject)}}  # fmt: skip


def moves(pairs: Mapping[str, tuple[Rows, Rows]], seen: Reals) -> dict[str, float]:
    """By how much, in L2, what was seen differs in each pair; seen: (2 pairs, P), infinite where it is not finite."""
    with np.errstate(invalid="ignore"):
        moved = np.linalg.norm(seen[::2] - seen[1::2], axis=1)
    return dict(zip(pairs, np.where(np.isfinite(moved), moved, np.inf).tolist(), strict=True))


def strangers(subject: Subject) -> Iterator[tuple[str, Rows]]:
    """Patients to add, each by a name."""
    row = np.nan_to_num(subject.patients.x[:1])
    for number, label in enumerate(subject.labels[:2]):
        for name, x in (
            ("a typical one", row),
            ("one of 1e30", np.full_like(row, 1e30)),
            ("one of NaN", np.full_like(row, np.nan)),
            ("an infinite one", np.full_like(row, np.inf)),
            (f"one with {_MANY} rows", np.repeat(3.0 * row + 1.0, _MANY, axis=0)),
        ):
            yield f"{name}, label {number}", one_patient(x, label)


def one_patient(x: Reals, label: Labels | int) -> Rows:
    """A patient with the rows ``x`` of one label."""
    return Rows(np.asarray(x), np.array([label] * len(x)), np.zeros(len(x), dtype=np.int64), 1)
