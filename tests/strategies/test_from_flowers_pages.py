"""A custom strategy as Flower's documentation has it runs unchanged, and what it tells hospitals reaches them.

The pattern is that of Flower's tutorial "Use a federated learning strategy" and its how-to "Configure a ClientApp": a
subclass overrides ``configure_train``, changes ``config["lr"]`` in some rounds, and leaves the rest to its parent.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdagrad, FedAvg

from polyclinic.client.checks import train_settings
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError
from polyclinic.federation import Federation
from polyclinic.inspection.result import RunResult
from polyclinic.server.progress import Progress
from polyclinic.wire.messages import TrainRequest

Quick = Callable[..., RunResult]


class Decayed(FedAvg):
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Half the learning rate every second round."""
        if server_round % 2 == 0:
            config["lr"] *= 0.5  # type: ignore[operator]
        return super().configure_train(server_round, arrays, config, grid)


class DecayedAdagrad(Decayed, FedAdagrad):
    """The same over the strategy that the tutorial takes."""


PLAIN: dict[str, Any] = {
    "privacy.dp": False,
    "training.momentum": 0.0,
    "training.local-steps": 1,
    "training.learning-rate": 0.5,
}


def test_the_rate_that_it_sets_is_the_one_that_hospitals_step_with(quick: Quick) -> None:
    """A step of plain SGD is as long as its rate, so half the rate is half the way."""
    one, two = (quick(rounds=rounds, **PLAIN).arrays["0.weight"] for rounds in (1, 2))
    halved = quick(rounds=2, strategy=f"{__name__}:Decayed", **PLAIN).arrays["0.weight"]
    assert float((two - one).abs().max()) > 1e-3
    np.testing.assert_allclose(halved - one, 0.5 * (two - one), rtol=1e-4, atol=1e-7)


class Stops(Progress):
    def on_round(self, config: RunConfig, state: Any) -> None:
        if state.round == 3:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_private_run_with_it_goes_on_where_it_stopped(quick: Quick, tmp_path: Path) -> None:
    options: dict[str, Any] = {"strategy": f"{__name__}:DecayedAdagrad", "rounds": 5, "out": str(tmp_path / "runs")}
    with pytest.raises(KeyboardInterrupt):
        quick(progress=Stops(), **options)
    resumed = Federation.resume(next(path for path in (tmp_path / "runs").iterdir() if path.is_dir()))
    whole, other = quick(**options), quick(**options | {"strategy": "fedadagrad"})
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"] != other.summary["model_sha256"]
    assert resumed.privacy["epsilon"] == other.privacy["epsilon"] <= 3.0, "a learning rate costs nothing"


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), "fast"])
def test_a_rate_that_is_none_is_refused_before_anything_is_charged(rate: Any) -> None:
    request = TrainRequest(run="r", site=0, round=1, noise_multiplier=1.0, public_patients=10.0, learning_rate=0.5)
    told = RecordDict({"config": ConfigRecord({"lr": rate})})
    with pytest.raises(ConfigError, match="'lr'.*numbers above 0 and at most"):
        train_settings(RunConfig(), request, told, real=True)
