"""A plain loop over the sites, each trained by SGD without privacy, in one process: as little work as a loop can do.

One module is used for all sites, and batches are slices of a shuffled table, not a DataLoader's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.common.tables import BATCH, LEARNING_RATE, PATIENTS, tables
from benchmarks.peers.command import Task, main, model, timed


def train(net: nn.Module, weights: dict[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The weights after one epoch at one site."""
    net.load_state_dict(weights)
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE)
    for batch in torch.split(torch.randperm(len(x)), BATCH):
        optimizer.zero_grad()
        torch.autograd.backward(functional.cross_entropy(net(x[batch]), y[batch]))
        optimizer.step()
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def rounds(task: Task) -> list[float]:
    x, y = (torch.from_numpy(part) for part in tables(task.sites, PATIENTS, 0))
    net = model()
    weights = {name: value.detach().clone() for name, value in net.state_dict().items()}

    def one() -> None:
        nonlocal weights
        parts = [train(net, weights, x[site], y[site]) for site in range(task.sites)]
        weights = {name: torch.stack([part[name] for part in parts]).mean(dim=0) for name in weights}

    return timed(task.rounds, one)


if __name__ == "__main__":
    main(rounds)
