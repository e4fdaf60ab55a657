"""Every peer as a command: the model, the options and the JSON that it prints."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks.common.tables import CLASSES, FEATURES, HIDDEN


@dataclass(frozen=True)
class Task:
    """How large, how long, and with differential privacy or not."""

    sites: int
    rounds: int
    dp: bool


def model() -> nn.Sequential:
    """The perceptron 30-64-32-2 with tanh units, as Polyclinic's own ``mlp``."""
    first, second = HIDDEN
    return nn.Sequential(
        nn.Linear(FEATURES, first), nn.Tanh(), nn.Linear(first, second), nn.Tanh(), nn.Linear(second, CLASSES)
    )


def quiet() -> None:
    """One thread, no warnings: a model of this size loses time to more of either."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)


def main(rounds: Callable[[Task], list[float]]) -> None:
    """Run ``rounds``, which gives the seconds of each round, and print them as JSON on the last line of stdout."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--dp", action="store_true")
    given = parser.parse_args()
    quiet()
    seconds = rounds(Task(given.sites, given.rounds, given.dp))
    sys.stdout.write(json.dumps({"seconds": seconds}) + "\n")


def timed(rounds: int, one: Callable[[], object]) -> list[float]:
    """The seconds of each of ``rounds`` calls."""
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        one()
        found.append(time.perf_counter() - started)
    return found
