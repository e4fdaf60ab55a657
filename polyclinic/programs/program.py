"""What every kind of run answers, and what most of them answer alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from dp_accounting import DpEvent

from polyclinic.config import RunConfig, train_settings
from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Rows
from polyclinic.errors import ConfigError
from polyclinic.plugins import strategy_named
from polyclinic.privacy.events import merge_events
from polyclinic.training import pooled
from polyclinic.training.local import PLAIN, LocalHalf
from polyclinic.training.preparation import PatientSums
from polyclinic.training.task import Task, TrainSettings
from polyclinic.types import Arrays, Builder

if TYPE_CHECKING:
    from torch import Tensor

    from polyclinic.objectives.objective import Objective
    from polyclinic.synthesis.layout import Layout
    from polyclinic.synthesis.synthesizer import Synthesizer
    from polyclinic.training.auditing.subject import Claim, Subject
#: What a server's half keeps between rounds: arrays, numbers and texts in dicts and lists, which a checkpoint can hold.
State = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """What one hospital sent: its arrays, its weight in the mean, and the standard deviation of the noise in each entry.

    Examples:
        >>> collected = Collected({}, replies={"7": Reply({"sum": np.array([0.5, 2.0])}, weight=120.0, noise=0.1)})
        >>> {node: reply.weight for node, reply in collected.replies.items()}
        {'7': 120.0}
    """

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

    Examples:
        >>> collected = Collected({"sum": np.array([0.5, 2.0])}, noise=0.1, patients=300.0)
        >>> collected.mean["sum"].tolist(), collected.replies  # the half does not want each reply
        ([0.5, 2.0], {})
    """

    mean: Arrays
    noise: float = 0.0
    patients: float = 1.0
    replies: Mapping[str, Reply] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """Hospitals choose ``selected`` of ``candidates`` synthesizers after the last round.

    rows: Synthetic rows to which the classifier is fitted by which hospitals judge each candidate.
    epsilon: Pure epsilon of one hospital's choice (add or remove one patient); 0 without privacy.

    Examples:
        >>> from polyclinic.programs import program_of
        >>> config = RunConfig(task="synthesis", model="wgan", synthesis={"candidates": 5}, privacy={"epsilon": 3.0})
        >>> program_of(config).choice
        Choice(candidates=5, selected=1, rows=2000, epsilon=0.3)
    """

    candidates: int
    selected: int
    rows: int
    epsilon: float


class Half(ABC):
    """The server's half of a program that makes more of the hospitals' mean than the next model.

    Its functions change nothing: what they learn is in the ``State`` that they return. All of it is post-processing of what
    hospitals paid for.

    Examples:
        >>> class Largest(Half):
        ...     def first(self): return {"largest": 0.0}
        ...     def absorb(self, number, state, sent, collected):
        ...         return {"largest": max(state["largest"], float(collected.mean["sum"].max()))}, {}
        >>> half = Largest()
        >>> half.absorb(1, half.first(), {}, Collected({"sum": np.array([0.5, 2.0])}))[0]
        {'largest': 2.0}
    """

    #: Whether it wants every hospital's reply, in place of their mean.
    separate: bool = False
    #: Whether it asks how noisy the mean is, which the server can say of sums alone.
    wants_noise: bool = False

    @abstractmethod
    def first(self) -> State:
        """The state before round 1."""

    def question(self, number: int, state: State) -> Arrays:
        """What hospitals are asked in round ``number``, from 1, beside a model or in place of one; nothing where it is empty."""
        return {}

    @abstractmethod
    def absorb(self, number: int, state: State, sent: Arrays, collected: Collected) -> tuple[State, Arrays]:
        """The next state, and the model that hospitals are sent next, if any.

        Args:
            number: Of the round, from 1 on.
            state: Before the round.
            sent: What hospitals were sent in this round.
            collected: What the round brought.
        """

    def synthesizer(self, state: State) -> Synthesizer | None:
        """What draws synthetic patients; None before it can, and of a program that draws none."""
        return None

    def candidates(self, state: State) -> dict[int, Synthesizer]:
        """By round, in order, what hospitals may choose among in the end."""
        return {}

    def choose(self, state: State, rounds: Sequence[int]) -> State:
        """The state after hospitals chose the candidates of these rounds, which draw from now on."""
        return state


@dataclass(frozen=True)
class Program(ABC):
    """A kind of run with its configuration. What is said here holds for programs that train a model in steps.

    Examples:
        >>> from polyclinic.programs import program_of
        >>> program = program_of(RunConfig(training={"local_steps": 2}))
        >>> program.stepwise, program.judged, program.price(program.settings(noise_multiplier=1.0)).count
        (True, True, 2)
        >>> program_of(RunConfig(task="output-perturbation")).round_is
        'a release of its own'
    """

    config: RunConfig

    #: Whether hospitals take steps on batches, so that a learning rate, an engine and a sample rate mean something.
    stepwise: ClassVar[bool] = True
    #: Whether the run ends in what draws synthetic patients.
    draws: ClassVar[bool] = False
    #: Whether patients of each class are counted before round 1.
    counts_classes: ClassVar[bool] = False
    #: Whether the result is judged on held-out patients.
    judged: ClassVar[bool] = True
    #: Whether too much noise is refused before anything is spent (``check_noise``).
    limits_noise: ClassVar[bool] = False
    #: Whether workers may average hospitals' models before the server does: not of sums, whose order would show.
    merges_early: ClassVar[bool] = True
    #: Whether a model that was checked once needs no check in later rounds.
    checked_once: ClassVar[bool] = True
    #: Whether the strategy may tell hospitals another learning rate by Flower's name for it, ``lr``.
    tells_rate: ClassVar[bool] = True
    #: What each round is, where it is none of steps, in the words of a run's first line.
    round_is: ClassVar[str] = ""
    #: What leaves hospitals in each round, in the words of a run's notes.
    released: ClassVar[str] = "every model update"
    #: The same where the noise is shared.
    released_together: ClassVar[str] = "each round's sum of updates"

    def check_names(self) -> None:
        """Raises ConfigError when what the configuration names does not exist; touches no hospital."""
        self.price(self.settings(1.0))

    def check(self, schema: Schema) -> None:
        """Raises ConfigError where the run and the schema do not go together; touches no record."""
        self.check_training(
            self.task(schema),
            schema,
            self.builder(schema),
            self.first(schema),
            self.settings(1.0 if self.config.privacy.dp else None),
        )

    def check_training(
        self, task: Task, schema: Schema, build: Builder, arrays: Arrays, settings: TrainSettings
    ) -> None:
        """Check that training would take the model and the strategy's local half; touches no record.

        Args:
            task: Of the run.
            schema: Of the run.
            build: Makes the model's module.
            arrays: The model that hospitals are sent.
            settings: Of training; with a noise multiplier it is private.

        Raises:
            ConfigError: where training would refuse one of them.
        """
        private = settings.noise_multiplier is not None or self.config.evaluation.metrics == "private"
        task.check(build, arrays, self.width(schema), self.config.training.engine, private)
        if settings.local.penalises:
            from polyclinic.training.representation import check_penalised

            check_penalised(build, arrays, self.width(schema), self.config.training.engine)
        if settings.local != PLAIN:
            from polyclinic.training.sites.rehearsal import check_half

            check_half(build, arrays, settings)

    def check_noise(self, schema: Schema, noise_multiplier: float, noise: float, fewest: float) -> None:
        """Check that the noise leaves something to learn. Most programs learn something under any noise, and check nothing.

        Args:
            schema: Of the run.
            noise_multiplier: Standard deviation of the noise in a sum, over a patient's clip norm.
            noise: Standard deviation of the noise in each entry of the mean.
            fewest: The patients of the smallest hospital.

        Raises:
            ConfigError: where so much noise leaves nothing to learn.
        """
        return  # most programs learn something under any noise

    def patient_sums(self, schema: Schema) -> PatientSums:
        """What hospitals sum over their patients before the first round."""
        return PatientSums(schema, self.config.data.standardise == "measured", self.counts_classes)

    def class_counts(self, places: Sequence[int], totals: Sequence[np.ndarray]) -> list[float]:
        """Noisy counts of the classes of all rows, from each hospital's of the label. ``places``: the hospitals' numbers."""
        return [float(count) for count in np.sum(totals, axis=0)]

    def objective(self, schema: Schema) -> Objective:
        """What ``scores`` predict. Raises ConfigError for a schema whose label the program does not take."""
        from polyclinic.objectives.classes import Classification

        return Classification(schema.labels)

    def model_title(self, schema: Schema) -> str:
        """The run's model in a reader's words: a linear layer is a regression by the name of its objective."""
        linear = self.judged and self.config.model == "logistic" and not self.draws
        return self.objective(schema).regression if linear else self.config.model

    def why_model(self, schema: Schema) -> str:
        """Why the run has the model of a run that names none, or what its model cannot hold, in a sentence; else empty."""
        return ""

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
        self.check_local_half(settings)
        event = pooled.price(settings) if self.config.secure.shared_noise else self.plain_price(settings, begun)
        if not begun and not merge_events(event):
            raise ConfigError(
                f"The task {self.config.task!r} states an event that costs nothing, which no look at records does."
            )
        return event

    def converging_task(self, schema: Schema) -> Task | None:
        """The task by whose steps ``training.converged`` fits the run's model for a comparison; None where none does."""
        return None

    @abstractmethod
    def plain_task(self, schema: Schema, question: Mapping[str, np.ndarray] | None = None) -> Task:
        """The hospital's half, where each hospital adds its own noise."""

    def task(self, schema: Schema, question: Mapping[str, np.ndarray] | None = None) -> Task:
        """The hospital's half. ``question``: what a round asks beside a model, or in place of one.

        Raises ConfigError for a question that cannot be answered.
        """
        task = self.plain_task(schema, question)
        return pooled.Pooled(task) if self.config.secure.shared_noise else task

    @cached_property
    def local_half(self) -> LocalHalf:
        """What the run's strategy has hospitals do in a round; it loads the strategy. Raises ConfigError for its options."""
        from polyclinic.strategies.registry import local_half_of  # it loads Flower's strategies

        return local_half_of(strategy_named(self.config.strategy), self.config.options)

    @property
    def choice(self) -> Choice | None:
        """The choice among candidates after the last round; None where there is none."""
        return None

    @property
    def shows_baselines(self) -> bool:
        """Whether a simulation shows ``moments`` and ``independent`` beside the run."""
        return False

    @property
    def shows_quality(self) -> bool:
        """Whether a simulation compares the run's synthetic patients with held-out ones."""
        return False

    def layout(self, schema: Schema) -> Layout:
        """The columns of the rows that the run draws. Raises ConfigError where it draws none, or not of ``schema``."""
        raise ConfigError(
            f"Configuration key 'task' has the value {self.config.task!r}, which draws no synthetic patients."
        )

    @property
    def any_width(self) -> bool:
        """Whether a model of any number of features and classes can be built, so that made-up patients can stand in for an
        audit."""
        return True

    @property
    def lets_join(self) -> bool:
        """Whether hospitals may join while it goes on: what each sends is a model of its own, whoever else is there."""
        return False

    @property
    def takes_local_halves(self) -> bool:
        """Whether the task trains as a strategy's local half says."""
        return False

    @property
    def has_local_half(self) -> bool:
        """Whether hospitals must load the strategy to train as it says."""
        return self.local_half != PLAIN

    @property
    def keeps_state(self) -> bool:
        """Whether a hospital keeps something of a round for its next one."""
        half = self.local_half
        return self.config.keeps_state or half.keeps or half.personal or self.keeps_arrays

    @property
    def keeps_arrays(self) -> bool:
        """Whether some of the model's arrays stay at hospitals."""
        return type(self.local_half).stays is not LocalHalf.stays

    @property
    def evaluates_own(self) -> bool:
        """Whether a hospital has arrays of its own, with which it evaluates."""
        return self.local_half.personal or self.keeps_arrays

    def settings(self, noise_multiplier: float | None, schema: Schema | None = None) -> TrainSettings:
        """The public settings of a round of training; ``noise_multiplier`` None trains without privacy. The objective of a
        ``schema`` may state the momentum, which no price and no limit depends on."""
        settings = replace(train_settings(self.config, noise_multiplier), local=self.local_half)
        return replace(settings, momentum=self.momentum(schema)) if schema else settings

    def momentum(self, schema: Schema) -> float:
        """As configured, or as the objective of the schema's label states it."""
        stated = self.objective(schema).momentum if self.judged and self.config.training.momentum == "auto" else None
        return self.config.training.usual_momentum if stated is None else stated

    def check_local_half(self, settings: TrainSettings) -> None:
        """Raises ConfigError where what the strategy has hospitals do does not go with the rest of the run."""
        half, config = settings.local, self.config
        if half == PLAIN:
            return
        if not self.takes_local_halves:
            raise ConfigError(
                f"Configuration key 'strategy' has the value {config.strategy!r}, which changes the steps that hospitals take; "
                f"the task {config.task!r} takes none that a strategy can change, so take another strategy, as fedavg."
            )
        if config.secure.shared_noise:
            raise ConfigError(
                f"Configuration key 'strategy' has the value {config.strategy!r}, which changes what hospitals compute of their "
                "patients; with secure.shared-noise they give one sum and take no step, so take another strategy, as fedavgm."
            )
        if config.secure.aggregation and (half.sends or half.metrics):
            beside = ", ".join((*half.sends, *half.metrics))
            raise ConfigError(
                f"Configuration key 'strategy' has the value {config.strategy!r}, for which {beside} would leave "
                "without masks beside the model; set secure.aggregation to false or take another strategy."
            )
        half.check(settings)

    def first(self, schema: Schema, classes: Sequence[float] = ()) -> Arrays:
        """The model that hospitals are sent in round 1; empty where none is. ``classes``: counts of the label that were paid
        for."""
        from polyclinic.models.tabular import initialise
        from polyclinic.privacy.streams import torch_seed

        model = initialise(self.builder(schema), torch_seed(self.config.seed, "model"))
        return {name: value.numpy() for name, value in model.items()}

    def origin(self, schema: Schema, model: Arrays, question: Mapping[str, np.ndarray]) -> Arrays:
        """Arrays of the names and shapes of a hospital's answer, from which compressed and masked answers are differences.

        They are the ``model``; where a round asks for a sum and sends no model, they are zeros.

        Args:
            schema: Of the run.
            model: What hospitals were sent.
            question: What hospitals were asked beside it; a hospital has ``task`` check it first.
        """
        return model

    def local(self, schema: Schema) -> list[str]:
        """The model's arrays that stay at hospitals. Raises ConfigError where there are none to stay, or none to share."""
        return []

    def half(self, schema: Schema, classes: Sequence[float], learning_rate: float) -> Half | None:
        """The server's half; None where the strategy's model is all that is learned.

        Args:
            schema: Of the run.
            classes: Counts of the label that were paid for; empty where none were.
            learning_rate: The hospitals' learning rate; 0 where they have none.
        """
        return None

    def arrays_to_score(self, model: Arrays, synthesizer: Synthesizer | None) -> Arrays | None:
        """The arrays by which hospitals score their held-out patients; None where there is nothing to score with yet."""
        return model

    def scores(self, schema: Schema, arrays: Arrays, rows: Sequence[Rows]) -> list[np.ndarray]:
        """Each site's (rows, columns) predictions of the ``objective``.

        Args:
            schema: Of the run.
            arrays: As ``arrays_to_score`` gives them.
            rows: Of each site.
        """
        return self.plain_task(schema).evaluate(self.builder(schema), arrays, rows)

    def predicting(self, schema: Schema) -> Callable[[Tensor], Tensor]:
        """A function of the model's outputs that ``scores`` makes predictions by. Raises ConfigError where none is known."""
        raise ConfigError(
            f"The task {self.config.task!r} has no function 'probabilities' that makes probabilities of the model's outputs."
        )

    def check_evaluated(self, schema: Schema, arrays: Arrays, private: bool) -> None:
        """Check that the arrays are a model that hospitals can score their patients with.

        Args:
            schema: Of the run.
            arrays: What hospitals were sent for evaluation.
            private: No patient's scores may depend on another's, as where metrics are private.

        Raises:
            ConfigError: for arrays that are no model, and with ``private`` for those by which one patient's scores would depend
                on another's.
        """
        self.task(schema).check(self.builder(schema), arrays, self.width(schema), self.config.training.engine, private)

    def is_published(self) -> bool:
        """Whether hospitals train as a publication has it, which keeps no epsilon."""
        return False

    @abstractmethod
    def subject(self, claim: Claim) -> Subject:
        """The run's training at one hospital, for an audit of what it claims."""

    def notes(self, state: State, scored: bool) -> list[str]:
        """What a reader must know beside the result. ``scored``: whether some hospital let metrics leave."""
        return []

    def statement(
        self, half: Half | None, state: State, synthesizer: Synthesizer | None, patients: Sequence[int], stopped: str | None
    ) -> dict[str, Any]:  # fmt: skip
        """The program's own part of the summary, by its key.

        Args:
            half: The server's half, if there is one.
            state: The half's last state.
            synthesizer: What draws synthetic patients; None before it can, and of programs that draw none.
            patients: Of each hospital that trained.
            stopped: Why the run ended early; None where it did not.
        """
        return {}
