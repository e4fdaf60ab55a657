"""What a Flower user tried and lost without a word: each row of the review's tables works, or is refused in a sentence.

Rows with tests of their own elsewhere: an own start, clipping at clients, None for a model, metrics, records and numbers for
hospitals, queries, an optimizer's state, evaluate_fn (test_flowers_meaning); strategies of Flower's pages
(test_from_flowers_pages); objects in place of names (tests/front/test_naming); foreign apps (tests/sim/test_simulation);
`flwr run` with files beside it and wrong values (tests/flower/test_flower); mods (tests/client/test_mods); partitioners
(tests/ehr/partition/test_own_partitioners).
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import flwr.server.strategy as older
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord
from flwr.server import ServerApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg

import polyclinic
from polyclinic.client_app import app as hospital
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.inspection.result import RunResult

Quick = Callable[..., RunResult]


class Trimmed(older.FedAvg):
    """A strategy of Flower's older API, as in its baselines."""


@pytest.mark.parametrize("strategy", [Trimmed, Trimmed(), f"{__name__}:Trimmed"], ids=["class", "made", "name"])
def test_a_strategy_of_the_older_api_is_told_what_runs_it(quick: Quick, tmp_path: Path, strategy: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        quick(strategy=strategy)
    assert str(refused.value).endswith(
        "which is not a Flower Strategy class; it is one of Flower's older API, which `polyclinic simulate` runs."
    )
    assert not list(tmp_path.iterdir())


def test_a_strategy_around_another_is_told_to_become_a_class(quick: Quick) -> None:
    with pytest.raises(ConfigError, match=r"more is its own than .* give the class"):
        quick(strategy=DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 0.1, 4))


class Adaptive(DifferentialPrivacyServerSideAdaptiveClipping):
    def __init__(self, **options: Any) -> None:
        super().__init__(FedAvg(**options), 0.1, 4, initial_clipping_norm=0.01)


def test_server_side_clipping_in_a_class_clips(quick: Quick) -> None:
    plain = {"privacy": {"dp": False}, "rounds": 1}
    clipped, free = quick(strategy=Adaptive, **plain), quick(**plain)
    assert 0 < clipped.arrays["0.weight"].norm() < free.arrays["0.weight"].norm()


class Reads(FedAvg):
    """Reads what Flower's examples read of a reply."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        losses = [float(reply.content["metrics"]["train_loss"]) for reply in replies]
        arrays, metrics = super().aggregate_train(server_round, replies)
        metrics["lowest"] = min(losses)
        return arrays, metrics


def test_a_reply_has_the_training_loss_by_flowers_name(quick: Quick) -> None:
    result = quick(strategy=Reads, privacy={"dp": False}, rounds=1)
    rows = result.rounds[result.rounds["site"].str.startswith("hospital")]
    assert result.strategy_metrics.loc[(1, "train"), "lowest"] == pytest.approx(rows["train_loss"].min())


LOSS = "train_loss"


class ReadsByName(FedAvg):
    """Reads the loss through a name and a function of its module."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        lowest(replies)
        return super().aggregate_train(server_round, replies)


def lowest(replies: list[Message]) -> float:
    return min(float(reply.content["metrics"][LOSS]) for reply in replies)  # type: ignore[index, arg-type]


class DoesWithout(FedAvg):
    """Counts its calls, and takes the loss where there is one."""

    calls = 0

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        self.calls += 1
        arrays, _ = super().aggregate_train(server_round, replies)
        losses = [reply.content.metric_records["metrics"].get("train_loss") for reply in replies]
        return arrays, MetricRecord({"calls": self.calls, "losses": sum(loss is not None for loss in losses)})


@pytest.mark.parametrize("strategy", [Reads, ReadsByName])
def test_a_strategy_that_needs_what_privacy_withholds_is_refused_before_anything_is_spent(
    quick: Quick, tmp_path: Path, strategy: type[FedAvg]
) -> None:
    with pytest.raises(ConfigError) as refused:
        quick(strategy=strategy)
    assert str(refused.value).partition("\n")[0] == (
        f"The strategy {strategy.__name__} reads 'train_loss' of hospitals' replies, which hospitals withhold in a private run; "
        "they send num-examples and steps. Set privacy.dp to false, or let the strategy do without it."
    )
    assert not list(tmp_path.rglob("ledger.sqlite"))


def test_a_strategy_that_takes_the_loss_where_there_is_one_runs_with_privacy_and_without(quick: Quick) -> None:
    for dp, losses in ((True, 0), (False, 4)):
        metrics = quick(strategy=DoesWithout, privacy={"dp": dp}, rounds=2).strategy_metrics
        assert metrics.loc[(2, "train"), "calls"] == 2  # the trial was a copy's
        assert metrics.loc[(2, "train"), "losses"] == losses


def test_polyclinics_hospitals_under_a_foreign_server_are_an_error_that_is_told() -> None:
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        FedAvg(fraction_evaluate=0.0).start(grid, ArrayRecord({"w": Array(np.zeros(2))}), num_rounds=1)

    with pytest.raises(
        PolyclinicError, match="Every one of 2 replies was an error.*was not sent by Polyclinic's server"
    ):
        polyclinic.simulate(server, hospital, num_supernodes=2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_a_node_lacks_is_told_before_anything_is_spent(tmp_path: Path) -> None:
    """Under Flower nobody looks before the nodes do."""
    from polyclinic.config import RunConfig
    from polyclinic.server.federate import Places, federate
    from polyclinic.sim.calls import AppReference
    from polyclinic.sim.grid import LocalGrid

    config = RunConfig(gpus=1, rounds=1)
    with pytest.raises(PolyclinicError, match="'gpus' has the value 1, but torch finds no GPU at this node"):
        federate(LocalGrid(AppReference("polyclinic.client_app"), 4, config.flat()), config, "r", Places(tmp_path))
    assert not list(tmp_path.rglob("ledger.sqlite"))


def test_lists_and_mappings_of_python_are_values(quick: Quick) -> None:
    result = quick(model="mlp", hidden=[16, 8], strategy="fedadam", strategy_options={"eta": 0.05}, rounds=1)
    summary = json.loads((result.path / "summary.json").read_text())
    assert summary["rounds"] == 1 and result.config.widths == (16, 8) and result.config.options == {"eta": 0.05}


class Forgot(FedAvg):
    """Aggregates, and does not return what comes of it."""

    associative = True

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        super().aggregate_train(server_round, replies)


class Half(FedAvg):
    """Returns the model without metrics."""

    associative = True

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        return super().aggregate_train(server_round, replies)[0]


class Silent(FedAvg):
    """Makes messages, and does not return them."""

    associative = True

    def configure_train(self, *given: Any) -> Any:
        super().configure_train(*given)


@pytest.mark.parametrize(
    "keys",
    [{"privacy": {"dp": False}}, {"privacy": {"dp": True}}, {"privacy": {"dp": False}, "central": {"epsilon": 5.0}}],
)
@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        (Forgot, "Forgot returns None from aggregate_train, which must return two values, the model (an ArrayRecord or None) "
                 "and the metrics; is a `return` missing?"),
        (Half, "Half returns an object of type ArrayRecord from aggregate_train, which must return two values, the model (an "
               "ArrayRecord or None) and the metrics."),
        (Silent, "Silent returns None from configure_train, which must return the messages to the hospitals; is a `return` "
                 "missing?"),
    ],
)  # fmt: skip
def test_a_strategy_that_forgets_to_return_is_told_what_it_must_return(
    quick: Quick, strategy: type[FedAvg], words: str, keys: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as refused:
        quick(strategy=strategy, **keys)
    assert str(refused.value) == f"The strategy {words}" and refused.value.exit_code == 2
