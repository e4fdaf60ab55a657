"""Algorithm 2 of Su, Wang, Schiavazzi and Liu 2023 as published, over hospitals' tables.

Each record's gradient by the flow's own parameters is clipped and noised. Hospitals run ``polyclinic.inference.private_flow``,
which asks for scores at the flow's draws instead. Entropy and prior are added afterwards; the paper clips their share along
with each record. Records come by Poisson sampling.
"""

from __future__ import annotations

import numpy as np
import torch
from dp_accounting import DpEvent
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from polyclinic.inference.likelihood import Gaussian, Likelihood
from polyclinic.inference.private_flow import Descent, Everywhere, FlowSettings
from polyclinic.privacy.accounting import dpsgd_event
from polyclinic.privacy.clipping import clipped_sum

SAMPLE_RATE = 1 / 12


def settings(steps: int) -> FlowSettings:
    """Of the descent in ``steps`` steps."""
    return FlowSettings(steps=steps, clip=1.0, square=0.999)


def event(noise_multiplier: float, of: FlowSettings) -> DpEvent:
    """What ``private_flow`` spends."""
    return dpsgd_event(SAMPLE_RATE, noise_multiplier, of.steps)


def record_gradients(likelihood: Likelihood, transport: nn.Module, noise: Tensor, records: Tensor) -> Tensor:
    """(n, P) of each record: gradient of its expected log density under the flow, over ``noise`` (m, k), by the P parameters."""
    weights = {name: value.detach() for name, value in transport.named_parameters()}

    def one(given: dict[str, Tensor], z: Tensor) -> Tensor:
        made: Tensor = functional_call(transport, given, (z[None],))[0][0]
        return made

    slopes = vmap(jacrev(one), (None, 0))(weights, noise)
    with torch.no_grad():
        draws, _ = transport(noise)
    jacobian = torch.cat([slopes[name].flatten(2) for name in weights], 2)
    scores = vmap(likelihood.score, (0, None), out_dims=1)(draws, records)  # (n, m, k)
    return scores.flatten(1) @ jacobian.flatten(0, 1) / len(noise)


def private_flow(
    likelihood: Likelihood, tables: list[Tensor], support: Everywhere, noise_multiplier: float, rng: np.random.Generator,
    of: FlowSettings, seed: int = 0,
) -> Gaussian:  # fmt: skip
    """Mean and covariance of a flow's posterior over hospitals' tables (n_h, d), one record a patient, under the prior
    N(centre, scale^2) of ``support``; the noise is one Gaussian in the sum over hospitals.

    Neighbouring relation: add or remove one patient. Raises DataError where the flow's parameters become infinite.
    """
    descent = Descent(len(likelihood.names), support, of, seed)
    state = descent.begin()
    for _ in range(of.steps):
        noise = torch.from_numpy(rng.standard_normal((of.draws, descent.k)))
        batches = [table[torch.from_numpy(rng.uniform(size=len(table)) < SAMPLE_RATE)] for table in tables]
        transport = descent.transport(state["weights"])
        sums = [
            clipped_sum(record_gradients(likelihood, transport, noise, batch), of.clip).total.numpy()
            for batch in batches
            if len(batch)
        ]
        private = rng.standard_normal(len(state["weights"])) * (noise_multiplier * of.clip)
        own = descent.gradient(state, noise, np.zeros(noise.shape))
        state = descent.step(state, own - sum(sums, private) / SAMPLE_RATE)
    samples = descent.samples(state, rng)
    return Gaussian(samples.mean(0), np.cov(samples.T))
