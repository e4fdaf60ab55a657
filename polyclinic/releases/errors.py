"""Private metrics of numbers: noised sums of held-out patients' errors, which a public distance bounds.

The distance is four public spreads of the label, and at most that of its bounds. An error that is larger counts as so large, so
that one patient changes each sum by at most one distance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np

from polyclinic.ehr.encoding import public_scale
from polyclinic.privacy.mechanisms import FINE
from polyclinic.releases.measured import Measured, Noised
from polyclinic.releases.question import Pricing
from polyclinic.releases.scores import LEAST, LabelScores, Scores
from polyclinic.types import Floats, Ints, Labels

if TYPE_CHECKING:
    from polyclinic.objectives.numbers import Quantile
    from polyclinic.objectives.objective import Objective

_SPREADS = 4.0


@dataclass(frozen=True)
class Errors(Measured):
    """Of numbers: how many patients, and sums of errors, absolute, signed and squared, of labels and of these squared."""

    objective: Objective
    noise_multiplier: float

    @property
    def distance(self) -> float:
        """What one in a sum stands for, in the label's unit."""
        column = self.objective.number()
        low, high = column.bounds or (-math.inf, math.inf)
        return min(_SPREADS * public_scale(column)[1], high - low)

    @property
    def shape(self) -> tuple[int, ...]:
        return (6,)

    @property
    def weight(self) -> int:
        return self.shape[0]

    def rows(self, labels: Labels, scores: Floats) -> Floats:
        """(n, Q) what each row adds, from -1 to 1."""
        missed = self._clip(scores[:, 0] - labels)
        label = self._clip(labels - public_scale(self.objective.number())[0])
        return np.stack([np.ones(len(labels)), np.abs(missed), missed, missed**2, label, label**2], axis=1)

    def _clip(self, values: Floats) -> Floats:
        """As shares of the distance; what is not finite is as far as can be."""
        return np.nan_to_num(values / self.distance, nan=1.0, posinf=1.0, neginf=-1.0).clip(-1.0, 1.0)

    def count(self, labels: Labels, scores: Floats, patient: Ints) -> Ints:
        """The exact answer in points.

        The rows of a patient share its weight. Points are rounded towards zero, so that none adds more than its share.

        Args:
            labels: (n,) of the rows.
            scores: (n, C) predictions.
            patient: (n,) numbers of the patients.
        """
        _, number, of_patient = np.unique(patient, return_inverse=True, return_counts=True)
        points = self.rows(labels, scores) * (FINE / of_patient[number])[:, None]
        return np.asarray(np.trunc(points).astype(np.int64).sum(axis=0), dtype=np.int64)

    def noisy_answer(self, counts: Floats, deviation: float) -> Noised:
        return ErrorSums(counts, deviation, self.distance)


@dataclass(frozen=True)
class QuantileErrors(Errors):
    """Of quantiles: how many patients, sums of the middle one's error and of the pinball loss, and how many labels are inside."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (4,)

    def rows(self, labels: Labels, scores: Floats) -> Floats:
        objective = cast("Quantile", self.objective)
        missed, level = labels[:, None] - scores, np.array(objective.at)
        pinball = np.maximum(level * missed, (level - 1) * missed).mean(axis=1)
        inside = labels <= scores[:, -1]
        if len(level) > 1:
            inside &= labels >= scores[:, 0]
        errors = [np.abs(self._clip(part)) for part in (missed[:, objective.middle], pinball)]
        return np.stack([np.ones(len(labels)), *errors, inside], axis=1)

    def noisy_answer(self, counts: Floats, deviation: float) -> Noised:
        return QuantileSums(counts, deviation, self.distance)


@dataclass(frozen=True, eq=False)
class ErrorSums(Noised):
    """``counts``: (6,) sums as ``Errors`` has them. distance: what one stands for, in the label's unit."""

    distance: float

    names: ClassVar[tuple[str, ...]] = ("mae", "rmse", "r2", "calibration_in_the_large", "patients")
    ranges: ClassVar[dict[str, tuple[float, float]]] = {
        "r2": (-np.inf, 1.0), "calibration_in_the_large": (-np.inf, np.inf), "coverage": (0.0, 1.0),
    }  # fmt: skip

    def noise(self, rng: np.random.Generator, draws: int) -> Floats:
        return np.asarray(rng.standard_normal((draws, *self.counts.shape)))

    def metrics(self, counts: Floats, deviation: float) -> Floats:
        patients, total, least = *_beyond_noise(counts[:, 0], deviation), LEAST * deviation
        missed, signed, squared, label, label_squared = counts[:, 1:].T
        spread = label_squared - label**2 / total
        r2 = 1 - squared / np.where(spread > least, spread, np.nan)
        root = np.sqrt(np.maximum(squared, 0.0) / total)
        return np.stack(
            [self.distance * missed / total, self.distance * root, r2, self.distance * signed / total, patients], axis=1
        )


@dataclass(frozen=True, eq=False)
class QuantileSums(ErrorSums):
    """``counts``: (4,) sums as ``QuantileErrors`` has them."""

    names: ClassVar[tuple[str, ...]] = ("mae", "pinball", "coverage", "patients")

    def metrics(self, counts: Floats, deviation: float) -> Floats:
        patients, total = _beyond_noise(counts[:, 0], deviation)
        missed, pinball, inside = counts[:, 1:].T
        return np.stack(
            [self.distance * missed / total, self.distance * pinball / total, inside / total, patients], axis=1
        )


def _beyond_noise(patients: Floats, deviation: float) -> tuple[Floats, Floats]:
    """(B,) patients, and the same or NaN where noise drowns them."""
    return patients, np.where(patients > LEAST * deviation, patients, np.nan)


#: By the kind of predictions the question of private metrics.
_QUESTIONS: Mapping[str, type[Measured]] = {
    "classes": Scores, "ranks": Scores, "sets": LabelScores, "numbers": Errors, "counts": Errors, "quantiles": QuantileErrors,
}  # fmt: skip


def question_of(objective: Objective) -> tuple[type[Measured], Objective | int] | None:
    """The question of private metrics, and what it is made of beside the noise; None of an objective that has none."""
    question = _QUESTIONS.get(objective.predicts)
    if question is None:
        return None
    return question, len(objective.columns) if issubclass(question, Scores) else objective


def affordable_question(
    objective: Objective, most: float, budget: float | None, releases: int, pricing: Pricing
) -> Measured | None:
    """The question with the least noise that the bounds on cost allow; None of an objective without private metrics.

    A hospital asks its records so, and the server counts an answer that was lost by it.

    Args:
        objective: What the model predicts.
        most: The epsilon that all releases together may cost by the hospital's policy.
        budget: The ledger's, which bounds them if it is less than ``most``; None is unlimited.
        releases: Number of releases.
        pricing: By which they are accounted.

    Raises:
        ConfigError: where no noise reaches the epsilon.
    """
    question = question_of(objective)
    return question and question[0].within(question[1], min(most, budget or most), releases, pricing)
