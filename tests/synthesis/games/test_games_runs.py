"""Federated games: one hospital is the central trainer bit for bit, and only critics are paid for, each step once."""

import html
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from polyclinic import Federation, RunResult
from polyclinic.client.answers import right_patients
from polyclinic.client.app import app
from polyclinic.config import RunConfig, train_settings
from polyclinic.ehr.datasets import load_shards
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.models.gan_dpgan import dpgan_generator
from polyclinic.models.tabular import initialise
from polyclinic.plugins import dataset_named
from polyclinic.privacy.accounting import epsilon
from polyclinic.privacy.selection import best_few, choice_event
from polyclinic.privacy.streams import keyed_stream
from polyclinic.programs.games import Games
from polyclinic.runs.synthesize import synthesize
from polyclinic.server.calibration import calibrate
from polyclinic.synthesis.games.builders import make
from polyclinic.synthesis.games.game import Game
from polyclinic.synthesis.games.generator import Play, generator_steps
from polyclinic.synthesis.games.state import first_state
from polyclinic.synthesis.games.synthesizer import GeneratedRows
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.sums import class_frequencies
from polyclinic.synthesis.synthesizer import load
from polyclinic.wire.messages import QUESTION, SelectRequest, TrainRequest
from tests.client.test_hospital import SCHEMA, context, make_hospital, message
from tests.synthesis.central import train_centrally

Run = Callable[..., RunResult]
GAN = {"task": "synthesis", "model": "gan", "training.learning-rate": 1.0, "privacy.max-grad-norm": 10.0}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def call(**options: Any) -> RunResult:
        usual = {
            "rounds": 3,
            "sites": 2,
            "synthesis.rows": 100,
            "synthesis.baselines": False,
            "synthesis.quality": False,
            "evaluation.every": 3,
        }
        return Federation.from_dataset("trial", out=str(tmp_path)).run(**(GAN | {"pictures": False} | usual | options))

    return call


def generators(result: RunResult) -> GeneratedRows:
    found = load(result.path / "synthesizer.safetensors", Layout.of(Schema.from_toml(result.path / "schema.toml")))
    assert isinstance(found, GeneratedRows)
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param(
            {
                "training.local-steps": 2,
                "training.sample-rate": 0.5,
                "training.optimizer": "adam",
                "training.weight-decay": 0.1,
            },
            marks=pytest.mark.slow,
        ),
    ],
)
def test_one_hospital_is_the_central_trainer_bit_for_bit(run: Run, options: dict[str, Any]) -> None:
    result = run(sites=1, privacy={"patients_per_site": 150}, **options)
    config = result.config
    shard = load_shards(dataset_named("trial"), 1, "natural", 0, 1.0)[0]
    layout = Layout.of(shard.schema)
    game = Games(config).game(layout)
    settings = train_settings(config, calibrate(config).noise_multiplier)
    played = train_centrally(
        game, layout, shard.train, settings, 3, class_frequencies(np.ones(2)), public_patients=150.0,
        streams=lambda purpose, round: keyed_stream(0, purpose, round, shard.site),
    )  # fmt: skip
    (found,) = generators(result).generators
    for name, value in played.state.drawn_from(game).items():
        np.testing.assert_array_equal(found[name], value)
    for name, value in played.critic.items():
        np.testing.assert_array_equal(result.arrays[name].numpy(), value)


def test_epsilon_is_of_the_counts_the_critics_steps_and_the_choice(run: Run) -> None:
    result = run(privacy={"epsilon": 2.0}, synthesis={"candidates": 3, "selected": 1})
    plan = calibrate(result.config)
    assert epsilon(plan.total_event, result.config.privacy.delta) <= 2.0
    for site in result.summary["statement"]["sites"].values():
        purposes = [event["purpose"] for event in site["events"]]
        assert purposes == ["statistics", "train", "train", "train", "selection"]
        assert site["epsilon"] == pytest.approx(epsilon(plan.total_event, result.config.privacy.delta), rel=1e-3)
    assert len(generators(result).generators) == 1
    assert any("which the hospitals chose of 3" in note for note in result.summary["notes"])
    assert "choice among the generators" in " ".join(result.summary["notes"])


def test_hospitals_that_share_the_noise_have_less_of_it(run: Run) -> None:
    def distance(result: RunResult) -> float:
        return float(sum(np.abs(value.numpy() - exact[name].numpy()).sum() for name, value in result.arrays.items()))

    one = {"rounds": 1, "sites": 4, "evaluation.every": 1}
    exact = run(privacy={"dp": False}, **one).arrays
    apart = run(**one)
    shared = run(secure={"aggregation": True, "shared_noise": True}, **one)
    assert shared.privacy["epsilon"] <= 3.0
    assert distance(shared) < distance(apart)


def test_a_generator_that_diverges_is_taken_back_and_nothing_is_charged_twice(run: Run) -> None:
    good = run(rounds=2)
    wild = run(rounds=2, synthesis={"options": "learning-rate=1e30, schedule=constant"})
    for site, statement in wild.summary["statement"]["sites"].items():
        assert statement["epsilon"] == good.summary["statement"]["sites"][site]["epsilon"]
    assert any("the generator diverged and was taken back" in note for note in wild.summary["notes"])
    rows = generators(wild).sample(50, np.random.default_rng(0))
    assert np.isfinite(rows).all()


def normed(layout: Layout) -> Game:
    game = make(layout, "wgan")
    return replace(game, core=lambda at: dpgan_generator(at.label.start, game.latent, at.classes))


def test_a_generator_with_batch_norm_reaches_hospitals_as_it_is(run: Run) -> None:
    result = run(
        model="tests.synthesis.games.test_games_runs:normed",
        synthesis={"kind": "game"},
        privacy={"dp": False},
        rounds=1,
    )
    assert not result.summary["dropouts"] and not result.summary["unchanged"]


def test_a_run_as_published_says_what_its_publication_keeps(run: Run, tmp_path: Path) -> None:
    result = run(model="dpgan-paper", privacy={"dp": False}, rounds=1)
    says = result.summary["synthesis"]["guarantee"]
    assert "states an epsilon" in says and says in html.unescape((result.path / "report.html").read_text())
    certificate = json.loads(synthesize(result.path, 3, tmp_path / "rows.csv").read_text())
    assert certificate["guarantee"].endswith(says) and certificate["privacy"] is None


def test_a_run_shows_simple_methods_beside_the_game(run: Run) -> None:
    result = run(rounds=1, **{"evaluation.every": 1, "synthesis.baselines": True, "privacy.delta": 1e-3})
    beside = result.summary["synthesis"]["baselines"]
    assert beside["moments"]["auroc"] > 0.6
    page = (result.path / "report.html").read_text()
    assert "Synthetic patients" in page
    assert "moments" in page


def test_each_patient_moves_each_candidates_count_by_at_most_one() -> None:
    rng = np.random.default_rng(0)
    judges = {"weight": rng.normal(size=(5, 3, 4)), "bias": rng.normal(size=(5, 3))}
    patient = rng.integers(0, 30, 80)
    _, patient = np.unique(patient, return_inverse=True)
    patients = int(patient.max()) + 1
    rows = Rows(rng.normal(size=(80, 4)), rng.integers(0, 3, 80), patient, patients)
    whole = np.array(right_patients(judges, rows))
    for gone in range(patients):
        keep = patient != gone
        fewer = Rows(rows.x[keep], rows.y[keep], patient[keep] - (patient[keep] > gone), patients - 1)
        change = whole - np.array(right_patients(judges, fewer))
        assert ((change == 0) | (change == 1)).all()


def test_the_best_few_are_found_and_cost_epsilon_whatever_their_number() -> None:
    counts = [100, 900, 300, 800, 10]
    assert best_few(counts, 2, None, keyed_stream(0, "x")) == [1, 3]
    chosen = [tuple(best_few(counts, 2, 1.0, keyed_stream(seed, "x"))) for seed in range(50)]
    assert chosen.count((1, 3)) == 50
    close = [best_few([5, 5, 5, 5], 1, 1.0, keyed_stream(seed, "x"))[0] for seed in range(200)]
    assert set(close) == {0, 1, 2, 3}
    for selected in (1, 3):
        assert epsilon(choice_event(0.5, selected), 1e-12) == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"synthesis.candidates": 5}, "a round gives one generator"),
        ({"synthesis.candidates": 3, "synthesis.selected": 3}, "of fewer than there are"),
        ({"synthesis.candidates": 3, "synthesis.selection-epsilon": 3.0}, "of which it is a part"),
        ({"synthesis.options": "steeps=3"}, "no option 'steeps'"),
        ({"central.epsilon": 1.0, "privacy.patients-per-site": 100}, "whole hospitals are not covered"),
        ({"training.batching": "cyclic", "training.sample-rate": 0.5}, "noise over time"),
        ({"privacy.epsilon": 0.01, "rounds": 3, "privacy.max-grad-norm": 0.0}, "max-grad-norm"),
    ],
)  # fmt: skip
def test_a_game_that_cannot_be_is_refused_before_a_folder_is_made(
    run: Run, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        run(**options)
    assert not list(tmp_path.iterdir())


POLICY = 'budget = 2.0\ndelta = 1e-3\nallowed-tasks = ["synthesis"]\nallowed-models = ["gan"]\n'


def test_a_real_hospital_trains_a_critic_and_refuses_what_generates_nothing(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, POLICY)
    config = RunConfig.build(
        GAN | {"rounds": 2, "training.sample-rate": 1.0, "training.local-steps": 1, "training.momentum": 0.0}
    )
    schema = Schema.from_dict(SCHEMA)
    layout = Layout.of(schema)
    game = Games(config).game(layout)
    weights = first_state(game, layout, 0).weights
    critic = {name: value.numpy() for name, value in initialise(Games(config).builder(schema), 0).items()}

    def ask(generator: dict[str, np.ndarray], critic: dict[str, np.ndarray]) -> Any:
        request = TrainRequest(run="r", site=0, round=1, noise_multiplier=3.0, public_patients=150.0, learning_rate=1.0)
        sent = message(request, "train", critic)
        sent.content[QUESTION] = ArrayRecord({name: Array(value) for name, value in generator.items()})
        return app(sent, context(hospital, config))

    name = next(iter(weights))
    for generator, critic_sent, words in (
        ({}, critic, "not one of the game"),
        (weights | {"more": np.zeros(3)}, critic, "not one of the game"),
        (weights | {name: np.zeros((1, 1, 1), dtype=np.float32)}, critic, "not one of the game"),
        (weights | {name: np.full_like(weights[name], np.nan)}, critic, "holds values that are not finite numbers"),
        (weights, {label: value * np.nan for label, value in critic.items()}, "not finite"),
        (weights, {label: np.zeros((7, 7)) for label in critic}, "allowed is"),
    ):
        reply = ask(generator, critic_sent)
        assert reply.has_error() and words in (reply.error.reason or ""), (words, reply)
        assert not (tmp_path / "home" / "ledger.sqlite").exists()
    first, again = (ask(weights, critic) for _ in range(2))
    for label in critic:
        np.testing.assert_array_equal(*(reply.content["arrays"][label].numpy() for reply in (first, again)))


def test_a_real_hospital_chooses_among_classifiers_and_refuses_others(tmp_path: Path) -> None:
    hospital = make_hospital(tmp_path, POLICY)
    config = RunConfig.build(GAN | {"rounds": 2, "synthesis.candidates": 2})
    good = {"weight": np.array([[[0, 0], [1.0, 0]], [[1.0, 0], [0, 0]], [[0, 0], [0, 0.0]]]), "bias": np.zeros((3, 2))}

    def ask(judges: dict[str, np.ndarray], **changes: Any) -> Any:
        values = {"run": "r", "site": 0, "round": 2, "selected": 1, "epsilon": 0.5} | changes
        sent = message(SelectRequest(**values), "query.select")
        sent.content[QUESTION] = ArrayRecord({name: Array(value) for name, value in judges.items()})
        return app(sent, context(hospital, config))

    without = app(
        message(SelectRequest(run="r", site=0, round=2, selected=1, epsilon=0.5), "query.select"),
        context(hospital, RunConfig.build(GAN | {"rounds": 2})),
    )
    assert "with synthesis.candidates above 0" in without.error.reason
    for judges, words in (
        ({}, "classifiers must be finite"),
        (good | {"bias": np.zeros((3, 3))}, "classifiers must be finite"),
        (good | {"bias": np.full((3, 2), np.inf)}, "classifiers must be finite"),
        ({name: value[:1] for name, value in good.items()}, "more than 1"),
    ):
        assert words in (ask(judges).error.reason or "")
    assert "does not allow training or statistics without privacy" in ask(good, epsilon=None).error.reason
    assert not (tmp_path / "home" / "ledger.sqlite").exists()
    reply = ask(good)
    # Who is older dies in these records, which the first classifier says.
    assert reply.content["arrays"]["chosen"].numpy().tolist() == [0]
    assert reply.content["polyclinic"]["epsilon"] == pytest.approx(0.5, rel=1e-2)
    assert (
        "2 is above" in str(ask(good, run="s", epsilon=1.9).error.reason) or ask(good, run="s", epsilon=1.9).has_error()
    )


def test_the_generator_learns_a_mean_from_critics_alone() -> None:
    schema = Schema.from_dict(SCHEMA)
    layout = Layout.of(schema)
    config = RunConfig.build(GAN)
    game = Games(config).game(layout)
    state = first_state(game, layout, 0)
    critic = {
        name: np.zeros_like(value.numpy()) for name, value in initialise(Games(config).builder(schema), 0).items()
    }
    moved = generator_steps(Play(game, layout, np.ones(2), 3), critic, state, 3, 1)
    # A critic that says the same of every row moves nothing.
    for name, value in moved.weights.items():
        np.testing.assert_allclose(value, state.weights[name], atol=1e-6)
