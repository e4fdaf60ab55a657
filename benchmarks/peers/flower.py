"""Flower's own simulation: its engine and Ray backend on two CPUs, FedAvg, every site in each round, no evaluation."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.command import Task, main, model
from benchmarks.peers.flower_client import app as client_app

CPUS = 2


def rounds(task: Task) -> list[float]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    stamps: list[float] = []
    server_app = ServerApp()

    def stamp(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        stamps.append(time.perf_counter())
        return None

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=task.sites)
        strategy.start(
            grid, ArrayRecord(model().state_dict()), task.rounds, train_config=ConfigRecord({"privacy.dp": task.dp}),
            evaluate_fn=stamp,
        )  # fmt: skip

    backend: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": CPUS}}
    run_simulation(server_app, client_app, task.sites, backend_config=backend)
    return [after - before for before, after in pairwise(stamps)]


if __name__ == "__main__":
    main(rounds)
