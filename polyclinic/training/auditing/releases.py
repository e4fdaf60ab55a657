"""The audit of tasks that release a noisy minimiser: output perturbation, objective perturbation, the exponential mechanism.

There are no steps. A canary has a column of its own, so that whether it takes part decides what the minimiser is there
but for the noise. Its coin is guessed by the projection of the released weights onto what it adds to them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyclinic.ehr.shard import Rows
from polyclinic.privacy.audit import correlation_limit, mean_length_interval, mean_square_interval
from polyclinic.privacy.perturbation import TOLERANCE, determinant_epsilon, least_strength
from polyclinic.training.auditing.faults import Silent
from polyclinic.training.auditing.law import ROUNDING, SIGNIFICANCE, Finding
from polyclinic.training.auditing.subject import (
    Hospital,
    Subject,
    canaries,
    join_canaries,
    moves,
    neighbours,
    nobody,
    train,
)
from polyclinic.training.logistic.convex import ConvexTask
from polyclinic.types import Arrays, Bools, Builder, Reals

_SCALE = 100.0
_LEAST_LENGTH = 1e-6
_WIDE, _SITES, _ROUNDS = 300, 20, 4
# Public numbers of patients, for a regulariser beside which all records weigh much, and one beside which one weighs little.
_FEW, _MANY = 1.0, 1e4


def is_release(subject: Subject) -> bool:
    """Whether the task releases a minimiser rather than training in steps."""
    return isinstance(subject.task, ConvexTask)


def from_releases(subject: Subject, included: Bools) -> Reals:
    """(canaries,) projections of all rounds' releases onto what each canary adds to one without noise."""
    build, arrays = subject.model(extra=len(included))
    rows = canaries(subject, len(included), _SCALE)
    there = join_canaries(subject.patients, rows, included)
    seen = released_weights(subject, build, arrays, [_hospital(subject, there, "run")], subject.rounds, _MANY)[:, 0]
    everyone = _hospital(subject, join_canaries(subject.patients, rows, np.ones_like(included)), "known", silent=True)
    added = released_weights(subject, build, arrays, [everyone], 1, _MANY)[0, 0]
    own = slice(subject.features, subject.features + len(included))
    return np.asarray(seen[:, own].sum(axis=0) * added[own])


def release_findings(subject: Subject) -> list[Finding]:
    """How far a patient moves the minimiser, and how large and how independent the noise is."""
    return [release_sensitivity(subject), *_noise(subject)]


def release_sensitivity(subject: Subject) -> Finding:
    """The most that one patient moves the minimiser, over what the proof says: at most 1 when it is added or removed."""
    build, arrays = subject.model()
    pairs = neighbours(subject)
    hospitals = [
        _hospital(subject, rows, "neighbours", name, side, silent=True)
        for name, both in pairs.items()
        for side, rows in enumerate(both)
    ]
    seen = {public: released_weights(subject, build, arrays, hospitals, 1, public)[0] for public in (_FEW, _MANY)}
    shares = [
        (moved / _farthest(subject, public), name)
        for public, minimisers in seen.items() for name, moved in moves(pairs, minimisers).items()
    ]  # fmt: skip
    share, name = max(shares)
    what = f"most that a patient moves the minimiser, over C / strength: {name}"
    return Finding("sensitivity", what, share, 0.0, 1.0 + ROUNDING)


def _noise(subject: Subject) -> list[Finding]:
    """Of releases of nobody's records, which are noise alone: in objective perturbation the minimiser of a random line."""
    build, arrays = subject.model(extra=_WIDE)
    hospitals = [_hospital(subject, nobody(subject, _WIDE), "empty", site) for site in range(_SITES)]
    seen = released_weights(subject, build, arrays, hospitals, _ROUNDS, public := float(subject.patients.patients))
    scale = (subject.settings.noise_multiplier or 0.0) * _farthest(subject, public)
    draws = seen.reshape(_ROUNDS * _SITES, -1) / scale
    if subject.settings.perturbation == "gaussian":
        size, between = float(np.mean(draws**2)), mean_square_interval(draws.size, SIGNIFICANCE)
    else:
        lengths = np.linalg.norm(draws, axis=1)
        size, between = float(lengths.mean() / draws.shape[1]), mean_length_interval(draws.size, SIGNIFICANCE)
    power = 0.5 if subject.settings.perturbation == "gaussian" else 1.0
    return [
        Finding("noise size", "noise of a release of nobody, over what is claimed", size**power, between[0] ** power,
                between[1] ** power),
        independence(draws, "largest correlation of two sites or rounds"),
    ]  # fmt: skip


def independence(draws: Reals, what: str) -> Finding:
    """The largest correlation of any two rows of (n, P) draws of about unit size; what is next to nothing has none."""
    length = np.linalg.norm(draws, axis=1)
    unit = draws / np.where(length > _LEAST_LENGTH, length, np.inf)[:, None]
    pairs = np.triu_indices(len(draws), k=1)
    shared = float(np.abs(unit @ unit.T)[pairs].max())
    return Finding(
        "noise independence", what, shared, 0.0, correlation_limit(draws.shape[1], len(pairs[0]), SIGNIFICANCE)
    )


def released_weights(
    subject: Subject, build: Builder, arrays: Arrays, hospitals: Sequence[Hospital], rounds: int, public: float
) -> Reals:
    """(rounds, S, p): each hospital's released weights, the intercept last; the two outputs' are -w/2 and w/2.

    Args:
        subject: What is audited.
        build: Makes the model's module.
        arrays: The model's arrays.
        hospitals: S hospitals.
        rounds: The number of rounds.
        public: The public number of patients of each hospital.
    """
    nothing = [Arrays() for _ in hospitals]
    with np.errstate(over="ignore"):  # of records that are not finite
        made = [train(subject, build, arrays, hospitals, subject.settings, public, nothing) for _ in range(rounds)]
    return np.asarray([[_weights(update.arrays) for update in updates] for updates in made])


def _weights(arrays: Arrays) -> Reals:
    weight, bias = sorted(arrays.values(), key=np.ndim, reverse=True)
    return np.append(weight[1] - weight[0], bias[1] - bias[0])


def _hospital(subject: Subject, rows: Rows, *key: str | int, silent: bool = False) -> Hospital:
    """A hospital; a silent one's noise is nothing."""
    made = subject.hospital(rows, subject.settings, *key)
    return Hospital(made.rows, made.sampling, Silent(made.noise), made.layers) if silent else made


def _farthest(subject: Subject, public: float) -> float:
    """How far one patient can move the minimiser: C over the strength of the regulariser (docs/privacy/convex.md)."""
    settings, task = subject.settings, subject.task
    norm, strength = settings.max_grad_norm, settings.weight_decay * public
    if isinstance(task, ConvexTask) and task.mechanism == "objective":
        most = determinant_epsilon(settings.noise_multiplier or 0.0, settings.perturbation, settings.release_delta)
        strength = max(strength, least_strength(norm, most))
    return norm * (1 + 2 * TOLERANCE) / strength
