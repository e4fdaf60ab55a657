"""Federated adversarial training as a Flower strategy: hospitals train critics, the server their mean's generator.

Only critics see records, so that the generator's steps are post-processing of what hospitals paid for. In a secure sum the
hospitals' noised gradients are added up instead, which is the pooled critic's own step.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from polyclinic.strategies.registry import merge_by
from polyclinic.strategies.wrapping import Wrapping
from polyclinic.synthesis.games.adaptive import due
from polyclinic.synthesis.games.game import Game
from polyclinic.synthesis.games.generator import generator_steps, penalised
from polyclinic.synthesis.games.state import GeneratorState, first_state
from polyclinic.synthesis.games.synthesizer import GeneratedRows
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.synthesizer import Synthesizer
from polyclinic.types import Arrays

_QUESTION = "question"


class FedGAN(Wrapping):
    """``base`` averages critics; the generator steps against their mean.

    classes: (K,) frequencies of the label. rounds: of the run. critic_steps: a hospital's in a round. rate: the critics' learning
    rate, by which a penalty is stepped, and ``decay`` the weight decay that is left to the server (0 where hospitals have it).
    candidates: how many generators are kept over the rounds, to choose among. A generator or critic that diverges is taken
    back to what it was before the round (``diverged`` has the rounds).
    """

    def __init__(
        self, base: Strategy, game: Game, layout: Layout, classes: np.ndarray, *, rounds: int, critic_steps: int = 1,
        rate: float = 0.0, decay: float = 0.0, candidates: int = 0, seed: int = 0,
    ) -> None:  # fmt: skip
        self.base = base
        self.game = game
        self.layout = layout
        self.associative = merge_by(base) is not None
        self.weighted_by_key = str(getattr(base, "weighted_by_key", "num-examples"))
        self.classes = np.asarray(classes, dtype=np.float64)
        self.rounds, self.critic_steps, self.rate, self.decay, self.seed = rounds, critic_steps, rate, decay, seed
        self.kept_rounds = [-(-rounds * (number + 1) // candidates) for number in range(candidates)]
        self.generator: Arrays = first_state(game, layout, seed).flat()
        self.candidates: dict[int, Arrays] = {}
        self.selected: list[int] = []
        self.diverged: list[int] = []
        self._sent: ArrayRecord | None = None

    @property
    def _state(self) -> GeneratorState:
        return GeneratorState.from_flat(self.generator)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the base does, with the generator beside the critic."""
        self._sent = arrays
        beside = _record(self._state.weights)
        messages = list(self.base.configure_train(server_round, arrays, config, grid))
        for message in messages:
            message.content[_QUESTION] = beside
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The mean critic, after which the generator has stepped; the critic that was sent, where either diverges."""
        sent, self._sent = self._sent, None
        mean, metrics = self.base.aggregate_train(server_round, replies)
        if mean is None or sent is None:
            return mean, metrics
        before = {name: array.numpy() for name, array in sent.items()}
        critic = {name: array.numpy().astype(before[name].dtype) for name, array in mean.items()}
        if self.decay:
            critic = {name: value - value.dtype.type(self.decay) * before[name] for name, value in critic.items()}
        critic = self.game.clipped(critic)
        state = self._state
        critic = penalised(
            self.game, self.layout, critic, state, self.classes, self.seed, server_round, self.rate
        )  # fmt: skip
        steps, state = due(self.game, state, self.critic_steps)
        state = generator_steps(
            self.game, self.layout, critic, state, self.classes, steps, self.seed, server_round, self.rounds
        )
        if state.diverged:
            self.diverged.append(server_round)
            return sent, metrics
        self.generator = state.flat()
        if server_round in self.kept_rounds:
            self.candidates[server_round] = state.drawn_from(self.game)
        return _record(critic), metrics

    def synthesizer(self) -> Synthesizer:
        """What draws rows: the selected generators, or the last one."""
        chosen = [self.candidates[number] for number in self.selected] or [self._state.drawn_from(self.game)]
        return GeneratedRows(self.layout, self.game, tuple(chosen), self.classes)

    def candidate(self, number: int) -> Synthesizer:
        """What draws rows by the generator that was kept of round ``number``."""
        return GeneratedRows(self.layout, self.game, (self.candidates[number],), self.classes)


def _record(arrays: Arrays) -> ArrayRecord:
    # Not ascontiguousarray, which makes a vector of a number, such as batch norm's count of batches.
    return ArrayRecord({name: Array(np.asarray(value, order="C")) for name, value in arrays.items()})
