"""What a server keeps of a game between rounds, as flat arrays for its checkpoint; and how many steps the generator takes.

They are the same each time, or as few as the critic needs (Bie et al. 2023). The critic's steps are planned, since privacy is
paid for by them; so it is the generator that waits. What decides is the critic's accuracy on generated rows, which the server
knows without any record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from polyclinic.models.tabular import initialise
from polyclinic.synthesis.games.game import Game
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Arrays, under

# In the order of the fields.
_PARTS = ("weights", "average", "moments")
_COUNTS = ("steps", "owed", "level", "since")


@dataclass(frozen=True, eq=False)
class GeneratorState:
    """``weights``: the generator's arrays; ``average``: their moving average; ``moments``: its optimizer's, "slot/name".

    ``ring``: the last critics, newest last. ``steps``: taken in all. Of the adaptive ratio: ``owed`` critic steps without
    the generator's own yet, the ``level`` reached, the steps ``since``, and the average ``accuracy`` on generated rows.
    ``diverged``: the last call was undone; this is the state before it.
    """

    weights: Arrays
    average: Arrays
    moments: Arrays = field(default_factory=dict)
    ring: tuple[Arrays, ...] = ()
    steps: int = 0
    owed: int = 0
    level: int = 0
    since: int = 0
    accuracy: float = 1.0
    diverged: bool = False

    def flat(self) -> Arrays:
        """All of it as arrays by name; what a critic holds is repeated, so that a checkpoint is whole."""
        arrays: Arrays = {f"{part}/{name}": value for part in _PARTS for name, value in getattr(self, part).items()}
        for index, critic in enumerate(self.ring):
            arrays |= {f"ring/{index}/{name}": value for name, value in critic.items()}
        arrays |= {key: np.array(getattr(self, key), dtype=np.int64) for key in _COUNTS}
        return arrays | {"accuracy": np.array(self.accuracy), "diverged": np.array(self.diverged)}

    @classmethod
    def from_flat(cls, arrays: Mapping[str, np.ndarray]) -> GeneratorState:
        """The inverse of ``flat``."""
        ring: list[Arrays] = []
        while critic := under(arrays, f"ring/{len(ring)}/"):
            ring.append(critic)
        weights, average, moments = (under(arrays, f"{part}/") for part in _PARTS)
        steps, owed, level, since = (int(arrays[key]) for key in _COUNTS)
        accuracy, diverged = float(arrays["accuracy"]), bool(arrays["diverged"])
        return cls(weights, average, moments, tuple(ring), steps, owed, level, since, accuracy, diverged)

    def drawn_from(self, game: Game) -> Arrays:
        """The arrays that rows are drawn with in the end: the average, or the last weights where the game keeps none."""
        return self.average if game.ema else self.weights

    def undone(self) -> GeneratorState:
        """This state, marked as what a call that diverged went back to."""
        return replace(self, diverged=True)


def first_state(game: Game, layout: Layout, seed: int) -> GeneratorState:
    """The state before the first round: a function of the game, the schema and ``seed``.

    Args:
        game: The game.
        layout: The layout of the rows.
        seed: The seed of the generator's first weights.

    Raises:
        DataError: The game begins with arrays of a file that does not fit.
    """
    weights = {name: value.numpy() for name, value in initialise(lambda: game.generator(layout), seed).items()}
    weights |= game.begin(layout)
    return GeneratorState(weights, dict(weights))


def due(game: Game, state: GeneratorState, critic_steps: int) -> tuple[int, GeneratorState]:
    """The generator's steps after ``critic_steps`` more of the critic's, and the state that has counted them.

    Args:
        game: The game.
        state: The generator's state.
        critic_steps: The critic's steps of the round.
    """
    if game.adaptive is None:
        return game.steps, state
    owed = state.owed + critic_steps
    ratio = game.adaptive.ratios[state.level]
    return owed // ratio, replace(state, owed=owed % ratio)


def advance(game: Game, state: GeneratorState, accuracies: Sequence[float]) -> GeneratorState:
    """The state after steps at which the critic called these shares of the generated rows generated.

    Args:
        game: The game.
        state: The generator's state after the steps.
        accuracies: The share of generated rows that the critic called generated, at each step.
    """
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
