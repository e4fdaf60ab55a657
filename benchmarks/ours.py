"""Polyclinic at the benchmark's work, through its real round loop: messages, ledgers, checkpoints and all.

Prints one JSON object when run: the seconds of each round but the last, which evaluates; the noise; the peak memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
import warnings
from itertools import pairwise
from typing import Any

import torch

from benchmarks.common.settings import epsilon_for, options
from polyclinic import Federation
from polyclinic.config import RunConfig
from polyclinic.server.progress import Progress
from polyclinic.server.state import RunState


class Clock(Progress):
    """The time at which the rounds begin and each is done, its checkpoint written."""

    def __init__(self) -> None:
        self.stamps: list[float] = []
        self.noise: float | None = None

    def on_start(self, config: RunConfig, sites: Any, privacy: Any, engine: str | None) -> None:
        self.noise = privacy.noise_multiplier if privacy else None
        self.stamps.append(time.perf_counter())

    def on_round(self, config: RunConfig, state: RunState) -> None:
        self.stamps.append(time.perf_counter())


def peak_bytes() -> int:
    """The most memory that this process, or any one of its children, ever had."""
    kilobytes = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return kilobytes * (1 if sys.platform == "darwin" else 1024)


def measure(
    dataset: str, patients: int, sites: int, rounds: int, dp: bool, workers: int, cohort: int = 0
) -> dict[str, Any]:  # fmt: skip
    """Run ``rounds`` + 1 rounds of ``cohort`` sites each, 0 for all, and time all but the last."""
    clock = Clock()
    epsilon = epsilon_for(rounds + 1) if dp else 1.0
    with tempfile.TemporaryDirectory() as out:
        chosen = options(sites, rounds + 1, dp, patients, epsilon) | {"workers": workers, "out": out}
        chosen["participation.sites"] = cohort
        Federation.from_dataset(dataset, **chosen).run(progress=clock)
    seconds = [after - before for before, after in pairwise(clock.stamps)][:-1]
    return {"seconds": seconds, "noise": clock.noise, "workers": workers, "peak_bytes": peak_bytes()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--patients", type=int, choices=(20, 100, 500), default=500)
    parser.add_argument("--sites", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--cohort", type=int, default=0)
    parser.add_argument("--dp", action="store_true")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dataset = f"benchmarks.common.work:hospitals_{given.patients}"
    found = measure(dataset, given.patients, given.sites, given.rounds, given.dp, given.workers, given.cohort)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
