"""A whole game at one place, by the functions that hospitals and server call: what federated training must equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polyclinic.ehr.checks import Floats
from polyclinic.ehr.shard import Rows
from polyclinic.models.tabular import initialise
from polyclinic.privacy.streams import generator, keyed_stream
from polyclinic.synthesis.games.adaptive import due
from polyclinic.synthesis.games.fakes import fake_rows, generator_of, pairs
from polyclinic.synthesis.games.game import Game
from polyclinic.synthesis.games.generator import generator_steps, penalised
from polyclinic.synthesis.games.state import GeneratorState, first_state
from polyclinic.synthesis.layout import Layout
from polyclinic.training import classification
from polyclinic.training.task import Arrays, SiteWork, TrainSettings


@dataclass(frozen=True, eq=False)
class Played:
    """The critic, the generator's state and what the critic's optimizer keeps, after some rounds."""

    critic: Arrays
    state: GeneratorState
    kept: Arrays


def begun(game: Game, layout: Layout, seed: int) -> Played:
    """Before the first round."""
    critic = {name: value.numpy() for name, value in initialise(lambda: game.critic(layout), seed).items()}
    return Played(game.clipped(critic), first_state(game, layout, seed), {})


def fakes_for(game: Game, layout: Layout, z: Floats, state: GeneratorState, seed: int, site: str, round: int) -> Floats:
    """A generated row of the same label beside each real row of (n, D) ``z``, drawn by the generator's last weights."""
    module = generator_of(game, layout, state.weights)
    return fake_rows(module, game, layout, layout.labels(z), generator(seed, "fakes", site, round))


def train_centrally(
    game: Game, layout: Layout, rows: Rows, settings: TrainSettings, rounds: int, classes: Floats, seed: int = 0,
    public_patients: float | None = None, after: Callable[[int, Played], None] | None = None,
) -> Played:  # fmt: skip
    """``rounds`` rounds over one table: ``rows`` with x (n, D) as ``Layout.rows`` has it.

    classes: (K,) frequencies of the label for the generator's steps. ``after`` is told each round's result. With a noise
    multiplier the critics, and so all else, are private for one patient added or removed, as
    ``classification.event(settings)`` composed over ``rounds`` says; the streams are keyed and protect nobody.
    """
    played = begun(game, layout, seed)
    site = "all"
    for round in range(1, rounds + 1):
        fakes = fakes_for(game, layout, rows.x, played.state, seed, site, round)
        work = SiteWork(
            pairs(game, layout, rows.x, rows.patient, rows.patients, fakes),
            keyed_stream(seed, "sampling", site, round), keyed_stream(seed, "noise", site, round),
            public_patients, played.kept,
        )  # fmt: skip
        update = classification.train(lambda: game.critic(layout), played.critic, [work], settings)[0]
        critic = game.clipped(update.arrays)
        critic = penalised(game, layout, critic, played.state, classes, seed, round, settings.learning_rate)
        steps, state = due(game, played.state, settings.local_steps)
        state = generator_steps(game, layout, critic, state, classes, steps, seed, round, rounds)
        played = Played(played.critic if state.diverged else critic, state, update.kept)
        if after:
            after(round, played)
    return played


def settings_of(game: Game, noise_multiplier: float | None = None) -> TrainSettings:
    """The hospitals' settings that the game has as its defaults."""
    found = game.defaults
    return TrainSettings(
        sample_rate=float(found["sample-rate"]), local_steps=int(found["local-steps"]),
        learning_rate=float(found["learning-rate"]), max_grad_norm=float(found["max-grad-norm"]),
        noise_multiplier=noise_multiplier, optimizer=str(found.get("optimizer", "sgd")),
        momentum=float(found.get("momentum", 0.0)), weight_decay=float(found.get("weight-decay", 0.0)), loss=game.loss,
    )  # fmt: skip
