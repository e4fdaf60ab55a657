"""How many steps the generator takes in a round: the same each time, or as few as the critic needs (Bie et al. 2023).

The critic's steps are planned, since privacy is paid for by them; so it is the generator that waits. What decides is the
critic's accuracy on generated rows, which the server knows without any record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyclinic.synthesis.games.game import Game
from polyclinic.synthesis.games.state import GeneratorState


def due(game: Game, state: GeneratorState, critic_steps: int) -> tuple[int, GeneratorState]:
    """The generator's steps after ``critic_steps`` more of the critic's, and the state that has counted them."""
    if game.adaptive is None:
        return game.steps, state
    owed = state.owed + critic_steps
    ratio = game.adaptive.ratios[state.level]
    return owed // ratio, replace(state, owed=owed % ratio)


def advanced(game: Game, state: GeneratorState, accuracies: Sequence[float]) -> GeneratorState:
    """The state after steps at which the critic called these shares of the generated rows generated."""
    adaptive = game.adaptive
    if adaptive is None or not accuracies:
        return state
    average, since, level = state.accuracy, state.since, state.level
    for accuracy in accuracies:
        average = adaptive.beta * average + (1.0 - adaptive.beta) * accuracy
        since += 1
        if since > adaptive.grace and average < adaptive.threshold and level + 1 < len(adaptive.ratios):
            level, since = level + 1, 0
    return replace(state, accuracy=average, since=since, level=level)
