"""Normalizing flows: densities that can be trained row by row, and drawn from.

A masked autoregressive flow (Papamakarios et al. 2017) or a neural spline flow (Durkan et al. 2019) by zuko, given a context.
Nothing in it looks across rows: no batch norm, so that one patient's gradient depends on that patient alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import torch
import zuko
from torch import Tensor, nn

from polyclinic.errors import ConfigError, nearest

KINDS = ("maf", "nsf")
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "elu": nn.ELU}


class ConditionalFlow(nn.Module):
    """The density of ``features`` numbers given ``context`` others, as autoregressive ``steps`` to a standard normal base.

    Its arrays (``state_dict``) are its parameters alone: masks and orders are constants of the code, and so is the base.
    """

    def __init__(self, features: int, context: int, steps: list[nn.Module]) -> None:
        super().__init__()
        self.features, self.context = features, context
        self.steps = nn.ModuleList(steps)
        self.based_on(torch.zeros(features), torch.eye(features))
        self.based = False

    def based_on(self, mean: Tensor, root: Tensor) -> ConditionalFlow:
        """The same flow to a normal base of this (features,) mean, and (features, features) lower root of its covariance."""
        self.based = True
        for name, value in (("mean", mean), ("root", root), ("whiten", torch.linalg.inv(root))):
            self.register_buffer(name, value)
        for part in self.modules():
            part._non_persistent_buffers_set.update(part._buffers)
        return self

    def forward(self, rows: Tensor) -> Tensor:
        """(n, features + context) to (n, 1): minus the log-density of the features given the context."""
        x, total = self.whiten_rows(rows)
        base = -0.5 * (x.square() + math.log(2 * math.pi)).sum(-1)
        return -(base + total)[..., None]

    def whiten_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(n, features + context) as (n, features) numbers, standard normal if the density is right, and (n,) log-volumes."""
        x, context = rows[..., : self.features], self._context(rows[..., self.features :])
        total = x.new_zeros(x.shape[:-1])
        for step in self.steps:
            x, slope = step(context).call_and_ladj(x)
            total = total + slope
        if self.based:
            whiten = cast(Tensor, self.whiten)
            x, total = (x - cast(Tensor, self.mean)) @ whiten.mT, total + whiten.diagonal().log().sum()
        return x, total

    def draw(self, base: Tensor, context: Tensor) -> Tensor:
        """(n, features) that (n, features) standard normal numbers stand for, given (n, context)."""
        given = self._context(context)
        with torch.no_grad():
            if self.based:
                base = base @ cast(Tensor, self.root).mT + cast(Tensor, self.mean)
            for step in reversed(cast(list[nn.Module], list(self.steps))):
                base = step(given).inv(base)
        return base

    def _context(self, context: Tensor) -> Tensor | None:
        return context if self.context else None


def flow(
    kind: str, features: int, context: int = 0, transforms: int = 3, hidden: tuple[int, ...] = (32, 32), bins: int = 8,
    activation: str = "tanh",
) -> ConditionalFlow:  # fmt: skip
    """Return a flow of ``transforms`` autoregressive steps, each in the opposite order of the one before.

    It begins as its base whatever the seed of its inner layers: noise that few private steps need not forget.

    Args:
        kind: "maf" (affine) or "nsf" (splines).
        features: The numbers of a row.
        context: The numbers that the density depends on beside them; 0 means none.
        transforms: The number of steps.
        hidden: Units of each step's masked layers. Fewer units than features lose some of what depends on what. No
            layer at all makes a number of a "maf" normal, its mean affine in the numbers before it and the context. Its
            log-scale is then affine in the context alone, which has the fewest parameters.
        bins: Of a spline ("nsf"), which acts from -5 to 5 and leaves the rest as it is.
        activation: A key of ``ACTIVATIONS``.

    Raises:
        ConfigError: For an unknown kind or activation, and for a number below 1 (bins below 2, a context below 0).
    """
    for key, value, allowed in (("kind", kind, KINDS), ("activation", activation, tuple(ACTIVATIONS))):
        if value not in allowed:
            raise ConfigError(
                f"The flow's {key} is {value!r}; allowed are {', '.join(allowed)}.{nearest(value, allowed)}"
            )
    if min(features, transforms, bins - 1, *hidden) < 1 or context < 0:
        raise ConfigError(
            f"A flow of {features} features, {context} of context, {transforms} transforms, hidden {hidden} and {bins} bins: all "
            "must be 1 or more, bins 2 or more, context 0 or more."
        )
    make = zuko.flows.MAF if kind == "maf" else zuko.flows.NSF
    options = {} if kind == "maf" else {"bins": bins}
    made = make(
        features, context, transforms=transforms, hidden_features=hidden, activation=ACTIVATIONS[activation], **options
    )
    steps = list(made.transform.transforms)
    for step in steps:
        for parameter in (step.hyper[-1] if hasattr(step, "hyper") else step).parameters():
            nn.init.zeros_(parameter)
        if kind == "maf" and not hidden:
            scales = step.hyper[-1].mask[1 :: step.total]  # after each number's shift
            scales[:, :features] = 0
    return ConditionalFlow(features, context, steps)
