"""Models averaged before the strategy sees them: the same model, and nobody's model is lost or counted twice."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from polyclinic.client import training
from polyclinic.client.training import join
from polyclinic.errors import PolyclinicError
from polyclinic.inspection.result import RunResult
from polyclinic.server.exchange.merging import merge
from polyclinic.wire.arrays import MERGED, WEIGHT, from_record, to_record, weighted_mean
from polyclinic.wire.messages import RECORD

Quick = Callable[..., RunResult]
SEEN: list[int] = []


class Plain(FedAvg):
    """A researcher's strategy that says nothing of associativity."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        SEEN.append(len(list(replies := list(replies))))
        return super().aggregate_train(server_round, replies)


class Declared(Plain):
    associative = True


class Exploding(FedAvg):
    """Sends its last hospital a model that overflows as soon as it is trained."""

    associative = True

    def configure_train(self, *arguments: Any) -> Any:
        messages = sorted(super().configure_train(*arguments), key=lambda message: message.metadata.dst_node_id)
        worst = {name: np.full_like(value, 3e38) for name, value in from_record(messages[-1].content["arrays"]).items()}
        messages[-1].content = RecordDict({**messages[-1].content, "arrays": to_record(worst)})
        return messages


def reply(models: dict[str, np.ndarray] | None, weight: float, **told: Any) -> Message:
    asked = Message(RecordDict(), 1, "train")
    content = RecordDict({"metrics": MetricRecord({"num-examples": weight}), RECORD: ConfigRecord(told)})
    if models is not None:
        content["arrays"] = to_record(models)
    return Message(content, reply_to=asked)


@pytest.mark.parametrize(
    "options",
    [{}, {"upload.form": "difference", "upload.precision": "int8"}, {"upload.form": "difference", "upload.share": 0.1}],
)
def test_a_declared_strategy_sees_one_mean_and_another_sees_every_model(quick: Quick, options: dict[str, Any]) -> None:
    SEEN.clear()
    whole = quick(strategy=f"{__name__}:Plain", rounds=2, **options)
    assert SEEN == [4, 4]
    merged = quick(strategy=f"{__name__}:Declared", rounds=2, **options)
    assert SEEN == [4, 4, 1, 1]
    for name, value in whole.arrays.items():
        np.testing.assert_allclose(merged.arrays[name].numpy(), value.numpy(), rtol=1e-5, atol=1e-6)
        assert merged.arrays[name].dtype == value.dtype
    told = ["site", "epsilon", "bytes_down", "bytes_up"]
    assert merged.rounds[told].equals(whole.rounds[told])
    assert merged.sites.rounds_joined.tolist() == [2, 2, 2, 2]


def test_a_stack_too_large_for_memory_is_trained_in_parts(quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    SEEN.clear()
    whole = quick(strategy=f"{__name__}:Declared", rounds=1)
    monkeypatch.setattr(training, "STACK_BYTES", 1)
    parts = quick(strategy=f"{__name__}:Declared", rounds=1)
    assert parts.summary["statement"]["sites"].keys() == whole.summary["statement"]["sites"].keys()
    for name, value in whole.arrays.items():
        np.testing.assert_allclose(parts.arrays[name].numpy(), value.numpy(), rtol=1e-6, atol=1e-7)


def test_a_model_that_is_not_finite_drops_its_site_alone(quick: Quick) -> None:
    result = quick(strategy=f"{__name__}:Exploding", rounds=1, privacy={"dp": False})
    assert [drop["site"] for drop in result.summary["dropouts"]] == ["hospital-4"]
    assert "not finite" in result.summary["dropouts"][0]["reason"]
    assert all(np.isfinite(value.numpy()).all() for value in result.arrays.values())


def test_weighted_mean_is_that_of_numpy_and_does_not_depend_on_who_is_averaged_with_whom() -> None:
    rng = np.random.default_rng(0)
    models = [{"a": rng.normal(size=(3, 2)).astype(np.float32), "b": np.float32(rng.normal())} for _ in range(600)]
    weights = rng.uniform(1, 100, size=600)
    mean = weighted_mean(models, weights)
    for name in ("a", "b"):
        values = np.stack([model[name] for model in models]).astype(np.float64)
        np.testing.assert_allclose(mean[name], np.average(values, axis=0, weights=weights), rtol=1e-13)
    halves = [weighted_mean(models[part], weights[part]) for part in (slice(0, 100), slice(100, 600))]
    again = weighted_mean(halves, [weights[:100].sum(), weights[100:].sum()])
    assert all((again[name].astype(np.float32) == mean[name].astype(np.float32)).all() for name in mean)


def test_a_lost_or_doubled_mean_is_noticed() -> None:
    model = {"a": np.ones(2)}
    told = {MERGED: 16}
    three = [reply(model, 1.0, **told, **{WEIGHT: 3.0}), reply(None, 1.0, **told), reply(None, 1.0, **told)]
    assert len(merge(three, "num-examples")) == 1
    with pytest.raises(PolyclinicError, match="was lost, or stands for others"):
        merge([*three[:2], reply(model, 1.0, **told, **{WEIGHT: 3.0})], "num-examples")
    with pytest.raises(PolyclinicError, match="add up to 0"):
        merge([reply(model, 0.0)], "num-examples")
    assert len(merge([reply(model, 1.0), reply(model, 1.0)], "another-metric")) == 2


def test_only_finite_models_are_joined() -> None:
    models = [{"a": np.array([value])} for value in (1.0, np.nan, 3.0)]
    replies = [reply(None, 1.0).content for _ in models]
    join(replies, "arrays", models, models, [1.0, 5.0, 3.0])
    assert from_record(replies[0]["arrays"])["a"] == 2.5  # type: ignore[arg-type]
    assert [MERGED in content[RECORD] for content in replies] == [True, False, True]
    assert np.isnan(from_record(replies[1]["arrays"])["a"])  # type: ignore[arg-type]
    assert replies[0][RECORD][WEIGHT] == 4.0 and "arrays" not in replies[2]  # type: ignore[index]
