"""What ``polyclinic new`` writes: a small package of each kind, with $name, $module and $Name to be put in."""

from __future__ import annotations

from dataclasses import dataclass

PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "$name"
version = "0.1.0"
description = "A $kind for Polyclinic"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["polyclinic"]

[project.entry-points."polyclinic.$group"]
$name = "$module:$object"

[tool.hatch.build.targets.wheel]
packages = ["$module"]
"""

README = """\
# $name

A $kind for [Polyclinic](https://pypi.org/project/polyclinic/). $about

```sh
pip install -e .
polyclinic plugins $group
polyclinic run $run --rounds 2
python -m pytest
```

$beware
"""

STRATEGY = '''\
"""The mean of the hospitals' models, of which the server goes only a share of the way."""

from collections.abc import Iterable
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg


class $Name(FedAvg):
    """``share``: how much of the way from the round's model to the mean is gone; 1 is FedAvg."""

    def __init__(self, share: float = 0.5, **options: Any) -> None:
        super().__init__(**options)
        if not 0 < share <= 1:
            raise ValueError(f"share must lie in (0, 1], got {share}")
        self.share = share

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.before = {name: array.numpy() for name, array in arrays.items()}
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        mean, metrics = super().aggregate_train(server_round, replies)
        for name, array in (mean or {}).items():
            before = self.before[name]
            mean[name] = Array(before + self.share * (array.numpy() - before))
        return mean, metrics
'''

STRATEGY_TEST = """\
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyclinic import Federation
from polyclinic.errors import ConfigError


def run(out: Path, **options: Any) -> Any:
    return Federation.from_dataset("breast-cancer", out=str(out)).run(**{"rounds": 1, "local_steps": 2} | options)


def test_a_private_run_finds_it_by_its_name(tmp_path: Path) -> None:
    result = run(tmp_path, strategy="$name", rounds=2)
    assert result.summary["rounds"] == 2 and 0 < result.privacy["epsilon"] <= 3


def test_it_goes_its_share_of_the_way(tmp_path: Path) -> None:
    whole, half = (run(tmp_path, dp=False, strategy=name).arrays["0.weight"] for name in ("fedavg", "$name"))
    np.testing.assert_allclose(half, 0.5 * whole, rtol=1e-5)  # the model begins at zero


def test_an_impossible_share_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="share must lie in"):
        run(tmp_path, strategy="$name", strategy_options="share=2")
"""

MODEL = '''\
"""A small network with normalised hidden units. Layer norm takes each patient alone; batch norm would be refused."""

from collections.abc import Sequence

from torch import nn


def model(features: int, classes: int, widths: Sequence[int] = (32,)) -> nn.Module:
    """(batch, features) encoded rows to (batch, classes) logits; ``widths``: the configuration key ``hidden``."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip((features, *widths[:-1]), widths, strict=True):
        layers += [nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))
'''

MODEL_TEST = """\
from pathlib import Path

import torch
from $module import model

from polyclinic import Federation


def test_rows_become_logits_and_no_row_sees_another() -> None:
    net, rows = model(5, 3, (8, 4)), torch.randn(6, 5)
    assert net(rows).shape == (6, 3)
    torch.testing.assert_close(net(rows)[:2], net(rows[:2]))


def test_a_private_run_finds_it_by_its_name(tmp_path: Path) -> None:
    federation = Federation.from_dataset("breast-cancer", out=str(tmp_path))
    result = federation.run(model="$name", hidden="8", rounds=2, local_steps=2)
    assert result.summary["rounds"] == 2 and 0 < result.privacy["epsilon"] <= 3
"""

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

A patient's part is their mean row and a one, in the block of their class, clipped to ``max-grad-norm`` as a whole. Only the
sum of these parts, with Gaussian noise, leaves; means and model follow from it and cost nothing more.
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
from polyclinic.training.task import Arrays, SiteUpdate, SiteWork, TrainSettings


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
    result = federation.run(task="$name", rounds=1, patients_per_site=80)
    noise = result.privacy["noise_multiplier"]
    assert result.privacy["epsilon"] == pytest.approx(epsilon(gaussian_event(noise), 1e-3), rel=1e-6)
    assert 2.9 < result.privacy["epsilon"] <= 3 and result.pooled["auroc"] > 0.9


def test_a_model_that_it_cannot_make_is_refused_before_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one linear layer"):
        Federation.from_dataset("breast-cancer", out=str(tmp_path)).run(task="$name", model="mlp")
"""


@dataclass(frozen=True)
class Kind:
    """One kind of package: its group of names, what the name stands for, its files, how a run names it, and what to know."""

    group: str
    object: str
    code: str
    test: str
    run: str
    about: str
    beware: str


KINDS = {
    "strategy": Kind(
        "strategies", "$Name", STRATEGY, STRATEGY_TEST, "--strategy $name",
        "It runs at the coordinator alone and sees only what hospitals send.",
        "Arguments of its own come as `-c strategy-options=share=0.7`.",
    ),
    "task": Kind(
        "tasks", "TASK", TASK, TASK_TEST, "--task $name -c patients-per-site=80",
        "It says what hospitals do with their records, and what that costs.",
        "It runs at hospitals, with their records: they install it themselves and name it in their policy's `allowed-tasks`.\n"
        "`event` must cover all that `train` looks at; epsilon is true only if it does.",
    ),
    "dataset": Kind(
        "datasets", "DATASET", DATASET, DATASET_TEST, "--dataset $name",
        "It is for simulations; real hospitals name their own records in `hospital.toml`.",
        "`polyclinic datasets show $name` describes it.",
    ),
    "model": Kind(
        "models", "model", MODEL, MODEL_TEST, "--model $name",
        "A function of (features, classes, widths) that makes a torch module.",
        "It runs at hospitals too: they install it themselves and name it in their policy's `allowed-models`.",
    ),
}  # fmt: skip
