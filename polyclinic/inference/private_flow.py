"""Private variational inference by a flow over the parameters: Algorithm 2 of Su, Wang, Schiavazzi and Liu 2023.

Of the free energy only the records' part touches records: its gradient is taken record by record, clipped and noised; the
entropy and the prior are added afterwards, which costs nothing. The flow sees draws alone, never records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import zuko
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from polyclinic.errors import ConfigError, DataError
from polyclinic.inference.likelihood import Gaussian, Likelihood
from polyclinic.inference.variational import Everywhere
from polyclinic.types import Arrays, Floats

# Adam's (Kingma and Ba 2015): decay of the mean, decay of the mean square, what keeps the root from zero.
_MEAN, _SQUARE, _LEAST = 0.9, 0.999, 1e-8


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


def pushed(drawn: nn.Module, noise: Tensor) -> tuple[Tensor, Tensor]:
    """(m, k) parameters of ``noise`` (m, k), and how they change with the flow's own: (m, k, P)."""
    weights = {name: value.detach() for name, value in drawn.named_parameters()}

    def one(given: dict[str, Tensor], z: Tensor) -> Tensor:
        found: Tensor = functional_call(drawn, given, (z[None],))[0][0]
        return found

    slopes = vmap(jacrev(one), (None, 0))(weights, noise)
    with torch.no_grad():
        parameters, _ = drawn(noise)
    return parameters, torch.cat([slopes[name].flatten(2) for name in weights], 2)


def gradients_at(likelihood: Likelihood, parameters: Tensor, jacobian: Tensor, records: Tensor) -> Tensor:
    """(n, P) of records (n, d): gradient of each one's mean log density over what ``pushed`` gives."""
    scores = vmap(likelihood.score, (0, None), out_dims=1)(parameters, records)  # (n, m, k)
    return scores.flatten(1) @ jacobian.flatten(0, 1) / len(parameters)


def record_gradients(likelihood: Likelihood, drawn: nn.Module, noise: Tensor, records: Tensor) -> Tensor:
    """(n, P) of each record: gradient of its expected log density under the flow, over ``noise`` (m, k), by the P parameters."""
    return gradients_at(likelihood, *pushed(drawn, noise), records)


def clipped_sum(gradients: Tensor, clip: float) -> Tensor:
    """(P,) sum of gradients (n, P) shortened to norm ``clip``; one that is not finite counts as zero."""
    finite = torch.where(torch.isfinite(gradients).all(1, keepdim=True), gradients, 0.0)
    norms = torch.linalg.vector_norm(finite, dim=1)
    factors = torch.clamp(clip / torch.clamp(norms, min=clip), max=1.0)
    return factors @ finite


@dataclass(frozen=True, eq=False)
class Descent:
    """Adam's way down the free energy, as a state of arrays: ``weights`` (P,) of the flow, Adam's ``first`` and ``second``
    moments, the ``average`` of the last share of the weights, and how many ``steps`` were made.

    k: parameters.  support: its centre and scale are the mean and standard deviation of their prior.  seed: of first weights.
    """

    k: int
    support: Everywhere
    settings: FlowSettings
    seed: int = 0

    def begin(self) -> Arrays:
        """The state before the first step."""
        weights = parameters_to_vector(Transport(self.k, self.settings, self.support, self.seed).parameters())
        start = weights.detach().numpy()
        zero = np.zeros_like(start)
        return {"weights": start, "first": zero, "second": zero, "average": start, "steps": np.zeros(1)}

    def transport(self, weights: Floats) -> Transport:
        """The flow with these weights."""
        drawn = Transport(self.k, self.settings, self.support, self.seed)
        vector_to_parameters(torch.tensor(weights), drawn.parameters())
        return drawn

    def step(self, state: Arrays, noise: Tensor, records: Floats) -> Arrays:
        """The next state. noise: (m, k) of the draws; records: (P,) gradient of all records' expected log density there."""
        drawn = self.transport(state["weights"])
        parameters, stretch = drawn(noise)
        prior = -((parameters - self.support.centre) / self.support.scale).square().sum(1) / 2
        own = torch.autograd.grad(-(prior + stretch).mean(), list(drawn.parameters()))
        gradient = parameters_to_vector(own).numpy() - records
        number, of = int(state["steps"][0]) + 1, self.settings
        first = _MEAN * state["first"] + (1 - _MEAN) * gradient
        second = _SQUARE * state["second"] + (1 - _SQUARE) * gradient**2
        rate = of.rate * (1 + math.cos(math.pi * (number - 1) / of.steps)) / 2
        root = np.sqrt(second) / math.sqrt(1 - _SQUARE**number) + _LEAST
        weights = state["weights"] - rate / (1 - _MEAN**number) * first / root
        averaged = number - (of.steps - int(of.averaged * of.steps))
        average = weights if averaged <= 1 else state["average"] + (weights - state["average"]) / averaged
        return {
            "weights": weights, "first": first, "second": second, "average": average, "steps": np.array([float(number)]),
        }  # fmt: skip

    def samples(self, state: Arrays, rng: np.random.Generator) -> Floats:
        """(samples, k) parameters by the averaged flow. Raises DataError where they are not finite."""
        with torch.no_grad():
            found, _ = self.transport(state["average"])(
                torch.from_numpy(rng.standard_normal((self.settings.samples, self.k)))
            )
        if not bool(torch.isfinite(found).all()):
            raise DataError("The flow's parameters are not finite: a smaller rate or clip may help.")
        drawn: Floats = found.numpy()
        return drawn


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
    descent = Descent(len(likelihood.names), support, settings, seed)
    state = descent.begin()
    for _ in range(settings.steps):
        noise = torch.from_numpy(rng.standard_normal((settings.draws, descent.k)))
        batches = [table[torch.from_numpy(rng.uniform(size=len(table)) < settings.sample_rate)] for table in tables]
        drawn = descent.transport(state["weights"])
        sums = [
            clipped_sum(record_gradients(likelihood, drawn, noise, batch), settings.clip).numpy()
            for batch in batches
            if len(batch)
        ]
        private = rng.standard_normal(len(state["weights"])) * (noise_multiplier * settings.clip)
        state = descent.step(state, noise, sum(sums, private) / settings.sample_rate)
    found = descent.samples(state, rng)
    return Gaussian(found.mean(0), np.cov(found.T))
