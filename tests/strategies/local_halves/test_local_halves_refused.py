"""What strategies with a half at hospitals refuse: options, secret sums, and what a coordinator has no right to ask."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from polyclinic.client.app import app
from polyclinic.client.home.state import read_state
from polyclinic.config import RunConfig
from polyclinic.errors import ConfigError
from polyclinic.inspection.result import RunResult
from polyclinic.models.tabular import initialise, logistic, mlp
from polyclinic.plugins import strategy_named
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.events import dpsgd_event
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.ledger.terms import plan_text
from polyclinic.programs import program_of
from polyclinic.server.phases.joining import may_join
from polyclinic.strategies import BUILT_IN
from polyclinic.strategies.fednova import FedNova
from polyclinic.strategies.registry import MEANS, counts_hospitals, merge_by
from polyclinic.types import Arrays
from polyclinic.wire.arrays import to_record
from polyclinic.wire.messages import LOCAL, REFUSED, StatisticsRequest, TrainRequest
from tests.client.test_hospital import context, ledger, make_hospital, message
from tests.strategies.local_halves.halves import START, moved

Quick = Callable[..., RunResult]
NAMES = ("feddyn", "fednova", "fedrep", "fedper", "apfl", "mr-mtl", "per-fedavg", "moon")
SMALL: dict[str, Any] = {"model": "mlp", "hidden": "3", "training.local-steps": 4}


# ---- options


def number(option: str, allowed: str, got: str) -> str:
    return f"{option} must be a number {allowed}, got {got}"


OPTIONS: list[tuple[str, str, str]] = [
    ("feddyn", "alpha=0", number("alpha", "above 0 and at most 1e+06", "0")),
    ("feddyn", "alpha=-0.1", number("alpha", "above 0 and at most 1e+06", "-0.1")),
    ("feddyn", "alpha=strong", number("alpha", "above 0 and at most 1e+06", "'strong'")),
    ("feddyn", "alpha=2e6", number("alpha", "above 0 and at most 1e+06", "2000000.0")),
    ("feddyn", "hospitals=3", "strategy-options names 'hospitals', which the round loop decides"),
    ("feddyn", "pull=1", "strategy-options names 'pull', which FedDyn does not take; it takes"),
    ("fednova", "fewest-steps=-1", "fewest-steps must be a whole number of at least 0, got -1"),
    ("fednova", "fewest-steps=1.5", "fewest-steps must be a whole number of at least 0, got 1.5"),
    ("fednova", "fewest-steps=true", "fewest-steps must be a whole number of at least 0, got True"),
    (
        "fednova",
        "fewest-steps=5",
        "strategy-options has fewest-steps 5, but training.local-steps is 4; take at most as many",
    ),
    ("fedrep", "head-steps=-1", "head-steps must be a whole number of at least 0, got -1"),
    ("fedrep", "head-steps=true", "head-steps must be a whole number of at least 0, got True"),
    ("fedrep", "head-steps=4", "of which head-steps 4 leave none for the representation or for the head"),
    ("fedrep", "layers=head.*", "the layers 'head.*', which no array of the model matches; they are 0.weight, 0.bias"),
    ("fedrep", "layers=*", "leaves no array of the model to share"),
    ("fedper", "layers=2.* tail.*", "the layers 'tail.*', which no array of the model matches"),
    ("fedper", "layers=0.* 2.*", "leaves no array of the model to share"),
    ("apfl", "alpha=1.1", number("alpha", "of at least 0 and at most 1", "1.1")),
    ("apfl", "alpha=-0.1", number("alpha", "of at least 0 and at most 1", "-0.1")),
    ("apfl", "adaptive=maybe", "adaptive must be true or false, got 'maybe'"),
    ("mr-mtl", "pull=-1", number("pull", "of at least 0 and at most 1e+06", "-1")),
    ("mr-mtl", "pull=true", number("pull", "of at least 0 and at most 1e+06", "True")),
    ("per-fedavg", "inner-rate=0", number("inner-rate", "above 0 and at most 1e+06", "0")),
    ("per-fedavg", "inner-rate=-1", number("inner-rate", "above 0 and at most 1e+06", "-1")),
    ("moon", "weight=-1", number("weight", "of at least 0 and at most 1e+06", "-1")),
    ("moon", "temperature=0", number("temperature", "above 0 and at most 1e+06", "0")),
    ("moon", "pull=1", "strategy-options names 'pull', which MOON does not take; it takes"),
]
KEYS: list[tuple[str, dict[str, Any], str]] = [
    ("fednova", {"training.momentum": 0.9},
    "momentum 0.9: only plain gradient steps are worth alike; set training.optimizer to 'sgd'"),
    ("fednova", {"training.optimizer": "adam"}, "optimizer is 'adam' with momentum 0: only plain gradient steps are worth alike"),
    ("fedrep", {"training.local-steps": 1},
    "Configuration key 'training.local-steps' has the value 1, of which head-steps 0 leave none"),
    ("moon", {"model": "logistic", "hidden": "32"}, "The model names no representation; set its attribute 'representation'"),
    ("moon", {"training.engine": "linear"}, "the loss has a penalty, of which there is no closed form"),
    ("apfl", {"training.batching": "cyclic"}, "set training.batching to 'poisson'"),
    ("per-fedavg", {"training.batching": "cyclic"}, "set training.batching to 'poisson'"),
    ("fedrep", {"training.batching": "cyclic"}, "set training.batching to 'poisson'"),
    *((name, {"task": "output-perturbation"}, "takes none that a strategy can change") for name in NAMES),
    *((name, {"secure.aggregation": True, "secure.shared-noise": True, "training.local-steps": 1, "training.sample-rate": 1.0},
       "with secure.shared-noise they give one sum and take no step") for name in ("apfl", "mr-mtl", "feddyn")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "words"), OPTIONS)
def test_a_bad_option_is_refused_in_one_sentence_before_a_folder_is_made(
    quick: Quick, tmp_path: Path, name: str, options: str, words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        quick(strategy=name, strategy_options=options, **SMALL)
    assert words in str(refused.value) and "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "values", "words"), KEYS)
def test_what_does_not_go_with_it_is_refused_before_a_folder_is_made(
    quick: Quick, tmp_path: Path, name: str, values: dict[str, Any], words: str
) -> None:
    smaller = SMALL if values.get("task") is None else {}
    with pytest.raises(ConfigError) as refused:
        quick(**{"strategy": name, **smaller, **values})
    assert words in str(refused.value) and "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


# ---- secret sums


@pytest.mark.parametrize("name", ["fedrep", "apfl", "mr-mtl", "per-fedavg", "moon"])
def test_a_mean_of_models_can_be_summed_secretly(quick: Quick, name: str) -> None:
    plain, secret = (quick(strategy=name, secure={"aggregation": on}, **SMALL) for on in (False, True))
    for label, value in plain.arrays.items():
        np.testing.assert_allclose(secret.arrays[label].numpy(), value.numpy(), atol=2e-4)
    assert secret.pooled["loss"] == pytest.approx(plain.pooled["loss"], abs=2e-3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("feddyn", "does not begin with the mean of models weighted by num-examples"),
        ("fednova", "steps-taken would leave"),
    ],
)
def test_what_needs_more_than_a_mean_is_not_summed_secretly_or_noised_centrally(
    quick: Quick, tmp_path: Path, name: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        quick(strategy=name, secure={"aggregation": True}, **SMALL)
    with pytest.raises(ConfigError, match="does not start from their mean"):
        quick(
            strategy=name,
            central={"epsilon": 2.0},
            data={"standardise": "none"},
            privacy={"patients_per_site": 80},
            **SMALL,
        )
    assert not list(tmp_path.iterdir())


def test_the_registry_knows_means_and_who_counts_hospitals() -> None:
    kinds = {name: strategy_named(name) for name in NAMES}
    assert {name for name in NAMES if name not in MEANS} == {"feddyn", "fednova"}
    assert {name for name in NAMES if merge_by(object.__new__(kinds[name])) is None} == {"feddyn", "fednova"}
    assert {name for name in NAMES if counts_hospitals(kinds[name])} == {"feddyn"}
    assert {name for name in NAMES if not may_join(program_of(RunConfig.build({"strategy": name})))} == {"feddyn"}


# ---- what hospitals say


def test_fednova_leaves_out_a_hospital_that_says_to_have_taken_no_whole_step() -> None:
    """One that says 1e-9 would move the model by a billion times its own way."""

    def reply(number: int, **said: float) -> Message:
        metrics = MetricRecord({"num-examples": 10.0, **said})
        content = RecordDict({"arrays": to_record(moved(START, number * 0.1)), "metrics": metrics})
        return Message(content, dst_node_id=number, message_type="train")

    def aggregated(*replies: Message) -> Arrays:
        strategy = FedNova()
        strategy._sent = to_record(START)
        arrays, _ = strategy.aggregate_train(1, replies)
        assert arrays is not None
        return {name: array.numpy() for name, array in arrays.items()}

    usual = aggregated(*(reply(number, **{"steps-taken": 2.0}) for number in (1, 2)))
    for wrong in ({"steps-taken": 0.0}, {"steps-taken": -3.0}, {"steps-taken": 1e-9}, {}):
        found = aggregated(*(reply(number, **{"steps-taken": 2.0}) for number in (1, 2)), reply(3, **wrong))
        for name, value in usual.items():
            np.testing.assert_array_equal(found[name], value)
            np.testing.assert_allclose(value, START[name] + 0.15, atol=1e-6)


# ---- what a coordinator asks of a real hospital


def first(config: RunConfig) -> Arrays:
    """The arrays of a model of the clinic's two features."""
    build = partial(logistic, 2, 2) if config.model == "logistic" else partial(mlp, 2, 2, (3,))
    return {name: value.numpy() for name, value in initialise(build, 0).items()}


def ask(hospital: Path, config: RunConfig, told: dict[str, Any] | None = None, **changes: Any) -> Message:
    """One round with a local half, whatever the configuration is of; ``told``: in the strategy's own record."""
    values: dict[str, Any] = {
        "run": "r", "site": 0, "round": 1, "noise_multiplier": 1.2, "public_patients": 150.0, "learning_rate": 0.5,
        "local_half": True,
    } | changes  # fmt: skip
    asked = message(TrainRequest(**values), "train", first(config))
    if told is not None:
        asked.content["config"] = ConfigRecord(told)
    return app(asked, context(hospital, config))


def config_of(name: str, **values: Any) -> RunConfig:
    usual = {
        "strategy": name,
        "model": "mlp",
        "hidden": "3",
        "training.local-steps": 4,
        "training.sample-rate": 0.2,
        "training.momentum": 0.0,
    }
    return RunConfig.build(usual | values)


@pytest.mark.parametrize("name", NAMES)
def test_a_half_that_the_policy_does_not_allow_is_refused_before_a_charge(tmp_path: Path, name: str) -> None:
    others = ", ".join(f'"{other}"' for other in BUILT_IN if other != name)
    hospital = make_hospital(tmp_path, f"{RICH}allowed-strategies = [{others}]\n")
    refused = ask(hospital, config_of(name))
    assert refused.error.code == REFUSED and f"not of {name!r}" in str(refused.error.reason)
    statistics = StatisticsRequest(run="r", site=0, noise_multiplier=5.0, local_half=True)
    early = app(message(statistics, "query.statistics"), context(hospital, config_of(name)))
    assert early.error.code == REFUSED and f"not of {name!r}" in str(early.error.reason)
    assert not (tmp_path / "home" / "ledger.sqlite").exists()
    hospital.write_text(hospital.read_text().replace(others, f'"{name}"'))
    assert ask(hospital, config_of(name), plan=plan_of(config_of(name))).has_content()
    assert len(ledger(hospital).events()) == 1


def plan_of(config: RunConfig, rounds: int = 2) -> str:
    program = program_of(config)
    return plan_text([(program.price(program.settings(1.2)), rounds)])


RICH = "budget = 50.0\ndelta = 1e-3\n"
LIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "a convex task": (
        "ditto", {"task": "objective-perturbation", "model": "logistic"}, "the task 'objective-perturbation' takes none",
    ),
    "a game": ("apfl", {"task": "synthesis", "model": "dpgan"}, "the task 'synthesis' takes none"),
    "shared noise": (
        "mr-mtl", {"secure.aggregation": True, "secure.shared-noise": True, "training.local-steps": 1,
        "training.sample-rate": 1.0},
        "with secure.shared-noise they give one sum",
    ),
    "numbers without masks": ("fednova", {"secure.aggregation": True}, "steps-taken would leave"),
    "momentum": ("fednova", {"training.momentum": 0.9}, "only plain gradient steps are worth alike"),
    "too few steps": ("fedrep", {"training.local-steps": 1}, "leave none for the representation"),
    "an option": ("apfl", {"strategy-options": "alpha=7"}, "alpha must be a number of at least 0 and at most 1, got 7"),
    "noise over time": ("apfl", {"training.batching": "cyclic"}, "set training.batching to 'poisson'"),
    "no representation": ("moon", {"model": "logistic"}, "The model names no representation"),
    "another engine": ("moon", {"training.engine": "linear"}, "the loss has a penalty, of which there is no closed form"),
    "no such layers": ("fedrep", {"strategy-options": "layers=tail.*"}, "which no array of the model matches"),
}  # fmt: skip


def charges(folder: Path) -> int:
    """How many charges the ledger holds; a hospital may have opened an empty one."""
    path = folder / "home" / "ledger.sqlite"
    return len(Ledger.read(path).events()) if path.exists() else 0


# What takes the model, or the noise process, to be seen.
LATE = ("noise over time", "no representation", "another engine", "no such layers")


@pytest.mark.parametrize("lie", LIES)
def test_a_coordinator_that_lies_about_a_half_is_refused_before_a_charge(tmp_path: Path, lie: str) -> None:
    name, values, words = LIES[lie]
    tasks = ("classification", "statistics", "synthesis", "objective-perturbation")
    policy = (
        f"allowed-tasks = {list(tasks)}\nallowed-models = ['logistic', 'mlp', 'dpgan']\nallow-shared-noise = true\n"
    )
    hospital = make_hospital(tmp_path, RICH + policy)
    refused = ask(hospital, config_of(name, **values))
    assert refused.has_error() and words in str(refused.error.reason), refused.error
    if lie not in LATE:
        statistics = StatisticsRequest(run="r", site=0, noise_multiplier=5.0, local_half=True)
        early = app(message(statistics, "query.statistics"), context(hospital, config_of(name, **values)))
        assert early.has_error() and words in str(early.error.reason)
    assert charges(tmp_path) == 0


def test_a_model_that_was_checked_without_a_half_is_checked_again_with_it(tmp_path: Path) -> None:
    hospital, config = make_hospital(tmp_path, RICH), config_of("moon", model="logistic")
    assert ask(hospital, config, local_half=False, plan=plan_of(config)).has_content()
    refused = ask(hospital, config, round=2, plan=plan_of(config))
    assert "The model names no representation" in str(refused.error.reason)
    assert charges(tmp_path) == 1


def test_a_pull_of_flowers_fedprox_beside_a_half_is_refused_before_a_charge(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, RICH)
    refused = ask(hospital, config_of("apfl"), {"proximal-mu": 0.1}, plan=plan_of(config_of("apfl")))
    assert "the strategy has a local half of its own" in str(refused.error.reason)
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


def test_a_half_beyond_the_policys_steps_is_refused_before_a_charge(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, RICH + "most-local-steps = 7\n")
    for name in ("apfl", "per-fedavg"):
        refused = ask(hospital, config_of(name))
        assert "training.local-steps 8 is above the policy's most-local-steps 7" in str(refused.error.reason)
    assert not (tmp_path / "home" / "ledger.sqlite").exists()
    assert ask(hospital, config_of("fedrep"), plan=plan_of(config_of("fedrep"))).has_content()


@pytest.mark.parametrize(("name", "looks"), [("apfl", 8), ("per-fedavg", 8), ("fedrep", 4), ("mr-mtl", 4)])
def test_a_real_hospitals_ledger_holds_the_gradients_of_the_half(tmp_path: Path, name: str, looks: int) -> None:
    hospital, config = make_hospital(tmp_path, RICH), config_of(name)
    reply = ask(hospital, config, plan=plan_of(config))
    assert reply.content["metrics"] == {"steps": float(looks), "num-examples": 150.0}
    assert ledger(hospital).epsilon() == pytest.approx(epsilon(dpsgd_event(0.2, 1.2, looks), 1e-3), rel=1e-6)


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_head_that_is_not_finite_is_not_gone_on_from(tmp_path: Path) -> None:
    hospital, config = (
        make_hospital(tmp_path, RICH),
        config_of("fedper", **{"training.weight-decay": 1e6}),
    )
    whole = first(config)

    def train(number: int, rate: float) -> Message:
        request = TrainRequest(
            run="r", site=0, round=number, noise_multiplier=1.2, public_patients=150.0, local_half=True,
            plan=plan_of(config),
        )  # fmt: skip
        asked = message(request, "train", {name: whole[name] for name in whole if name < "2"})
        asked.content[LOCAL] = to_record({name: whole[name] for name in whole if name > "2"})
        asked.content["config"] = ConfigRecord({"lr": rate})
        return app(asked, context(hospital, config))

    wild, tame = (train(*asked).content.array_records["arrays"]["0.weight"].numpy() for asked in ((1, 1e6), (2, 1e-7)))
    assert not np.isfinite(wild).all() and np.isfinite(tame).all()
    kept = read_state(tmp_path / "home", "r", 3)
    assert {name for name in kept if name.startswith("own.")} == {"own.2.weight", "own.2.bias"}
    assert all(np.isfinite(value).all() for value in kept.values())
    assert len(ledger(hospital).events()) == 2
