"""Objectives of a count, from 0 up to a public bound: Poisson and negative binomial regression with a logarithmic link.

An output o predicts the mean c exp(o), where c is the label's public centre. A loss is half the unit deviance (McCullagh and
Nelder 1989, section 2.3), scaled so that its curvature at the centre is a quarter, as that of the logistic loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from polyclinic.ehr.encoding import public_scale
from polyclinic.objectives.numbers import Number
from polyclinic.objectives.objective import Predicted

_LEAST = 1e-12


@dataclass(frozen=True)
class Poisson(Number):
    """Counts whose variance is their mean."""

    name: ClassVar[str] = "poisson"
    regression: ClassVar[str] = "Poisson regression"
    predicts: ClassVar[Predicted] = "counts"

    def check(self) -> None:
        low, _ = self.number().bounds or (0.0, 0.0)
        if low < 0:
            raise self.refuse(
                f"which takes a label of 0 or more; the bounds of {self.number().name!r} begin at {low:g}"
            )

    @property
    def extra(self) -> float:
        """The variance is mean + extra mean^2."""
        return 0.0

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        centre, output = self.centre, outputs[..., 0]
        return self.deviance(output + math.log(centre), labels.to(output)) * (1 + self.extra * centre) / (8 * centre)

    def predictions(self, outputs: Tensor) -> Tensor:
        low, high = self.number().bounds or (0.0, math.inf)
        return (self.centre * outputs.clamp(max=self._most).exp()).clamp(low, high)

    def outputs_of(self, predictions: Tensor) -> Tensor:
        return (predictions.clamp(min=_LEAST) / self.centre).log()

    def deviance(self, log_mean: Tensor, labels: Tensor) -> Tensor:
        """The unit deviance of counts whose means have these logarithms; linear in them where a mean is beyond the bound."""
        most = self._most + math.log(self.centre)
        near = log_mean.clamp(max=most)
        mean = near.exp() * (1 + (log_mean - near))
        return 2 * (torch.xlogy(labels, labels) - labels * log_mean - labels + mean)

    @property
    def centre(self) -> float:
        """The mean that an output of 0 predicts."""
        return max(public_scale(self.number())[0], _LEAST)

    @property
    def _most(self) -> float:
        """The output that predicts the upper bound."""
        return math.log((self.number().bounds or (0.0, 1.0))[1] / self.centre)


@dataclass(frozen=True)
class NegativeBinomial(Poisson):
    """Counts whose variance is mean + dispersion mean^2, with a public dispersion."""

    dispersion: float = 1.0

    name: ClassVar[str] = "negative-binomial"
    regression: ClassVar[str] = "negative binomial regression"

    def check(self) -> None:
        super().check()
        if not 0 < self.dispersion < math.inf:
            raise self.refuse(f"whose option dispersion is {self.dispersion!r}; it must be above 0 (poisson has 0)")

    @property
    def extra(self) -> float:
        return self.dispersion

    def deviance(self, log_mean: Tensor, labels: Tensor) -> Tensor:
        size = 1 / self.dispersion
        beyond = torch.logaddexp(log_mean, torch.full_like(log_mean, math.log(size)))
        return 2 * (
            torch.xlogy(labels, labels) - labels * log_mean - (labels + size) * ((labels + size).log() - beyond)
        )
