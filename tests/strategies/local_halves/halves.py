"""The halves at hospitals that are tested alike, and made-up hospitals on which they take a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from polyclinic.ehr.shard import Rows
from polyclinic.models.tabular import initialise, mlp
from polyclinic.privacy.streams import keyed_stream
from polyclinic.strategies.apfl import APFL
from polyclinic.strategies.feddyn import FedDyn
from polyclinic.strategies.fednova import FedNova
from polyclinic.strategies.fedper import FedPer
from polyclinic.strategies.fedrep import FedRep
from polyclinic.strategies.moon import MOON
from polyclinic.strategies.mr_mtl import MRMTL
from polyclinic.strategies.per_fedavg import PerFedAvg
from polyclinic.training import classification
from polyclinic.training.local import LocalHalf
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays

HALVES: dict[str, LocalHalf] = {
    "feddyn": FedDyn.Local(0.3),
    "fednova": FedNova.Local(1),
    "fedrep": FedRep.Local(),
    "fedper": FedPer.Local("0.bias 2.*"),
    "apfl": APFL.Local(0.4),
    "apfl adaptive": APFL.Local(0.4, True),
    "mr-mtl": MRMTL.Local(0.7),
    "per-fedavg": PerFedAvg.Local(0.3),
    "moon": MOON.Local(2.0, 0.3),
}
#: The passes of those that make another one beside "", and how many of its four gradients each makes of four steps.
SECOND = {
    "apfl": {"": 4, "personal": 4},
    "apfl adaptive": {"": 4, "personal": 4},
    "per-fedavg": {"": 4, "inner": 4},
    "fedrep": {"": 2, "head": 2},
}


def gradients(name: str) -> dict[str, int]:
    """By pass, how many gradients the half makes of four steps."""
    return SECOND.get(name, {"": 4})


def settings(**changes: Any) -> TrainSettings:
    values: dict[str, Any] = {
        "sample_rate": 0.3, "local_steps": 4, "learning_rate": 0.2, "max_grad_norm": 0.4, "noise_multiplier": 0.7,
    }  # fmt: skip
    return TrainSettings(**(values | changes))


def build() -> torch.nn.Module:
    return mlp(6, 3, (5,))


START: Arrays = {name: value.numpy() for name, value in initialise(build, 3).items()}
SIZE = sum(value.size for value in START.values())


def patients(site: int) -> Rows:
    """20, 29, 38, ... patients, every other one with two rows."""
    rng, count = np.random.default_rng(site), 20 + 9 * site
    patient = np.repeat(np.arange(count), 1 + np.arange(count) % 2)
    return Rows(rng.normal(size=(len(patient), 6)), rng.integers(0, 3, len(patient)), patient, count)


def work(sites: int, turn: int = 1) -> list[SiteWork]:
    found = []
    for site in range(sites):
        rows = patients(site)
        batches, noise = (keyed_stream(0, purpose, site, turn) for purpose in ("batches", "noise"))
        found.append(SiteWork(rows, batches, noise, rows.patients + 0.5, number=site, round=turn))
    return found


def next_work(half: LocalHalf, updates: Sequence[SiteUpdate], turn: int = 2) -> list[SiteWork]:
    """The next round of the hospitals of ``updates``, who go on from what they kept."""
    stays = half.stays(build())
    return [
        replace(site, state=update.state, own={name: update.arrays[name] for name in stays})
        for site, update in zip(work(len(updates), turn), updates, strict=True)
    ]


def moved(arrays: Arrays, by: float = 0.05) -> Arrays:
    """Another model, as the server sends it in the next round."""
    return {name: value + np.float32(by) for name, value in arrays.items()}


def two_rounds(half: LocalHalf, sites: int, chosen: TrainSettings) -> list[SiteUpdate]:
    """The updates after a second round at a model that moved on."""
    chosen = replace(chosen, local=half)
    first = classification.train(build, START, work(sites), chosen)
    return classification.train(build, moved(START), next_work(half, first), chosen)


def assert_alike(ours: SiteUpdate, theirs: SiteUpdate, atol: float) -> None:
    """The updates leave and keep the same to rounding; an optimizer that took no step may keep zeros, or nothing."""
    assert ours.steps == theirs.steps and ours.metrics == theirs.metrics and ours.beside == theirs.beside == {}
    assert set(ours.arrays) == set(theirs.arrays)
    for mine, other in ((ours.arrays, theirs.arrays), (ours.state, theirs.state)):
        for name in {*mine, *other}:
            left, right = (part.get(name, np.zeros(())) for part in (mine, other))
            np.testing.assert_allclose(left, right, atol=atol, err_msg=name)
