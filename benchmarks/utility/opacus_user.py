"""FedAvg over the hospitals with Opacus as its tutorials and Flower's example write it, and what that truly spends.

Each hospital scales by its own mean and deviation, unpaid; a DataLoader shuffles batches of 32; ``make_private`` with a noise
multiplier chosen by hand begins anew in every round, so that its epsilon is one round's.
"""

from __future__ import annotations

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.peers.opacus_loop import mean as average
from benchmarks.utility.references import scored, shards_of
from benchmarks.utility.splits import DELTAS
from polyclinic.ehr.shard import Rows
from polyclinic.privacy.accounting import dpsgd_event, epsilon, gaussian_event

ROUNDS, BATCH, CLIP, MOMENTUM = 15, 32, 1.0, 0.9


def measure(dataset: str, seed: int, noise: float, learning_rate: float, poisson: bool) -> dict[str, float | None]:
    """AUROC, the epsilon that Opacus tells (the largest hospital's, in the last round), and the true one.

    poisson: Opacus' default, which replaces the shuffled batches by Poisson samples.
    """
    torch.manual_seed(seed)
    shards = shards_of(dataset, seed)
    sides = [_scaled(shard.train, shard.test) for shard in shards]
    weights = dict(nn.Linear(sides[0][0].tensors[0].shape[1], 2).state_dict())
    engines: list[PrivacyEngine] = []
    for _ in range(ROUNDS):
        engines = [PrivacyEngine() for _ in sides]
        weights = average(
            [
                _train(weights, data, engine, noise, learning_rate, poisson)
                for engine, (data, _) in zip(engines, sides, strict=True)
            ]
        )
    # A small hospital's rate is the largest, and so is its epsilon.
    patients, engine = min(zip((len(data) for data, _ in sides), engines, strict=True), key=lambda pair: pair[0])
    linear = [functional.linear(test, weights["weight"], weights["bias"]) for _, test in sides]
    scores = [(logits[:, 1] - logits[:, 0]).double().numpy() for logits in linear]
    return scored(shards, scores) | {
        "true_epsilon": true_epsilon(patients, noise, poisson, DELTAS[dataset]),
        "claimed_epsilon": float(engine.get_epsilon(DELTAS[dataset])),
    }


def true_epsilon(patients: int, noise: float, poisson: bool, delta: float) -> float:
    """Of all rounds' training at a hospital of so many patients; the unpaid scaling, which has no finite one, left out.

    Shuffled batches hold a patient once in a round and have no amplification: each round is one Gaussian.
    """
    if not poisson:
        return epsilon(gaussian_event(noise, ROUNDS), delta)
    batches = -(-patients // BATCH)
    return epsilon(dpsgd_event(1 / batches, noise, batches * ROUNDS), delta)


def _scaled(train: Rows, test: Rows) -> tuple[TensorDataset, Tensor]:
    centre, spread = np.nanmean(train.x, axis=0), np.nanstd(train.x, axis=0)
    x, asked = (np.nan_to_num((rows.x - centre) / np.where(spread > 0, spread, 1.0)) for rows in (train, test))
    return TensorDataset(torch.tensor(x).float(), torch.tensor(train.y)), torch.tensor(asked).float()


def _train(
    weights: dict[str, Tensor],
    data: TensorDataset,
    engine: PrivacyEngine,
    noise: float,
    learning_rate: float,
    poisson: bool,
) -> dict[str, Tensor]:
    """The weights after one local epoch."""
    net = nn.Linear(data.tensors[0].shape[1], 2)
    net.load_state_dict(weights)
    trained, optimizer, loader = engine.make_private(
        module=net, optimizer=torch.optim.SGD(net.parameters(), lr=learning_rate, momentum=MOMENTUM),
        data_loader=DataLoader(data, batch_size=BATCH, shuffle=True), noise_multiplier=noise, max_grad_norm=CLIP,
        poisson_sampling=poisson,
    )  # fmt: skip
    for x, y in loader:
        optimizer.zero_grad()
        torch.autograd.backward(functional.cross_entropy(trained(x), y))
        optimizer.step()
    return {name: value.detach().clone() for name, value in net.state_dict().items()}
