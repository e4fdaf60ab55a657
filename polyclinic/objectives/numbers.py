"""Objectives of a number within public bounds: squared error, Huber's loss, and quantiles.

The label is scaled by what the schema says of it: z = (y - centre) / spread, its own or those of its bounds. Squared losses are
scaled to the largest curvature of the logistic loss, a quarter, so that learning rates and clip norms mean the same.
Predictions come back in the label's unit and within its bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from polyclinic.ehr.encoding import public_scale
from polyclinic.objectives.objective import Objective, Predicted
from polyclinic.types import Floats, Labels


@dataclass(frozen=True)
class Number(Objective):
    """One output for one label that is a number; predictions are the output in the label's unit."""

    predicts: ClassVar[Predicted] = "numbers"
    regression: ClassVar[str] = "linear regression"
    # A squared loss does not flatten: more momentum and longer steps overshoot, above all in the mean (docs/objectives.md).
    momentum: ClassVar[float | None] = 0.5
    longest_step: ClassVar[float] = 2.0
    is_likelihood: ClassVar[bool] = False

    def check(self) -> None:
        self.number()

    @property
    def outputs(self) -> int:
        return 1

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.number().name,)

    def predictions(self, outputs: Tensor) -> Tensor:
        centre, spread = public_scale(self.number())
        return (centre + spread * outputs).clamp(*(self.number().bounds or (None, None)))

    def outputs_of(self, predictions: Tensor) -> Tensor:
        return self._scale(predictions)

    def constant(self, labels: Labels) -> Floats:
        return np.array([labels.mean()])

    def _scale(self, labels: Tensor) -> Tensor:
        centre, spread = public_scale(self.number())
        return (labels - centre) / spread

    def _residuals(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(..., O) by how much the label is above each output."""
        return self._scale(labels)[..., None] - outputs


@dataclass(frozen=True)
class Squared(Number):
    """Squared error, which the mean minimises."""

    name: ClassVar[str] = "squared"

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self._residuals(outputs, labels)[..., 0].square() / 8


@dataclass(frozen=True)
class Huber(Number):
    """Squared error near the label and absolute error beyond ``threshold`` spreads (Huber 1964)."""

    threshold: float = 1.0

    name: ClassVar[str] = "huber"
    regression: ClassVar[str] = "Huber regression"

    def check(self) -> None:
        super().check()
        if not 0 < self.threshold < math.inf:
            raise self.refuse(f"whose option threshold is {self.threshold!r}; it must be above 0")

    def constant(self, labels: Labels) -> Floats:
        return np.array([np.median(labels)])  # near the loss's own centre, and robust as it is

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        missed = self._residuals(outputs, labels)[..., 0]
        return functional.huber_loss(missed, torch.zeros_like(missed), reduction="none", delta=self.threshold) / 4


@dataclass(frozen=True)
class Quantile(Number):
    """The pinball loss of one quantile or several, an output each (Koenker and Bassett 1978).

    levels: Between 0 and 1, rising. Quantiles that cross are put in order when they are predicted.
    """

    levels: tuple[float, ...] | float = (0.5,)

    name: ClassVar[str] = "quantile"
    predicts: ClassVar[Predicted] = "quantiles"
    regression: ClassVar[str] = "quantile regression"
    momentum: ClassVar[float | None] = (
        None  # a pinball loss pulls no harder from far away, so that small steps do not arrive
    )

    def __post_init__(self) -> None:
        given = self.levels
        object.__setattr__(self, "levels", tuple(given) if isinstance(given, list | tuple) else (given,))
        self.check()

    def check(self) -> None:
        super().check()
        rising = all(isinstance(level, float) and 0 < level < 1 for level in self.at)
        if not self.at or not rising or sorted(set(self.at)) != list(self.at):
            raise self.refuse(f"whose option levels is {list(self.at)}; it must be rising numbers between 0 and 1")

    @property
    def at(self) -> tuple[float, ...]:
        """The levels, also where one was given."""
        return self.levels if isinstance(self.levels, tuple) else (self.levels,)

    @property
    def outputs(self) -> int:
        return len(self.at)

    @property
    def middle(self) -> int:
        """The place of the level that is nearest to the median."""
        return int(np.argmin(np.abs(np.array(self.at) - 0.5)))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f"{self.number().name} at {level:g}" for level in self.at)

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        missed, level = self._residuals(outputs, labels), outputs.new_tensor(self.at)
        return torch.maximum(level * missed, (level - 1) * missed).mean(-1)

    def constant(self, labels: Labels) -> Floats:
        return np.asarray(np.quantile(labels, self.at), dtype=np.float64)

    def predictions(self, outputs: Tensor) -> Tensor:
        return super().predictions(outputs).sort(dim=1).values
