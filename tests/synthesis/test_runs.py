"""Runs of task synthesis by sums: one hospital is the curator, many are one, and every epsilon is what was charged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import Array, ArrayRecord

from polyclinic import Federation, RunResult
from polyclinic.client.app import app
from polyclinic.config import RunConfig
from polyclinic.ehr.datasets import load_shards
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.plugins import dataset_named
from polyclinic.privacy.accounting import epsilon, gaussian_event
from polyclinic.programs import program_of
from polyclinic.runs.simulation import simulated_patients
from polyclinic.runs.synthesize import synthesize
from polyclinic.server.calibration import calibrate
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.sums import HIDDEN, MOVED, fit_centrally
from polyclinic.synthesis.synthesizer import load
from polyclinic.wire.messages import QUESTION, TrainRequest
from tests.client.test_hospital import SCHEMA, context, make_hospital, message
from tests.synthesis.plain import Plain, PlainRows

PLAIN = "tests.synthesis.plain:Plain"
Run = Callable[..., RunResult]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def call(**options: Any) -> RunResult:
        usual = {
            "task": "synthesis",
            "model": PLAIN,
            "rounds": 2,
            "sites": 3,
            "synthesis.rows": 200,
            "synthesis.quality": False,
        }
        return Federation.from_dataset("trial", out=str(tmp_path)).run(**({"pictures": False} | usual | options))

    return call


def rows_of(result: RunResult) -> PlainRows:
    found = load(result.path / "synthesizer.safetensors", Layout.of(Schema.from_toml(result.path / "schema.toml")))
    assert isinstance(found, PlainRows)
    return found


def test_one_hospital_is_a_curator_and_many_are_one(run: Run) -> None:
    layout = Layout.of(dataset_named("trial").schema)
    shards = load_shards(dataset_named("trial"), 3, "natural", 0, 1.0)
    for sites in (1, 3):
        mine = shards[:1] if sites == 1 else shards
        if sites == 1:
            mine = load_shards(dataset_named("trial"), 1, "natural", 0, 1.0)
        z = np.concatenate([layout.rows(shard.train.x, shard.train.y) for shard in mine])
        patients = sum(shard.train.patients for shard in mine)
        central = fit_centrally(Plain(layout), z, np.arange(len(z)), patients, 0.0, np.random.default_rng(0))
        assert isinstance(central, PlainRows)
        found = rows_of(run(sites=sites, privacy={"dp": False}))
        np.testing.assert_allclose(found.means, central.means, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.classes, central.classes, rtol=1e-12)


def test_epsilon_is_of_the_counts_and_of_every_sum(run: Run) -> None:
    result = run(privacy={"epsilon": 2.0})
    plan = calibrate(result.config)
    assert epsilon(plan.total_event, result.config.privacy.delta) <= 2.0
    for site in result.summary["statement"]["sites"].values():
        assert [event["purpose"] for event in site["events"]] == ["statistics", "train", "train"]
        assert site["epsilon"] == pytest.approx(epsilon(plan.total_event, result.config.privacy.delta), rel=1e-6)
    assert result.summary["synthesis"] == {
        "method": PLAIN, "options": "", "game": False, "finished": True, "guarantee": None, "measured_together": [],
    }  # fmt: skip
    assert 0.5 < (result.pooled["auroc"] or 0) <= 1


@pytest.mark.slow
def test_the_noise_that_is_told_is_the_noise_that_is_there(run: Run) -> None:
    exact = rows_of(run(privacy={"dp": False}))
    many = [run(seed=0, privacy={"epsilon": 1.0 + 1e-6 * number}) for number in range(3)]
    # Other noise multipliers by a hair, and so other releases of the same records.
    layout = exact.layout
    stds = []
    for one in many:
        told = calibrate(one.config).noise_multiplier
        patients = sum(simulated_patients(one.config))
        stds.append(Plain(layout).scale * told * np.sqrt(3) / patients / exact.classes[:, None])
    errors = np.array([rows_of(one).means - exact.means for one in many])
    # Two rounds of sums each correct the one before, so that the last one's noise is left.
    assert 0.7 < float(np.median(np.abs(errors) / np.array(stds))) / 0.6745 < 1.5


def test_a_run_notes_an_outcome_that_noise_hides() -> None:
    program = program_of(RunConfig(task="synthesis", model="marginals", rounds=4))
    hidden, seen = (program.notes({"arrays": {HIDDEN: np.array(one)}}, scored=True) for one in (True, False))
    assert hidden[0].startswith("Noise hides what every column has to do with the label") and hidden[1:] == seen


def test_a_run_of_latent_notes_that_patients_are_few_for_its_noise() -> None:
    """The note follows from public numbers alone: 0.4 deviations for 500 patients, a hundredth of that for 50,000."""
    program = program_of(RunConfig(task="synthesis", model="latent", rounds=8))
    loud, seen = (program.notes({"arrays": {MOVED: np.array(one)}}, scored=True) for one in (0.4, 0.004))
    assert "by some 0.4 of its deviations" in loud[0] and "more of the outcome than 'latent'" in loud[0]
    assert loud[1:] == seen


def test_rows_may_say_of_which_hospital_they_are(run: Run, tmp_path: Path) -> None:
    result = run(synthesis={"condition_hospitals": 3}, model="moments", rounds=1, privacy={"epsilon": 50.0})
    layout = Layout.of(Schema.from_toml(result.path / "schema.toml"), 3)
    assert layout.classes == 6
    shards = load_shards(dataset_named("trial"), 3, "natural", 0, 1.0)
    for number, shard in enumerate(shards, start=1):
        out = tmp_path / f"{number}.csv"
        synthesize(result.path, f"hospital={number}:800", out)
        assert abs(pd.read_csv(out)["age"].mean() - (65 + 25 * shard.train.x[:, 1].mean())) < 1.5
    with pytest.raises(ConfigError, match="allowed are"):
        synthesize(result.path, "hospital=4:10", tmp_path / "x.csv")
    with pytest.raises(ConfigError, match="synthesis.condition-hospitals"):
        run(synthesis={"condition_hospitals": 2})


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"workers": 2}, marks=pytest.mark.slow),
        pytest.param({"secure.aggregation": True}, marks=pytest.mark.slow),
        {"secure.aggregation": True, "secure.shared-noise": True},
    ],
)
def test_every_way_of_collecting_gives_rows(run: Run, options: dict[str, Any]) -> None:
    result = run(**options)
    assert result.privacy["epsilon"] <= 3.0
    if options == {"workers": 2}:
        assert (result.path / "synthesizer.safetensors").read_bytes() == (
            run().path / "synthesizer.safetensors"
        ).read_bytes()
    else:
        exact = rows_of(run(privacy={"dp": False})).means
        clear = np.abs(rows_of(run()).means - exact).mean()
        found = np.abs(rows_of(result).means - exact).mean()
        assert found < (0.95 if "shared_noise" in options else 2.0) * clear


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_to_the_same_rows(run: Run, tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    from polyclinic.server.progress import Progress

    class Watcher(Progress):
        folder = Path()

        def on_folder(self, folder: Path) -> None:
            Watcher.folder = folder

        def on_round(self, config: RunConfig, state: Any) -> None:
            raise Stopped

    whole = run()
    with pytest.raises(Stopped):
        Federation.from_dataset("trial", out=str(tmp_path)).run(
            task="synthesis", model=PLAIN, rounds=2, sites=3, synthesis={"rows": 200}, progress=Watcher()
        )
    again = Federation.resume(Watcher.folder)
    assert (again.path / "synthesizer.safetensors").read_bytes() == (
        whole.path / "synthesizer.safetensors"
    ).read_bytes()
    assert again.privacy["epsilon"] == whole.privacy["epsilon"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data.standardise": "public"}, "standardise is 'public' but task is 'synthesis'"),
        ({"data.imputation": "constant"}, "imputation is 'constant' but task is 'synthesis'"),
        ({"strategy": "qfedavg", "privacy.dp": False}, "which averages what hospitals send"),
        ({"training.sample-rate": 0.5}, "which no step or strategy changes"),
        ({"model": "mixture", "rounds": 1, "secure.aggregation": True}, "keeps hospitals' sums apart"),
        ({"synthesis.candidates": 3}, "a choice is among at least 2 generators of a game"),
        ({"synthesis.options": "scales=3"}, "no option 'scales'; allowed are scale, "),
        ({"model": "moments", "synthesis.options": "radios=3"}, "allowed are radius, .* Did you mean 'radius'"),
        ({"model": "gam"}, "mixture, marginals, gan, .* Did you mean 'gan'"),
        ({"model": "tests.synthesis.plain:Nothing"}, "does not load"),
        ({"model": "momints"}, "known are"),
        ({"model": "tests.synthesis.plain:PlainRows", "synthesis.options": "means=1, classes=2"}, "which lacks rounds"),
        ({"synthesis.condition-hospitals": 2}, "synthesis.condition-hospitals is 2 but sites is 3"),
        ({"task": "classification", "model": "logistic", "synthesis.options": "a=1"}, "only with the task synthesis"),
    ],
)
def test_what_cannot_be_is_refused_before_a_folder_is_made(
    run: Run, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        run(**options)
    assert not list(tmp_path.iterdir())


POLICY = 'budget = 2.0\ndelta = 1e-3\nallowed-tasks = ["synthesis"]\nallowed-models = ["tests.synthesis.plain:Plain"]\n'


def _asked(hospital: Path, question: dict[str, np.ndarray], arrays: dict[str, np.ndarray], **changes: Any) -> Any:
    config = RunConfig.build({"task": "synthesis", "model": PLAIN, "rounds": 2})
    request = TrainRequest(run="r", site=0, round=1, noise_multiplier=2.0, public_patients=150.0, learning_rate=1.0)
    sent = message(request.model_copy(update=changes), "train", arrays)
    sent.content[QUESTION] = ArrayRecord({name: Array(value) for name, value in question.items()})
    return app(sent, context(hospital, config))


def test_a_real_hospital_answers_one_sum_with_noise_and_refuses_what_is_no_question(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, POLICY)
    layout = Layout.of(Schema.from_dict(SCHEMA))
    size = 2 * layout.width
    good = {"round": np.array([1]), "shift": np.zeros((2, layout.width))}
    for question, arrays, words in (
        ({}, {}, "'round' must be one number from 1 to 2"),
        (good | {"round": np.array([3])}, {}, "'round' must be one number from 1 to 2"),
        (good | {"shift": np.full((2, layout.width), np.nan)}, {}, "not finite"),
        (good | {"shift": np.zeros((5, 3))}, {}, "is not one that plain can answer"),
        (good, {"sum": np.zeros(size)}, "A round of sums has no model, but the message holds sum"),
        (good, {"0.weight": np.ones((2, 3)), "0.bias": np.ones(2)}, "holds 0.bias, 0.weight"),
    ):
        reply = _asked(hospital, question, arrays)
        assert words in (reply.error.reason or "")
        assert not (tmp_path / "home" / "ledger.sqlite").exists()
    first, again = (_asked(hospital, good, {}) for _ in range(2))
    sums = [reply.content["arrays"]["sum"].numpy() for reply in (first, again)]
    np.testing.assert_array_equal(*sums)
    assert first.content["polyclinic"]["epsilon"] == pytest.approx(epsilon(gaussian_event(2.0), 1e-3), rel=1e-3)
    other = make_hospital(tmp_path, POLICY.replace('"synthesis"', '"classification"'))
    assert "the policy allows the tasks classification" in _asked(other, good, {}).error.reason


@pytest.mark.parametrize("given", [
    {}, {"task": "synthesis"}, {"task": "synthesis", "model": PLAIN, "rounds": 30}, {"strategy": "fedprox",
    "training.local-steps": 1},
    {"task": "objective-perturbation", "rounds": 30}, {"training.optimizer": "rmsprop", "training.momentum": 0.9},
])  # fmt: skip
def test_flowers_packaged_defaults_count_as_not_given(given: dict[str, Any]) -> None:
    """``flwr run`` hands on every key of the app: what was given over the defaults."""
    config, packaged = RunConfig.build(given), RunConfig.app_config()
    assert RunConfig.from_flower(packaged | given) == config
    assert RunConfig.from_flower(packaged | config.for_flower()) == config
    assert set(config.for_flower()) <= {"task", "strategy", *given}
    other = packaged | {"rounds": 7, "strategy": "fedadam", "training.momentum": 0.25}
    assert RunConfig.from_flower(other | config.for_flower(other)) == config
    assert RunConfig.from_flower(config.flat()) == config
    assert RunConfig.build(config.flat()) == config
