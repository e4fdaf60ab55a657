"""A game's rows and rounds: fakes keep labels, pairs keep patients apart, one place gives what it must, a bad step is undone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.privacy.streams import keyed_stream
from polyclinic.synthesis.games.builders import make
from polyclinic.synthesis.games.fakes import fake_rows, generator_of, pairs
from polyclinic.synthesis.games.game import Adaptive, Game
from polyclinic.synthesis.games.generator import Play, generator_loss, generator_steps, penalise
from polyclinic.synthesis.games.head import Front, cosine_transform
from polyclinic.synthesis.games.state import GeneratorState, advance, due, first_state
from polyclinic.synthesis.layout import Layout
from polyclinic.training.modules import flat_parameters
from polyclinic.training.stacked.batches import batch_parts, build_table
from polyclinic.training.stacked.engines import sums
from polyclinic.training.task import SiteWork
from polyclinic.types import Floats
from tests.synthesis.central import begun, settings_of, train_centrally

SCHEMA = Schema(
    name="ward",
    unit="record",
    columns=(
        Column(name="lactate", kind="continuous", bounds=(0.0, 20.0), nullable=True),
        Column(name="male", kind="binary", nullable=True),
        Column(name="ward", kind="categorical", categories=("icu", "med", "surg")),
        Column(name="sbp", kind="trajectory", steps=4, bounds=(60.0, 240.0), centre=130.0, spread=20.0, nullable=True),
        Column(name="codes", kind="code_set", categories=("250", "401")),
        Column(name="died", kind="binary", role="label"),
    ),
)
LAYOUT = Layout.of(SCHEMA)
HALF = np.array([0.5, 0.5])


def records(rows: int, seed: int = 0) -> Floats:
    """Rows in which systolic pressure follows the label and the ward follows both."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    x = np.zeros((rows, LAYOUT.features))
    x[:, 0] = rng.uniform(-1, 1, rows)
    x[:, 1] = rng.integers(0, 2, rows)
    x[np.arange(rows), 2 + np.minimum(rng.integers(0, 3, rows), 1 + y)] = 1.0
    level = rng.normal(0.0, 0.2, rows) - 0.3 * y
    x[:, 5:9] = np.clip(level[:, None] + rng.normal(0, 0.1, (rows, 4)), -1, 1)
    x[:, 9:11] = rng.random((rows, 2)) < [0.2, 0.5]
    x[rng.random(rows) < 0.2, 0] = np.nan
    return LAYOUT.rows(x, y)


def game(**options: object) -> Game:
    return make(LAYOUT, "gan", **{"batch": 100, "steps": 3, **options})


def drawn(rows: int, seed: int = 0, made: Game | None = None) -> Floats:
    made = made or game()
    state = first_state(made, LAYOUT, seed)
    labels = np.arange(rows) % 2
    return fake_rows(generator_of(made, LAYOUT, state.weights), made, LAYOUT, labels, np.random.default_rng(seed))


def test_the_front_is_undone_and_its_transform_orthonormal() -> None:
    assert np.allclose(cosine_transform(7) @ cosine_transform(7).T, np.eye(7))
    front, z = Front(LAYOUT, 0.7, 0.5), torch.from_numpy(records(20))
    u = front.forth(z)
    assert not torch.allclose(u, z)
    torch.testing.assert_close(front.back(u), z)
    level = torch.zeros(1, LAYOUT.width, dtype=torch.float64)
    level[:, 5:9] = 3.0  # a steady patient is the first cosine alone
    steady = front.forth(level)[0, 5:9]
    assert torch.allclose(steady, torch.tensor([3.0 / 0.7, 0.0, 0.0, 0.0], dtype=torch.float64))
    assert Front(LAYOUT).forth(z) is z


def test_a_generated_row_is_nearly_a_record() -> None:
    z = drawn(200)
    assert z.shape == (200, LAYOUT.width)
    assert_array_equal(LAYOUT.labels(z), np.arange(200) % 2)
    whole = ~LAYOUT.numeric
    assert_array_equal(np.unique(z[:, whole]), [0.0, 1.0])
    assert_array_equal(z[:, LAYOUT.groups[0]].sum(1), 1.0)
    absent = z[:, LAYOUT.missing] == 1.0
    assert absent.any() and (z[:, : LAYOUT.features][:, LAYOUT.nullable][absent] == 0.0).all()
    soft = drawn(200, made=replace(game(), hard=False))
    assert ((soft[:, whole] > 0.0) & (soft[:, whole] < 1.0)).any()
    LAYOUT.decode(soft)


def test_a_pair_has_its_patient_and_says_which_is_real() -> None:
    z, made = records(6), game(spread=0)
    fakes = drawn(6, made=made)
    fakes[:, LAYOUT.label] = z[:, LAYOUT.label]
    patient = np.array([2, 0, 1, 0, 2, 3])
    found = pairs(made, LAYOUT, z, patient, 4, fakes)
    assert_array_equal(found.patient, np.repeat([0, 0, 1, 2, 2, 3], 2))
    assert_array_equal(found.y, np.tile([1, 0], 6))
    order = [1, 3, 2, 0, 4, 5]
    assert_array_equal(found.x[::2], z[order])
    assert_array_equal(found.x[1::2], fakes[order])
    for loss in ("auxiliary", "discriminative"):
        both = pairs(replace(made, loss=loss), LAYOUT, z, patient, 4, fakes)
        assert_array_equal(both.y, 2 * np.repeat(LAYOUT.labels(z)[order], 2) + np.tile([1, 0], 6))


def test_a_patient_with_its_generated_rows_moves_the_clipped_sum_by_at_most_the_norm() -> None:
    z, made = records(30), game()
    patient = np.sort(np.random.default_rng(1).integers(0, 12, 30))
    z[patient == 3] *= 1e3  # an outlier
    table = pairs(made, LAYOUT, z, patient, 12, drawn(30))
    critic = begun(made, LAYOUT, 0).critic
    module = made.critic(LAYOUT)

    def total(kept: np.ndarray) -> torch.Tensor:
        rows = Rows(table.x[kept], table.y[kept], np.unique(table.patient[kept], return_inverse=True)[1], 12)
        built = build_table([SiteWork(rows, keyed_stream(0), keyed_stream(1))], torch.float32)
        part = next(batch_parts(built, np.ones(12, dtype=bool), 1000))
        compute = sums(module, "functional", 0.5, 1000, made.loss)
        return compute(flat_parameters(module, critic)[None], part)[0][0]

    whole = total(np.ones(60, dtype=bool))
    for gone in range(12):
        assert torch.linalg.norm(whole - total(table.patient != gone)) <= 0.5 + 1e-5


def test_a_generators_loss_wants_rows_called_real_and_labels_right() -> None:
    outputs = torch.tensor([[0.0, 1.0, -1.0], [2.0, 0.5, 0.5]], dtype=torch.float64)
    labels = torch.tensor([0, 1])
    real = (np.log(2.0) + np.log1p(np.exp(-2.0))) / 2
    label = (np.log1p(np.exp(-2.0)) + np.log(2.0)) / 2
    assert float(generator_loss("wasserstein", outputs[:, :1], labels)) == pytest.approx(-1.0)
    assert float(generator_loss("logistic", outputs[:, :1], labels)) == pytest.approx(real)
    assert float(generator_loss("auxiliary", outputs, labels)) == pytest.approx(real + label)
    of_pairs = torch.cat([outputs[:, :1], torch.tensor([[0.5, 2.0, 9.0, 9.0], [9.0, 9.0, 3.0, 1.0]])], 1)
    odds = (1.5 - 2.0) / 2  # of real, at each row's own label
    assert float(generator_loss("discriminative", of_pairs, labels)) == pytest.approx(real - odds)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "sgd"])
def test_a_checkpoint_goes_on_as_if_nothing_had_happened(optimizer: str) -> None:
    made = game(optimizer=optimizer, ring=2, schedule="constant")
    critic = begun(made, LAYOUT, 1).critic

    def played(state: GeneratorState, round: int) -> GeneratorState:
        return generator_steps(Play(made, LAYOUT, HALF, 4), critic, state, 3, round)

    one = played(first_state(made, LAYOUT, 0), 1)
    again = GeneratorState.from_flat({name: value.copy() for name, value in one.flat().items()})
    ahead, resumed = played(one, 2), played(again, 2)
    assert ahead.flat().keys() == resumed.flat().keys()
    for name, value in ahead.flat().items():
        assert_array_equal(value, resumed.flat()[name])
    assert ahead.steps == 6 and len(ahead.ring) == 2
    assert any(not np.array_equal(value, one.weights[name]) for name, value in ahead.weights.items())
    fresh = played(replace(one, moments={}), 2)
    assert (optimizer == "sgd") == all(np.array_equal(v, ahead.weights[name]) for name, v in fresh.weights.items())


def test_the_server_steps_towards_what_the_critic_calls_real_and_averages() -> None:
    made = game(**{"learning-rate": 0.05, "schedule": "constant", "ema": 0.9})
    state = first_state(made, LAYOUT, 0)
    critic = {name: np.zeros_like(value) for name, value in begun(made, LAYOUT, 0).critic.items()}
    weight = next(name for name in critic if name.endswith("weight"))
    critic[weight][0, 2] = 1.0  # the first column, lactate, of the first label
    moved = generator_steps(Play(made, LAYOUT, HALF, 1), critic, state, 20, 1)

    def lactate(arrays: dict[str, np.ndarray], label: int) -> float:
        module = generator_of(made, LAYOUT, arrays)
        z = fake_rows(module, made, LAYOUT, np.full(500, label), np.random.default_rng(0))
        return float(z[:, 0].mean())

    assert lactate(moved.weights, 0) > lactate(state.weights, 0) + 0.2
    assert lactate(moved.weights, 1) == pytest.approx(lactate(state.weights, 1), abs=0.05)
    assert lactate(state.weights, 0) < lactate(moved.average, 0) < lactate(moved.weights, 0)
    assert moved.drawn_from(made) is moved.average and moved.drawn_from(replace(made, ema=0.0)) is moved.weights


def test_a_call_that_diverges_is_undone_and_says_so() -> None:
    made = game()
    good = generator_steps(
        Play(made, LAYOUT, HALF, 2), begun(made, LAYOUT, 0).critic, first_state(made, LAYOUT, 0), 3, 1
    )
    critic = begun(made, LAYOUT, 0).critic
    for bad in (np.nan, np.inf):
        broken = {name: np.full_like(value, bad) for name, value in critic.items()}
        after = generator_steps(Play(made, LAYOUT, HALF, 2), broken, good, 3, 2)
        assert after.diverged
        for name, value in good.flat().items():
            assert name == "diverged" or np.array_equal(value, after.flat()[name])
    wild = generator_steps(Play(replace(made, learning_rate=1e9), LAYOUT, HALF, 2), critic, good, 3, 2)
    assert wild.diverged and wild.steps == good.steps
    assert not generator_steps(Play(made, LAYOUT, HALF, 2), critic, wild, 3, 2).diverged


def test_the_generator_waits_for_a_critic_that_it_fools() -> None:
    adaptive = Adaptive(ratios=(1, 5, 20), threshold=0.6, beta=0.5, grace=2)
    made = replace(game(loss="logistic"), adaptive=adaptive)
    state = first_state(made, LAYOUT, 0)
    assert due(game(), state, 50)[0] == game().steps
    assert due(made, state, 50)[0] == 50
    fooled = advance(made, state, [0.0] * 4)
    assert fooled.level == 1
    steps, state = due(made, fooled, 7)
    assert (steps, state.owed) == (1, 2)
    assert due(made, state, 7)[0] == 1 and due(made, due(made, state, 7)[1], 1)[0] == 1
    assert advance(made, fooled, [1.0] * 50).level == 1
    assert advance(made, state, [0.0] * 50).level == 2


def test_the_penalty_on_generated_rows_brings_the_critics_slope_to_one() -> None:
    made = replace(game(), penalty=1.0, penalty_steps=150)
    made = replace(made, critic_of=lambda at: torch.nn.Sequential(torch.nn.Linear(at.width, 1)))
    critic = begun(made, LAYOUT, 0).critic
    critic["0.weight"][:] = 1.0
    result = penalise(Play(made, LAYOUT, HALF), critic, first_state(made, LAYOUT, 0), 1, 0.02)
    assert np.linalg.norm(critic["0.weight"]) > 4.0
    assert np.linalg.norm(result["0.weight"]) == pytest.approx(1.0, abs=0.05)
    assert (
        penalise(Play(replace(made, penalty=0.0), LAYOUT, HALF), critic, first_state(made, LAYOUT, 0), 1, 0.02)
        is critic
    )


def test_weights_are_kept_within_their_clip_and_rates_fall() -> None:
    made = game(**{"weight-clip": "0.01", "schedule": "linear", "learning-rate": 0.1})
    critic = made.clip({"w": np.array([-3.0, 0.005, 2.0]), "n": np.array([7])})
    assert_array_equal(critic["w"], [-0.01, 0.005, 0.01])
    assert_array_equal(critic["n"], [7])
    assert [made.rate(round, 4) for round in (1, 2, 3, 4)] == pytest.approx([0.1, 0.075, 0.05, 0.025])
    assert replace(made, schedule="cosine").rate(3, 4) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lattent": 3}, "no option 'lattent'"), ({"ema": "much"}, "'ema' is 'much'"),
        ({"loss": "hinge"}, "loss is 'hinge'"), ({"loss": "wasserstein", "adaptive": "true"}, "without a threshold"),
        ({"ring": 0}, "ring is 0"), ({"ema": 1.0}, "ema is 1.0"), ({"learning-rate": 0.0}, "learning_rate is 0.0"),
        ({"weight-clip": -1}, "weight_clip is -1.0"),
    ],
)  # fmt: skip
def test_what_a_game_does_not_take_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(LAYOUT, "gan", **options)  # type: ignore[arg-type]


def test_a_game_at_one_place_learns_and_leaves_no_trace() -> None:
    z = records(600)
    rows = Rows(*LAYOUT.features_and_labels(z), np.arange(600), 600)
    made = game(batch=300, steps=10)
    before = torch.random.get_rng_state()
    found = train_centrally(made, LAYOUT, rows, settings_of(made), 15, HALF, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)
    again = train_centrally(made, LAYOUT, rows, settings_of(made), 15, HALF, seed=3)
    assert all(np.array_equal(value, again.state.flat()[name]) for name, value in found.state.flat().items())

    def off(arrays: dict[str, np.ndarray]) -> float:
        fakes = fake_rows(generator_of(made, LAYOUT, arrays), made, LAYOUT, LAYOUT.labels(z), np.random.default_rng(0))
        return float(np.linalg.norm([(z[z[:, at] == 1].mean(0) - fakes[z[:, at] == 1].mean(0)) for at in (-2, -1)]))

    assert off(found.state.average) < 0.5 * off(first_state(made, LAYOUT, 3).average)
