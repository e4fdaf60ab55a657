"""A loop over the sites of models that users bring, each trained by Opacus' PrivacyEngine in one of its modes, in one process.

"hooks" and "functorch" build every patient's gradient; "ew" takes torch's expanded weights; "ghost" never builds one where a
layer's norm has a closed form, and goes back twice (Li et al. 2022, arXiv:2110.05679).
"""

from __future__ import annotations

import time
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.common.brought import MODELS, STEPS, command, rows
from benchmarks.common.tables import BATCH, CLIP, LEARNING_RATE, NOISE

MODES = ("hooks", "functorch", "ew", "ghost")


def train(net: nn.Module, data: TensorDataset, mode: str) -> None:
    """``STEPS`` private steps at one site, as Opacus' tutorials write them; ``get_epsilon`` is left out, in the peer's favour."""
    net.train()
    optimizer: Any = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE)
    loader: Any = DataLoader(data, batch_size=BATCH, shuffle=True)
    criterion: Any = nn.CrossEntropyLoss()
    made = PrivacyEngine(secure_mode=False).make_private(
        module=net, optimizer=optimizer, data_loader=loader, criterion=criterion, noise_multiplier=NOISE,
        max_grad_norm=CLIP, grad_sample_mode=mode,
    )  # fmt: skip
    module, optimizer, *_ = made
    loader = made[-1]
    criterion = made[2] if mode == "ghost" else criterion
    for _, (x, y) in zip(range(STEPS), loader, strict=False):
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        optimizer.step()


def measured(name: str, sites: int, rounds: int, mode: str) -> list[float]:
    build = MODELS[name][0]
    shards = [rows(name, site) for site in range(sites)]
    tables = [TensorDataset(torch.from_numpy(shard.x).float(), torch.from_numpy(shard.y)) for shard in shards]
    torch.manual_seed(0)
    weights, seconds = {key: value.clone() for key, value in build().state_dict().items()}, []
    for _ in range(rounds):
        began, parts = time.process_time(), []
        for table in tables:
            net = build()
            net.load_state_dict(weights)
            train(net, table, mode)
            parts.append({key: value.detach() for key, value in net.state_dict().items()})
        weights = {key: torch.stack([part[key] for part in parts]).mean(0) for key in weights}
        seconds.append(time.process_time() - began)
    return seconds


if __name__ == "__main__":
    command(measured, MODES)
