"""What stays at a hospital: FedBN's normalisation layers, personal heads, Ditto's whole models."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message
from safetensors.numpy import load_file
from torch import nn

from polyclinic import Federation
from polyclinic.config import RunConfig
from polyclinic.ehr.datasets import load_shards
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.evaluation.metrics import classification_metrics
from polyclinic.inspection.result import RunResult
from polyclinic.models.tabular import initialise, logistic
from polyclinic.plugins import dataset_named
from polyclinic.privacy.streams import keyed_stream, torch_seed
from polyclinic.server.federate import Outcome, Places, federate
from polyclinic.server.progress import Progress
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid
from polyclinic.strategies.ditto import Ditto
from polyclinic.training import classification
from polyclinic.training.preparation import standardise
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings, own_arrays
from polyclinic.types import Arrays
from polyclinic.wire.messages import site_home, state_file

Quick = Callable[..., RunResult]
NORM = {"2.weight", "2.bias"}


def deep(features: int, classes: int, widths: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, classes))


FEDBN: dict[str, Any] = {"strategy": "fedbn", "model": f"{__name__}:deep"}
HEADS: dict[str, Any] = {"model": "mlp", "strategy": "fedper"}
DITTO: dict[str, Any] = {"strategy": "ditto", "strategy_options": "pull=0.5"}


class Listening(LocalGrid):
    """Notes the arrays of every reply to a request for training."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        found = super().send_and_receive(messages, timeout=timeout)
        for reply in found:
            if reply.metadata.message_type == "train":
                self.heard = [*getattr(self, "heard", []), {
                    key: {name: array.numpy() for name, array in record.items()}
                    for key, record in reply.content.items() if isinstance(record, ArrayRecord)
                }]  # fmt: skip
        return found


def listen(home: Path, **options: Any) -> tuple[Outcome, list[dict[str, Arrays]]]:
    config = RunConfig.build({"rounds": 2, "training.local-steps": 2}, options)
    grid = Listening(AppReference("polyclinic.client_app"), 4, config.flat())
    grid.merges = False
    outcome = federate(grid, config, "r", Places(home))
    return outcome, grid.heard


def kept(home: Path, site: str, number: int = 2) -> Arrays:
    return own_arrays(load_file(state_file(site_home(home, site), "r", number)))


@pytest.mark.parametrize(
    ("options", "local"),
    [
        (FEDBN, NORM),
        (HEADS, {"2.weight", "2.bias"}),
        (HEADS | {"upload.form": "difference", "upload.share": 0.5}, None),
    ],
)
def test_the_server_never_receives_what_stays(tmp_path: Path, options: dict[str, Any], local: set[str] | None) -> None:
    outcome, heard = listen(tmp_path, **options)
    assert len(heard) == 8 and all(set(record) == {"arrays"} for record in heard)
    state, sites = outcome.state, [site.name for site in outcome.sites]
    own = [kept(tmp_path, site) for site in sites]
    if local is None:
        shared = state.arrays["0.weight"].size + state.arrays["0.bias"].size
        assert {len(record["arrays"]["values"]) for record in heard} == {round(shared / 2)}
        return
    assert set(state.local) == local and all(set(arrays) == local for arrays in own)
    for record in heard:
        assert set(record["arrays"]) == set(state.arrays) - local
    for name in local:
        values = [arrays[name] for arrays in own]
        assert all(not np.array_equal(value, values[0]) for value in values[1:])
        assert all(not np.array_equal(value, state.arrays[name]) for value in values), "they were trained"
    weights = [state.public_patients[site] for site in sites]
    for name in set(state.arrays) - local:
        last = [record["arrays"][name] for record in heard[4:]]
        np.testing.assert_allclose(state.arrays[name], np.average(last, axis=0, weights=weights), rtol=1e-5, atol=1e-6)


def test_a_personal_model_never_leaves(tmp_path: Path) -> None:
    outcome, heard = listen(tmp_path, **DITTO)
    assert all(set(record) == {"arrays"} and set(record["arrays"]) == {"0.weight", "0.bias"} for record in heard)
    for site in outcome.sites:
        own = kept(tmp_path, site.name)["0.weight"]
        assert all(np.abs(own - record["arrays"]["0.weight"]).max() > 1e-3 for record in heard)


@pytest.mark.parametrize("options", [FEDBN, DITTO])
def test_a_hospital_evaluates_with_its_own_arrays(tmp_path: Path, options: dict[str, Any]) -> None:
    outcome, _ = listen(tmp_path, **options)
    config, state = outcome.config, outcome.state
    dataset = dataset_named(config.dataset)
    shards = {shard.site: shard for shard in load_shards(dataset, 0, dataset.default_partitioner, 0, 1.0)}
    rows = {row["site"]: row for row in state.newest_rows()}
    scores, labels = [], []
    for site in outcome.sites:
        test = standardise(shards[site.name].test, state.standardiser)
        arrays = state.arrays | kept(tmp_path, site.name)
        width = test.x.shape[1]
        build = partial(deep, width, 2, ()) if options is FEDBN else partial(logistic, width, 2)
        (found,) = classification.evaluate(build, arrays, [test])
        assert rows[site.name]["loss"] == pytest.approx(classification_metrics(test.y, found)["loss"], rel=1e-6)
        (elsewhere,) = classification.evaluate(build, state.arrays, [test])
        assert rows[site.name]["loss"] != pytest.approx(classification_metrics(test.y, elsewhere)["loss"], rel=1e-3)
        scores.append(found)
        labels.append(test.y)
    pooled = classification_metrics(np.concatenate(labels), np.concatenate(scores))
    assert rows["pooled"]["auroc"] == pytest.approx(pooled["auroc"])


# ---- one hospital


def settings(**changes: Any) -> TrainSettings:
    values: dict[str, Any] = {
        "sample_rate": 0.3, "local_steps": 4, "learning_rate": 0.2, "max_grad_norm": 0.4, "noise_multiplier": 0.7,
    }  # fmt: skip
    return TrainSettings(**(values | changes))


def work(sites: int, turn: int = 0) -> list[SiteWork]:
    found = []
    for site in range(sites):
        rng, count = np.random.default_rng(site), 20 + 9 * site
        rows = Rows(rng.normal(size=(count, 6)), rng.integers(0, 2, count), np.arange(count), count)
        streams = [keyed_stream(0, purpose, site, turn) for purpose in ("batches", "noise")]
        found.append(SiteWork(rows, *streams, count + 0.5))
    return found


def build() -> nn.Module:
    return deep(6, 2, ())


START: Arrays = {name: value.numpy() for name, value in initialise(build, torch_seed(3, "model")).items()}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_all_trainers_begin_and_pull_alike(optimizer: str) -> None:
    """Own normalisation layers, and personal models on top of them, over two rounds with noise."""
    updates: dict[str, list[SiteUpdate]] = {}
    for engine in ("functional", "opacus"):
        states: list[Arrays] = [{} for _ in range(3)]
        for turn in (1, 2):
            own = {name: np.full_like(START[name], turn) for name in NORM}
            sites = [replace(site, state=state, own=own) for site, state in zip(work(3, turn), states, strict=True)]
            chosen = settings(engine=engine, double=True, optimizer=optimizer, local=Ditto.Local(0.7))
            updates[engine] = classification.train(build, START, sites, chosen)
            states = [update.state for update in updates[engine]]
    for ours, theirs in zip(updates["functional"], updates["opacus"], strict=True):
        assert set(ours.state) == set(theirs.state) and ours.steps == theirs.steps == 8
        for mine, other in ((ours.arrays, theirs.arrays), (ours.state, theirs.state)):
            for name, value in other.items():
                np.testing.assert_allclose(mine[name], value, atol=1e-5)


def test_ditto_leaves_the_shared_model_as_fedavg_trains_it_and_pulls_its_own_to_what_was_sent() -> None:
    """Li et al. 2021b, Algorithm 1, without privacy and over all patients, against steps written out."""
    chosen = settings(noise_multiplier=None, sample_rate=1.0, double=True)
    both, (site,) = replace(chosen, local=Ditto.Local(0.7)), work(1)
    site = replace(site, public_patients=None)
    (first,) = classification.train(build, START, [site], both)
    (plain,) = classification.train(build, START, [site], chosen)
    for name, value in plain.arrays.items():
        np.testing.assert_array_equal(first.arrays[name], value)
    sent = {name: value + 0.05 for name, value in START.items()}
    (second,) = classification.train(build, sent, [replace(site, state=first.state)], both)
    module, rows = build().double(), site.rows
    module.load_state_dict({name: torch.from_numpy(value) for name, value in own_arrays(first.state).items()})
    for _ in range(chosen.local_steps):
        module.zero_grad()
        nn.functional.cross_entropy(module(torch.from_numpy(rows.x)), torch.from_numpy(rows.y)).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for name, p in module.named_parameters():
                assert p.grad is not None
                p -= 0.2 * (p.grad + 0.7 * (p - torch.from_numpy(sent[name])))
    for name, value in own_arrays(second.state).items():
        np.testing.assert_allclose(value, module.state_dict()[name].numpy(), atol=1e-6)


# ---- runs


class Stops(Progress):
    def on_round(self, config: Any, state: Any) -> None:
        if state.round == 2:
            raise PolyclinicError("The lights went out.")


@pytest.mark.parametrize("options", [FEDBN, DITTO])
def test_a_resumed_run_is_the_uninterrupted_one(quick: Quick, tmp_path: Path, options: dict[str, Any]) -> None:
    options = options | {"rounds": 4, "participation.sites": 3}
    whole = quick(**options)
    with pytest.raises(PolyclinicError, match="lights"):
        quick(progress=Stops(), out=str(tmp_path / "stopped"), **options)
    (folder,) = (tmp_path / "stopped").iterdir()
    resumed = Federation.resume(folder)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]
    assert resumed.pooled == whole.pooled


def test_what_is_shared_can_be_summed_secretly_or_noised_centrally(quick: Quick) -> None:
    plain, secret = quick(**HEADS), quick(**HEADS, secure={"aggregation": True})
    np.testing.assert_allclose(secret.arrays["0.weight"].numpy(), plain.arrays["0.weight"].numpy(), atol=1e-4)
    assert secret.pooled["loss"] == pytest.approx(plain.pooled["loss"], abs=1e-3)
    central: dict[str, Any] = {"central.epsilon": 5.0, "data.standardise": "none", "privacy.patients-per-site": 80}
    noised = quick(**HEADS, **central)
    np.testing.assert_array_equal(noised.arrays["2.weight"].numpy(), plain.arrays["2.weight"].numpy())
    assert not torch.equal(noised.arrays["0.weight"], plain.arrays["0.weight"])
    assert quick(**DITTO, **central).privacy["central"]["epsilon"] <= 5.0


def test_personal_models_cost_more_noise_and_local_layers_none(quick: Quick) -> None:
    noise = [quick(**options).privacy["noise_multiplier"] for options in ({}, HEADS, DITTO)]
    assert noise[0] == noise[1] < noise[2]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"strategy": "fedbn", "model": "mlp"}, "has no normalisation layers to keep"),
        (
            {"strategy": "fedper", "strategy_options": "layers=head.*"},
            r"the layers 'head.\*', which no array of the model matches; they are 0.weight, 0.bias",
        ),
        ({"strategy": "fedper", "strategy_options": "layers=*"}, "leaves no array of the model to share"),
        ({**DITTO, "strategy_options": "layers=0.bias"}, "'layers', which Ditto does not take"),
        ({**DITTO, "strategy_options": "pull=-1"}, "pull must be a number of at least 0"),
        ({**DITTO, "task": "objective-perturbation"}, "take another strategy"),
        ({**DITTO, "training.batching": "cyclic"}, "set training.batching to 'poisson'"),
        ({"strategy": "fedbn", "model": f"{__name__}:mixing"}, "mixes patients within a batch"),
    ],
)
def test_what_cannot_be_is_refused_before_a_folder_is_made(
    quick: Quick, tmp_path: Path, values: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        quick(**values)
    assert not list(tmp_path.iterdir())


def mixing(features: int, classes: int, widths: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))
