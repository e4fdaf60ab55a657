"""Faults of peers in training: what is taken for privacy, generated records beside real ones, and looking at records twice."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polyclinic.ehr.shard import Rows
from polyclinic.models.tabular import initialise, logistic
from polyclinic.plugins import task_named
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.streams import keyed_stream
from polyclinic.strategies.fedprox import Proximal
from polyclinic.training import classification
from polyclinic.training.auditing.audit import steps
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from tests.training.test_auditing import one_step_more, subject, task

ENGINES = ["linear", "functional", "opacus"]
BUILD: Callable[[], nn.Module] = lambda: logistic(3, 2).double()  # noqa: E731
START = {name: value.double().numpy() for name, value in initialise(BUILD, 5).items()}
DIVISOR = 10.0


def settings(**changes: Any) -> TrainSettings:
    values: dict[str, Any] = {
        "sample_rate": 1.0, "local_steps": 1, "learning_rate": 1.0, "max_grad_norm": 0.3, "noise_multiplier": 1e-12,
    }  # fmt: skip
    return TrainSettings(**(values | changes))


def trained(rows: Rows, build: Callable[[], nn.Module] = BUILD, **changes: Any) -> SiteUpdate:
    work = SiteWork(rows, keyed_stream(0, "batches"), keyed_stream(0, "noise"), DIVISOR)
    return classification.train(build, START, [work], settings(**changes))[0]


def patients(x: Any, y: Any, patient: Any) -> Rows:
    return Rows(np.asarray(x, float), np.asarray(y), np.asarray(patient), len(set(patient)))


def moved(one: SiteUpdate, other: SiteUpdate) -> float:
    """How far apart two batch sums were, in clip norms."""
    apart = math.sqrt(sum(float(np.sum((one.arrays[k] - other.arrays[k]) ** 2)) for k in START))
    return apart * DIVISOR / settings().max_grad_norm


@pytest.mark.parametrize(
    "named", ["classification", "output-perturbation", "objective-perturbation", "exponential-mechanism"]
)
@pytest.mark.parametrize("bound", [1e-6, 1.0])
def test_fault_17_without_noise_no_bound_makes_training_private(named: str, bound: float) -> None:
    """Clipped weights or gradients alone: nothing is random, so any difference shows."""
    event = task_named(named).event(settings(noise_multiplier=None, max_grad_norm=bound, weight_decay=0.1))
    assert epsilon(event, 1e-5) == math.inf


@pytest.mark.parametrize("engine", ENGINES)
def test_fault_17_one_real_record_among_generated_ones_moves_the_sum_by_the_clip_norm(engine: str) -> None:
    """A batch whose mean is clipped, and not its patients, turns to its largest record: it moves by nearly 2 C there."""
    made = np.random.default_rng(0).normal(size=(8, 3))
    real = [[1e6, -1e6, 1e6]]
    x, y = np.vstack([made, real]), [0] * 8 + [1]
    with_it = trained(patients(x, y, range(9)), engine=engine)
    without = trained(patients(made, y[:8], range(8)), engine=engine)
    assert moved(with_it, without) == pytest.approx(1.0, rel=1e-5)


def test_fault_08_a_step_of_whole_batches_that_is_not_charged_is_seen() -> None:
    """Charged as one Gaussian of all their precision, whole batches are counted all the same."""
    assert steps(subject(sample_rate=1.0)).passed
    assert not steps(subject(task(one_step_more), sample_rate=1.0)).passed


@pytest.mark.parametrize("engine", ENGINES)
def test_fault_29_a_real_record_is_clipped_apart_from_a_generated_one(engine: str) -> None:
    real, made = [5.0, 5.0, 5.0], [4.0, 4.0, 4.0]
    classes = [0, 1]  # so that their gradients are opposite
    without = trained(patients([made], classes[1:], [0]), engine=engine)
    apart = trained(patients([made, real], classes[::-1], [0, 1]), engine=engine)
    together = trained(patients([made, np.multiply(real, 100)], classes[::-1], [0, 0]), engine=engine)
    assert moved(apart, without) <= 1 + 1e-6
    assert moved(together, without) > 1.9, "joint clipping must show, or this test sees nothing"


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adam"}, {"optimizer": "adamw", "weight_decay": 0.1}, {"optimizer": "rmsprop"}, {"momentum": 0.9},
        {"denoise": "kalman"}, {"denoise": "disk"}, {"local": Proximal(0.5)},
    ],
    ids=str,
)  # fmt: skip
def test_what_follows_the_noise_costs_nothing_and_sees_no_record_again(changes: dict[str, Any]) -> None:
    """The module runs on records once in a step, and those steps are what is charged, whatever is made of the sums."""
    seen: list[int] = []

    class Watched(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(len(x))
            out: torch.Tensor = super().forward(x)
            return out

    rows = patients(np.random.default_rng(1).normal(size=(6, 3)), [0, 1] * 3, range(6))
    chosen = {"local_steps": 4, "noise_multiplier": 1.3} | changes
    trained(rows, lambda: Watched(nn.Linear(3, 2)).double(), engine="opacus", **chosen)
    assert seen == [6] * 4
    assert classification.event(settings(**chosen)) == classification.event(
        settings(local_steps=4, noise_multiplier=1.3)
    )
