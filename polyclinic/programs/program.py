"""What every kind of run answers, and what most of them answer alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from dp_accounting import DpEvent

from polyclinic.config import RunConfig
from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.plugins import task_named
from polyclinic.privacy.events import merged
from polyclinic.training import control, personal, pooled
from polyclinic.training.task import Task, TrainSettings
from polyclinic.types import Arrays

if TYPE_CHECKING:
    from torch import nn

    from polyclinic.synthesis.synthesizer import Synthesizer
    from polyclinic.training.auditing.faults import Fault
    from polyclinic.training.auditing.subject import Subject

Builder = Callable[[], "nn.Module"]
#: What a server's half keeps between rounds: arrays, numbers and texts in dicts and lists, which a checkpoint can hold.
State = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """What one hospital sent: its arrays, its weight in the mean, and the standard deviation of the noise in each entry."""

    arrays: Arrays
    weight: float
    noise: float


@dataclass(frozen=True)
class Collected:
    """What a round brought.

    mean: The hospitals' mean, by name. Empty where the half wants each reply.
    noise, patients: Where the half wants them, the standard deviation of the noise in each entry of the mean, and of how many
        patients it is, by what is public.
    replies: By node, where the half wants each reply.
    """

    mean: Arrays
    noise: float = 0.0
    patients: float = 1.0
    replies: Mapping[str, Reply] = field(default_factory=dict)


class Half(ABC):
    """The server's half of a program that makes more of the hospitals' mean than the next model.

    Its functions change nothing: what they learn is in the ``State`` that they return. All of it is post-processing of what
    hospitals paid for.
    """

    #: Whether it wants every hospital's reply, in place of their mean.
    separate: bool = False
    #: Whether it asks how noisy the mean is, which the server can say of sums alone.
    wants_noise: bool = False

    @abstractmethod
    def first(self) -> State:
        """The state before round 1."""

    def question(self, number: int, state: State) -> Arrays:
        """What hospitals are told in round ``number``, from 1, beside the model; nothing where this is empty."""
        return {}

    @abstractmethod
    def absorb(self, number: int, state: State, sent: Arrays, collected: Collected) -> tuple[State, Arrays]:
        """The next state, and what hospitals are sent next. ``sent``: what they were sent in this round."""

    def synthesizer(self, state: State) -> Synthesizer | None:
        """What draws synthetic patients; None before it can, and of a program that draws none."""
        return None

    def candidates(self, state: State) -> dict[int, Synthesizer]:
        """By round, in order, what hospitals may choose among in the end."""
        return {}

    def chosen(self, state: State, rounds: Sequence[int]) -> State:
        """The state after hospitals chose the candidates of these rounds, which draw from now on."""
        return state


@dataclass(frozen=True)
class Program(ABC):
    """A kind of run with its configuration. What is said here holds for programs that train a model in steps."""

    config: RunConfig

    #: Whether hospitals take steps on batches, so that a learning rate, an engine and a sample rate mean something.
    stepwise: ClassVar[bool] = True
    #: Whether the run ends in what draws synthetic patients.
    draws: ClassVar[bool] = False
    #: Whether patients of each class are counted before round 1.
    counts_classes: ClassVar[bool] = False
    #: Whether the result is judged on held-out patients.
    judged: ClassVar[bool] = True
    #: Whether ``moments`` and ``independent`` are shown beside it.
    has_baselines: ClassVar[bool] = False
    #: Whether a model of any number of features and classes can be built, so that made-up patients can stand in for an audit.
    any_width: ClassVar[bool] = True
    #: Whether too much noise is refused before anything is spent (``check_noise``).
    limits_noise: ClassVar[bool] = False
    #: Whether hospitals choose among candidates after the last round.
    has_candidates: ClassVar[bool] = False
    #: Whether workers may average hospitals' models before the server does: not of sums, whose order would show.
    merges_early: ClassVar[bool] = True
    #: Whether a model that was checked once needs no check in later rounds.
    checked_once: ClassVar[bool] = True
    #: Whether the strategy may tell hospitals another learning rate by Flower's name for it, ``lr``.
    tells_rate: ClassVar[bool] = True
    #: What leaves hospitals in each round, in the words of a run's notes.
    released: ClassVar[str] = "every model update"
    #: The same where the noise is shared.
    released_together: ClassVar[str] = "each round's sum of updates"

    def check_names(self) -> None:
        """Raises ConfigError when what the configuration names does not exist; touches no hospital."""
        task_named(self.config.task)

    def check(self, schema: Schema) -> None:
        """Raises ConfigError where the run and the schema do not go together; touches no record."""
        self.task(schema).check(self.builder(schema), self.first(schema), self.width(schema), self.config.engine)

    def check_noise(self, schema: Schema, noise_multiplier: float, noise: float, fewest: float) -> None:
        """Raises ConfigError where so much noise leaves nothing to learn.

        noise: standard deviation in each entry of the mean. fewest: the patients of the smallest hospital.
        """
        return  # most programs learn something under any noise

    def class_counts(self, places: Sequence[int], totals: Sequence[np.ndarray]) -> list[float]:
        """Noisy counts of the classes of all rows, from each hospital's of the label. ``places``: the hospitals' numbers."""
        return [float(count) for count in np.sum(totals, axis=0)]

    def width(self, schema: Schema) -> int:
        """How many numbers of a row the model sees."""
        return len(feature_names(schema))

    @abstractmethod
    def builder(self, schema: Schema) -> Builder:
        """A function that makes an empty module of the run's model. Raises ConfigError where nothing can."""

    @abstractmethod
    def plain_price(self, settings: TrainSettings, begun: bool = False) -> DpEvent:
        """The price of ``plain_task``."""

    def price(self, settings: TrainSettings, begun: bool = False) -> DpEvent:
        """What one round spends at each hospital (add or remove one patient), from public settings alone.

        begun: the hospital goes on with a release that it paid for, as a whole, when that began; nothing else may be free.
        Raises ConfigError for a task that calls a look at the records free, or states what cannot be accounted.
        """
        event = self.plain_price(settings, begun)
        if self.config.strategy == "scaffold":
            event = control.price(event, settings, self.config.control_variate)
        elif self.config.shared_noise:
            event = pooled.price(settings)
        elif self.config.strategy == "ditto":
            event = personal.price(event, settings)
        if not begun and not merged(event):
            raise ConfigError(
                f"The task {self.config.task!r} states an event that costs nothing, which no look at records does."
            )
        return event

    @abstractmethod
    def plain_task(self, schema: Schema, question: Mapping[str, np.ndarray] | None = None) -> Task:
        """The hospital's half, without what the strategy adds."""

    def task(self, schema: Schema, question: Mapping[str, np.ndarray] | None = None) -> Task:
        """The hospital's half, as the run's strategy has hospitals do it. ``question``: what a round asks beside the model.

        Raises ConfigError for a question that cannot be answered.
        """
        return self.by_strategy(self.plain_task(schema, question))

    def by_strategy(self, task: Task) -> Task:
        """The task with what the strategy has hospitals do beside it."""
        if self.config.strategy == "scaffold":
            return control.Controlled(task, self.config.control_variate)
        if self.config.shared_noise:
            return pooled.Pooled(task)
        return personal.Personal(task, self.config.personal_mu) if self.config.strategy == "ditto" else task

    def first(self, schema: Schema, classes: Sequence[float] = ()) -> Arrays:
        """What hospitals are sent in round 1. ``classes``: counts of the label that were paid for."""
        from polyclinic.models.tabular import initialise
        from polyclinic.privacy.streams import torch_seed

        model = initialise(self.builder(schema), torch_seed(self.config.seed, "model"))
        return {name: value.numpy() for name, value in model.items()}

    def local(self, schema: Schema) -> list[str]:
        """The model's arrays that stay at hospitals. Raises ConfigError where there are none to stay, or none to share."""
        return []

    def half(self, schema: Schema, classes: Sequence[float], learning_rate: float) -> Half | None:
        """The server's half; None where the strategy's model is all that is learned."""
        return None

    def evaluated(self, model: Arrays, synthesizer: Synthesizer | None) -> Arrays | None:
        """The arrays by which hospitals score their held-out patients; None where there is nothing to score with yet."""
        return model

    def scores(self, schema: Schema, arrays: Arrays, rows: Sequence[Rows]) -> list[np.ndarray]:
        """Each site's (rows, classes) probabilities by ``evaluated``'s arrays."""
        return self.plain_task(schema).evaluate(self.builder(schema), arrays, rows)

    def check_evaluated(self, schema: Schema, arrays: Arrays) -> None:
        """Raises ConfigError for arrays by which one patient's scores would depend on another's."""
        self.task(schema).check(self.builder(schema), arrays, self.width(schema), self.config.engine)

    def published(self) -> bool:
        """Whether hospitals train as a publication has it, which keeps no epsilon."""
        return False

    @abstractmethod
    def subject(
        self, rows: Rows, classes: int, settings: TrainSettings, rounds: int, epsilon: float,
        seed: int | None, fault: Fault,
    ) -> Subject:  # fmt: skip
        """The run's training at one hospital with these ``rows``, for an audit of the epsilon that it claims."""

    def notes(self, state: State, scored: bool) -> list[str]:
        """What a reader must know beside the result. ``scored``: whether some hospital let metrics leave."""
        return []

    def statement(
        self, half: Half | None, state: State, synthesizer: Synthesizer | None, patients: Sequence[int], stopped: str | None
    ) -> dict[str, Any]:  # fmt: skip
        """The program's own part of the summary, by its key.

        patients: of each hospital that trained. stopped: why the run ended early, None where it did not.
        """
        return {}
