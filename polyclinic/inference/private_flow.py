"""Private variational inference by a flow over the parameters: Algorithm 2 of Su, Wang, Schiavazzi and Liu 2023.

Of the free energy only the records' part touches records: its gradient is taken record by record, clipped and noised; the
entropy and the prior are added afterwards, which costs nothing. The flow sees draws alone, never records.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
import zuko
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from polyclinic.errors import ConfigError, DataError
from polyclinic.inference.likelihood import Likelihood
from polyclinic.inference.regression import Gaussian
from polyclinic.inference.variational import Everywhere


@dataclass(frozen=True)
class FlowSettings:
    """Of the fit. steps, sample_rate and the noise multiplier are what is accounted: ``dpsgd_event``.

    clip: L2 norm of a record's gradient.  draws: of parameters a step.  rate: of Adam, falling to zero as a cosine.
    averaged: share of the last steps whose flows' parameters are averaged; 0 takes the last flow (the paper's way).
    Raises ConfigError naming the value that is out of range.
    """

    steps: int = 500
    sample_rate: float = 1 / 12
    clip: float = 1.0
    draws: int = 16
    rate: float = 0.2
    averaged: float = 0.3
    transforms: int = 1
    hidden: tuple[int, ...] = (10,)
    samples: int = 4000

    def __post_init__(self) -> None:
        for name in ("steps", "draws", "transforms", "samples"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}.")
        for name in ("clip", "rate"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)}.")
        if not 0 < self.sample_rate <= 1:
            raise ConfigError(f"sample_rate must lie in (0, 1], got {self.sample_rate}.")
        if not 0 <= self.averaged < 1:
            raise ConfigError(f"averaged must lie in [0, 1), got {self.averaged}.")


class Transport(nn.Module):
    """(n, k) parameters of (n, k) standard normal noise, and the logarithms of the map's stretch, (n,)."""

    def __init__(self, k: int, settings: FlowSettings, support: Everywhere, seed: int) -> None:
        super().__init__()
        self.support = support
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.flow = zuko.flows.MAF(k, transforms=settings.transforms, hidden_features=settings.hidden).double()

    def forward(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        free, stretch = self.flow().transform.call_and_ladj(noise)
        found, slope = self.support.constrain(free)
        return found, stretch + slope


def record_gradients(likelihood: Likelihood, drawn: nn.Module, noise: Tensor, records: Tensor) -> Tensor:
    """(n, P) of each record: gradient of its expected log density under the flow, over ``noise`` (m, k), by the P parameters."""
    weights = {name: value.detach() for name, value in drawn.named_parameters()}

    def one(given: dict[str, Tensor], z: Tensor) -> Tensor:
        found: Tensor = functional_call(drawn, given, (z[None],))[0][0]
        return found

    slopes = vmap(jacrev(one), (None, 0))(weights, noise)
    jacobian = torch.cat([slopes[name].flatten(2) for name in weights], 2)  # (m, k, P)
    with torch.no_grad():
        parameters, _ = drawn(noise)
    scores = vmap(likelihood.score, (0, None), out_dims=1)(parameters, records)  # (n, m, k)
    gradients: Tensor = scores.flatten(1) @ jacobian.flatten(0, 1) / len(noise)
    return gradients


def clipped_sum(gradients: Tensor, clip: float) -> Tensor:
    """(P,) sum of gradients (n, P) shortened to norm ``clip``; one that is not finite counts as zero."""
    finite = torch.where(torch.isfinite(gradients).all(1, keepdim=True), gradients, 0.0)
    norms = torch.linalg.vector_norm(finite, dim=1)
    factors = torch.clamp(clip / torch.clamp(norms, min=clip), max=1.0)
    found: Tensor = factors @ finite
    return found


def private_flow(
    likelihood: Likelihood, tables: list[Tensor], support: Everywhere, noise_multiplier: float, rng: np.random.Generator,
    settings: FlowSettings | None = None, seed: int = 0,
) -> Gaussian:  # fmt: skip
    """Mean and covariance of a flow's posterior over hospitals' tables (n_h, d), one record a patient, under the prior
    N(centre, scale^2) of ``support``.

    Each step takes every record with probability ``sample_rate``; the noise is one Gaussian in the sum over hospitals.
    Neighbouring relation: add or remove one patient. It spends ``dpsgd_event(sample_rate, noise_multiplier, steps)``.
    Raises DataError where the flow's parameters become infinite.
    """
    settings = settings or FlowSettings()
    drawn = Transport(len(likelihood.names), settings, support, seed)
    weights = list(drawn.parameters())
    optimizer = torch.optim.Adam(weights, lr=settings.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
    first, averages = settings.steps - int(settings.averaged * settings.steps), [torch.zeros_like(w) for w in weights]
    for step in range(settings.steps):
        noise = torch.from_numpy(rng.standard_normal((settings.draws, len(likelihood.names))))
        batches = [table[torch.from_numpy(rng.uniform(size=len(table)) < settings.sample_rate)] for table in tables]
        sums = [
            clipped_sum(record_gradients(likelihood, drawn, noise, batch), settings.clip)
            for batch in batches
            if len(batch)
        ]
        size = sum(weight.numel() for weight in weights)
        private = torch.from_numpy(rng.standard_normal(size)) * (noise_multiplier * settings.clip)
        private = sum(sums, private) / settings.sample_rate
        optimizer.zero_grad()
        parameters, stretch = drawn(noise)
        prior = -((parameters - support.centre) / support.scale).square().sum(1) / 2
        (-(prior + stretch).mean()).backward()
        for weight, part in zip(weights, torch.split(private, [w.numel() for w in weights]), strict=True):
            assert weight.grad is not None
            weight.grad -= part.view_as(weight)
        optimizer.step()
        schedule.step()
        if step >= first:
            for average, weight in zip(averages, weights, strict=True):
                average += weight.detach() / (settings.steps - first)
    final = copy.deepcopy(drawn)
    with torch.no_grad():
        if first < settings.steps:
            for weight, average in zip(final.parameters(), averages, strict=True):
                weight.copy_(average)
        found, _ = final(torch.from_numpy(rng.standard_normal((settings.samples, len(likelihood.names)))))
    if not bool(torch.isfinite(found).all()):
        raise DataError("The flow's parameters are not finite: a smaller rate or clip may help.")
    return Gaussian(found.mean(0).numpy(), np.cov(found.numpy().T))
