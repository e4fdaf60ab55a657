"""Objectives of a label with classes: classification, with a logit for each class or one for two, and ordered classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from polyclinic.ehr.schema import CLASS_KINDS
from polyclinic.objectives.objective import Objective, Predicted
from polyclinic.types import Floats, Labels

_LEAST = 1e-15  # probability whose logarithm is taken
_FAR = 1e4  # a logit whose probability is 1
_NARROW = 1e-6  # the least distance of two thresholds


@dataclass(frozen=True)
class _OfClasses(Objective):
    """A label with K classes, of which probabilities are predicted."""

    kinds: ClassVar[tuple[str, ...]] = CLASS_KINDS
    regression: ClassVar[str] = "logistic regression"

    def check(self) -> None:
        if len(self.labels) != 1 or self.labels[0].kind not in self.kinds:
            kinds = " or ".join(map(repr, self.kinds))
            raise self.refuse(f"which takes one label of kind {kinds}; {self.label_kinds()}{self.remedy}")

    @property
    def classes(self) -> int:
        return max(2, len(self.labels[0].categories))

    @property
    def columns(self) -> tuple[str, ...]:
        return self.labels[0].categories or ("0", "1")

    def constant(self, labels: Labels) -> Floats:
        return np.bincount(labels, minlength=self.classes) / len(labels)

    def confidences(self, predictions: Floats, labels: Labels) -> Floats:
        """(n,) log p / (1 - p) of each row's class. Carlini et al. 2022, Algorithm 1."""
        own = predictions[np.arange(len(labels)), labels]
        others = np.where(np.arange(predictions.shape[1]) == labels[:, None], 0.0, predictions).sum(axis=1)
        return np.asarray(np.log(np.maximum(own, _LEAST)) - np.log(np.maximum(others, _LEAST)))

    def label_columns(self, labels: Labels) -> Floats:
        return np.eye(self.classes)[labels]


@dataclass(frozen=True)
class Classification(_OfClasses):
    """Cross-entropy of a logit for each class, and variants for classes that are rare or labels that are wrong.

    weights: What a row of each class counts, in the order of the classes; public numbers, never counts of records.
    focal: Exponent of the focal loss, 0 for none (Lin et al. 2017, equation 4). smoothing: Share of each label that is spread
    over all classes (Szegedy et al. 2016, section 7). All three make predicted risks differ from observed ones.
    """

    weights: tuple[float, ...] = ()
    focal: float = 0.0
    smoothing: float = 0.0

    name: ClassVar[str] = "classification"
    predicts: ClassVar[Predicted] = "classes"

    def __post_init__(self) -> None:
        if isinstance(self.weights, list):
            object.__setattr__(self, "weights", tuple(self.weights))
        self.check()

    def check(self) -> None:
        super().check()
        good = isinstance(self.weights, tuple) and all(
            isinstance(weight, int | float) and 0 < weight < math.inf for weight in self.weights
        )
        if not good or len(self.weights) not in (0, self.classes):
            raise self.refuse(
                f"whose option weights is {self.weights!r}; it must be {self.classes} public numbers above 0, one for each class"
            )
        if not 0 <= self.focal < math.inf:
            raise self.refuse(f"whose option focal is {self.focal!r}; it must be 0 or more")
        if not 0 <= self.smoothing < 1:
            raise self.refuse(f"whose option smoothing is {self.smoothing!r}; it must be at least 0 and below 1")

    @property
    def outputs(self) -> int:
        return self.classes

    @property
    def allowed(self) -> tuple[int, ...]:
        return (self.outputs, 3 - self.outputs) if self.classes == 2 else (self.outputs,)

    @property
    def loss(self) -> str | Objective:
        return self if self.weights or self.focal or self.smoothing else "cross-entropy"

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        chances = torch.log_softmax(_all_logits(outputs), -1)
        of_label = chances.gather(-1, labels[..., None])[..., 0]
        losses = -(1 - self.smoothing) * of_label - self.smoothing * chances.mean(-1)
        if self.focal:
            losses = losses * (-torch.expm1(of_label)).clamp(min=_LEAST) ** self.focal
        return losses * outputs.new_tensor(self.weights)[labels] if self.weights else losses

    def predictions(self, outputs: Tensor) -> Tensor:
        return functional.softmax(_all_logits(outputs), dim=1)

    def outputs_of(self, predictions: Tensor) -> Tensor:
        return predictions.clamp(min=_LEAST).log()


@dataclass(frozen=True)
class Binary(Classification):
    """Classification of two classes by a model of one output, the logit of the second class."""

    name: ClassVar[str] = "binary"

    def check(self) -> None:
        super().check()
        if self.classes != 2:
            raise self.refuse(f"which takes a label of two classes; {self.label_kinds()} with {self.classes}")

    @property
    def outputs(self) -> int:
        return 1


def _all_logits(outputs: Tensor) -> Tensor:
    """(..., K) logits; one logit is that of class 1, beside 0."""
    return functional.pad(outputs, (1, 0)) if outputs.shape[-1] == 1 else outputs


class Thresholds(nn.Module):
    """(n, 1) scores to (n, K - 1) logits of being above each class but the last: the score less a rising threshold.

    ``rising``: the first threshold, and what the distances to the next ones are the softplus of. At a score of 0 all classes are
    equally likely at first.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        at = torch.logit(torch.arange(1, classes, dtype=torch.float64) / classes)
        self.rising = nn.Parameter(torch.cat([at[:1], at.diff().expm1().log()]).float())

    def forward(self, score: Tensor) -> Tensor:
        steps = torch.cat([self.rising[:1], functional.softplus(self.rising[1:]) + _NARROW])
        return score - steps.cumsum(0)


@dataclass(frozen=True)
class Ordinal(_OfClasses):
    """Proportional odds of ordered classes: one score a row and thresholds that all rows share (McCullagh 1980)."""

    name: ClassVar[str] = "ordinal"
    regression: ClassVar[str] = "proportional-odds regression"
    momentum: ClassVar[float | None] = 0.7
    predicts: ClassVar[Predicted] = "ranks"
    kinds: ClassVar[tuple[str, ...]] = ("ordinal",)

    @property
    def outputs(self) -> int:
        return 1

    @property
    def logits(self) -> int:
        return self.classes - 1

    def head(self) -> nn.Module:
        return Thresholds(self.classes)

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return -_log_between(outputs).gather(-1, labels[..., None])[..., 0]

    def predictions(self, outputs: Tensor) -> Tensor:
        return functional.softmax(
            _log_between(outputs), dim=1
        )  # of logarithms of probabilities: exact but for rounding

    def outputs_of(self, predictions: Tensor) -> Tensor:
        above = predictions.flip(1).cumsum(1).flip(1)[:, 1:]
        return torch.logit(above, eps=_LEAST)


def _log_between(above: Tensor) -> Tensor:
    """(..., K) logarithms of probabilities of K classes, from (..., K - 1) falling logits of being above each but the last."""
    far = above.new_full((*above.shape[:-1], 1), _FAR)
    high, low = torch.cat([far, above], -1), torch.cat([above, -far], -1)
    apart = -torch.expm1((low - high).clamp(max=-_NARROW))
    # torch's logsigmoid fails on a GPU where a patient's gradient is taken row by row.
    none = torch.zeros_like(high)
    return apart.log() - torch.logaddexp(none, -high) - torch.logaddexp(none, low)
