"""Runs of the strategies with a half at hospitals: resumed, and in the limits in which they are another algorithm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from polyclinic import Federation
from polyclinic.errors import PolyclinicError
from polyclinic.inspection.result import RunResult
from polyclinic.server.progress import Progress
from polyclinic.strategies.apfl import APFL
from polyclinic.strategies.base.state import restore_strategy
from polyclinic.strategies.feddyn import FedDyn
from polyclinic.strategies.mr_mtl import MRMTL
from polyclinic.strategies.per_fedavg import PerFedAvg
from polyclinic.training import classification
from polyclinic.training.local import LocalHalf, Pass, Sites, Trained
from polyclinic.training.task import TrainSettings, own_arrays
from tests.strategies.local_halves.halves import START, build, moved, next_work, settings, work
from tests.strategies.local_halves.test_local_halves_papers import kept

Quick = Callable[..., RunResult]
SMALL: dict[str, Any] = {"model": "mlp", "hidden": "3", "training.local-steps": 4, "training.momentum": 0.0}


# ---- goes on


class Stops(Progress):
    def on_round(self, config: Any, state: Any) -> None:
        if state.round == 2:
            raise PolyclinicError("The lights went out.")


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("feddyn", ""),
        ("fednova", "fewest-steps=1"),
        ("fedrep", ""),
        ("apfl", "adaptive=true"),
        ("mr-mtl", ""),
        ("moon", ""),
    ],
)
def test_a_resumed_run_is_the_uninterrupted_one(quick: Quick, tmp_path: Path, strategy: str, options: str) -> None:
    values = SMALL | {"rounds": 3, "strategy": strategy, "strategy_options": options, "participation.sites": 3}
    if strategy in ("apfl", "mr-mtl", "moon", "fedrep"):
        values["training.momentum"] = 0.9
    whole = quick(**values)
    with pytest.raises(PolyclinicError, match="lights"):
        quick(progress=Stops(), out=str(tmp_path / "stopped"), **values)
    (folder,) = (tmp_path / "stopped").iterdir()
    resumed = Federation.resume(folder)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]
    assert resumed.pooled == whole.pooled and resumed.privacy["epsilon"] == whole.privacy["epsilon"]


# ---- limits


def same(one: RunResult, other: RunResult, atol: float = 1e-6) -> bool:
    return all(
        np.allclose(value.numpy(), other.arrays[label].numpy(), atol=atol, rtol=0)
        for label, value in one.arrays.items()
    )


@pytest.mark.parametrize(
    ("strategy", "options", "other"),
    [
        ("fednova", "", "fewest-steps=1"),
        ("fednova", "fewest-steps=4", "fewest-steps=3"),
        ("moon", "weight=0", "weight=1"),
    ],
)
def test_with_privacy_it_is_fedavg_in_its_limit(quick: Quick, strategy: str, options: str, other: str) -> None:
    both = SMALL | {"rounds": 3, "training.engine": "functional"}
    plain = quick(strategy="fedavg", **both)
    limit, usual = (quick(strategy=strategy, strategy_options=text, **both) for text in (options, other))
    assert same(limit, plain) and not same(usual, plain, 1e-4)
    assert limit.pooled["loss"] == pytest.approx(plain.pooled["loss"], abs=1e-5)


def rounds_of(half: LocalHalf, rounds: int = 3, **changes: Any) -> list[Any]:
    """The updates of the last of some rounds, in each of which the server sends another model."""
    chosen = settings(double=True, local=half, **changes)
    updates = classification.train(build, START, work(3), chosen)
    for turn in range(2, rounds + 1):
        updates = classification.train(build, moved(START, 0.05 * turn), next_work(half, updates, turn), chosen)
    return updates


def own_of(updates: list[Any]) -> list[dict[str, np.ndarray]]:
    return [own_arrays(update.state) for update in updates]


def assert_same(found: list[dict[str, np.ndarray]], expected: list[dict[str, np.ndarray]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert set(ours) == set(theirs) == set(START)
        for name, value in theirs.items():
            np.testing.assert_allclose(ours[name], value, atol=1e-6)


@dataclass(frozen=True)
class Twice(LocalHalf):
    """Plain steps along the second of two gradients, the first of which is thrown away."""

    def passes(self, settings: TrainSettings) -> tuple[Pass, ...]:
        return (Pass(settings.local_steps), Pass(settings.local_steps, "inner"))

    def round(self, sites: Sites) -> Trained:
        models = sites.model
        for _ in range(sites.settings.local_steps):
            sites.gradient(models, "inner")
            models = sites.step(models, sites.gradient(models))
        return Trained(models)


@dataclass(frozen=True)
class Alone(LocalHalf):
    """Plain steps of a model of the hospital's own, whatever it is sent."""

    personal = True

    def round(self, sites: Sites) -> Trained:
        models = sites.own()
        for _ in range(sites.settings.local_steps):
            models = sites.step(models, sites.gradient(models))
        return Trained(models, own=models)


def test_mr_mtl_without_a_pull_trains_alone_and_with_a_large_one_stays_at_the_mean() -> None:
    assert_same(own_of(rounds_of(MRMTL.Local(0.0))), own_of(rounds_of(Alone())))
    near = rounds_of(MRMTL.Local(500.0), learning_rate=0.002)
    for update in near:
        for name, value in moved(START, 0.15).items():
            np.testing.assert_allclose(update.arrays[name], value, atol=0.02)


def test_apfls_own_model_is_the_shared_one_with_no_share_and_trained_alone_with_all() -> None:
    nothing, everything = rounds_of(APFL.Local(0.0)), rounds_of(APFL.Local(1.0))
    assert_same(own_of(nothing), [update.arrays for update in nothing])
    for update in everything:
        assert max(np.abs(own_arrays(update.state)[name] - value).max() for name, value in update.arrays.items()) > 0.02
    elsewhere = classification.train(
        build,
        moved(START, -1.0),
        next_work(APFL.Local(1.0), everything, 4),
        settings(double=True, local=APFL.Local(1.0)),
    )
    here = classification.train(
        build, START, next_work(APFL.Local(1.0), everything, 4), settings(double=True, local=APFL.Local(1.0))
    )
    assert_same(own_of(elsewhere), own_of(here))


def test_per_fedavg_with_no_inner_step_to_speak_of_is_fedavg_on_its_second_batches() -> None:
    limit, plain = rounds_of(PerFedAvg.Local(1e-12)), rounds_of(Twice())
    assert_same([update.arrays for update in limit], [update.arrays for update in plain])
    assert_same(own_of(limit), [moved(START, 0.15)] * 3)


def test_feddyns_hospitals_stay_where_their_drifts_are_their_gradients() -> None:
    """At such a model the sum of all drifts is that of all gradients, which is zero at the federation's optimum."""

    @dataclass(frozen=True)
    class Slope(LocalHalf):
        keeps = True

        def round(self, sites: Sites) -> Trained:
            slope = sites.gradient(sites.model)
            return Trained(sites.model, state={"drift": slope})

    exact: dict[str, Any] = {"sample_rate": 1.0, "noise_multiplier": None, "double": True}
    slopes = classification.train(build, START, work(2), settings(**exact | {"local_steps": 1}, local=Slope()))
    half = FedDyn.Local(0.3)
    assert all(np.abs(slope.state["local.drift"]).max() > 0.01 for slope in slopes)
    stayed = classification.train(build, START, next_work(half, slopes), settings(**exact, local=half))
    moving = classification.train(build, START, work(2), settings(**exact, local=half))
    for still, other, slope in zip(stayed, moving, slopes, strict=True):
        for name, value in START.items():
            np.testing.assert_allclose(still.arrays[name], value, atol=1e-6)
        assert max(np.abs(other.arrays[name] - value).max() for name, value in START.items()) > 0.01
        np.testing.assert_allclose(still.state["local.drift"], slope.state["local.drift"], atol=1e-6)


def test_feddyns_server_keeps_the_mean_of_the_hospitals_drifts(quick: Quick) -> None:
    """With noise, and some of the hospitals in each round."""
    result = quick(strategy="feddyn", rounds=5, participation={"sites": 3}, **SMALL)
    saved = load_file(result.path / "checkpoint.safetensors")
    server = FedDyn(hospitals=4)
    part = "strategy/"
    restore_strategy(server, {key.removeprefix(part): value for key, value in saved.items() if key.startswith(part)})
    drifts = [kept(result, f"hospital-{number}")["local.drift"] for number in (1, 2, 3, 4)]
    mine = np.concatenate([np.ravel(server.drift[name]) for name in START])
    assert np.abs(mine).max() > 0.01 and any(np.abs(drift - mine).max() > 0.01 for drift in drifts)
    np.testing.assert_allclose(mine, np.mean(drifts, 0), atol=1e-5)
