"""SCAFFOLD: against its algorithm written out in NumPy, charged for what it looks at, the same with every trainer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import ComposedDpEvent, DpEvent, GaussianDpEvent, SelfComposedDpEvent
from flwr.app import Message, MetricRecord, RecordDict

from polyclinic import Federation
from polyclinic.client.checks import beside
from polyclinic.ehr.datasets import load_shards
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.inspection.result import RunResult
from polyclinic.models.tabular import initialise, mlp
from polyclinic.plugins import dataset_named
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.events import dpsgd_event, event_from_json
from polyclinic.privacy.ledger import Ledger
from polyclinic.privacy.streams import keyed_stream
from polyclinic.programs import program_of
from polyclinic.server.exchange.replies import problem
from polyclinic.server.progress import Progress
from polyclinic.strategies.ditto import Ditto
from polyclinic.strategies.scaffold import Scaffold
from polyclinic.training import classification
from polyclinic.training.auditing.views import HalfAround
from polyclinic.training.local import LocalHalf, Sites, Trained
from polyclinic.training.preparation import standardise
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays
from polyclinic.wire.arrays import to_record

Quick = Callable[..., RunResult]
Floats = np.ndarray
PLAIN: dict[str, Any] = {
    "privacy.dp": False,
    "training.sample-rate": 1.0,
    "training.local-steps": 3,
    "training.learning-rate": 0.5,
}


def patients(result: RunResult) -> dict[str, Rows]:
    """Each hospital's training rows as the run saw them."""
    config = result.config
    dataset = dataset_named(config.dataset)
    partitioner = config.partitioner or dataset.default_partitioner
    shards = load_shards(dataset, config.sites, partitioner, config.seed, config.alpha)
    scale = result.arrays["standardiser.mean"].numpy(), result.arrays["standardiser.std"].numpy()
    return {shard.site: standardise(shard.train, scale) for shard in shards}


def gradient(rows: Rows, weight: Floats, bias: Floats) -> tuple[Floats, Floats]:
    """Of the mean cross-entropy of softmax regression, over patients of one row each."""
    x = np.nan_to_num(rows.x, nan=0.0)
    scores = x @ weight.T + bias
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    off = (odds / odds.sum(axis=1, keepdims=True) - np.eye(len(bias))[rows.y]) / len(x)
    return off.T @ x, off.sum(axis=0)


def algorithm_1(result: RunResult, option: str, took_part: Sequence[set[str]]) -> list[Floats]:
    """Karimireddy et al. 2020, Algorithm 1, on [weight, bias] in float64, eta_g = 1."""
    config, rows = result.config, patients(result)
    x = [np.zeros((2, 30)), np.zeros(2)]  # a logistic model begins at zero
    c = [np.zeros_like(value) for value in x]
    own = {site: list(c) for site in rows}
    for cohort in took_part:
        ways, changes = [], []
        for site in sorted(cohort):
            y = list(x)
            for _ in range(config.training.local_steps):
                found = gradient(rows[site], *y)
                y = [
                    a - config.training.learning_rate * (g - mine + all_)
                    for a, g, mine, all_ in zip(y, found, own[site], c, strict=True)
                ]
            length = config.training.local_steps * config.training.learning_rate
            ii = [mine - all_ + (a - b) / length for mine, all_, a, b in zip(own[site], c, x, y, strict=True)]
            new = ii if option == "update" else list(gradient(rows[site], *x))
            ways.append([b - a for a, b in zip(x, y, strict=True)])
            changes.append([b - a for a, b in zip(own[site], new, strict=True)])
            own[site] = new
        x = [a + sum(way[i] for way in ways) / len(cohort) for i, a in enumerate(x)]
        c = [a + sum(change[i] for change in changes) / len(rows) for i, a in enumerate(c)]
    return x


@pytest.mark.parametrize(("option", "cohort"), [("update", 0), ("update", 2), ("gradient", 2)])
def test_it_is_the_papers_algorithm(quick: Quick, option: str, cohort: int) -> None:
    result = quick(
        strategy="scaffold", rounds=5, strategy_options=f"variate={option}", participation={"sites": cohort}, **PLAIN
    )
    told = result.rounds[result.rounds.bytes_up.notna()]
    took_part = [set(told[told["round"] == number].site) for number in range(1, 6)]
    assert all(len(sites) == (cohort or 4) for sites in took_part)
    for name, expected in zip(("0.weight", "0.bias"), algorithm_1(result, option, took_part), strict=True):
        np.testing.assert_allclose(result.arrays[name].numpy(), expected, atol=2e-5)


def test_it_ends_where_the_hospitals_objectives_balance_and_fedavg_does_not(quick: Quick) -> None:
    """Theorem III: no drift, however unlike the hospitals are; FedAvg's local steps end elsewhere (section 3)."""

    def slope(strategy: str) -> float:
        options = PLAIN | {
            "training.local-steps": 20,
            "rounds": 40,
            "evaluation.every": 40,
            "partitioner": "dirichlet",
            "alpha": 0.3,
            "data.standardise": "measured",
        }
        result = quick(strategy=strategy, training={"weight_decay": 0.1}, strategy_options="", **options)
        model = [result.arrays[name].numpy().astype(float) for name in ("0.weight", "0.bias")]
        found = [np.concatenate([g.ravel() for g in gradient(rows, *model)]) for rows in patients(result).values()]
        penalty = 0.1 * np.concatenate([value.ravel() for value in model])
        return float(np.linalg.norm(np.mean(found, axis=0) + penalty))

    assert slope("scaffold") < 1e-3 < slope("fedavg") / 5


# ---- one hospital


def settings(**changes: Any) -> TrainSettings:
    values: dict[str, Any] = {
        "sample_rate": 0.3, "local_steps": 4, "learning_rate": 0.2, "max_grad_norm": 0.4, "noise_multiplier": 0.7,
    }  # fmt: skip
    return TrainSettings(**(values | changes))


def work(sites: int, turn: int = 0, **changes: Any) -> list[SiteWork]:
    found = []
    for site in range(sites):
        rng, count = np.random.default_rng(site), 20 + 9 * site
        rows = Rows(rng.normal(size=(count, 6)), rng.integers(0, 3, count), np.arange(count), count)
        streams = [keyed_stream(0, purpose, site, turn) for purpose in ("batches", "noise")]
        found.append(SiteWork(rows, *streams, count + 0.5, **changes))
    return found


def build() -> torch.nn.Module:
    return mlp(6, 3, (5,))


START: Arrays = {name: value.numpy() for name, value in initialise(build, 3).items()}
CHANGE: Arrays = {name: np.full_like(value, 0.1) for name, value in START.items()}
CONTROL: dict[str, Arrays] = {"control": CHANGE}


@pytest.mark.parametrize("variate", ["update", "gradient"])
def test_all_trainers_give_the_same_models_and_control_variates(variate: str) -> None:
    updates: dict[str, list[SiteUpdate]] = {}
    for engine in ("linear", "functional", "opacus"):
        states: list[Arrays] = [{} for _ in range(3)]
        for turn in (1, 2):
            sites = [replace(site, state=own) for site, own in zip(work(3, turn, beside=CONTROL), states, strict=True)]
            chosen = settings(engine=engine, double=True, local=Scaffold.Local(variate))
            updates[engine] = classification.train(build, START, sites, chosen)
            states = [update.state for update in updates[engine]]
    for engine in ("linear", "functional"):
        for ours, theirs in zip(updates[engine], updates["opacus"], strict=True):
            assert set(ours.beside["control"]) == set(START) and set(ours.state) == {"local.control"}
            parts = (
                (ours.arrays, theirs.arrays),
                (ours.beside["control"], theirs.beside["control"]),
                (ours.state, theirs.state),
            )
            for place, (mine, other) in enumerate(parts):
                for name, value in other.items():
                    np.testing.assert_allclose(mine[name], value, atol=1e-6)
                    assert place == 0 or np.abs(value).max() > 0


def test_a_variate_that_is_not_finite_leaves_the_hospitals_as_it_was() -> None:
    half = Scaffold.Local()
    first = classification.train(build, START, work(1, beside=CONTROL), settings(local=half))[0]
    sites = [replace(site, state=first.state) for site in work(1, beside=CONTROL)]
    wild = classification.train(build, START, sites, settings(learning_rate=1e38, noise_multiplier=1e6, local=half))[0]
    assert not all(np.isfinite(value).all() for value in wild.arrays.values())
    for value in wild.beside["control"].values():
        np.testing.assert_array_equal(value, 0)
    np.testing.assert_array_equal(wild.state["local.control"], first.state["local.control"])


# ---- what it costs


HALVES: list[tuple[LocalHalf, DpEvent]] = [
    (Scaffold.Local(), dpsgd_event(0.1, 1.0, 10)),
    (Scaffold.Local("gradient"), ComposedDpEvent([dpsgd_event(0.1, 1.0, 10), GaussianDpEvent(10.0)])),
    (Ditto.Local(), dpsgd_event(0.1, 1.0, 20)),
]


@pytest.mark.parametrize(("half", "cost"), HALVES)
def test_golden_20_every_look_at_the_records_is_charged(half: LocalHalf, cost: DpEvent) -> None:
    asked = settings(sample_rate=0.1, noise_multiplier=1.0, local_steps=10, local=half)
    assert epsilon(classification.event(asked), 1e-3) == pytest.approx(epsilon(cost, 1e-3), rel=1e-9)
    looks = Counting(half)
    classification.train(build, START, work(2, beside=CONTROL), replace(asked, local=looks))
    assert looks.made == {one.name: one.gradients for one in half.passes(asked)}


@dataclass(frozen=True)
class Counting(HalfAround):
    """A half that counts the gradients which another one asks for."""

    made: dict[str, int] = field(default_factory=dict)

    def round(self, sites: Sites) -> Trained:
        counting, plain = self, sites.gradient

        def gradient(models: torch.Tensor, name: str = "", penalty: Any = None) -> torch.Tensor:
            counting.made[name] = counting.made.get(name, 0) + 1
            return plain(models, name, penalty)

        sites.gradient = gradient  # type: ignore[method-assign]
        return self.half.round(sites)


def test_option_i_costs_more_than_option_ii() -> None:
    asked = settings(sample_rate=0.1, noise_multiplier=1.0, local_steps=10)
    steps, more = (
        classification.event(replace(asked, local=half)) for half in (Scaffold.Local(), Scaffold.Local("gradient"))
    )
    assert epsilon(more, 1e-3) > 1.01 * epsilon(steps, 1e-3)


@pytest.mark.parametrize(
    "values", [{"strategy": "scaffold", "strategy_options": "variate=gradient"}, {"strategy": "ditto"}]
)
def test_the_ledgers_hold_just_what_the_run_was_calibrated_for(quick: Quick, values: dict[str, Any]) -> None:
    result = quick(rounds=3, **values)
    noise = result.privacy["noise_multiplier"]
    once = program_of(result.config).price(program_of(result.config).settings(noise))
    for ledger in Ledger.read_all(result.path / "sites" / "ledger.sqlite").values():
        rounds = [event_from_json(charge["event"]) for charge in ledger.events() if charge["purpose"] == "train"]
        whole = epsilon(SelfComposedDpEvent(once, 3), 1e-3)
        assert len(rounds) == 3 and epsilon(ComposedDpEvent(rounds), 1e-3) == pytest.approx(whole, rel=1e-6)
        assert 2.9 < ledger.epsilon() <= 3.0
    plain = quick(rounds=3, strategy="fedavg").privacy["noise_multiplier"]
    assert noise > 1.005 * plain


# ---- runs


class Stops(Progress):
    def on_round(self, config: Any, state: Any) -> None:
        if state.round == 2:
            raise PolyclinicError("The lights went out.")


@pytest.mark.parametrize("variate", ["update", "gradient"])
def test_a_resumed_run_is_the_uninterrupted_one(quick: Quick, tmp_path: Path, variate: str) -> None:
    options = {"rounds": 4, "strategy": "scaffold", "strategy_options": f"variate={variate}", "participation.sites": 3}
    whole = quick(**options)
    with pytest.raises(PolyclinicError, match="lights"):
        quick(progress=Stops(), out=str(tmp_path / "stopped"), **options)
    (folder,) = (tmp_path / "stopped").iterdir()
    resumed = Federation.resume(folder)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]
    assert resumed.privacy["epsilon"] == whole.privacy["epsilon"]


def test_compression_and_a_learning_rate_of_the_server_go_with_it(quick: Quick) -> None:
    one = quick(strategy="scaffold", rounds=3)
    near = quick(strategy="scaffold", rounds=3, upload={"form": "difference", "precision": "half"})
    np.testing.assert_allclose(near.arrays["0.weight"].numpy(), one.arrays["0.weight"].numpy(), atol=5e-3)
    slow = quick(strategy="scaffold", rounds=3, strategy_options="server-learning-rate=0.5")
    assert not torch.allclose(slow.arrays["0.weight"], one.arrays["0.weight"], atol=1e-2)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"training.momentum": 0.9}, "set training.optimizer to 'sgd' and momentum to 0"),
        ({"training.optimizer": "adam"}, "set training.optimizer to 'sgd' and momentum to 0"),
        ({"strategy": "fedavg", "strategy_options": "variate=gradient"}, "'variate', which FedAvg does not take"),
        ({"strategy_options": "variate=gradient", "training.batching": "cyclic"}, "set training.batching to 'poisson'"),
        ({"task": "output-perturbation"}, "take another strategy"),
        ({"secure.aggregation": True}, "would leave without masks"),
        (
            {"central.epsilon": 2.0, "data.standardise": "none", "privacy.patients-per-site": 9},
            "does not start from their mean",
        ),
        ({"strategy_options": "hospitals=3"}, "'hospitals', which the round loop decides"),
        ({"strategy_options": "server-learning-rate=-1"}, "server-learning-rate must be a number above 0"),
        ({"strategy_options": "variate=steps"}, "variate must be 'update' or 'gradient'"),
    ],
)
def test_what_does_not_go_with_it_is_refused(quick: Quick, values: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        quick(**{"strategy": "scaffold", **values})


def test_a_hospital_wants_the_servers_variate_and_a_server_a_fitting_change() -> None:
    half = Scaffold.Local()
    with pytest.raises(ConfigError, match="no ArrayRecord named 'beside.control'"):
        beside(RecordDict({"arrays": to_record(START)}), half, START)
    for wrong in ({"0.bias": np.zeros(9)}, {"none": np.zeros(1)}, {"0.bias": np.full(5, np.nan)}):
        with pytest.raises(ConfigError, match="is not finite, or not of the model's shape"):
            beside(RecordDict({"beside.control": to_record(wrong)}), half, START)

    def reply(change: Arrays) -> Message:
        records = {
            "arrays": to_record(START),
            "metrics": MetricRecord({"num-examples": 1.0}),
            "beside.control": to_record(change),
        }
        return Message(RecordDict(records), 1, "train")

    assert problem(reply(CHANGE), START) is None
    assert "missing" in str(problem(reply({"0.bias": np.zeros(5)}), START))
    assert "not finite" in str(problem(reply(CHANGE | {"0.bias": np.full_like(START["0.bias"], np.inf)}), START))
