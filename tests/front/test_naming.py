"""Objects in place of names: a run finds what a script or a notebook's cells gave it, and says so where it cannot."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from flwr.app import MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg
from torch import nn

from polyclinic import Federation, Privacy, RunConfig
from polyclinic.ehr.datasets import Dataset
from polyclinic.ehr.datasets.breast_cancer import DATASET
from polyclinic.errors import ConfigError
from polyclinic.inspection.result import RunResult
from polyclinic.naming import check_reach
from polyclinic.runs.simulation import simulated_patients
from polyclinic.server.progress import Progress
from polyclinic.server.state import RunState
from polyclinic.strategies.ditto import Ditto
from polyclinic.training.local import LocalHalf, Sites, Trained

Quick = Callable[..., RunResult]


class Still(FedAvg):
    """Never moves."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        _, metrics = super().aggregate_train(server_round, replies)
        return self.first, metrics

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        self.first = arrays
        return super().configure_train(server_round, arrays, config, grid)


def narrow(features: int, classes: int, widths: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 3), nn.Tanh(), nn.Linear(3, classes))


def test_a_class_and_a_function_run_as_their_names_do(quick: Quick) -> None:
    result = quick(strategy=Still, model=narrow, rounds=1, privacy={"dp": False})
    assert result.config.strategy == f"{__name__}:Still" and result.config.model == f"{__name__}:narrow"
    assert [name for name, _ in result.model.named_modules()] == ["", "0", "1", "2"]
    named = quick(strategy=f"{__name__}:Still", model=f"{__name__}:narrow", rounds=1, privacy={"dp": False})
    assert named.summary["model_sha256"] == result.summary["model_sha256"]
    moved = quick(model=narrow, rounds=1, privacy={"dp": False})
    assert moved.summary["model_sha256"] != result.summary["model_sha256"]


def test_a_strategy_of_ours_keeps_the_name_that_decides_its_defaults() -> None:
    assert Federation().with_options(strategy=FedAdam).config.strategy == "fedadam"
    assert Federation().with_options(strategy=FedAvg).config == RunConfig()


def test_a_strategy_that_is_made_is_its_class_and_arguments() -> None:
    for made in (FedAdam(eta=0.03, beta_1=0.8), partial(FedAdam, eta=0.03, beta_1=0.8)):
        config = Federation().with_options(strategy=made, rounds=3).config
        assert (config.strategy, config.options) == ("fedadam", {"eta": 0.03, "beta_1": 0.8})
    own = Federation().with_options(strategy=Still(), strategy_options={"x": 1}).config
    assert (own.strategy, own.options) == (f"{__name__}:Still", {"x": 1})
    used = FedAdam()
    used.v_t = {"w": np.ones(2)}
    with pytest.raises(ConfigError, match="carry that into the next run"):
        Federation().with_options(strategy=used)


def most_examples(replies: Any, weighted_by: str) -> MetricRecord:
    return MetricRecord({"most": max(float(one["metrics"][weighted_by]) for one in replies)})


def test_functions_and_datasets_of_any_module_are_found_by_their_names(quick: Quick) -> None:
    at = "tests.front.test_naming:most_examples" if __name__.startswith("tests.") else f"{__name__}:most_examples"
    for given in (
        {"strategy": FedAvg(train_metrics_aggr_fn=most_examples)},
        {"strategy": partial(FedAvg, train_metrics_aggr_fn=most_examples)},
        {"strategy": "fedavg", "strategy_options": {"train_metrics_aggr_fn": most_examples}},
        {"strategy": "fedavg", "strategy-options": f"train-metrics-aggr-fn={at!r}"},
    ):
        result = quick(**given, rounds=1, privacy={"dp": False})
        assert result.config.options == {"train_metrics_aggr_fn": at} and result.config.strategy == "fedavg"
        assert result.strategy_metrics.loc[(1, "train"), "most"] == max(simulated_patients(result.config))
    own = quick(dataset=COHORT, sites=2, rounds=1, privacy={"dp": False})
    assert own.config.dataset == f"{__name__}:COHORT" and own.sites["patients"].sum() == 300
    with pytest.raises(
        ConfigError, match="gives 'train-metrics-aggr-fn' the value 'nowhere:none', which does not load"
    ):
        quick(strategy_options="train-metrics-aggr-fn='nowhere:none'")


def test_a_dataset_that_there_is_not_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'breast-cancer'"):
        Federation.from_dataset("brest")


def test_sections_and_values_are_given_as_objects() -> None:
    same = Federation.from_dataset(
        "trial",
        privacy=Privacy(epsilon=1.5),
        training={"local_steps": 2, "sample_rate": 0.5},
        hidden=[64, 32],
        strategy="fedadam",
        strategy_options={"eta": 0.1},
    )
    assert same.config == RunConfig.build(
        {
            "dataset": "trial", "privacy.epsilon": 1.5, "training.local-steps": 2, "training.sample-rate": 0.5,
            "hidden": "64, 32", "strategy": "fedadam", "strategy-options": "eta=0.1",
        }
    )  # fmt: skip
    assert same.with_options(privacy={"delta": 1e-4}).config.privacy == Privacy(epsilon=1.5, delta=1e-4)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "strategy",
            FedAvg(train_metrics_aggr_fn=lambda records, key: MetricRecord()),
            "no name leads to",
        ),
        ("dataset", replace(DATASET, title="mine"), "no name leads to"),
        ("strategy", 3, "'strategy' has the value 3; it must be a name, or the object itself"),
        ("model", None, "'model' has the value None; it must be a name, or the object itself"),
    ],
    ids=["a strategy with a lambda", "a dataset", "a number", "nothing"],
)
def test_what_has_no_name_is_refused_in_one_sentence(key: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Federation().with_options(**{key: value})


def falls(patients: int) -> Dataset:
    records = DATASET.load().iloc[:patients]
    return replace(DATASET, name="mine", load=lambda: records, patients=patients, rows=patients)


COHORT = falls(300)


def test_a_cell_that_is_run_again_is_what_the_next_run_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes = []
    for patients in (300, 400):
        monkeypatch.setattr(sys.modules["__main__"], "MINE", falls(patients), raising=False)
        federation = Federation.from_dataset(sys.modules["__main__"].MINE, out=str(tmp_path))  # type: ignore[attr-defined]
        assert federation.config.dataset == "__main__:MINE"
        result = federation.run(privacy={"dp": False}, rounds=1, sites=2)
        sizes.append(int(result.sites["patients"].sum()))
    assert sizes[1] - sizes[0] > 50, sizes


def test_hospitals_whose_schema_a_cell_changes_encode_by_the_new_one(
    monkeypatch: pytest.MonkeyPatch, quick: Quick
) -> None:
    found = set()
    for spread in (1.0, 9.0):
        columns = [column.model_copy(update={"centre": sum(column.bounds) / 2, "spread": spread}) if column.bounds else column
                   for column in DATASET.schema.columns]  # fmt: skip
        mine = replace(DATASET, name="mine", schema=DATASET.schema.model_copy(update={"columns": tuple(columns)}))
        monkeypatch.setattr(sys.modules["__main__"], "MINE", mine, raising=False)
        result = quick(dataset="__main__:MINE", rounds=1, privacy={"dp": False})
        found.add(result.summary["model_sha256"])
    assert len(found) == 2


@dataclass(frozen=True)
class Twice(LocalHalf):
    """Goes twice as far."""

    def round(self, sites: Sites) -> Trained:
        trained = super().round(sites)
        return replace(trained, model=2 * trained.model - sites.model)


def test_a_strategy_whose_cell_is_run_again_has_hospitals_train_as_it_says_now(
    monkeypatch: pytest.MonkeyPatch, quick: Quick
) -> None:
    found = set()
    for inside in ({}, {"Local": Twice}):
        monkeypatch.setattr(sys.modules["__main__"], "Mine", type("Mine", (FedAvg,), inside), raising=False)
        result = quick(strategy="__main__:Mine", rounds=1, privacy={"dp": False})
        found.add(result.summary["model_sha256"])
    assert len(found) == 2


class Stopping(Progress):
    """Stops a run after its first round."""

    def on_round(self, config: RunConfig, state: RunState) -> None:
        raise KeyboardInterrupt


def test_a_run_goes_on_with_the_strategy_of_the_cell_as_it_is_now(
    monkeypatch: pytest.MonkeyPatch, quick: Quick, tmp_path: Path
) -> None:
    found = set()
    for inside in ({}, {"Local": Twice}):
        monkeypatch.setattr(sys.modules["__main__"], "Mine", type("Mine", (FedAvg,), {}), raising=False)
        with pytest.raises(KeyboardInterrupt):
            quick(strategy="__main__:Mine", privacy={"dp": False}, progress=Stopping())
        monkeypatch.setattr(sys.modules["__main__"], "Mine", type("Mine", (FedAvg,), inside))
        found.add(
            Federation.resume(max(tmp_path.iterdir(), key=lambda run: run.stat().st_mtime_ns)).summary["model_sha256"]
        )
    assert len(found) == 2


def test_what_only_a_notebook_has_is_refused_for_workers_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig(model="__main__:net", workers=2)
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with pytest.raises(ConfigError, match="'model' has the value '__main__:net', which worker processes cannot see"):
        check_reach(config)
    check_reach(config.with_values({"workers": 1}))
    monkeypatch.setattr(sys.modules["__main__"], "Mine", FedAvg, raising=False)
    check_reach(RunConfig(strategy="__main__:Mine", workers=2))  # it stays at the server
    monkeypatch.setattr(sys.modules["__main__"], "Mine", Ditto)
    with pytest.raises(
        ConfigError, match="'strategy' has the value '__main__:Mine', which worker processes cannot see"
    ):
        check_reach(RunConfig(strategy="__main__:Mine", workers=2))
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "script.py", raising=False)
    with pytest.raises(ConfigError, match="worker processes cannot see"):
        check_reach(config)
    with pytest.raises(ConfigError, match="leave workers at 1 and ray-address empty"):
        check_reach(config.with_values({"ray_address": "local"}))


def test_a_notebook_sees_one_line_of_progress_and_a_table(quick: Quick, capsys: pytest.CaptureFixture[str]) -> None:
    page = quick(progress=True, rounds=2)._repr_html_()
    told = capsys.readouterr().out
    assert told.count("\n") == 1 and told.endswith("\n")
    shown = [part for part in told.split("\r") if part.startswith("round")]
    assert len(shown) == 3 and "round 2 of 2, loss 0." in shown[-1] and "ε at most 2.99" in shown[-1]
    assert page.count("<th>hospital-") == 4 and "epsilon" in page and "{" not in page


def test_a_federation_is_shown_as_it_is_written() -> None:
    federation = Federation.from_dataset("trial", sites=3, strategy="fedadam", training={"learning_rate": 0.1})
    assert eval(repr(federation)) == federation and "dataset=" not in repr(federation)
    assert repr(Federation()) == "Federation.from_dataset('breast-cancer')"


def test_a_module_that_was_loaded_again_is_what_the_next_run_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ward_module", ward := ModuleType("ward_module"))
    sizes = []
    for patients in (300, 400):
        ward.MINE = falls(patients)  # type: ignore[attr-defined]
        result = Federation.from_dataset("ward_module:MINE", out=str(tmp_path)).run(
            privacy={"dp": False}, rounds=1, sites=2
        )
        sizes.append(int(result.sites["patients"].sum()))
    assert sizes[1] - sizes[0] > 50, sizes
