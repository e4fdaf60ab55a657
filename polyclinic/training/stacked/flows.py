"""Autoregressive flows as plans: their masked layers have closed forms, and what lies between works number by number.

A masked layer's gradient for one row is the outer product of a linear layer's times its mask. S sites, B rows, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from zuko.flows.autoregressive import MaskedAutoregressiveTransform
from zuko.nn import MaskedLinear, MaskedMLP
from zuko.utils import unpack

from polyclinic.models.flows import ConditionalFlow
from polyclinic.training.stacked.affine import Affine
from polyclinic.training.stacked.products import rows_product


@dataclass(frozen=True, eq=False)
class Masked(Affine):
    """A linear layer whose weights count where ``mask``, (outputs, inputs), is 1 and not where it is 0."""

    mask: Tensor


@dataclass(frozen=True, eq=False)
class Step:
    """A step of a flow: ``layers`` make of a row and its context what ``univariate`` maps each number by, of ``shapes``."""

    layers: tuple[Any, ...]
    univariate: Callable[..., Any]
    shapes: Sequence[Sequence[int]]
    total: int

    def mapped(self, x: Tensor, phi: Tensor) -> tuple[Tensor, Tensor]:
        """(S, B, features) numbers by the layers' (S, B, features * total), and (S, B) the log of the change of volume."""
        parts = unpack(phi.view(*x.shape, self.total), self.shapes)
        u, slope = self.univariate(*parts).call_and_ladj(x)
        return u, slope.sum(-1)


@dataclass(frozen=True, eq=False)
class FlowPlan:
    """The steps of a flow of ``features`` numbers, and its (P,) mask: 1 for what is trained, 0 for weights that never count.

    base: the (features,) mean and (features, features) inverse root of a normal base that is not standard.
    """

    features: int
    steps: tuple[Step, ...]
    mask: Tensor
    base: tuple[Tensor, Tensor] | None = None

    def surprise(self, x: Tensor, apart: bool) -> tuple[Tensor, Tensor]:
        """(S, B) minus the log-density of (S, B, features) numbers under the base, and its gradient at them."""
        if self.base is None:
            return 0.5 * (x.square() + math.log(2 * math.pi)).sum(-1), x
        mean, whiten = self.base
        times = (lambda rows, weight: rows_product(rows, weight[None])) if apart else torch.matmul
        white = times(x - mean, whiten.mT)
        far = 0.5 * (white.square() + math.log(2 * math.pi)).sum(-1) - whiten.diagonal().log().sum()
        return far, times(white, whiten)


def flow_plan(module: ConditionalFlow, elementwise: tuple[type, ...]) -> FlowPlan | str:
    """The flow's steps; or what has no closed form here. elementwise: the activations that may lie between masked layers."""
    steps, masks, start = [], [], 0
    step: Any
    for step in module.steps:
        if type(step) is not MaskedAutoregressiveTransform or type(step.hyper) is not MaskedMLP:
            return f"a step of the flow is {type(step).__name__}"
        layers: list[Any] = []
        for part in step.hyper:
            if type(part) is MaskedLinear and part.bias is not None:
                mask = part.mask.to(part.weight.dtype)
                layers.append(Masked(start, part.in_features, part.out_features, True, mask))
                masks += [mask.flatten(), torch.ones_like(part.bias)]
                start += part.weight.numel() + part.bias.numel()
            elif type(part) in elementwise:
                layers.append(part)
            else:
                return f"{type(part).__name__} is not a masked layer or an elementwise activation"
        steps.append(Step(tuple(layers), step.univariate, step.shapes, step.total))
    base = (cast(Tensor, module.mean), cast(Tensor, module.whiten)) if module.based else None
    return FlowPlan(module.features, tuple(steps), torch.cat(masks).detach(), base)
