"""The method developer's example, a mean weighted by validation loss, does what its page says."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from flwr.app import Message, MetricRecord, RecordDict

from polyclinic.errors import ConfigError
from polyclinic.federation import Federation
from polyclinic.inspection.result import RunResult
from polyclinic.server.exchange.replies import alike
from polyclinic.server.progress import Progress
from tests.docs.test_docs import blocks

Quick = Callable[..., RunResult]
WATCHED = """

weights, losses = [], []  # in each round those of the average, and what is known after the evaluation


class Watched(ByLoss):
    def aggregate_train(self, server_round, replies):
        result = super().aggregate_train(server_round, replies := list(replies))
        weights.append([reply.content["metrics"]["num-examples"] for reply in replies])
        return result

    def aggregate_evaluate(self, server_round, replies):
        result = super().aggregate_evaluate(server_round, replies)
        losses.append(dict(self.losses))
        return result
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the class as the page has it, and of one that notes what it does."""
    (code,) = (text for _, text in blocks("docs/tutorials/method-developer.md", "python") if "class ByLoss" in text)
    (tmp_path / "by_loss_page.py").write_text(code + WATCHED)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "by_loss_page", raising=False)
    return import_module("by_loss_page")


def test_a_hospital_with_a_lower_loss_weighs_more(quick: Quick, page: ModuleType) -> None:
    result = quick(strategy="by_loss_page:Watched", **{"strategy-options": "sharpness=5"})
    exact = result.rounds.query("round == 1 and site.str.startswith('hospital')").loss.tolist()
    assert list(page.losses[0]) == [1, 2, 3, 4] and list(page.losses[0].values()) == pytest.approx(exact)
    shrunk = [after / before for before, after in zip(*page.weights, strict=True)]
    assert sorted(range(4), key=shrunk.__getitem__) == sorted(range(4), key=lambda site: -exact[site])


def test_private_metrics_never_reach_a_strategy(quick: Quick, page: ModuleType) -> None:
    private = {"evaluation.metrics": "private", "evaluation.releases": 2}
    assert quick(strategy="by_loss_page:Watched", **private).pooled["loss"] is not None
    assert page.losses == [{}, {}] and page.weights[0] == page.weights[1]


def test_a_loss_that_one_hospital_withholds_is_taken_from_all() -> None:
    asked = [Message(RecordDict(), node, "evaluate") for node in (1, 2)]
    metrics = [{"num-examples": 9.0, "loss": 0.5}, {"num-examples": 7.0}]
    replies = [
        Message(RecordDict({"metrics": MetricRecord(one)}), reply_to=to) for one, to in zip(metrics, asked, strict=True)
    ]
    assert [set(reply.content.metric_records["metrics"]) for reply in alike(replies)] == [{"num-examples"}] * 2


@pytest.mark.parametrize("keys", [{"secure.aggregation": True}, {"central.epsilon": 5.0, "privacy.dp": False}])
def test_it_is_refused_where_only_the_mean_is_known(quick: Quick, page: ModuleType, keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"associative = True|weighted by num-examples"):
        quick(strategy="by_loss_page:ByLoss", **keys)


class Stops(Progress):
    def on_round(self, config: Any, state: Any) -> None:
        if state.round == 2:
            raise KeyboardInterrupt


def test_a_resumed_run_knows_the_losses(quick: Quick, page: ModuleType, tmp_path: Path) -> None:
    keys = {"strategy": "by_loss_page:ByLoss", "strategy-options": "sharpness=5", "rounds": 3}
    with pytest.raises(KeyboardInterrupt):
        quick(progress=Stops(), out=str(tmp_path / "runs"), **keys)
    resumed = Federation.resume(next((tmp_path / "runs").iterdir()))
    plain = quick(rounds=3)
    assert resumed.summary["model_sha256"] == quick(**keys).summary["model_sha256"] != plain.summary["model_sha256"]
