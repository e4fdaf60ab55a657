"""Every strategy that has a name runs by it, and FedSGD is what its paper says."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy
from torch import nn

from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError
from polyclinic.federation import Federation
from polyclinic.inspection.result import RunResult
from polyclinic.plugins import strategy_named
from polyclinic.strategies import BUILT_IN
from polyclinic.strategies.registry import MEANS, merge_by

Quick = Callable[..., RunResult]


def deep(features: int, classes: int, widths: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, classes))


NEEDS: dict[str, dict[str, Any]] = {
    "qfedavg": {"privacy.dp": False}, "fedsgd": {"training.local-steps": 1}, "fedbn": {"model": f"{__name__}:deep"},
    "fedper": {"model": "mlp"},
    "fedrep": {"model": "mlp"}, "moon": {"model": "mlp"},
}  # fmt: skip
FLOWERS_OTHERS = ("Strategy", "DifferentialPrivacy", "FedXgb")


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_name_runs_and_gives_finite_metrics(quick: Quick, name: str) -> None:
    result = quick(strategy=name, **NEEDS.get(name, {}))
    assert len(result.sites) == 4
    metrics = [result.pooled[key] for key in ("loss", "auroc", "accuracy", "brier")]
    assert np.isfinite(np.array(metrics, dtype=float)).all()
    assert result.config.privacy.dp is False or 2.5 < result.privacy["epsilon"] <= 3.0


def test_every_strategy_of_flower_that_averages_models_has_a_name() -> None:
    """Not those for boosted trees, which carry no arrays of a model, nor the wrappers for privacy, which need another."""
    found = {
        name.lower()
        for name in dir(flower)
        if isinstance(kind := getattr(flower, name), type)
        and issubclass(kind, Strategy)
        and not name.startswith(FLOWERS_OTHERS)
    }
    assert found <= set(BUILT_IN)


@pytest.mark.parametrize("name", ["fedmedian", "fedtrimmedavg", "krum", "multikrum", "bulyan", "scaffold"])
def test_what_is_no_mean_of_models_goes_with_no_privacy_of_whole_hospitals(quick: Quick, name: str) -> None:
    with pytest.raises(ConfigError, match="does not start from their mean"):
        quick(
            strategy=name,
            central={"epsilon": 2.0},
            data={"standardise": "none"},
            privacy={"patients_per_site": 80},
        )
    why = "would leave without masks" if name == "scaffold" else "secure.aggregation gives it nothing else"
    with pytest.raises(ConfigError, match=why):
        quick(strategy=name, secure={"aggregation": True})


def test_means_alone_are_declared_means() -> None:
    means = [name for name in BUILT_IN if merge_by(object.__new__(strategy_named(name))) is not None]
    others = {"fedmedian", "fedtrimmedavg", "krum", "multikrum", "bulyan", "qfedavg", "scaffold", "feddyn", "fednova"}
    assert means == MEANS and set(BUILT_IN) == {*means, *others}


def test_fedsgd_is_one_step_over_all_patients() -> None:
    config = RunConfig.build({"strategy": "fedsgd"})
    assert (config.training.local_steps, config.training.sample_rate) == (1, 1.0)
    back = Federation.from_config(config).with_options(strategy="fedavg").config
    assert back.training == RunConfig().training
    for values in ({"training.local-steps": 2}, {"training.sample-rate": 0.5}):
        with pytest.raises(ConfigError, match="FedSGD is one step over all patients"):
            RunConfig.build({"strategy": "fedsgd"}, values)


def test_a_round_of_fedsgd_is_a_gradient_step_of_all_hospitals_together(quick: Quick) -> None:
    """McMahan et al. 2017, section 2: the mean of one step at each is one step on the pooled patients."""
    both = {"strategy": "fedsgd", "privacy.dp": False, "rounds": 3, "training.local-steps": 1}
    apart, together = quick(**both), quick(**both, sites=1)
    for name, value in together.arrays.items():
        np.testing.assert_allclose(apart.arrays[name].numpy(), value.numpy(), atol=1e-5)


def test_qfedavg_is_refused_where_no_loss_leaves() -> None:
    with pytest.raises(ConfigError, match="training loss, which does not leave a private run"):
        RunConfig.build({"strategy": "qfedavg"})


def test_a_strategy_is_told_what_the_loop_decides(quick: Quick) -> None:
    with pytest.raises(ConfigError, match="'min-train-nodes', which the round loop decides"):
        quick(strategy="krum", strategy_options="min-train-nodes=3")
    with pytest.raises(ConfigError, match="'malicious', which Krum does not take; it takes num-malicious-nodes"):
        quick(strategy="krum", strategy_options="malicious=1")


@pytest.mark.slow
def test_fedavg_needs_fewer_rounds_than_fedsgd_at_equal_loss(quick: Quick) -> None:
    """McMahan et al. 2017, table 2: local steps save rounds. Without privacy, each at the better of two learning rates."""

    def rounds_to(loss: float, strategy: str, **steps: Any) -> float:
        found = []
        for rate in (0.3, 1.0):
            told = quick(
                privacy={"dp": False},
                data={"standardise": "measured"},
                rounds=25,
                strategy=strategy,
                training={"learning_rate": rate, "momentum": 0.0} | steps,
            ).rounds
            found += list(told[(told.site == "pooled") & (told.loss <= loss)]["round"])
        return min(found, default=np.inf)

    fedavg, fedsgd = (
        rounds_to(0.13, "fedavg", local_steps=10, sample_rate=0.1),
        rounds_to(0.13, "fedsgd", local_steps=1),
    )
    assert 3 * fedavg <= fedsgd < np.inf, (fedavg, fedsgd)
