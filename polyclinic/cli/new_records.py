"""What ``polyclinic new`` writes for a dataset and a task: code and test, with $name, $module and $Name to be put in."""

from __future__ import annotations

DATASET = '''\
"""Simulated falls of old people. Put your own records' schema and reader in the place of these.

The schema is public: bounds and categories come from what can be measured, never from the records.
"""

import numpy as np
import pandas as pd

from polyclinic.ehr.datasets import Dataset
from polyclinic.ehr.schema import Column, Schema

SCHEMA = Schema(
    name="$name",
    columns=(
        Column(name="patient", kind="integer", role="patient_id"),
        Column(name="age", kind="integer", unit="years", bounds=(0, 120)),
        Column(name="speed", kind="continuous", unit="m/s", bounds=(0, 3), nullable=True),
        Column(name="ward", kind="categorical", categories=("acute", "rehabilitation")),
        Column(name="fell", kind="binary", role="label"),
    ),
)


def load() -> pd.DataFrame:
    """The records, with exactly the schema's columns; raises polyclinic's DataError where files are missing."""
    rng = np.random.default_rng(0)
    age, speed = rng.integers(50, 95, 400), rng.uniform(0.2, 1.8, 400)
    fell = rng.random(400) < 1 / (1 + np.exp(4 * speed - age / 20))
    return pd.DataFrame(
        {
            "patient": range(400),
            "age": age,
            "speed": np.where(rng.random(400) < 0.1, np.nan, speed.round(2)),
            "ward": rng.choice(["acute", "rehabilitation"], 400),
            "fell": fell.astype(int),
        }
    )


DATASET = Dataset(
    name="$name",
    title="Simulated falls",
    description="SIMULATED: falls by age, walking speed and ward.",
    schema=SCHEMA,
    licence="Apache-2.0",
    citation="none",
    patients=400,
    rows=400,
    default_sites=4,
    default_partitioner="label-quantity",
    load=load,
    available=lambda: True,
    simulated=True,
)
'''

DATASET_TEST = """\
from pathlib import Path

from $module import DATASET

from polyclinic import Federation
from polyclinic.ehr.shard import build_shard


def test_the_records_are_what_the_dataset_says() -> None:
    records = DATASET.load()
    assert list(records) == [column.name for column in DATASET.schema.columns]
    assert (len(records), records["patient"].nunique()) == (DATASET.rows, DATASET.patients)
    assert build_shard(records, DATASET.schema, "all").patients == DATASET.patients


def test_a_private_run_finds_it_by_its_name_and_learns(tmp_path: Path) -> None:
    result = Federation.from_dataset("$name", out=str(tmp_path)).run(rounds=5)
    assert len(result.sites) == DATASET.default_sites
    assert 0 < result.privacy["epsilon"] <= 3 and result.pooled["auroc"] > 0.5
"""

TASK = '''\
"""A task with a mechanism of its own: a round is one noised sum, of which a nearest-mean classifier is made.

A patient's part is their mean row and a one, in the block of their class, clipped to ``privacy.max-grad-norm`` as a
whole. Only the sum of these parts, with Gaussian noise, leaves; means and model follow from it and cost nothing more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from dp_accounting import DpEvent, NonPrivateDpEvent
from torch import nn

from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.privacy.clipping import ClippedSum, clipped_sum, privatise
from polyclinic.privacy.events import gaussian_event
from polyclinic.training import classification
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays


@dataclass(frozen=True)
class $Name:
    name: str = "$name"

    def event(self, settings: TrainSettings, begun: bool = False) -> DpEvent:
        """What one call of ``train`` spends, told before it: one Gaussian sum over all patients (one added or removed)."""
        noise = settings.noise_multiplier
        return NonPrivateDpEvent() if noise is None else gaussian_event(noise)

    def check(self, build: Callable[[], nn.Module], arrays: Arrays, features: int, engine: str = "auto") -> None:
        """Raises ConfigError, before anything is charged, for a model that is not one linear layer."""
        _layer(arrays, features)

    def train(
        self, build: Callable[[], nn.Module], arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings
    ) -> list[SiteUpdate]:
        """Each hospital's classifier; noise from the hospital's own stream."""
        weight, bias = _layer(arrays, work[0].rows.x.shape[1])
        classes, found = len(arrays[bias]), []
        for site in work:
            total = parts_sum(site.rows, classes, settings.max_grad_norm)
            if settings.noise_multiplier is not None:
                draws = site.noise.normal(len(total.total))
                total = ClippedSum(privatise(total, settings.noise_multiplier, draws), total.sensitivity)
            means, offsets = classifier(total.total.numpy(), classes)
            model = {weight: means.astype(arrays[weight].dtype), bias: offsets.astype(arrays[bias].dtype)}
            found.append(SiteUpdate(model, 1, float("nan"), {}))
        return found

    def evaluate(self, build: Callable[[], nn.Module], arrays: Arrays, rows: Sequence[Rows]) -> list[np.ndarray]:
        return classification.evaluate(build, arrays, rows)


def parts_sum(rows: Rows, classes: int, clip_norm: float) -> ClippedSum:
    """The sum of all patients' parts, (classes * (features + 1),), which one patient moves by at most ``clip_norm``."""
    x = np.hstack([np.nan_to_num(rows.x), np.ones((len(rows.x), 1))])
    parts = np.zeros((rows.patients, classes, x.shape[1]))
    np.add.at(parts, (rows.patient, rows.y), x)
    parts /= np.bincount(rows.patient, minlength=rows.patients).clip(1)[:, None, None]
    return clipped_sum(torch.from_numpy(parts.reshape(rows.patients, -1)), clip_norm)


def classifier(total: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights (classes, features) and offsets (classes,) by which the nearest mean has the largest logit."""
    blocks = total.reshape(classes, -1)
    counts = np.maximum(blocks[:, -1:], 1.0)
    means = blocks[:, :-1] / counts
    return means, -0.5 * (means**2).sum(axis=1) + np.log(counts[:, 0])


def _layer(arrays: Arrays, features: int) -> tuple[str, str]:
    by_rank = {value.ndim: name for name, value in arrays.items()}
    if sorted(value.ndim for value in arrays.values()) != [1, 2] or arrays[by_rank[2]].shape[1] != features:
        raise ConfigError("The task $name makes one linear layer; set model to 'logistic'.")
    return by_rank[2], by_rank[1]


TASK = $Name()
'''

TASK_TEST = """\
from pathlib import Path

import numpy as np
import pytest
from $module import parts_sum

from polyclinic import Federation
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.events import gaussian_event


def test_one_patient_moves_the_sum_by_no_more_than_its_sensitivity() -> None:
    rng, rows = np.random.default_rng(0), 60
    patient = np.sort(rng.integers(0, 20, rows))
    patient[:20] = range(20)
    all_of_them = Rows(rng.normal(0, 9, (rows, 4)), rng.integers(0, 2, rows), patient, 20)
    whole = parts_sum(all_of_them, 2, 1.5)
    for gone in range(20):
        kept = patient != gone
        number = patient[kept] - (patient[kept] > gone)
        rest = parts_sum(Rows(all_of_them.x[kept], all_of_them.y[kept], number, 19), 2, 1.5)
        assert (whole.total - rest.total).norm() <= whole.sensitivity + 1e-9 == 1.5 + 1e-9


def test_a_private_run_finds_it_by_its_name_learns_and_pays_what_it_says(tmp_path: Path) -> None:
    federation = Federation.from_dataset("breast-cancer", out=str(tmp_path))
    result = federation.run(task="$name", rounds=1, privacy={"patients_per_site": 80})
    noise = result.privacy["noise_multiplier"]
    assert result.privacy["epsilon"] == pytest.approx(epsilon(gaussian_event(noise), 1e-3), rel=1e-6)
    assert 2.9 < result.privacy["epsilon"] <= 3 and result.pooled["auroc"] > 0.9


def test_a_model_that_it_cannot_make_is_refused_before_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one linear layer"):
        Federation.from_dataset("breast-cancer", out=str(tmp_path)).run(task="$name", model="mlp")
"""
