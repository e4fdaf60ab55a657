"""pfl-research's simulated backend in one process: FedAvg without privacy, as its benchmarks write it.

Runs in an environment of its own (``benchmarks.common.environment``), where Polyclinic is not installed.
"""

# mypy: disable-error-code="import-not-found, import-untyped"
from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import pairwise

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.common.tables import BATCH, LEARNING_RATE, PATIENTS, tables
from benchmarks.peers.command import Task, main, model


class Net(nn.Module):
    """The common perceptron with the two methods that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.net = model()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out

    def loss(self, x: Tensor, y: Tensor, is_eval: bool = False) -> Tensor:
        self.train(not is_eval)
        return functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> Mapping[str, Weighted]:
        loss = functional.cross_entropy(self(x), y, reduction="sum")
        return {"loss": Weighted(loss.item(), len(y))}


class Clock(TrainingProcessCallback):  # type: ignore[misc]
    """The time at which training begins and each central iteration ends."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def on_train_begin(self, *, model: object) -> Metrics:
        self.stamps.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: object, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.stamps.append(time.perf_counter())
        return False, Metrics()


def rounds(task: Task) -> list[float]:
    x, y = (torch.from_numpy(part) for part in tables(task.sites, PATIENTS, 0))
    users = [(x[site], y[site]) for site in range(task.sites)]
    data = FederatedDataset.from_slices(users, get_user_sampler("minimize_reuse", range(task.sites)))
    net = Net()
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=task.rounds, evaluation_frequency=10**6, train_cohort_size=task.sites,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(
            local_learning_rate=LEARNING_RATE, local_num_epochs=1, local_batch_size=BATCH
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=PATIENTS),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )  # fmt: skip
    return [after - before for before, after in pairwise(clock.stamps)]


if __name__ == "__main__":
    main(rounds)
