"""Halves at hospitals in training: every trainer and stack alike, charged for each gradient, and hospitals kept apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from polyclinic.config import RunConfig
from polyclinic.inspection.result import RunResult
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.events import dpsgd_event, event_from_json
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.streams import Size, Stream
from polyclinic.programs import program_of
from polyclinic.training import classification
from polyclinic.training.auditing.views import HalfAround
from polyclinic.training.local import PLAIN, Sites, Trained
from polyclinic.training.stacked.engines import Engine
from polyclinic.training.stacked.trainer import train_stacked
from polyclinic.training.task import SiteWork, own_arrays
from polyclinic.types import Reals
from tests.strategies.local_halves.halves import (
    HALVES,
    START,
    assert_alike,
    build,
    gradients,
    moved,
    next_work,
    settings,
    two_rounds,
    work,
)
from tests.strategies.local_halves.halves import SIZE as PARAMETERS

Quick = Callable[..., RunResult]
NAMES = ("feddyn", "fednova", "fedrep", "fedper", "apfl", "mr-mtl", "per-fedavg", "moon")
BOTH: dict[str, Any] = {"rounds": 3, "model": "mlp", "hidden": "3", "training.momentum": 0.0, "training.local-steps": 4}


@pytest.mark.parametrize(
    ("name", "optimizer"), [(name, kind) for name in HALVES for kind in ("sgd", "adam")[: 1 + (name != "fednova")]]
)
def test_all_trainers_give_the_same_models_and_keep_the_same(name: str, optimizer: str) -> None:
    engines = ("functional", "opacus") if name == "moon" else ("linear", "functional", "opacus")
    both = settings(double=True, optimizer=optimizer)
    updates = [two_rounds(HALVES[name], 3, replace(both, engine=engine)) for engine in engines]
    plain = two_rounds(PLAIN, 3, replace(both, engine=engines[0]))
    for found in updates[1:]:
        for ours, theirs in zip(found, updates[0], strict=True):
            assert_alike(ours, theirs, 2e-6)
    for ours, theirs in zip(updates[0], plain, strict=True):
        away = max(np.abs(ours.arrays[label] - value).max() for label, value in theirs.arrays.items())
        assert away > 1e-3 or name in ("fedper", "apfl", "apfl adaptive")


@pytest.mark.parametrize("name", HALVES)
def test_neither_the_stack_nor_memory_changes_a_hospitals_result(name: str) -> None:
    half, chosen = HALVES[name], settings(double=True, local=HALVES[name])
    engine: Engine = "functional" if name == "moon" else "linear"
    first = classification.train(build, START, work(3), chosen)

    def train(places: slice, memory: int) -> list[Any]:
        some = next_work(half, first)[places]
        return train_stacked(lambda: build().double(), moved(START), some, chosen, engine, memory)

    together = train(slice(None), 1 << 30)
    for place, expected in enumerate(together):
        assert_alike(train(slice(place, place + 1), 1 << 30)[0], expected, 1e-7)
        assert_alike(train(slice(None), 1 << 15)[place], expected, 1e-7)


@pytest.mark.parametrize("name", ["apfl", "moon"])
def test_a_real_hospital_takes_the_round_that_a_simulated_one_takes(name: str) -> None:
    """It computes every patient apart, in float64."""
    simulated = two_rounds(HALVES[name], 2, settings(double=True))
    for ours, theirs in zip(two_rounds(HALVES[name], 2, settings(double=True, apart=True)), simulated, strict=True):
        assert_alike(ours, theirs, 2e-6)


@pytest.mark.parametrize("strategy", ["apfl", pytest.param("feddyn", marks=pytest.mark.slow)])
def test_every_number_of_workers_gives_the_same_model(quick: Quick, strategy: str) -> None:
    one, two = (quick(strategy=strategy, workers=workers, **BOTH | {"rounds": 2}) for workers in (1, 2))
    for label, value in one.arrays.items():
        np.testing.assert_allclose(two.arrays[label].numpy(), value.numpy(), atol=1e-6)
    assert two.pooled["loss"] == pytest.approx(one.pooled["loss"], abs=1e-6)


# ---- what it costs


class Counted:
    """A stream that counts the numbers drawn from it."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.normals, self.uniforms = stream, 0, 0

    def normal(self, size: Size) -> Reals:
        self.normals += int(np.prod(size))
        return self.stream.normal(size)

    def uniform(self, size: Size) -> Reals:
        self.uniforms += int(np.prod(size))
        return self.stream.uniform(size)


@pytest.mark.parametrize("engine", ["functional", "opacus"])
@pytest.mark.parametrize("name", HALVES)
def test_golden_20_each_gradient_is_charged_and_has_its_own_batch_and_noise(name: str, engine: str) -> None:
    made = sum(gradients(name).values())
    asked = settings(sample_rate=0.1, noise_multiplier=1.0, local=HALVES[name], engine=engine)
    assert {one.name: one.gradients for one in HALVES[name].passes(asked)} == gradients(name)
    cost = epsilon(classification.event(asked), 1e-3)
    assert cost == pytest.approx(epsilon(dpsgd_event(0.1, 1.0, made), 1e-3), rel=1e-9)
    counted = [(Counted(site.sampling), Counted(site.noise)) for site in work(2)]
    sites = [replace(site, sampling=s, noise=n) for site, (s, n) in zip(work(2), counted, strict=True)]
    updates = classification.train(build, START, sites, asked)
    for site, update, (sampling, noise) in zip(sites, updates, counted, strict=True):
        assert (noise.normals, sampling.uniforms) == (made * PARAMETERS, made * site.rows.patients)
        assert update.steps == made


@pytest.mark.parametrize("name", NAMES)
def test_the_ledgers_hold_just_what_the_run_was_calibrated_for(quick: Quick, name: str) -> None:
    result = quick(strategy=name, **BOTH)
    noise, config = result.privacy["noise_multiplier"], result.config
    program = program_of(config)
    looks = 8 if name in ("apfl", "per-fedavg") else 4
    whole = epsilon(dpsgd_event(config.training.sample_rate, noise, 3 * looks), 1e-3)
    assert epsilon(program.price(program.settings(noise)), 1e-3) < whole <= 3.0
    for ledger in Ledger.read_all(result.path / "sites" / "ledger.sqlite").values():
        rounds = [event_from_json(charge["event"]) for charge in ledger.events() if charge["purpose"] == "train"]
        one = epsilon(dpsgd_event(config.training.sample_rate, noise, looks), 1e-3)
        assert [epsilon(event, 1e-3) for event in rounds] == pytest.approx([one] * 3, rel=1e-6)
        assert 2.9 < ledger.epsilon() <= 3.0
    plain = program_of(RunConfig.build(config.minimal() | {"strategy": "fedavg", "training.local-steps": 4}))
    price = [epsilon(each.price(each.settings(1.0)), 1e-3) for each in (plain, program)]
    assert price[1] > 1.2 * price[0] if looks == 8 else price[1] == pytest.approx(price[0], rel=1e-9)


@dataclass(frozen=True)
class Greedy(HalfAround):
    """A half that asks for a gradient more of a pass after its round."""

    more: str = ""

    def round(self, sites: Sites) -> Trained:
        trained = self.half.round(sites)
        sites.gradient(sites.model, self.more)
        return trained


@pytest.mark.parametrize("engine", ["functional", "opacus"])
@pytest.mark.parametrize(("name", "one"), [(name, one) for name in HALVES for one in (*gradients(name), "more")])
def test_no_half_makes_a_gradient_more_than_it_declares(name: str, one: str, engine: str) -> None:
    noise = [Counted(site.noise) for site in work(2)]
    sites = [replace(site, noise=stream) for site, stream in zip(work(2), noise, strict=True)]
    words = (
        "has no pass 'more'" if one == "more" else "more gradients" + (f" of the pass {one!r}" if one else "") + " than"
    )
    with pytest.raises(RuntimeError, match=words):
        classification.train(build, START, sites, settings(local=Greedy(HALVES[name], one), engine=engine))
    assert noise[0].normals == sum(gradients(name).values()) * PARAMETERS


# ---- numbers that are not finite


WILD: dict[str, Any] = {"noise_multiplier": None, "momentum": 0.9, "double": True}


def spoiled(sites: list[SiteWork]) -> list[SiteWork]:
    """The second hospital's model has a weight that is not finite, and so has all that comes of it."""
    weight = np.full_like(START["0.weight"], np.nan)
    return [replace(site, own={**site.own, "0.weight": weight}) if site.number == 1 else site for site in sites]


@pytest.mark.parametrize("name", HALVES)
def test_what_is_not_finite_at_one_hospital_of_a_stack_stays_at_it(name: str) -> None:
    half = HALVES[name]
    chosen = settings(**WILD | ({"momentum": 0.0} if name == "fednova" else {}), local=half)
    first = classification.train(build, START, work(3), chosen)
    usual = classification.train(build, moved(START), next_work(half, first), chosen)
    second = classification.train(build, moved(START), spoiled(next_work(half, first)), chosen)
    assert not all(np.isfinite(value).all() for value in second[1].arrays.values())
    for place in (0, 2):
        assert_alike(second[place], usual[place], 1e-7)
    for label, value in second[1].state.items():
        assert np.isfinite(value).all(), label
    # With its records in order again, and the model that it was sent, it trains.
    back = [replace(site, own={}) for site in next_work(half, second, 3)]
    for update in classification.train(build, START, back, chosen):
        assert all(np.isfinite(value).all() for value in (*update.arrays.values(), *own_arrays(update.state).values()))


@pytest.mark.parametrize(("name", "what"), [("feddyn", "local.drift"), ("moon", "local.last")])
def test_a_round_that_is_not_finite_leaves_what_a_hospital_kept(name: str, what: str) -> None:
    """The server drops such a reply, so that its own sum over hospitals stays as well."""
    chosen = settings(**WILD, local=HALVES[name])
    first = classification.train(build, START, work(2), chosen)
    second = classification.train(build, moved(START), spoiled(next_work(HALVES[name], first)), chosen)
    np.testing.assert_array_equal(second[1].state[what], first[1].state[what])
    assert not np.array_equal(second[0].state[what], first[0].state[what])
