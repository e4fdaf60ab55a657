"""The floor: the same rows through one model in big batches without privacy, and the same amount of noise drawn.

No engine that trains sites apart and draws their noise from our streams can do much less.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from benchmarks.common.tables import BATCH, LEARNING_RATE, PARAMETERS, PATIENTS, STEPS, tables
from benchmarks.peers.command import Task, main, model, timed
from polyclinic.loops import normals
from polyclinic.privacy.streams import keyed_stream


def rounds(task: Task) -> list[float]:
    x, y = (torch.from_numpy(part).flatten(0, 1) for part in tables(task.sites, PATIENTS, 0))
    net = model()
    normals.load()
    number = 0

    def one() -> None:
        nonlocal number
        number += 1
        optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE)
        for batch in torch.split(torch.randperm(len(x)), BATCH * task.sites):
            optimizer.zero_grad()
            torch.autograd.backward(functional.cross_entropy(net(x[batch]), y[batch]))
            optimizer.step()
        for site in range(task.sites):
            keyed_stream(0, "noise", site, number).normal((STEPS, PARAMETERS))

    return timed(task.rounds, one)


if __name__ == "__main__":
    main(rounds)
