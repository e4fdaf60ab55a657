"""A key that was given and can do nothing is refused, or told where dp is false; defaults are never refused."""

from collections.abc import Callable
from typing import Any

import pytest

from polyclinic.config import EFFECTS, NOT_UNDER_FLOWER, SECTIONS, RunConfig, check_effects, put_aside
from polyclinic.errors import ConfigError
from polyclinic.federation import Federation
from polyclinic.inspection.result import RunResult
from polyclinic.plugins import plugins

Quick = Callable[..., RunResult]
SETTINGS: list[dict[str, Any]] = [
    {}, {"privacy.dp": False}, {"strategy": "scaffold"}, {"strategy": "fedsgd"}, {"task": "output-perturbation"},
    {"task": "objective-perturbation", "privacy.dp": False}, {"training.optimizer": "adam"}, {"model": "mlp"},
]  # fmt: skip


@pytest.mark.parametrize(
    ("idle", "with_effect"),
    [
        ({"central.noise": "tree"}, {"central.epsilon": 5.0, "privacy.patients-per-site": 50}),
        ({"central.quantile": 0.3}, {"central.epsilon": 5, "central.clipping": "adaptive", "privacy.patients-per-site": 50}),
        ({"central.delta": 1e-2}, {"central.epsilon": 5.0, "privacy.patients-per-site": 50}),
        ({"secure.dropouts": 1}, {"secure.aggregation": True}),
        ({"secure.bits": 20}, {"secure.aggregation": True}),
        ({"hidden": "64"}, {"model": "mlp"}),
        ({"hidden": "64"}, {"model": "somewhere:Net"}),
        ({"alpha": 0.2, "partitioner": "iid"}, {"partitioner": "dirichlet"}),
        ({"participation.fraction": 0.5, "participation.sites": 2}, {"participation.sites": 0}),
        ({"training.sample-rate": 0.1, "task": "objective-perturbation"}, {"task": "classification"}),
        ({"training.batching": "cyclic", "task": "output-perturbation"}, {"task": "classification"}),
        ({"training.denoise": "kalman", "task": "output-perturbation"}, {"task": "classification"}),
        ({"training.local-steps": 9, "task": "output-perturbation"}, {"task": "somewhere:task"}),
        ({"convex.perturbation": "gamma"}, {"task": "output-perturbation"}),
        ({"training.momentum": 0.5, "training.optimizer": "adam"}, {"training.optimizer": "rmsprop"}),
        ({"training.noise-options": "bands=2", "training.batching": "cyclic"}, {"training.noise": "banded"}),
        ({"training.denoise-gain": 0.5}, {"training.denoise": "disk"}),
        ({"privacy.patients-per-site": 50, "data.standardise": "measured"}, {"data.standardise": "public"}),
        ({"privacy.statistics-share": 0.2, "privacy.patients-per-site": 50}, {"data.standardise": "measured",
        "privacy.patients-per-site": 0}),
        ({"simulation.round-deadline": 2.0}, {"simulation.seconds-per-step": 1.0}),
    ],
)  # fmt: skip
def test_a_key_without_effect_is_refused_and_with_what_it_needs_taken(
    idle: dict[str, Any], with_effect: dict[str, Any]
) -> None:
    key = next(iter(idle))
    with pytest.raises(ConfigError) as caught:
        check_effects(RunConfig.build(idle))
    said = str(caught.value)
    assert said.startswith(f"Configuration key '{key}' has the value") and "has an effect only with" in said
    check_effects(RunConfig.build(idle, with_effect))


@pytest.mark.parametrize("settings", SETTINGS)
def test_defaults_are_not_refused_though_they_are_written_out(settings: dict[str, Any]) -> None:
    """As they stand in Flower's run-config, and in the configuration that a run's folder keeps."""
    config = RunConfig.build(settings)
    check_effects(config, (NOT_UNDER_FLOWER, *EFFECTS))
    check_effects(RunConfig.build(config.flat()), (NOT_UNDER_FLOWER, *EFFECTS))
    assert put_aside(config) == []


def test_the_table_knows_keys_that_there_are() -> None:
    keys = {*RunConfig().flat(), *SECTIONS}
    for effect in (*EFFECTS, NOT_UNDER_FLOWER):
        assert set(effect.keys) <= keys, effect
    tasks = [plugin.name for plugin in plugins() if plugin.group == "tasks"]
    assert {task for task in tasks if not RunConfig.build({"task": task}).kind.steps} == set(tasks) - {"classification"}


def test_what_dp_false_puts_aside_is_told(quick: Quick) -> None:
    result = quick(privacy={"dp": False, "epsilon": 1.0, "max_grad_norm": 1.5}, rounds=1)
    assert (
        "With privacy.dp at false these keys had no effect: privacy.epsilon, privacy.max-grad-norm."
        in result.summary["notes"]
    )
    assert put_aside(RunConfig.build({"privacy.epsilon": 1.0})) == []


def test_a_simulation_under_flower_only_is_refused_there() -> None:
    config = RunConfig.build({"simulation.dropout-rate": 0.5})
    check_effects(config)
    with pytest.raises(ConfigError, match="simulation.dropout-rate.*not under Flower"):
        check_effects(config, (NOT_UNDER_FLOWER, *EFFECTS))


def test_a_run_refuses_before_it_begins(tmp_path: Any) -> None:
    federation = Federation.from_dataset("breast-cancer", out=str(tmp_path / "runs"))
    for options, key in (
        ({"central.noise": "tree"}, "central.noise"), ({"privacy.overlap": 9}, "overlap"),
        ({"dataset": "heart-disease", "alpha": 0.5}, "alpha"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=key):
            federation.run(**options)
    assert not (tmp_path / "runs").exists()
