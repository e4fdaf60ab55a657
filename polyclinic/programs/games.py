"""Synthetic patients by an adversarial game: hospitals train critics, the server their mean's generator.

Only critics see records, so that the generator's steps are post-processing of what hospitals paid for. In a secure sum the
hospitals' noised gradients are added up instead, which is the pooled critic's own step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
from dp_accounting import DpEvent

from polyclinic.config.keys import with_dashes
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.installed import claim_of
from polyclinic.plugins import BUILT_IN, dataset_of
from polyclinic.privacy.accounting import usual_delta
from polyclinic.programs.program import Choice, Collected, Half, State
from polyclinic.programs.synthetic import Synthetic, make_model
from polyclinic.synthesis.games.game import Game
from polyclinic.synthesis.games.generator import Play, generator_steps, penalise
from polyclinic.synthesis.games.state import GeneratorState, due, first_state
from polyclinic.synthesis.games.synthesizer import GeneratedRows
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.synthesizer import Synthesizer
from polyclinic.training import classification
from polyclinic.training.synthesis import GameTask
from polyclinic.training.task import TrainSettings
from polyclinic.types import Arrays, Builder

if TYPE_CHECKING:
    from polyclinic.training.auditing.subject import Claim, Subject

_MOST_ROUNDS_NAMED = 5


@dataclass(frozen=True)
class Games(Synthetic):
    """Synthetic patients by a game of generator and critic.

    Examples:
        >>> from polyclinic.config import RunConfig
        >>> program = Games(RunConfig(task="synthesis", model="wgan", synthesis={"candidates": 5}))
        >>> program.by_game, program.choice.candidates, program.width(dataset_of(program.config).schema)
        (True, 5, 32)
    """

    by_game: ClassVar[bool] = True
    released: ClassVar[str] = "every critic"
    released_together: ClassVar[str] = "each round's sum of gradients"

    @property
    def choice(self) -> Choice | None:
        wanted, privacy = self.config.synthesis, self.config.privacy
        epsilon = (wanted.selection_epsilon or privacy.epsilon / 10) if privacy.dp else 0.0
        return Choice(wanted.candidates, wanted.selected, wanted.rows, epsilon) if wanted.candidates else None

    @property
    def shows_baselines(self) -> bool:
        return self.config.synthesis.baselines

    def game(self, layout: Layout) -> Game:
        """The run's game. Raises ConfigError for an unknown name, an option that it does not take, or a schema that it
        cannot do."""
        config = self.config
        options = {with_dashes(key): value for key, value in self.options.items()}
        game = make_model("games", config, layout, options)
        if not isinstance(game, Game):
            raise ConfigError(
                f"Configuration key 'model' has the value {config.model!r}, which makes no polyclinic Game."
            )
        if config.privacy.dp and game.published:
            raise ConfigError(
                f"Configuration key 'privacy.dp' is true, but the game {config.model!r} is trained as published, which keeps no "
                "epsilon; set privacy.dp to false."
            )
        if config.model in BUILT_IN["games"]:
            return game
        # A stranger's game is made again by the stranger's function, though it began as one of ours.
        point = claim_of("games", config.model, BUILT_IN["games"])
        return replace(game, made_by=point.value if point else config.model, options=options)

    def check(self, schema: Schema) -> None:
        layout = self.layout(schema)
        first_state(self.game(layout), layout, self.config.seed)
        super().check(schema)

    def width(self, schema: Schema) -> int:
        return self.layout(schema).width

    def builder(self, schema: Schema) -> Builder:
        layout = self.layout(schema)
        game = self.game(layout)
        return lambda: game.critic(layout)

    def plain_price(self, settings: TrainSettings, begun: bool = False) -> DpEvent:
        return classification.event(settings, begun)

    def plain_task(self, schema: Schema, question: Mapping[str, np.ndarray] | None = None) -> GameTask:
        layout = self.layout(schema)
        task = GameTask(self.game(layout), layout, clips=not self.config.secure.shared_noise)
        return task if question is None else task.with_question(question)

    def half(self, schema: Schema, classes: Sequence[float], learning_rate: float) -> Half:
        config, layout = self.config, self.layout(schema)
        return GameHalf(
            Play(self.game(layout), layout, self.frequencies(schema, classes), config.rounds, config.seed),
            critic_steps=config.training.local_steps, rate=learning_rate,
            decay=learning_rate * config.training.weight_decay if config.secure.shared_noise else 0.0,
            most=self.choice.candidates if self.choice else 0,
        )  # fmt: skip

    def is_published(self) -> bool:
        return self.game(self.layout(dataset_of(self.config).schema)).published is not None

    def subject(self, claim: Claim) -> Subject:
        from polyclinic.training.auditing.fixed import of_game

        layout = self.layout(dataset_of(self.config).schema)
        return of_game(self.game(layout), layout, claim)

    def guarantee(self, synthesizer: Synthesizer | None, patients: Sequence[int]) -> str | None:
        if synthesizer is None or not patients:
            return None
        published = cast(GeneratedRows, synthesizer).game.published
        if not published:
            return None
        config = self.config
        return (
            published.guarantee(
                patients,
                config.training.sample_rate,
                config.training.local_steps,
                config.rounds,
                config.privacy.delta or usual_delta(sum(patients)),
            )
            or None
        )

    def notes(self, state: State, scored: bool) -> list[str]:
        notes, diverged, selected = super().notes(state, scored), state["diverged"], state["selected"]
        if diverged:
            rounds = ", ".join(map(str, diverged[:_MOST_ROUNDS_NAMED]))
            count = "round" if len(diverged) == 1 else "rounds"
            notes.append(
                f"In {len(diverged)} {count} ({rounds}) the generator diverged and was taken back to what it was; what the "
                "round's critics cost was spent once."
            )
        if selected:
            notes.append(
                f"Rows are drawn from the generators of rounds {', '.join(map(str, selected))}, which the hospitals chose of "
                f"{len(state['candidates'])}."
            )
        return notes


@dataclass(frozen=True, eq=False)
class GameHalf(Half):
    """The generator steps against the hospitals' mean critic.

    critic_steps: a hospital's in a round.
    rate: the critics' learning rate, by which a penalty is stepped.
    decay: the weight decay that is left to the server (0 where hospitals have it).
    most: how many generators stay over the rounds, to choose among.

    A generator or critic that diverges is taken back to what it was before the round; the state's ``diverged`` has the
    rounds.

    Examples:
        >>> from polyclinic.config import RunConfig
        >>> program = Games(RunConfig(task="synthesis", model="wgan"))
        >>> half = program.half(dataset_of(program.config).schema, classes=[], learning_rate=0.01)
        >>> state = half.first()
        >>> state["diverged"], half.candidates(state), len(half.question(1, state)) > 0
        ([], {}, True)
    """

    play: Play
    critic_steps: int = 1
    rate: float = 0.0
    decay: float = 0.0
    most: int = 0

    def first(self) -> State:
        generator = first_state(self.play.game, self.play.layout, self.play.seed).flat()
        return {"generator": generator, "candidates": {}, "selected": [], "diverged": []}

    def question(self, number: int, state: State) -> Arrays:
        """The generator."""
        return GeneratorState.from_flat(state["generator"]).weights

    def absorb(self, number: int, state: State, sent: Arrays, collected: Collected) -> tuple[State, Arrays]:
        """The generator after its steps, and the mean critic; the critic that was sent, where either diverges.

        Args:
            number: Of the round, from 1 on.
            state: Before the round.
            sent: The critic that hospitals were sent in this round.
            collected: With the hospitals' mean critic.
        """
        game, rounds = self.play.game, self.play.rounds
        critic = {name: value.astype(sent[name].dtype) for name, value in collected.mean.items()}
        if self.decay:
            critic = {name: value - value.dtype.type(self.decay) * sent[name] for name, value in critic.items()}
        critic = game.clip(critic)
        made = GeneratorState.from_flat(state["generator"])
        critic = penalise(self.play, critic, made, number, self.rate)
        steps, made = due(game, made, self.critic_steps)
        made = generator_steps(self.play, critic, made, steps, number)
        if made.diverged:
            return state | {"diverged": [*state["diverged"], number]}, sent
        candidates = state["candidates"]
        if number in {-(-rounds * (place + 1) // self.most) for place in range(self.most)}:
            candidates = candidates | {number: made.drawn_from(game)}
        return state | {"generator": made.flat(), "candidates": candidates}, critic

    def synthesizer(self, state: State) -> Synthesizer:
        """What draws rows: the selected generators, or the last one."""
        chosen = [state["candidates"][number] for number in state["selected"]]
        last = GeneratorState.from_flat(state["generator"]).drawn_from(self.play.game)
        return self._rows(*(chosen or [last]))

    def choose(self, state: State, rounds: Sequence[int]) -> State:
        return state | {"selected": [*rounds]}

    def candidates(self, state: State) -> dict[int, Synthesizer]:
        return {number: self._rows(arrays) for number, arrays in sorted(state["candidates"].items())}

    def _rows(self, *generators: Arrays) -> GeneratedRows:
        return GeneratedRows(self.play.layout, self.play.game, generators, self.play.classes)
