"""Rounds of sums over patients, and synthetic patients by a method of sums."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from dp_accounting import DpEvent

from polyclinic.config.programs.synthesis import METHODS, usual_method, why_usual
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError, several
from polyclinic.plugins import dataset_of, resolve
from polyclinic.programs.building import check_options
from polyclinic.programs.program import Collected, Half, Program, State
from polyclinic.programs.synthetic import Synthetic, making
from polyclinic.synthesis.sums import ANSWERED, HIDDEN, MOVED, SumsMethod, SynthesisMethod
from polyclinic.synthesis.synthesizer import Synthesizer
from polyclinic.training.synthesis import ROUND, SUM, SumsTask, sum_event
from polyclinic.training.task import TrainSettings
from polyclinic.types import Arrays, Builder

if TYPE_CHECKING:
    from polyclinic.training.auditing.fixed import Fixed
    from polyclinic.training.auditing.subject import Claim


_HIDDEN = (
    "Noise hides what every column has to do with the label, so that synthetic patients teach little or nothing of the outcome. "
    "Allow a larger epsilon, fewer columns or shared noise, or leave them unused."
)
_LEFT = (
    "Hospitals were missing in some rounds: sums are of {:.0f} to {:.0f} patients. Models that are drawn anew count the smaller "
    "number, so that intervals are rather too wide than too narrow; whom the missing hospitals treat counts less."
)
_LOUD = (
    "Patients are few for so much noise: it moves the mean of a column within the rarest class of the label by some {:.2g} of "
    "its deviations. Models 'independent' and 'marginals', which ask fewer sums, may teach more of the outcome than {!r}."
)
# A column that tells an outcome well differs between its classes by half a deviation or more.
_MOVED = 0.2


@dataclass(frozen=True)
class Sums(Program):
    """A round is one sum of clipped vectors over all patients, of which hospitals send their parts.

    Examples:
        >>> from polyclinic.config import RunConfig
        >>> from polyclinic.programs import program_of
        >>> program = program_of(RunConfig(task="synthesis", model="independent"))
        >>> isinstance(program, Sums), program.first(dataset_of(program.config).schema), program.round_is
        (True, {}, 'a release of its own')
    """

    stepwise: ClassVar[bool] = False
    round_is: ClassVar[str] = "a release of its own"
    merges_early: ClassVar[bool] = False
    checked_once: ClassVar[bool] = False
    released: ClassVar[str] = "every sum"
    released_together: ClassVar[str] = "every sum"

    @property
    def any_width(self) -> bool:
        return False

    @abstractmethod
    def method(self, schema: Schema) -> SumsMethod:
        """What the run asks sums for. Raises ConfigError for an unknown name or option, or a schema that it cannot do."""

    @abstractmethod
    def classes(self, schema: Schema, classes: Sequence[float]) -> np.ndarray:
        """(K,) frequencies of the label with which the sums begin."""

    def check(self, schema: Schema) -> None:
        config, method = self.config, self.method(schema)
        if method.rounds != config.rounds:
            raise ConfigError(
                f"Configuration key 'rounds' has the value {config.rounds}, but {self.model_title(schema)} asks for "
                f"{method.rounds} sums, one a round; set rounds to {method.rounds}."
            )
        if config.secure.aggregation and getattr(method, "separate", False):
            raise ConfigError(
                f"Configuration key 'model' has the value {config.model!r}, which keeps hospitals' sums apart, but "
                "secure.aggregation opens their total alone; set secure.aggregation to false, or take model 'moments'."
            )
        super().check(schema)

    def builder(self, schema: Schema) -> Builder:
        """An empty module: a sum has no model."""
        from torch.nn import Sequential

        return Sequential

    def plain_price(self, settings: TrainSettings, begun: bool = False) -> DpEvent:
        return sum_event(settings)

    def plain_task(self, schema: Schema, question: Mapping[str, np.ndarray] | None = None) -> SumsTask:
        task = SumsTask(self.method(schema), name=self.config.task)
        return task if question is None else task.with_question(question)

    def first(self, schema: Schema, classes: Sequence[float] = ()) -> Arrays:
        """Nothing: hospitals are sent the half's question alone."""
        return {}

    def origin(self, schema: Schema, model: Arrays, question: Mapping[str, np.ndarray]) -> Arrays:
        return {SUM: np.zeros(replace(self.plain_task(schema), question=question).size)}

    def half(self, schema: Schema, classes: Sequence[float], learning_rate: float) -> Half:
        return SumsHalf(self.method(schema), self.classes(schema, classes))

    def check_length(self, size: int, noise_multiplier: float, fewest: float) -> None:
        """Check that a secure sum would not cut the noisy sum of a hospital short.

        Args:
            size: Numbers of the sum.
            noise_multiplier: Standard deviation of the noise in a sum, over a patient's clip norm.
            fewest: The patients of the smallest hospital.

        Raises:
            ConfigError: naming the clip norm at which no sum is cut.
        """
        secure, longest = self.config.secure, 1.0 + 2.0 * noise_multiplier * math.sqrt(size) / fewest
        if secure.aggregation and not secure.shared_noise and secure.clip_norm < longest:
            raise ConfigError(
                f"Configuration key 'secure.clip-norm' has the value {secure.clip_norm:g}, but a hospital's sum by its number of "
                f"patients may be as long as {longest:.3g}; a shorter one would be cut and the result false: set it to that."
            )

    def subject(self, claim: Claim) -> Fixed:
        from polyclinic.training.auditing.fixed import of_sums

        method = self.method(dataset_of(self.config).schema)
        return of_sums(method, claim)


@dataclass(frozen=True)
class SyntheticSums(Sums, Synthetic):
    """Synthetic patients by a method of sums.

    Examples:
        >>> from polyclinic.config import RunConfig
        >>> program = SyntheticSums(RunConfig(task="synthesis", model="independent"))
        >>> method = program.method(dataset_of(program.config).schema)
        >>> method.rounds, method.size(1, {})
        (1, 1444)
    """

    def method(self, schema: Schema) -> SynthesisMethod:
        config, layout = self.config, self.layout(schema)
        make, options = resolve("methods", config.model), self.options
        if callable(make) and "rounds" in signature(make).parameters:
            options = {"rounds": config.rounds} | options
        first = list(signature(make).parameters)[:1] if callable(make) else []
        try:
            check_options(config.model, make, options, first, "synthesis.options")
        except ConfigError as error:
            raise ConfigError(f"{error}{_others(make, self.options)}") from None
        with making(config):
            method: SynthesisMethod = make(layout, **options)
        missing = [
            part for part in ("rounds", "size", "contributions", "absorb", "synthesizer") if not hasattr(method, part)
        ]
        if missing:
            raise ConfigError(
                f"Configuration key 'model' has the value {config.model!r}, which lacks {', '.join(missing)}."
            )
        return method

    def classes(self, schema: Schema, classes: Sequence[float]) -> np.ndarray:
        return self.frequencies(schema, classes)

    def notes(self, state: State, scored: bool) -> list[str]:
        hidden = [_HIDDEN] if np.any(state["arrays"].get(HIDDEN, False)) else []
        fewest, most = state["arrays"].get(ANSWERED, np.zeros(2)).tolist()
        left = [_LEFT.format(fewest, most)] if fewest < most else []
        moved = float(state["arrays"].get(MOVED, np.zeros(())))
        loud = [_LOUD.format(moved, self.config.model)] if moved > _MOVED else []
        return [*hidden, *loud, *left, *super().notes(state, scored)]

    def why_model(self, schema: Schema) -> str:
        usual = self.config.model == usual_method(schema) and not self.config.synthesis.options
        return why_usual(schema) if usual else ""


@dataclass(frozen=True, eq=False)
class SumsHalf(Half):
    """Asks each round of ``method`` for its sum, and absorbs the hospitals' mean.

    classes: (K,) frequencies of the label.

    The state has

    - in ``arrays`` what the method made of the sums;
    - of a method that keeps hospitals apart the same by node in ``each``, with their ``weights``;
    - the ``rounds`` done;
    - of how many ``patients`` the last sum is.

    Examples:
        >>> from polyclinic.config import RunConfig
        >>> program = SyntheticSums(RunConfig(task="synthesis", model="independent"))
        >>> half = program.half(dataset_of(program.config).schema, classes=[300.0, 100.0], learning_rate=0.0)
        >>> half.first()["arrays"]["classes"].tolist(), half.synthesizer(half.first())  # no sum yet
        ([0.75, 0.25], None)
    """

    method: SumsMethod
    classes: np.ndarray
    wants_noise = True

    @property
    def separate(self) -> bool:  # type: ignore[override]
        return bool(getattr(self.method, "separate", False))

    def first(self) -> State:
        arrays = {"classes": np.asarray(self.classes, dtype=np.float64)}
        return {"arrays": arrays, "each": {}, "weights": {}, "rounds": 0, "patients": 1.0}

    def question(self, number: int, state: State) -> Arrays:
        asked = {ROUND: np.array([number]), **self.method.question(number, state["arrays"])}
        return {name: np.ascontiguousarray(value) for name, value in asked.items()}

    def absorb(self, number: int, state: State, sent: Arrays, collected: Collected) -> tuple[State, Arrays]:
        """The next state. Nothing but the next question is sent then.

        Args:
            number: Of the round, from 1 on.
            state: Before the round.
            sent: Not used.
            collected: With the hospitals' mean sum, or with each hospital's of a method that keeps them apart.
        """
        arrays: Arrays = state["arrays"]
        each, weights = dict(state["each"]), dict(state["weights"])
        if self.separate:
            for node, reply in collected.replies.items():
                before = each.get(node, arrays)
                each[node] = self.method.absorb(number, before, reply.arrays[SUM].astype(np.float64), reply.noise)
                weights[node] = reply.weight
        else:
            counted = arrays | {"patients": np.array([collected.patients])}
            arrays = self.method.absorb(number, counted, collected.mean[SUM].astype(np.float64), collected.noise)
        after = {"arrays": arrays, "each": each, "weights": weights, "rounds": number, "patients": collected.patients}
        return after, {}

    def synthesizer(self, state: State) -> Synthesizer | None:
        make: Callable[[Arrays], Synthesizer] | None = getattr(self.method, "synthesizer", None)
        if make is None or state["rounds"] < self.method.rounds:
            return None
        if not self.separate:
            return make(state["arrays"])
        from polyclinic.synthesis.methods.mixture import Mixture

        nodes = sorted(state["each"], key=int)
        total = math.fsum(state["weights"][node] for node in nodes)
        parts = [make(state["each"][node]) for node in nodes]
        mixed: Synthesizer = Mixture.of(parts, [state["weights"][node] / total for node in nodes])
        return mixed


class ModelMethod(SumsMethod, Protocol):
    """One whose sums make a model, which hospitals are sent beside the next question."""

    def arrays(self, state: Arrays, like: Arrays) -> Arrays:
        """The model of a state; ``like``, which has its arrays' shapes, before there is one."""
        ...


@dataclass(frozen=True, eq=False)
class ModelHalf(Half):
    """Makes the next model of each noisy sum. The state has in ``arrays`` what ``method`` keeps.

    Examples:
        >>> from polyclinic.config import RunConfig
        >>> from polyclinic.programs import program_of
        >>> program = program_of(RunConfig(model="logistic", training={"optimizer": "newton"}, rounds=4))
        >>> half = program.half(dataset_of(program.config).schema, classes=[], learning_rate=0.0)
        >>> type(half).__name__, list(half.question(1, half.first()))
        ('ModelHalf', ['round'])
    """

    method: ModelMethod
    wants_noise = True

    def first(self) -> State:
        return {"arrays": {}}

    def question(self, number: int, state: State) -> Arrays:
        asked = {ROUND: np.array([number]), **self.method.question(number, state["arrays"])}
        return {name: np.ascontiguousarray(value) for name, value in asked.items()}

    def absorb(self, number: int, state: State, sent: Arrays, collected: Collected) -> tuple[State, Arrays]:
        """The state after the round, and the model that follows from all sums so far.

        Args:
            number: Of the round, from 1 on.
            state: Before the round.
            sent: The model that hospitals were sent in this round.
            collected: With the hospitals' mean sum.
        """
        arrays = state["arrays"] | {"patients": np.array([float(collected.patients)])}
        arrays = self.method.absorb(number, arrays, collected.mean[SUM].astype(np.float64), collected.noise)
        return {"arrays": arrays}, self.method.arrays(arrays, sent)


@dataclass(frozen=True)
class ModelSums(Sums):
    """Task classification by rounds of sums, of which each makes the next model.

    Examples:
        >>> from polyclinic.config import RunConfig
        >>> from polyclinic.programs import program_of
        >>> program = program_of(RunConfig(model="logistic", training={"optimizer": "newton"}, rounds=4))
        >>> isinstance(program, ModelSums), program.round_is, program.lets_join
        (True, 'a noisy Newton step', True)
    """

    limits_noise: ClassVar[bool] = True

    @abstractmethod
    def method(self, schema: Schema) -> ModelMethod: ...

    def classes(self, schema: Schema, classes: Sequence[float]) -> np.ndarray:
        return np.ones(1)

    def first(self, schema: Schema, classes: Sequence[float] = ()) -> Arrays:
        return Program.first(self, schema)

    def half(self, schema: Schema, classes: Sequence[float], learning_rate: float) -> ModelHalf:
        return ModelHalf(self.method(schema))

    def check_noise(self, schema: Schema, noise_multiplier: float, noise: float, fewest: float) -> None:
        """Check that a secure sum would not cut sums short.

        Args:
            schema: Of the run.
            noise_multiplier: Standard deviation of the noise in a sum, over a patient's clip norm.
            noise: Standard deviation of the noise in each entry of the mean; not used.
            fewest: The patients of the smallest hospital.

        Raises:
            ConfigError: where it would.
        """
        self.check_length(self.method(schema).size(1, {}), noise_multiplier, fewest)

    def subject(self, claim: Claim) -> Fixed:
        return replace(super().subject(claim), counts=lambda shard: self.patient_sums(shard.schema).exact(shard))

    @property
    def lets_join(self) -> bool:
        return True


def _others(make: Any, options: Mapping[str, Any]) -> str:
    """Which built-in methods have an option that ``make`` lacks, as a sentence."""
    for option in options:
        if option not in signature(make).parameters:
            having = [name for name in METHODS if option in signature(resolve("methods", name)).parameters]
            if having:
                return f" It is an option of {several(having)}, which --model names."
    return ""
