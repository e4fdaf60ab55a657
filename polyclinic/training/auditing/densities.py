"""The audit of flows: the audit of task synthesis, from arrays away from where a flow begins, among cells that nothing spreads.

The noise that spreads cells is drawn row by row, whatever the records are, so that the auditor may fix it: two hospitals then
differ by one patient alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polyclinic.ehr.shard import Rows
from polyclinic.models.flows import ConditionalFlow
from polyclinic.privacy.clipping import clipped_sum, poisson_samples
from polyclinic.privacy.streams import generator
from polyclinic.synthesis.flows.recipe import Recipe
from polyclinic.training.auditing.faults import Train
from polyclinic.training.auditing.fixed import Fixed
from polyclinic.training.auditing.subject import Claim
from polyclinic.training.density import DensityTask
from polyclinic.training.modules import flat_parameters, load, split_flat
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays, Builder, Floats

# A flow begins where only its last layers have gradients; a guarantee holds for any arrays that a round begins from.
_AWAY = 0.3


class BatchNormStep(nn.Module):
    """RealNVP's batch norm (Dinh et al. 2017, 3.7) of (n, features) as a step of a flow: by the batch's own mean and variance
    in training, by running ones otherwise."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, features: int, momentum: float = 0.9, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.log_gamma = nn.Parameter(torch.zeros(features))
        self.beta = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))

    def forward(self, context: Tensor | None) -> BatchNormStep:
        """Itself: it does not depend on the context."""
        return self

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The normalised rows, and the log of the change of volume, (n,)."""
        mean, var = self.running_mean, self.running_var
        if self.training:
            mean, var = x.mean(0), x.var(0, correction=0)
            with torch.no_grad():
                self.running_mean.mul_(self.momentum).add_((1 - self.momentum) * mean)
                self.running_var.mul_(self.momentum).add_((1 - self.momentum) * var)
        slope = self.log_gamma - 0.5 * torch.log(var + self.eps)
        return self.beta + (x - mean) * torch.exp(slope), slope.sum().expand(x.shape[:-1])

    def inv(self, y: Tensor) -> Tensor:
        """The rows that the running mean and variance normalise to ``y``: a draw has no batch of its own."""
        slope = self.log_gamma - 0.5 * torch.log(self.running_var + self.eps)
        return self.running_mean + (y - self.beta) * torch.exp(-slope)


def with_batch_norm(made: ConditionalFlow) -> ConditionalFlow:
    """The flow with batch norm after each of its steps, as published."""
    steps = [part for step in made.steps for part in (step, BatchNormStep(made.features))]
    return ConditionalFlow(made.features, made.context, steps)


@dataclass(frozen=True, eq=False)
class Density(Fixed):
    """Rounds of a flow."""

    def model(self, extra: int = 0) -> tuple[Builder, Arrays]:
        """The builder, and arrays away from where a flow begins."""
        build, first = super().model(extra)
        draw = generator(0, "audit", "arrays")
        return build, {name: value + _AWAY * draw.normal(size=value.shape) for name, value in first.items()}


def of_density(recipe: Recipe, claim: Claim) -> Density:
    """Rounds of a flow whose cells nothing spreads. The fault "batch-norm" is that of the published flow: between its steps."""
    task: Any = DensityTask(recipe, noise=lambda site: _Still(np.random.PCG64(0)))
    if claim.fault.name == "batch-norm":
        fault = replace(
            claim.fault, build=lambda build, width: lambda: _build_published(build), train=_as_published(task)
        )
        claim = replace(claim, fault=fault)
    return Density(**vars(claim), task=task, build=lambda features: recipe.module, layout=recipe.layout)


class _Still(np.random.Generator):
    """Draws that move nothing: the middle of a cell."""

    def random(self, size: Any = None, *_: Any, **__: Any) -> Any:
        return np.full(size, 0.5)

    def standard_normal(self, size: Any = None, *_: Any, **__: Any) -> Any:
        return np.zeros(size)


def _build_published(build: Builder) -> nn.Module:
    made = build()
    assert isinstance(made, ConditionalFlow)
    return with_batch_norm(made)


def _as_published(task: DensityTask) -> Train:
    """Plain steps with each patient's gradient clipped out of the whole batch's losses, and nothing refused."""

    def train(build: Builder, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings) -> list[SiteUpdate]:
        updates = []
        for site in task.show_rows(build, arrays, work):
            module = load(lambda: build().double(), arrays).train()
            theta = flat_parameters(module, arrays)
            x = torch.from_numpy(np.nan_to_num(site.rows.x))
            scale = settings.learning_rate / (settings.sample_rate * (site.public_patients or site.rows.patients))
            for chosen in poisson_samples(
                site.rows.patients, settings.sample_rate, settings.local_steps, site.sampling
            ):
                total = _batch_sum(module, x, site.rows, chosen, settings.max_grad_norm)
                total += settings.noise_scale * torch.from_numpy(site.noise.normal(len(total)))
                theta = theta - scale * total
                module.load_state_dict(split_flat(theta, module))
            moved = {name: value.numpy() for name, value in split_flat(theta, module).items()}
            updates.append(SiteUpdate(moved, settings.local_steps, float("nan"), {}))
        return updates

    return train


def _batch_sum(module: nn.Module, x: Tensor, rows: Rows, chosen: np.ndarray, clip: float) -> Tensor:
    """(P,) the sum of the ``chosen`` patients' gradients of their mean loss, each clipped."""
    parameters = list(module.parameters())
    there = chosen[rows.patient]
    if not there.any():
        return torch.zeros(sum(p.numel() for p in parameters), dtype=x.dtype)
    share: Floats = (rows.patient[there] == np.flatnonzero(chosen)[:, None]).astype(np.float64)
    losses = torch.from_numpy(share / share.sum(1, keepdims=True)) @ module(x[there])[:, 0]
    each = torch.autograd.grad(losses, parameters, torch.eye(len(losses), dtype=x.dtype), is_grads_batched=True)
    return clipped_sum(torch.cat([part.flatten(1) for part in each], 1), clip).total
