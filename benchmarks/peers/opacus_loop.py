"""A plain loop over the sites, each trained by Opacus' PrivacyEngine as in its tutorials, in one process."""

from __future__ import annotations

import torch
from opacus import PrivacyEngine
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.common.tables import BATCH, CLIP, LEARNING_RATE, NOISE, PATIENTS, tables
from benchmarks.peers.command import Task, main, model, timed


def train(weights: dict[str, Tensor], data: TensorDataset, dp: bool) -> dict[str, Tensor]:
    """The weights after one epoch at one site, as Opacus' and Flower's examples write it.

    Their ``get_epsilon`` after each site is left out, in the peer's favour.
    """
    net = model()
    net.load_state_dict(weights)
    net.train()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE)
    loader: DataLoader[tuple[Tensor, ...]] = DataLoader(data, batch_size=BATCH, shuffle=True)
    trained: torch.nn.Module = net
    if dp:
        trained, optimizer, loader = PrivacyEngine(secure_mode=False).make_private(
            module=net, optimizer=optimizer, data_loader=loader, noise_multiplier=NOISE, max_grad_norm=CLIP
        )
    for x, y in loader:
        optimizer.zero_grad()
        torch.autograd.backward(functional.cross_entropy(trained(x), y))
        optimizer.step()
    return {name: value.detach() for name, value in net.state_dict().items()}


def mean(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The average of all sites' weights: FedAvg of sites of one size."""
    return {name: torch.stack([part[name] for part in parts]).mean(dim=0) for name in parts[0]}


def rounds(task: Task) -> list[float]:
    x, y = tables(task.sites, PATIENTS, 0)
    sites = [TensorDataset(torch.from_numpy(a), torch.from_numpy(b)) for a, b in zip(x, y, strict=True)]
    weights = dict(model().state_dict())

    def one() -> None:
        nonlocal weights
        weights = mean([train(weights, data, task.dp) for data in sites])

    return timed(task.rounds, one)


if __name__ == "__main__":
    main(rounds)
