"""A whole game at one place, by the functions that hospitals and server call: what a federation of one hospital equals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from polyclinic.config import RunConfig, train_settings
from polyclinic.ehr.shard import Rows
from polyclinic.models.tabular import initialise
from polyclinic.privacy.streams import Stream, keyed_stream, torch_seed
from polyclinic.synthesis.games.game import Game
from polyclinic.synthesis.games.generator import Play, generator_steps, penalise
from polyclinic.synthesis.games.state import GeneratorState, due, first_state
from polyclinic.synthesis.layout import Layout
from polyclinic.training.synthesis import GameTask
from polyclinic.training.task import SiteWork, TrainSettings
from polyclinic.types import Arrays, Floats

Streams = Callable[[str, int], Stream]


@dataclass(frozen=True, eq=False)
class Played:
    """The critic, the generator's state and what the critic's optimizer keeps, after some rounds."""

    critic: Arrays
    state: GeneratorState
    kept: Arrays


def begun(game: Game, layout: Layout, seed: int) -> Played:
    """Before the first round."""
    critic = initialise(lambda: game.critic(layout), torch_seed(seed, "model"))
    return Played({name: value.numpy() for name, value in critic.items()}, first_state(game, layout, seed), {})


def train_centrally(
    game: Game, layout: Layout, rows: Rows, settings: TrainSettings, rounds: int, classes: Floats, seed: int = 0,
    public_patients: float | None = None, after: Callable[[int, Played], None] | None = None, streams: Streams | None = None,
) -> Played:  # fmt: skip
    """``rounds`` rounds over one table of encoded records, as hospitals hold them.

    classes: (K,) frequencies of the label for the generator's steps. ``after`` is told each round's result. ``streams``: by
    purpose and round; a simulation's by default, which protect nobody. With a noise multiplier the critics, and so all else,
    are private for one patient added or removed, as ``classification.event(settings)`` composed over ``rounds`` says.
    """
    played, play = begun(game, layout, seed), Play(game, layout, classes, rounds, seed)
    draw = streams or (lambda purpose, round: keyed_stream(seed, purpose, round))
    for round in range(1, rounds + 1):
        task = GameTask(game, layout).with_question(played.state.weights)
        work = SiteWork(
            rows,
            draw("batches", round),
            draw("gradient-noise", round),
            public_patients,
            played.kept,
            draw("layers", round),
        )
        update = task.train(lambda: game.critic(layout), played.critic, [work], settings)[0]
        critic = penalise(play, update.arrays, played.state, round, settings.learning_rate)
        steps, state = due(game, played.state, settings.local_steps)
        state = generator_steps(play, critic, state, steps, round)
        played = Played(played.critic if state.diverged else critic, state, update.state)
        if after:
            after(round, played)
    return played


def settings_of(game: Game, noise_multiplier: float | None = None) -> TrainSettings:
    """The hospitals' settings that a run of the game takes where nothing is given."""
    config = RunConfig.build({"task": "synthesis", "model": game.name, "privacy.dp": noise_multiplier is not None})
    return replace(train_settings(config, noise_multiplier), loss=game.loss)
