"""What ``polyclinic new`` writes: a small package of each kind, with $name, $module and $Name to be put in."""

from __future__ import annotations

from dataclasses import dataclass

from polyclinic.cli.new_records import DATASET, DATASET_TEST, TASK, TASK_TEST

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

APP_PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "$name"
version = "0.1.0"
description = "A Flower app on top of Polyclinic"
readme = "README.md"
requires-python = ">=3.11"
license = { text = "Proprietary" }
dependencies = ["polyclinic"]

[tool.hatch.build.targets.wheel]
packages = ["$module"]

[tool.flwr.app]
publisher = "me"
fab-include = ["$module/**/*.py"]

[tool.flwr.app.components]
serverapp = "polyclinic.server_app:app"
clientapp = "polyclinic.client_app:app"

# Every key of Polyclinic's configuration. An empty text takes the default that fits the other keys.
$config"""

APP_README = """\
# $name

A Flower app on top of [Polyclinic](https://pypi.org/project/polyclinic/): its ServerApp and ClientApp are Polyclinic's,
its strategy is `$object` of `$module/__init__.py`, and its configuration is in `pyproject.toml`. A model, a task or a dataset
of your own goes beside the strategy and is named in the same way: `model = "$module:net"`.

In this folder:

```sh
polyclinic run $run --rounds 2
polyclinic flower run --app . --rounds 2
flwr run . --stream
python -m pytest
```

`polyclinic flower run` starts and stops Flower's own runtime for one run, writes the results into `runs` here, and exits with
1 where the run failed. Bare `flwr run` exits with 0 even then, and writes where Flower's SuperLink was started, which the log
tells, unless `out` is a whole path: `flwr run . --stream --run-config "out='$$PWD/runs'"`.

For real hospitals, `polyclinic coordinator submit COORDINATOR --app .` sends this code; hospitals whose policies name
`allowed-runs` allow it by its digest, and those that name `allowed-strategies` only what is in them.
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
    return Federation.from_dataset("breast-cancer", out=str(out)).run(**{"rounds": 1, "training": {"local_steps": 2}} | options)


def test_a_private_run_finds_it_by_its_name(tmp_path: Path) -> None:
    result = run(tmp_path, strategy="$name", rounds=2)
    assert result.summary["rounds"] == 2 and 0 < result.privacy["epsilon"] <= 3


def test_it_goes_its_share_of_the_way(tmp_path: Path) -> None:
    whole, half = (run(tmp_path, privacy={"dp": False}, strategy=name).arrays["0.weight"] for name in ("fedavg", "$name"))
    np.testing.assert_allclose(half, 0.5 * whole, rtol=1e-5)  # the model begins at zero


def test_an_impossible_share_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="share must lie in"):
        run(tmp_path, strategy="$name", strategy_options={"share": 2})
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
    result = federation.run(model="$name", hidden="8", rounds=2, training={"local_steps": 2})
    assert result.summary["rounds"] == 2 and 0 < result.privacy["epsilon"] <= 3
"""


PROGRAM = '''\
"""A classifier that is the mean of the models of a run's last rounds, over which the noise of each averages out."""

from collections.abc import Sequence
from dataclasses import dataclass

from polyclinic.ehr.schema import Schema
from polyclinic.programs import Collected, Half, State
from polyclinic.programs.supervised import Supervised
from polyclinic.training import classification
from polyclinic.training.task import Task
from polyclinic.types import Arrays


@dataclass(frozen=True)
class $Name(Supervised):
    """Hospitals train as in the task classification, which is also what it costs. ``share``: of the rounds, those at the end
    whose models are averaged."""

    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must lie in (0, 1], got {self.share}")

    @property
    def trains(self) -> Task:
        return classification

    @property
    def averaged(self) -> int:
        """How many rounds' models are averaged."""
        return max(1, round(self.share * self.config.rounds))

    def half(self, schema: Schema, classes: Sequence[float], learning_rate: float) -> Half:
        return Averaging(self.config.rounds, self.averaged)

    def notes(self, state: State, scored: bool) -> list[str]:
        return [f"The model is the mean of those of the last {self.averaged} rounds."]


@dataclass(frozen=True)
class Averaging(Half):
    """The server's half: the hospitals' mean is the next model, and in the last round the mean of the last ``averaged``."""

    rounds: int
    averaged: int

    def first(self) -> State:
        return {"total": {}}

    def absorb(self, number: int, state: State, sent: Arrays, collected: Collected) -> tuple[State, Arrays]:
        total = state["total"]
        if number > self.rounds - self.averaged:
            total = {name: total.get(name, 0.0) + value for name, value in collected.mean.items()}
        if number < self.rounds:
            return {"total": total}, collected.mean
        mean = {name: (value / self.averaged).astype(sent[name].dtype) for name, value in total.items()}
        return {"total": total}, mean
'''

PROGRAM_TEST = """\
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyclinic import Federation
from polyclinic.errors import ConfigError


def run(out: Path, rounds: int = 2, **options: Any) -> Any:
    return Federation.from_dataset("breast-cancer", out=str(out)).run(rounds=rounds, **options)


def test_a_private_run_finds_it_by_its_name_and_costs_what_training_costs(tmp_path: Path) -> None:
    own, usual = run(tmp_path, task="$name"), run(tmp_path)
    assert own.privacy["epsilon"] == usual.privacy["epsilon"] <= 3
    assert "mean of those of the last 1 rounds" in " ".join(own.summary["notes"])


def test_its_model_is_the_mean_of_the_last_rounds(tmp_path: Path) -> None:
    plain = {"privacy": {"dp": False}, "training": {"momentum": 0.0, "learning_rate": 0.5}}
    first, second = (run(tmp_path, rounds, **plain).arrays["0.weight"] for rounds in (1, 2))
    mean = run(tmp_path, task="$name", task_options={"share": 1.0}, **plain).arrays["0.weight"]
    np.testing.assert_allclose(mean, (first + second) / 2, rtol=1e-5, atol=1e-7)


def test_an_impossible_share_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="share must lie in"):
        run(tmp_path, task="$name", task_options={"share": 2})
"""


APP_TEST = (
    STRATEGY_TEST.replace('"$name"', '"$module:$Name"')
    .replace(
        "from polyclinic import Federation\n",
        "from polyclinic import Federation, RunConfig\n",
    )
    .replace(
        "from polyclinic.errors import ConfigError\n",
        "from polyclinic.errors import ConfigError\nfrom polyclinic.sim.simulation import FlowerApp\n",
    )
    + """

def test_its_configuration_has_every_key_and_names_it() -> None:
    config = FlowerApp.read(Path(__file__).parents[1]).config
    assert set(config) == set(RunConfig.packaged())
    assert RunConfig.from_flower(config).strategy == "$module:$Name"
"""
)


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
    pyproject: str = PYPROJECT
    readme: str = README


KINDS = {
    "strategy": Kind(
        "strategies", "$Name", STRATEGY, STRATEGY_TEST, "--strategy $name",
        "It runs at the coordinator alone and sees only what hospitals send.",
        "Arguments of its own come as `-c strategy-options=share=0.7`.",
    ),
    "task": Kind(
        "tasks", "TASK", TASK, TASK_TEST, "--task $name -c privacy.patients-per-site=80",
        "It says what hospitals do with their records, and what that costs.",
        "It runs at hospitals, with their records: they install it themselves and name it in their policy's `allowed-tasks`.\n"
        "`event` must cover all that `train` looks at; epsilon is true only if it does.",
    ),
    "program": Kind(
        "programs", "$Name", PROGRAM, PROGRAM_TEST, "--task $name",
        "It is a kind of run: what hospitals are asked for, what that costs, and what the server makes of it.",
        "Options of its own come as `-c task-options=share=0.3`. It runs at hospitals, with their records: they install it\n"
        "themselves and name it in their policy's `allowed-tasks`.",
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
    "app": Kind(
        "", "$Name", STRATEGY, APP_TEST, "--strategy $module:$Name",
        "It is Polyclinic with a strategy of one's own, as an app for `flwr run`.", "", APP_PYPROJECT, APP_README,
    ),
}  # fmt: skip
