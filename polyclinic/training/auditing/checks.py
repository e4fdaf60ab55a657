"""Checks beside the canaries: sensitivity, noise, sampling and steps of a task's own ``train``, each measured from outside.

Canaries see gross faults only; these see a noise that is a few percent too small, or a batch that is no Poisson sample.
Each check alarms falsely with a probability of about one in a million.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent

from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.privacy.audit import correlation_limit, mean_square_interval
from polyclinic.privacy.events import merged
from polyclinic.privacy.streams import Floats, generator
from polyclinic.training.auditing.canaries import noiseless, told_apart
from polyclinic.training.auditing.law import counts, covariance
from polyclinic.training.auditing.subject import Subject, noisy_sums, train

_SIGNIFICANCE = 1e-6
_ROUNDING = 1e-6
_COMPANY = 100
_MANY = 64
_WIDE = 2000
_ROUNDS, _SITES = 10, 20
_NOISE_ROUNDS = 4
_REFERENCES = 100


@dataclass(frozen=True)
class Finding:
    """What a check measured, and between which values it may lie."""

    name: str
    what: str
    measured: float
    least: float
    most: float

    @property
    def passed(self) -> bool:
        return bool(self.least <= self.measured <= self.most)


def refusal(subject: Subject) -> str | None:
    """Why the task refuses to train the model; None when it does not."""
    build, arrays = subject.model()
    try:
        subject.task.check(build, arrays, subject.features, subject.settings.engine)
    except ConfigError as error:
        return str(error)
    return None


def findings(subject: Subject) -> list[Finding]:
    """What all checks found of a model that the task takes."""
    return [sensitivity(subject), *noise(subject), steps(subject), *sampling(subject)]


def sensitivity(subject: Subject) -> Finding:
    """The most that one patient, typical or extreme, moves a sum, in clip norms: at most 1 when it is added or removed."""
    build, arrays = subject.model()
    company = _some(subject.patients)
    pairs = {**{f"patient {i + 1}": (company, _without(company, i)) for i in range(min(4, company.patients - 1))},
             **{name: (_with(company, x, y), company) for name, x, y in _strangers(subject)}}  # fmt: skip
    settings = noiseless(subject.settings)
    hospitals = [
        subject.hospital(rows, settings, "neighbours", name, side)
        for name, both in pairs.items()
        for side, rows in enumerate(both)
    ]
    sums = noisy_sums(subject, build, arrays, hospitals, settings)[0]
    with np.errstate(invalid="ignore"):
        moved = np.linalg.norm(sums[::2] - sums[1::2], axis=1) / settings.max_grad_norm
    moved = np.where(np.isfinite(moved), moved, np.inf)
    worst = list(pairs)[int(np.argmax(moved))]
    return Finding("sensitivity", f"most that a patient moves a sum, over C: {worst}", float(moved.max()), 0.0,
                   1.0 + _ROUNDING)  # fmt: skip


def _strangers(subject: Subject) -> Iterator[tuple[str, Floats, int]]:
    """Patients to add: (name, rows, class)."""
    row = np.nan_to_num(subject.patients.x[:1])
    for label in range(min(2, subject.classes)):
        for name, x in (
            ("a typical one", row),
            ("one of 1e30", np.full_like(row, 1e30)),
            ("one of NaN", np.full_like(row, np.nan)),
            ("an infinite one", np.full_like(row, np.inf)),
            (f"one with {_MANY} rows", np.repeat(3.0 * row + 1.0, _MANY, axis=0)),
        ):
            yield f"{name}, class {label}", x, label


def _some(patients: Rows) -> Rows:
    """The first few patients, all of one class: their gradients do not cancel, if another patient shifts them all."""
    kept = patients.patient < _COMPANY
    return Rows(
        patients.x[kept], np.zeros_like(patients.y[kept]), patients.patient[kept], min(_COMPANY, patients.patients)
    )


def _with(patients: Rows, x: Floats, label: int) -> Rows:
    return Rows(
        np.concatenate([patients.x, x]), np.concatenate([patients.y, np.full(len(x), label)]),
        np.concatenate([patients.patient, np.full(len(x), patients.patients)]), patients.patients + 1,
    )  # fmt: skip


def _without(patients: Rows, gone: int) -> Rows:
    kept = patients.patient != gone
    number = patients.patient[kept]
    return Rows(patients.x[kept], patients.y[kept], number - (number > gone), patients.patients - 1)


def noise(subject: Subject) -> list[Finding]:
    """The size of the noise that empty batches get, over what is claimed, and whether sites or rounds share any."""
    build, arrays = subject.model(extra=_WIDE)
    empty = Rows(np.zeros((0, subject.features + _WIDE)), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 0)
    settings, rounds = subject.settings, min(_NOISE_ROUNDS, subject.rounds)
    hospitals = [subject.hospital(empty, settings, "empty", site) for site in range(_SITES)]
    sums = noisy_sums(subject, build, arrays, hospitals, settings, rounds) / settings.noise_scale
    # Noise that is correlated over the rounds as the process says is independent again after this.
    unmixed = np.linalg.solve(np.linalg.cholesky(covariance(settings, rounds)), sums.reshape(rounds, -1))
    draws = unmixed.reshape(rounds * _SITES, -1)
    low, high = np.sqrt(mean_square_interval(draws.size, _SIGNIFICANCE))
    size = Finding("noise size", "noise of empty batches, over what is claimed", float(np.sqrt(np.mean(draws**2))),
                   float(low), float(high))  # fmt: skip
    length = np.linalg.norm(draws, axis=1)
    unit = draws / np.where(length > 0, length, 1.0)[:, None]
    pairs = np.triu_indices(len(draws), k=1)
    shared = float(np.abs(unit @ unit.T)[pairs].max())
    limit = correlation_limit(draws.shape[1], len(pairs[0]), _SIGNIFICANCE)
    return [size, Finding("noise independence", "largest correlation of two sites or rounds", shared, 0.0, limit)]


def steps(subject: Subject) -> Finding:
    """The steps that a round takes, counted by what canaries add, and the steps that the ledger is charged for."""
    build, arrays = subject.model(extra=2)
    rows, known = told_apart(subject, build, arrays, 2)
    settings = replace(noiseless(subject.settings), local_steps=subject.settings.local_steps)
    hospital = subject.hospital(rows, settings, "steps")
    taken = float(known.counts(noisy_sums(subject, build, arrays, [hospital], settings)[0]).max())
    reported = float(train(subject, build, arrays, [hospital], settings, 1.0, [{}])[0].steps)
    charged = _charged(subject)
    wrong = max(taken, reported, key=lambda number: abs(number - charged))
    return Finding("steps", "steps that a round takes, and reports", wrong, charged - 0.01, charged + 0.01)


def _charged(subject: Subject) -> float:
    """The steps of a round that are paid for, round by round, or all at once when the run begins."""
    settings = subject.settings
    if settings.noise is not None:  # a hospital may have left rounds out
        return min(settings.local_steps, settings.noise.steps / subject.rounds)
    parts = merged(subject.task.event(settings))
    # Plain Gaussians are merged to one, whose precision is that of so many steps.
    return sum(count * (_precision(part) * (settings.noise_multiplier or 0.0) ** 2) for part, count in parts)


def _precision(event: DpEvent) -> float:
    """One over the variance of a Gaussian, sampled or not; Poisson samples stay apart in a composition."""
    inner = event.event if isinstance(event, PoissonSampledDpEvent) else event
    return 1.0 / float(inner.noise_multiplier) ** 2 if isinstance(inner, GaussianDpEvent) else 0.0


def sampling(subject: Subject) -> list[Finding]:
    """How often each of some canaries is in a round, against counts drawn from the law that is claimed."""
    settings = replace(subject.settings, noise_multiplier=0.0, noise=None)
    # So many that a round is expected to have a few of them.
    patients = min(max(60, round(3 / (settings.sample_rate * settings.local_steps))), 300)
    build, arrays = subject.model(extra=patients)
    rows, known = told_apart(subject, build, arrays, patients)
    hospitals = [subject.hospital(rows, settings, "sampling", site) for site in range(_SITES)]
    found = np.rint(known.counts(noisy_sums(subject, build, arrays, hospitals, settings, _ROUNDS)))
    draw = generator(0, "audit", "counts")
    law = np.array([_moments(counts(settings, found.shape, draw)) for _ in range(_REFERENCES)])
    middle, width = law.mean(axis=0), 6.0 * law.std(axis=0) + _ROUNDING
    names = {
        "sample rate": "mean steps of a patient in a round",
        "batch sizes": "variance of a round's patients",
        "patients' turns": "variance of a patient's steps",
        "pairs": "mean square covariance of two patients",
    }
    return [
        Finding(name, what, float(measured), float(mid - far), float(mid + far))
        for (name, what), measured, mid, far in zip(names.items(), _moments(found), middle, width, strict=True)
    ]


def _moments(found: Floats) -> Floats:
    """(4,) statistics of (rounds, sites, patients) counts, which tell one way of sampling from another."""
    mean = found.mean()
    apart = (found - mean).reshape(-1, found.shape[2])
    covariance = apart.T @ apart / len(apart)
    pairs = covariance[np.triu_indices(len(covariance), k=1)]
    return np.array([mean, apart.sum(axis=1).var(), found.sum(axis=0).var(), np.mean(pairs**2)])
