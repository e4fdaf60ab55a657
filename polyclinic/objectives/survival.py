"""The objective of a time until an event that may not be seen: a hazard in each of public intervals of time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from polyclinic.ehr.schema import BOUNDED_KINDS, Column
from polyclinic.objectives.objective import Objective, Predicted
from polyclinic.types import Floats, Labels

_LEAST = 1e-12
_INTERVALS = 10
# A hospital's work on a patient's shape functions or trees grows with the square of their number.
_MOST_INTERVALS = 1000
# Of the logarithm of a hazard: beyond it losses go on as straight lines, so that no output overflows.
_MOST = 6.0


class Levels(nn.Module):
    """(n, 1 or J) scores to (n, J) outputs, by a level of each interval that all rows share.

    ``levels`` (J,) are in units that make one step of training about as long for them as for a feature's weight.
    """

    def __init__(self, start: Floats) -> None:
        super().__init__()
        self.unit = math.sqrt(len(start))
        self.levels = nn.Parameter(torch.tensor(start / self.unit, dtype=torch.float32))

    def forward(self, scores: Tensor) -> Tensor:
        return scores + self.unit * self.levels


@dataclass(frozen=True)
class Hazards(Objective):
    """The chance of the event in each interval for those who reached it (Gensheimer and Narasimhan 2019).

    A model says one score of a row, which moves the hazards of all intervals, and each interval has a level that all rows share.
    Training begins where half of the patients have the event by the last edge, at one hazard per time, as nobody knows better.

    edges: The ends of the intervals, public and rising, in the time's unit; without any, ten equal parts of its bounds. A time
    beyond the last edge counts as seen up to it. An observation that ends without the event within an interval counts for half
    of it, as in life tables.
    link: Of the chance of the event in an interval: logistic, or complementary-log-log, by which a linear model is one of
    proportional hazards (Prentice and Gloeckler 1978).
    proportional: Whether the model's score is one for all intervals; otherwise it has a score for each.
    """

    edges: tuple[float, ...] = ()
    link: str = "logistic"
    proportional: bool = True

    name: ClassVar[str] = "hazards"
    predicts: ClassVar[Predicted] = "survival"
    regression: ClassVar[str] = "discrete-time hazards regression"
    links: ClassVar[tuple[str, ...]] = ("logistic", "complementary-log-log")
    momentum: ClassVar[float | None] = 0.5

    def __post_init__(self) -> None:
        if isinstance(self.edges, list):
            object.__setattr__(self, "edges", tuple(self.edges))
        self.check()

    def check(self) -> None:
        kinds = sorted(column.kind for column in self.labels)
        if len(kinds) != 2 or kinds[0] != "binary" or kinds[1] not in BOUNDED_KINDS:
            raise self.refuse(f"which takes a time with bounds and a 'binary' event as labels; {self.label_kinds()}")
        low, high = self.time.bounds or (0.0, 1.0)
        numbers = isinstance(self.edges, tuple) and all(isinstance(edge, int | float) for edge in self.edges)
        if numbers and len(self.edges) > _MOST_INTERVALS:
            raise self.refuse(f"whose option edges has {len(self.edges):,} numbers; allowed are {_MOST_INTERVALS:,}")
        if not numbers or list(self.edges) != sorted(set(self.edges)) or any(not low < e <= high for e in self.edges):
            raise self.refuse(
                f"whose option edges is {self.edges!r}; it must be rising numbers above {low:g}, at most {high:g}"
            )
        if self.link not in self.links:
            raise self.refuse(f"whose option link is {self.link!r}; allowed are {', '.join(self.links)}")

        if not isinstance(self.proportional, bool):
            raise self.refuse(f"whose option proportional is {self.proportional!r}; allowed are true and false")

    @property
    def time(self) -> Column:
        return next(column for column in self.labels if column.kind != "binary")

    @property
    def event(self) -> Column:
        return next(column for column in self.labels if column.kind == "binary")

    @property
    def ends(self) -> Floats:
        """(J,) the ends of the intervals."""
        return np.array(self.edges, dtype=np.float64) if self.edges else np.linspace(
            *(self.time.bounds or (0.0, 1.0)), _INTERVALS + 1
        )[1:]  # fmt: skip

    @property
    def outputs(self) -> int:
        return 1 if self.proportional else self.logits

    @property
    def logits(self) -> int:
        return len(self.ends)

    @property
    def start(self) -> Floats:
        """(J,) outputs by which half have the event by the last edge, at one hazard per time."""
        ends, begin = self.ends, (self.time.bounds or (0.0, 1.0))[0]
        return self.outputs_of(torch.from_numpy(0.5 ** ((ends - begin) / (ends[-1] - begin)))[None])[0].numpy()

    def head(self) -> nn.Module:
        return Levels(self.start)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f"no {self.event.name} until {end:g}" for end in self.ends)

    def constant(self, labels: Labels) -> Floats:
        here, passed = (part.sum(0).numpy() for part in self._intervals(torch.from_numpy(np.array(labels, np.float64))))
        return np.asarray(np.cumprod(passed / np.maximum(here + passed, 1)), dtype=np.float64)  # a life table

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        here, passed = self._intervals(labels.to(outputs))
        happens, passes = self._losses_of_chances(outputs)
        return (here * happens + passed * passes).sum(-1)

    def _losses_of_chances(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """(..., J) what an event in each interval adds to the loss, and what passing the interval without it adds."""
        if self.link == "logistic":
            return functional.softplus(-outputs), functional.softplus(outputs)
        passes = exponential(outputs)
        return -(-torch.expm1(-passes)).clamp(min=_LEAST).log(), passes

    def _intervals(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(..., J) whether the event was in each interval, and how much of each was passed without it."""
        ends, first = labels.new_tensor(self.ends), self.labels.index(self.time)
        time, event = (labels[..., place][..., None] for place in (first, 1 - first))
        begins = torch.cat([ends[:1] * 0 - torch.inf, ends[:-1]])
        inside = (time > begins) & (time <= ends)
        return event * inside, (ends <= time) * (1 - event * inside) + (1 - event) * (inside & (time < ends)) / 2

    def predictions(self, outputs: Tensor) -> Tensor:
        return (-self._losses_of_chances(outputs)[1].cumsum(1)).exp()

    def outputs_of(self, predictions: Tensor) -> Tensor:
        before = torch.cat([torch.ones_like(predictions[:, :1]), predictions[:, :-1]], 1)
        passed = predictions / before.clamp(min=_LEAST)
        if self.link == "logistic":
            return torch.logit(1 - passed, eps=_LEAST)
        return log_of(-passed.clamp(min=_LEAST).log())


@dataclass(frozen=True)
class PiecewiseExponential(Hazards):
    """A constant hazard in each interval, an output each: the logarithm of the events expected in the whole interval.

    It is a Poisson regression of the events by interval, with the time that a patient was seen in it as exposure (Holford 1980).
    An observation that ends within an interval counts for its part of it.
    """

    link: str = "log"

    name: ClassVar[str] = "piecewise-exponential"
    regression: ClassVar[str] = "piecewise exponential regression"
    links: ClassVar[tuple[str, ...]] = ("log",)

    def constant(self, labels: Labels) -> Floats:
        here, seen = (part.sum(0).numpy() for part in self._intervals(torch.from_numpy(np.array(labels, np.float64))))
        return np.asarray(np.exp(-np.cumsum(here / np.maximum(seen, _LEAST))), dtype=np.float64)

    def _losses_of_chances(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        return -outputs, exponential(outputs)

    def _intervals(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """(..., J) whether the event was in each interval, and the share of each that was seen."""
        here, _ = super()._intervals(labels)
        ends = labels.new_tensor(self.ends)
        begins = torch.cat([labels.new_tensor([(self.time.bounds or (0.0, 1.0))[0]]), ends[:-1]])
        time = labels[..., self.labels.index(self.time)][..., None]
        return here, ((time - begins) / (ends - begins)).clamp(0, 1)


def exponential(outputs: Tensor) -> Tensor:
    """exp(outputs), as a straight line above ``exp(6)``, so that losses and their gradients stay finite."""
    near = outputs.clamp(max=_MOST)
    return near.exp() * (1 + outputs - near)


def log_of(values: Tensor) -> Tensor:
    """The inverse of ``exponential``, of numbers above 0."""
    near = values.clamp(_LEAST, math.exp(_MOST))
    return near.log() + (values / math.exp(_MOST) - 1).clamp(min=0)
