"""What boosting asks of an objective: residuals and their public bounds, and how much a patient tells of the outputs.

A row's outputs are ``levels @ intercept + contrasts @ f``. Of classes both columns are orthonormal contrasts of the
logits. Of hazards each interval has a level and one shape function moves all of them, so that odds are in proportion.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import torch

from polyclinic.errors import ConfigError
from polyclinic.objectives.counts import Poisson
from polyclinic.objectives.numbers import Huber
from polyclinic.objectives.objective import Objective
from polyclinic.objectives.survival import Hazards
from polyclinic.types import Floats, Labels

#: Objectives that have a curvature by which steps can be taken, and a model without a head of their own.
OBJECTIVES = (
    "classification", "binary", "multi-label", "squared", "huber", "poisson", "negative-binomial", "hazards",
)  # fmt: skip
# A residual of a number counts as far as two spreads of the label, of a survival as far as one event; without noise further.
_REACH = {"numbers": 0.5, "counts": 0.5, "survival": 1.0}
_FARTHER = 20.0
# The curvature of a row is at least this part of that of an even chance.
_LEAST = 1e-3


@dataclass(frozen=True, eq=False)
class Outcome:
    """An objective as boosting sees it. private: Whether residuals are kept within the usual ones, as noise demands.

    Raises ConfigError for an objective that is not one of ``OBJECTIVES``, or has options that move its curvature.
    """

    objective: Objective
    private: bool = True

    def __post_init__(self) -> None:
        plain = self.objective.loss == "cross-entropy" or self.objective.name not in ("classification", "binary")
        if self.objective.name not in OBJECTIVES or not plain:
            raise ConfigError(
                f"Configuration key 'model' names boosting, which takes the objectives {', '.join(OBJECTIVES)}, those of "
                f"classes without options; the run's is {self.objective.name!r}."
            )

    @cached_property
    def contrasts(self) -> Floats:
        """(O, L) by which shape functions reach the outputs."""
        count = self.objective.logits
        if self.objective.predicts == "classes" and count > 1:  # each class beside those before it (Helmert)
            columns = np.triu(np.ones((count, count - 1)))
            columns[np.arange(1, count), np.arange(count - 1)] = -np.arange(1.0, count)
            return np.asarray(-columns / np.linalg.norm(columns, axis=0))
        return np.ones((count, 1)) if self.objective.predicts == "survival" else np.eye(count)

    @cached_property
    def levels(self) -> Floats:
        """(O, I) by which the intercept reaches the outputs."""
        return np.eye(self.objective.logits) if self.objective.predicts == "survival" else self.contrasts

    @cached_property
    def start(self) -> Floats:
        """(I,) the intercept before anything is known."""
        if isinstance(self.objective, Hazards):
            return self.objective.start
        return np.zeros(self.levels.shape[1])

    @cached_property
    def bridge(self) -> Floats:
        """(I, L) the residuals' sum along ``contrasts`` from that along ``levels``."""
        return np.asarray(np.linalg.pinv(self.levels) @ self.contrasts)

    def labels(self, y: Labels) -> Floats:
        """(n, ...) labels as columns of numbers."""
        return np.asarray(y, dtype=np.float64).reshape(len(y), int(np.prod(y.shape[1:])))

    def residuals(self, outputs: Floats, columns: Floats) -> Floats:
        """(n, O) minus the slopes of each row's loss, cut to the length ``longest``. columns: (n, ...) of ``labels``."""
        classes = self.objective.predicts == "classes"
        labels = torch.from_numpy(np.ascontiguousarray(columns))
        labels = labels[:, 0].long() if classes else labels[:, 0] if columns.shape[1] == 1 else labels
        at = torch.from_numpy(np.ascontiguousarray(outputs)).requires_grad_()
        (slopes,) = torch.autograd.grad(self.objective.losses(at, labels).sum(), at)
        residuals = -slopes.numpy()
        along = np.maximum(np.linalg.norm(residuals, axis=1), np.linalg.norm(residuals @ self.contrasts, axis=1))
        with np.errstate(invalid="ignore"):
            cut: Floats = residuals * np.minimum(1.0, self.longest(outputs) / np.maximum(along, 1e-300))[:, None]
        return cut

    def longest(self, outputs: Floats) -> Floats:
        """(n,) the longest residual that a row may have, along ``levels`` and along ``contrasts``, whatever its label is."""
        if self.objective.predicts in _REACH:
            return np.full(len(outputs), _REACH[self.objective.predicts] * (1.0 if self.private else _FARTHER))
        chances = self.chances(outputs)
        if self.objective.predicts == "sets" or outputs.shape[1] == 1:
            return np.asarray(np.linalg.norm(np.maximum(chances, 1 - chances), axis=1))
        return np.asarray(np.sqrt(1 + (chances**2).sum(axis=1) - 2 * chances.min(axis=1)))

    def chances(self, outputs: Floats) -> Floats:
        """(n, O) probabilities of classes, of labels or of the event in each interval."""
        if self.objective.predicts == "classes" and outputs.shape[1] > 1:
            grown = np.exp(outputs - outputs.max(axis=1, keepdims=True))
            return np.asarray(grown / grown.sum(axis=1, keepdims=True))
        return np.asarray(1 / (1 + np.exp(-np.clip(outputs, -50, 50))))

    def information(self, outputs: Floats) -> tuple[float, Floats]:
        """What a patient tells, on average over (m, O) usual ``outputs``: the mean curvature of the loss along one of
        ``contrasts``, and (I,) along each of ``levels``."""
        predicts, chances = self.objective.predicts, self.chances(outputs)
        if predicts == "classes" and outputs.shape[1] > 1:
            whole = np.diag(chances.mean(axis=0)) - chances.T @ chances / len(chances)
            along = float(np.trace(self.contrasts.T @ whole @ self.contrasts)) / self.contrasts.shape[1]
            return along + _LEAST, np.full(self.levels.shape[1], along + _LEAST)
        if predicts in ("classes", "sets", "survival"):
            each = chances * (1 - chances)
            if predicts == "survival":
                each[:, 1:] *= np.cumprod(1 - chances, axis=1)[:, :-1]
            by_level = each.mean(axis=0) + _LEAST
            return float(by_level.sum() if predicts == "survival" else by_level.mean()), by_level
        along = 0.2 if isinstance(self.objective, Huber) else 0.25
        if predicts == "counts":
            counts, grown = cast(Poisson, self.objective), np.exp(np.clip(outputs, -10, 3))
            along = float(
                (grown / 4 * (1 + counts.extra * counts.centre) / (1 + counts.extra * counts.centre * grown)).mean()
            )
        return along + _LEAST, np.array([along + _LEAST])
