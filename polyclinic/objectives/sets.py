"""The objective of several labels at once, each of which is there or not: an output and a logistic loss for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from polyclinic.objectives.objective import Objective, Predicted
from polyclinic.types import Floats, Labels

_LEAST = 1e-15


@dataclass(frozen=True)
class MultiLabel(Objective):
    """Several binary label columns, or the codes of one code_set. The loss of a row is the sum over its labels."""

    name: ClassVar[str] = "multi-label"
    predicts: ClassVar[Predicted] = "sets"
    regression: ClassVar[str] = "logistic regression of each label"

    def check(self) -> None:
        several = len(self.labels) > 1 and all(column.kind == "binary" for column in self.labels)
        if not several and [column.kind for column in self.labels] != ["code_set"]:
            raise self.refuse(
                f"which takes several labels of kind 'binary' or one of kind 'code_set'; {self.label_kinds()}"
            )

    @property
    def outputs(self) -> int:
        return len(self.columns)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.labels[0].categories if len(self.labels) == 1 else tuple(column.name for column in self.labels)

    def constant(self, labels: Labels) -> Floats:
        return np.asarray(labels.mean(axis=0), dtype=np.float64)

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(outputs, labels.to(outputs), reduction="none").sum(-1)

    def predictions(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()

    def outputs_of(self, predictions: Tensor) -> Tensor:
        return torch.logit(predictions, eps=_LEAST)
