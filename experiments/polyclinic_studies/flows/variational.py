"""Variational inference by a normalizing flow: a posterior from a log density that can be differentiated.

Rezende and Mohamed 2015; the flow is zuko's masked autoregressive one, run from noise to parameters in one pass (inverse
autoregressive, Kingma et al. 2016), as Su, Wang, Schiavazzi and Liu 2023 do. No batch norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import zuko
from torch import Tensor

from polyclinic.errors import ConfigError

LogDensity = Callable[[Tensor], Tensor]  # (n, k) parameters -> (n,)
Loss = Callable[[Tensor, Tensor], Tensor]  # (n, k) parameters, (n,) logarithm of their density -> ()
_LOG_ROOT = math.log(2 * math.pi) / 2


class Support(Protocol):
    """Where parameters live: a smooth bijection from all of R^k, as ``polyclinic.inference.private_flow.Everywhere`` is."""

    def constrain(self, free: Tensor) -> tuple[Tensor, Tensor]:
        """(n, k) parameters of (n, k) free values, and the (n,) logarithm of the Jacobian's determinant."""
        ...


@dataclass(frozen=True)
class Box:
    """The box between ``low`` and ``high`` (k,), by tanh."""

    low: Tensor
    high: Tensor

    def constrain(self, free: Tensor) -> tuple[Tensor, Tensor]:
        half = (self.high - self.low) / 2
        # log(1 - tanh^2 x) without cancellation
        slope = 2 * (math.log(2) - free - torch.nn.functional.softplus(-2 * free))
        return self.low + half * (1 + torch.tanh(free)), (slope + half.log()).sum(-1)


@dataclass(frozen=True)
class Posterior:
    """``samples`` (n, k) of the flow, and their importance ``weights`` (n,), which sum to 1.

    effective: the weights' effective sample size as a share of n: 1 for a flow that is the posterior itself (up to its
    draws), small for one that is not. evidence: (steps,) the lower bound of the log evidence on the way.
    """

    samples: Tensor
    weights: Tensor
    evidence: Tensor

    @property
    def effective(self) -> float:
        return float(1 / (self.weights.square().sum() * len(self.weights)))

    def moments(self, weighted: bool = False) -> tuple[Tensor, Tensor]:
        """(k,) mean and (k, k) covariance; ``weighted``: corrected by the importance weights."""
        weights = self.weights if weighted else torch.full_like(self.weights, 1 / len(self.weights))
        mean = weights @ self.samples
        centred = self.samples - mean
        return mean, (weights[:, None] * centred).T @ centred


def posterior(
    log_density: LogDensity, support: Support, features: int, steps: int = 1500, draws: int = 128, rate: float = 1e-2,
    transforms: int = 4, hidden: tuple[int, ...] = (32, 32), samples: int = 4000, seed: int = 0,
    progress: Callable[[int, float], None] | None = None, decay: float | None = None,
) -> Posterior:  # fmt: skip
    """The flow that maximises the evidence's lower bound, float64; ``fit_flow`` says how.

    log_density: log of likelihood times prior at (n, features) parameters, up to a constant; (n,).
    progress: told the step and the bound, every hundred steps.
    Not private: a hospital's records enter through ``log_density`` as they are.
    Raises ConfigError if a number is not positive or the bound is not finite.
    """

    def loss(parameters: Tensor, log_flow: Tensor) -> Tensor:
        return (log_flow - log_density(parameters)).mean()

    told = None if progress is None else lambda step, value: progress(step, -value)
    parameters, log_flow, losses = fit_flow(
        loss, support, features, steps, draws, rate, transforms, hidden, samples, seed, told, decay
    )
    with torch.no_grad():
        weights = torch.softmax(log_density(parameters) - log_flow, 0)
    return Posterior(parameters, weights, -losses)


def fit_flow(
    loss: Loss, support: Support, features: int, steps: int = 1500, draws: int = 128, rate: float = 1e-2,
    transforms: int = 4, hidden: tuple[int, ...] = (32, 32), samples: int = 4000, seed: int = 0,
    progress: Callable[[int, float], None] | None = None, decay: float | None = None, deviations: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """(samples, features) draws of the flow with the least ``loss``, the logarithms of their density, and the (steps,) losses.

    loss: a scalar of draws (n, features) and of the logarithms of their density (n,).  draws: n, in each step.
    decay: None is Adam with a rate that falls to zero as a cosine; a number is RMSProp, its rate times that in each step.
    deviations: (features,) hold the standard deviations of the unconstrained draws at these; None leaves them free.
    Raises ConfigError if a number is not positive or the loss is not finite.
    """
    if min(features, steps, draws, transforms, samples) < 1:
        raise ConfigError("features, steps, draws, transforms and samples must be at least 1.")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        flow = zuko.flows.MAF(features, transforms=transforms, hidden_features=hidden).double()
    source = torch.Generator()
    source.manual_seed(seed)
    optimizer, schedule = _descent(flow, rate, steps, decay)
    losses = torch.empty(steps, dtype=torch.float64)
    for step in range(steps):
        value = loss(*_draw(flow, support, draws, features, source, deviations))
        if not bool(torch.isfinite(value)):
            raise ConfigError(f"The loss is not finite at step {step}: a smaller rate than {rate} may help.")
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        losses[step] = value.detach()
        if progress is not None and (step + 1) % 100 == 0:
            progress(step + 1, float(value))
    with torch.no_grad():
        return *_draw(flow, support, samples, features, source, deviations), losses


def _descent(
    flow: zuko.flows.MAF, rate: float, steps: int, decay: float | None
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    if decay is None:
        adam = torch.optim.Adam(flow.parameters(), lr=rate)
        return adam, torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    other = torch.optim.RMSprop(flow.parameters(), lr=rate)
    return other, torch.optim.lr_scheduler.ExponentialLR(other, decay)


def _draw(
    flow: zuko.flows.MAF, support: Support, draws: int, features: int, source: torch.Generator, deviations: Tensor | None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    noise = torch.empty(draws, features, dtype=torch.float64).normal_(generator=source)
    free, stretch = flow().transform.call_and_ladj(noise)
    if deviations is not None:
        # The draws' own deviations: their scatter is the smaller, the more draws there are.
        change = deviations / free.std(0)
        free, stretch = free.mean(0) + (free - free.mean(0)) * change, stretch + change.log().sum()
    parameters, slope = support.constrain(free)
    return parameters, -noise.square().sum(-1) / 2 - features * _LOG_ROOT - stretch - slope
