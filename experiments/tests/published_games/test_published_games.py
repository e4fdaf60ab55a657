"""Games as published: their networks fit their losses, they keep no epsilon, and an audit says what breaks them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from polyclinic.errors import ConfigError
from polyclinic.synthesis.games.game import Game
from polyclinic.synthesis.games.state import first_state
from polyclinic.synthesis.games.synthesizer import GeneratedRows
from polyclinic.synthesis.layout import Layout
from polyclinic.training import classification
from polyclinic.training.auditing.audit import audit
from polyclinic.training.losses import row_losses
from polyclinic_studies.published_games import games
from polyclinic_studies.published_games.training import AsPublished
from tests.synthesis.central import begun
from tests.synthesis.games.test_games_builders import CODES, PICTURE, TABLE, TRIAL, parameters
from tests.training.test_auditing_synthesis import LAYOUT, played


@pytest.mark.parametrize(
    ("name", "at"), [("acgan", TRIAL), ("dpgan", CODES), ("dpgan", PICTURE), ("ppgan", PICTURE), ("wgan", TABLE)]
)
def test_every_published_game_says_what_it_promises_and_can_be_made_again(name: str, at: Layout) -> None:
    game: Game = getattr(games, name)(at)
    assert isinstance(game.published, AsPublished) and game.published.words.endswith(".")
    assert f"{game.name}" in games.SETTINGS
    out = game.critic(at)(torch.zeros(4, at.width))
    assert row_losses(game.loss, out, torch.zeros(4, dtype=torch.int64)).shape == (4,)
    assert game.generator(at)(game.latents(4, np.random.default_rng(0)), torch.zeros(4, dtype=torch.int64)).shape == (
        4, at.label.start
    )  # fmt: skip
    made = replace(game, made_by=f"polyclinic_studies.published_games.games:{name}")
    drawn = GeneratedRows(at, made, (first_state(made, at, 0).weights,), np.ones(at.classes))
    again = GeneratedRows.load(at, drawn.arrays(), drawn.options())
    np.testing.assert_array_equal(again.sample(5, np.random.default_rng(1)), drawn.sample(5, np.random.default_rng(1)))


def test_the_published_acgan_has_its_parameters() -> None:
    game = games.acgan(TRIAL)
    assert parameters(game.generator(TRIAL)) == 333_897
    assert parameters(game.critic(TRIAL)) == 1_858_947


def test_a_published_critic_with_batch_norm_is_refused_under_training() -> None:
    game = games.dpgan(PICTURE, form="mlp")
    with pytest.raises(ConfigError, match="mixes patients"):
        classification.check(lambda: game.critic(PICTURE), begun(game, PICTURE, 0).critic, PICTURE.width)


@pytest.mark.parametrize(
    "name", ["dpgan", "ppgan", *(pytest.param(name, marks=pytest.mark.slow) for name in ("wgan", "wgan_gp"))]
)
def test_every_published_game_is_flagged(name: str) -> None:
    found = audit(played(getattr(games, name)(LAYOUT), LAYOUT, noise_multiplier=None), 40, (20,))
    assert found.violated and found.caught_by == ["sensitivity", "batch sizes"] and found.guessing is None
    assert found.findings[0].measured > 2


def test_batches_of_one_pair_are_flagged_for_how_they_are_drawn_alone() -> None:
    """The AC-GAN's steps: one patient is clipped, and yet no Poisson sample."""
    game = replace(games.ppgan(LAYOUT), published=AsPublished("", 1e-4, 1e-4))
    found = audit(played(game, noise_multiplier=None, sample_rate=1 / 60), 40, (20,))
    assert found.caught_by == ["batch sizes"] and found.findings[0].measured == pytest.approx(1.0, abs=1e-6)
