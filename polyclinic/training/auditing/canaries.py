"""Canaries: made-up patients who take part by the toss of a coin, and the scores by which their coins are guessed.

White box: the auditor sees all that a hospital makes of its records in each round, and knows what each canary adds to a sum
of gradients. Black box: it sees the final model alone, and how well that predicts each canary.
Steinke, Nasr and Jagielski 2023.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.privacy.audit import correct_guesses, largest_lower
from polyclinic.training.auditing.fixed import Fixed
from polyclinic.training.auditing.law import covariance, scores
from polyclinic.training.auditing.releases import from_releases, is_release
from polyclinic.training.auditing.subject import Subject, canaries, join_canaries, nobody, noisy_sums, strangers, train
from polyclinic.training.task import TrainSettings, own_arrays
from polyclinic.types import Arrays, Bools, Builder, Reals

# How far out canaries lie: far enough to be clipped and told apart, not so far that a model saturates.
_SCALES = (1.0, 3.0, 10.0, 30.0, 100.0)
_TRIED = 32
_LEAST_APART = 1e-3
_LEAST_NOISE, _NORMAL_MEDIAN = 1e-3, 0.6745
# In the final model a canary must still have a gradient after it was learned.
_BLACK_BOX_SCALE = 10.0
# Of canaries with a hospital each, how many are trained at once.
_HOSPITALS = 100


@dataclass(frozen=True)
class Guessing:
    """How many coins were guessed and how many rightly, and the epsilon (at the subject's delta) that this refutes."""

    epsilon_lower: float
    confidence: float
    canaries: int
    guesses: int
    correct: int


@dataclass(frozen=True, eq=False)
class Contributions:
    """What m canaries add to a sum at ``arrays``: ``each`` (m, P), and its inner products' inverse (m, m)."""

    each: Reals
    inverse: Reals

    def counts(self, sums: Reals) -> Reals:
        """(R, m): how often each canary is in the (R, P) sums, by least squares; exact without noise or other patients."""
        return np.asarray(sums @ self.each.T @ self.inverse)

    def noise(self, sums: Reals, settings: TrainSettings) -> float:
        """The noise that (R, P) sums show where no canary reaches, as a share of what is claimed; at most 1.

        So that a sum with less noise than claimed counts for what it tells.
        """
        free = 1 - self.each.shape[0] / self.each.shape[1]
        if free <= 0:
            return 1.0
        left = sums - self.counts(sums) @ self.each
        claimed = settings.noise_scale * np.sqrt(np.diag(covariance(settings, len(sums))) * free)
        return min(1.0, max(_LEAST_NOISE, float(np.median(np.abs(left / claimed[:, None]))) / _NORMAL_MEDIAN))

    @property
    def spread(self) -> Reals:
        """(m,): the standard deviation of ``counts`` when the sums have noise of standard deviation 1."""
        return np.sqrt(np.diag(self.inverse))


def guess(subject: Subject, canaries: int, guesses: tuple[int, ...], confidence: float, white_box: bool) -> Guessing:
    """One training run with canaries, and what the guesses of their coins say of epsilon.

    Args:
        subject: What is audited.
        canaries: The number of canaries.
        guesses: One or several numbers of guesses, fixed beforehand; with several, the bound allows for the choice.
        confidence: The confidence of the lower bound.
        white_box: Whether the sums of every round are seen, or the final model alone.
    """
    included = subject.stream("coins").uniform(canaries) < 0.5
    attack: Callable[[Any, Bools], Reals] = _white_box
    if isinstance(subject, Fixed):
        attack = _apart
    elif not white_box:
        attack = _black_box
    elif is_release(subject):
        attack = from_releases
    scored = attack(subject, included)
    correct = {number: correct_guesses(scored, included, number) for number in guesses}
    lower, best = largest_lower(canaries, correct, subject.delta, confidence)
    return Guessing(lower, confidence, canaries, best, correct[best])


def _white_box(subject: Subject, included: Bools) -> Reals:
    """Likelihood ratios of the coins, from every round's noisy sums at one and the same model."""
    build, arrays = subject.model(extra=len(included))
    rows, contributions = told_apart(subject, build, arrays, len(included))
    hospital = subject.hospital(join_canaries(subject.patients, rows, included), subject.settings, "run")
    sums = noisy_sums(subject, build, arrays, [hospital], subject.settings, subject.rounds)
    ratios = [
        scores(
            contributions.counts(seen[:, 0]),
            contributions.spread * contributions.noise(seen[:, 0], view.settings),
            view.settings,
        )
        for view, seen in zip(subject.views(), sums, strict=True)
    ]
    return np.asarray(np.sum(ratios, axis=0))


def _black_box(subject: Subject, included: Bools) -> Reals:
    """By how much training lowered each canary's loss; the run's own optimizer, round by round.

    Where the hospital has a personal model, its losses count as well.
    """
    build, arrays = subject.model(extra=len(included))
    rows = canaries(subject, len(included), _BLACK_BOX_SCALE)
    hospital = subject.hospital(join_canaries(subject.patients, rows, included), subject.settings, "run")
    public = subject.patients.patients + len(included) / 2
    before, state = losses(subject, build, arrays, rows), Arrays()
    for _ in range(subject.rounds):
        update = train(subject, build, arrays, [hospital], subject.settings, public, [state])[0]
        arrays, state = update.arrays, update.state
    models = [arrays, arrays | own] if (own := own_arrays(state)) else [arrays]
    return np.asarray(before - np.mean([losses(subject, build, model, rows) for model in models], axis=0))


def _apart(subject: Fixed, included: Bools) -> Reals:
    """Likelihood ratios of the coins of canaries that each have a hospital of their own: the worst patients there can be."""
    ratios = np.zeros(len(included))
    for part in subject.parts or (subject,):
        build, arrays = part.model()
        worst, contributions = _worst(part, build, arrays)
        for begin in range(0, len(included), _HOSPITALS):
            some = np.arange(begin, min(begin + _HOSPITALS, len(included)))
            hospitals = [
                part.hospital(
                    worst[i % len(worst)] if included[i] else nobody(part), part.settings, "run", part.number, int(i)
                )
                for i in some
            ]
            sums = noisy_sums(part, build, arrays, hospitals, part.settings, part.rounds if not subject.parts else 1)[0]
            for place, i in enumerate(some):
                contribution, seen = contributions[i % len(contributions)], sums[:, place]
                spread = contribution.spread * contribution.noise(seen, part.settings)
                ratios[i] += scores(contribution.counts(seen), spread, part.settings)[0]
    return ratios


def _worst(subject: Fixed, build: Builder, arrays: Arrays) -> tuple[list[Rows], list[Contributions]]:
    """Patients of extreme cells, many rows or rare labels, and what each alone adds; those who add most."""
    rows = [patient for _, patient in strangers(subject)]
    settings = noiseless(subject.settings)
    alone = [subject.hospital(patient, settings, "alone", i) for i, patient in enumerate(rows)]
    each = noisy_sums(subject, build, arrays, alone, settings)[0][0]
    square = np.sum(each**2, axis=1)
    most = np.flatnonzero(square > square.max() / 4)
    if not square.max() > 0:
        raise ConfigError("No patient adds anything to what hospitals send: there is nothing to audit.")
    return [rows[i] for i in most], [Contributions(each[i : i + 1], 1 / square[i].reshape(1, 1)) for i in most]


def losses(subject: Subject, build: Builder, arrays: Arrays, rows: Rows) -> Reals:
    """(count,): each canary's loss; minus the log probability of its class unless the task has ``canary_losses``.

    Args:
        subject: What is audited.
        build: Makes the model's module.
        arrays: The model's arrays.
        rows: The canaries.
    """
    if hasattr(subject.task, "canary_losses"):
        return np.asarray(subject.task.canary_losses(build, arrays, rows))
    made = lambda: build().double()  # noqa: E731
    probability = subject.task.evaluate(made, arrays, [rows])[0][np.arange(len(rows.y)), rows.y]
    return np.asarray(-np.log(np.maximum(probability, np.finfo(np.float64).tiny)))


def told_apart(
    subject: Subject, build: Builder, arrays: Arrays, count: int, exact: bool = False
) -> tuple[Rows, Contributions]:
    """Canaries at the scale at which the model tells them apart best, and their contributions.

    Args:
        subject: What is audited.
        build: Makes the model's module.
        arrays: The model's arrays.
        count: The number of canaries.
        exact: Whether sums will have no noise, in which canaries that are nearly alike are told apart as well.

    Raises:
        ConfigError: No scale makes their contributions independent of each other.
    """

    def apart(scale: float) -> float:
        each = contributions(subject, build, arrays, canaries(subject, count, scale), min(count, _TRIED))
        return float(np.linalg.eigvalsh(each @ each.T)[0])

    scale = max(_SCALES, key=apart)
    rows = canaries(subject, count, scale)
    each = contributions(subject, build, arrays, rows, count)
    products = each @ each.T
    least = _LEAST_APART * (1e-6 if exact else 1.0)
    if np.linalg.eigvalsh(products)[0] < least * np.trace(products) / count:
        raise ConfigError(
            f"The model does not tell {count} canaries apart: what they add to its gradients is not independent; "
            "take fewer canaries, or another model."
        )
    return rows, Contributions(each, np.linalg.inv(products))


def contributions(subject: Subject, build: Builder, arrays: Arrays, rows: Rows, count: int) -> Reals:
    """(count, P): what each of the first patients alone adds to a sum.

    The sum is of a round of one step, without noise, of all patients.

    Args:
        subject: What is audited.
        build: Makes the model's module.
        arrays: The model's arrays.
        rows: The patients' rows.
        count: Of how many patients.
    """
    settings = noiseless(subject.settings)
    alone = [
        subject.hospital(rows.of_patients(np.arange(rows.patients) == i), settings, "alone", i) for i in range(count)
    ]
    return np.asarray(noisy_sums(subject, build, arrays, alone, settings)[0][0])


def noiseless(settings: TrainSettings) -> TrainSettings:
    """One step with all patients and no noise: what shows a clipped sum as it is."""
    return replace(settings, noise_multiplier=0.0, sample_rate=1.0, local_steps=1, batching="poisson", noise=None)
