"""Steps of critics as published: where noise and clipping are, what one patient moves, and what they equal without either."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.privacy.streams import keyed_stream
from polyclinic.synthesis.games.builders import make
from polyclinic.synthesis.games.game import Game
from polyclinic.synthesis.games.state import first_state
from polyclinic.synthesis.layout import Layout
from polyclinic.training.synthesis import GameTask
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays
from polyclinic_studies.published_games.training import AsPublished
from tests.synthesis.central import begun
from tests.synthesis.games.test_games import SCHEMA

LAYOUT = Layout.of(SCHEMA)
SETTINGS = TrainSettings(
    sample_rate=1.0, local_steps=1, learning_rate=0.5, max_grad_norm=1.0, noise_multiplier=None, optimizer="sgd"
)


def patients(count: int, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (count, LAYOUT.features))
    return Rows(x, rng.integers(0, 2, count), np.arange(count), count)


def paper(noise: float = 0.0, clip: float | None = None, **changes: Any) -> Game:
    return replace(make(LAYOUT, "gan"), published=AsPublished("", noise, clip), **changes)


def updates(game: Game, sites: list[Rows], settings: TrainSettings = SETTINGS, kept: Any = None) -> list[SiteUpdate]:
    task = GameTask(game, LAYOUT, first_state(game, LAYOUT, 0).weights)
    work = [
        SiteWork(rows, keyed_stream(1, i), keyed_stream(2, i), None, kept or {}, keyed_stream(3, i))
        for i, rows in enumerate(sites)
    ]
    return task.train(lambda: game.critic(LAYOUT), critic(game), work, settings)


def critic(game: Game) -> Arrays:
    return begun(game, LAYOUT, 0).critic


def moved(game: Game, update: SiteUpdate) -> np.ndarray:
    """The gradient that the last plain step took."""
    first = critic(game)
    return np.concatenate([(first[name] - update.arrays[name]).ravel() for name in first]) / SETTINGS.learning_rate


def test_a_clip_that_nothing_reaches_leaves_the_steps_of_a_game_without_noise() -> None:
    settings = replace(SETTINGS, local_steps=3, optimizer="rmsprop", learning_rate=1e-2)
    one, other = (updates(game, [patients(20), patients(7, 1)], settings) for game in (paper(clip=1e9), paper()))
    for a, b in zip(one, other, strict=True):
        assert a.steps == 3 and a.loss == pytest.approx(b.loss, rel=1e-5)
        for name in b.arrays:
            np.testing.assert_allclose(a.arrays[name], b.arrays[name], rtol=1e-4, atol=1e-6)
        assert set(a.state) == set(b.state)
        again = updates(paper(clip=1e9), [patients(20)], settings, a.state)
        assert not np.array_equal(next(iter(again[0].arrays.values())), next(iter(a.arrays.values())))


def test_the_average_is_clipped_as_a_whole_and_noise_is_added_behind_the_clip() -> None:
    free, clipped = (moved(game, updates(game, [patients(20)])[0]) for game in (paper(clip=1e9), paper(clip=1e-2)))
    assert np.linalg.norm(free) > 0.1
    assert np.linalg.norm(clipped) == pytest.approx(1e-2, rel=1e-3)
    np.testing.assert_allclose(clipped / 1e-2, free / np.linalg.norm(free), atol=1e-3)
    sites = [patients(3)] * 200
    noisy = np.array([moved(paper(0.3, 1e-9), found) for found in updates(paper(0.3, 1e-9), sites)])
    assert (
        noisy.std() == pytest.approx(0.3, rel=0.05)
        and abs(np.corrcoef(noisy[:100].ravel(), noisy[100:].ravel())[0, 1]) < 0.1
    )


def test_one_patient_turns_a_clipped_average_round() -> None:
    """What DPGAN's and PPGAN's theorems overlook, and what holds where a batch is one patient's."""
    game, many = paper(clip=1e-2, spread=0.0), patients(20)
    other = replace(many, x=np.r_[np.full((1, LAYOUT.features), 1e30), many.x[1:]])
    both = [moved(game, found) for found in updates(game, [many, other])]
    assert np.linalg.norm(both[0] - both[1]) > 3 * 1e-2 / 20  # of the share that a clipped patient would have


def test_a_batch_is_so_many_different_patients_and_at_least_one() -> None:
    game, rows = paper(clip=1e-3), replace(patients(40), y=np.zeros(40, dtype=np.int64))
    found = updates(game, [rows] * 50, replace(SETTINGS, sample_rate=1e-4))
    assert len({moved(game, one).tobytes() for one in found}) > 25
    assert all(np.linalg.norm(moved(game, one)) == pytest.approx(1e-3, rel=0.01) for one in found)


def test_training_with_privacy_is_refused() -> None:
    with pytest.raises(ConfigError, match="keeps no epsilon"):
        updates(paper(1.0), [patients(5)], replace(SETTINGS, noise_multiplier=1.0))
