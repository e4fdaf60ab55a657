"""The hospitals' half of a strategy: what it has hospitals do in a round beside plain private steps.

A half is written once for S hospitals that are trained together, whose models are the rows of (S, P) tensors: the trainable
parameters in the module's order, flattened. It sees models and noisy gradients and never a record, so that all it computes
is post-processing. The gradients that it may ask for are those of its ``passes``, which are charged before they are made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor, nn

    from polyclinic.training.task import TrainSettings

#: Before the name of a record of arrays that a strategy sends, or a hospital answers, beside the model.
BESIDE = "beside."
# What else a hospital keeps begins with one of these words.
_RESERVED = ("local", "own", "draws", "filter", "upload", "charge")


@dataclass(frozen=True)
class Pass:
    """Noisy gradients of a hospital's patients, which a round makes one after the other and is charged for.

    gradients: How many, at least one.
    name: Tells the passes of a half apart. Each has an optimizer, batches and noise of its own.
    all_patients: Whether each gradient is over all patients, with the noise of one batch, in place of batches.
    """

    gradients: int
    name: str = ""
    all_patients: bool = False

    def __post_init__(self) -> None:
        if self.gradients < 1 or (self.name and not self.name.isalpha()) or self.name in _RESERVED:
            raise ValueError(
                f"A pass makes at least one gradient and has a name of letters, none of {', '.join(_RESERVED)}; got "
                f"{self.gradients} and {self.name!r}."
            )


@dataclass(frozen=True, eq=False)
class Penalty:
    """A term of every patient's own loss that compares what models make of the patient's rows.

    models: Other models, (S, P) each, through which no gradient flows.
    term: A function of the module's representation of the rows, (rows, width), and of the same by each of ``models``. It
        returns (rows,) numbers, each from its own row alone.
    """

    models: Sequence[Tensor]
    term: Callable[[Tensor, Sequence[Tensor]], Tensor]


@dataclass(frozen=True, eq=False)
class Trained:
    """What a round made at S hospitals.

    model: (S, P) The models that hospitals send. Arrays that stay (``LocalHalf.stays``) are kept by the hospital instead.
    own: (S, P) Models of the hospitals' own, by which they evaluate; None where the sent one serves for that too.
    state: By name, (S, ...) tensors that each hospital keeps for its next round.
    sent: By name, (S, P) tensors that leave beside the model, one for each name in ``LocalHalf.sends``.
    metrics: By name, one for each in ``LocalHalf.metrics``, (S,) numbers that leave with the metrics of training.
    """

    model: Tensor
    own: Tensor | None = None
    state: Mapping[str, Tensor] = field(default_factory=dict)
    sent: Mapping[str, Tensor] = field(default_factory=dict)
    metrics: Mapping[str, Sequence[float]] = field(default_factory=dict)


class Sites(ABC):
    """S hospitals in one round, as a half sees them.

    model: (S, P) What each was sent, with the arrays that stay at it in their place.
    settings: The round's public settings. ``settings.local_steps`` is what the run's configuration asks for.
    round: The number of the round, from 1.
    numbers: Which of the run's hospitals they are, from 0.
    config: By name, the numbers that the strategy told in its configuration, one for each of ``LocalHalf.takes``.
    """

    model: Tensor
    settings: TrainSettings
    round: int
    numbers: Sequence[int]
    config: Mapping[str, float]

    @abstractmethod
    def gradient(self, models: Tensor, name: str = "", penalty: Penalty | None = None) -> Tensor:
        """(S, P) The next noisy mean gradient of a pass at ``models``.

        Under differential privacy each patient's gradient is clipped and the noise is added before a half sees it.

        Args:
            models: (S, P) one model for each site.
            name: The pass; the steps of the run's configuration by default.
            penalty: A term of the losses; none by default.

        Raises:
            RuntimeError: A gradient more than the pass was charged for.
        """

    @abstractmethod
    def step(self, models: Tensor, gradient: Tensor, name: str = "") -> Tensor:
        """(S, P) The models after one step of the pass's optimizer along ``gradient``; both are left as they are.

        Args:
            models: (S, P) one model for each site.
            gradient: (S, P) the gradient of each.
            name: The pass; the steps of the run's configuration by default.
        """

    @abstractmethod
    def own(self) -> Tensor:
        """(S, P) What each hospital kept as ``Trained.own``; of one that kept nothing yet, its ``model``."""

    @abstractmethod
    def state(self, name: str, first: Tensor) -> Tensor:
        """What each hospital kept under ``name``; of one that kept nothing yet, its row of ``first``, (S, ...)."""

    @abstractmethod
    def from_server(self, name: str) -> Tensor:
        """(1, P) What the strategy sent beside the model under ``name``, one of ``LocalHalf.receives``."""

    @abstractmethod
    def stays(self) -> Tensor:
        """(P,) bool: which parameters belong to the arrays that stay at hospitals."""


@dataclass(frozen=True)
class LocalHalf:
    """A strategy's half at hospitals; this one takes the configured steps and changes nothing.

    A strategy's own half subclasses it as a frozen dataclass, whose fields are options of the strategy, and is named
    ``Local`` in the strategy's class. The example is a pull towards the model that was sent.

    Examples:
        >>> @dataclass(frozen=True)
        ... class Pull(LocalHalf):
        ...     strength: float = 0.1
        ...
        ...     def round(self, sites: Sites) -> Trained:
        ...         models = sites.model
        ...         for _ in range(sites.settings.local_steps):
        ...             gradient = sites.gradient(models)
        ...             models = sites.step(models, gradient + self.strength * (models - sites.model))
        ...         return Trained(models)
    """

    #: The names of what the strategy sends beside the model, arrays like the model's.
    receives: ClassVar[tuple[str, ...]] = ()
    #: The names of the numbers that the strategy tells hospitals in its configuration, ``config`` of ``configure_train``.
    takes: ClassVar[tuple[str, ...]] = ()
    #: The names of what leaves beside the model.
    sends: ClassVar[tuple[str, ...]] = ()
    #: The names of the numbers that leave with the metrics of training.
    metrics: ClassVar[tuple[str, ...]] = ()
    #: Whether each hospital evaluates with a model of its own.
    personal: ClassVar[bool] = False
    #: Whether a hospital keeps something for its next round.
    keeps: ClassVar[bool] = False
    #: Whether gradients have a ``Penalty``, for which a module must name its ``representation``.
    penalises: ClassVar[bool] = False

    def passes(self, settings: TrainSettings) -> tuple[Pass, ...]:
        """What a round asks of the records, from public settings alone. It is what a round is charged for."""
        return (Pass(settings.local_steps),)

    def check(self, settings: TrainSettings) -> None:
        """Raises ConfigError for settings that do not go with this half; called before anything is spent."""
        return  # plain steps go with any

    def stays(self, module: nn.Module) -> list[str]:
        """The names of the model's arrays that stay at each hospital.

        Raises ConfigError for a module that has none of those that should stay.
        """
        return []

    def round(self, sites: Sites) -> Trained:
        """Train one round."""
        models = sites.model
        for _ in range(sites.settings.local_steps):
            models = sites.step(models, sites.gradient(models))
        return Trained(models)

    def check_returned(self, trained: Trained, like: Tensor) -> None:
        """Checks that a round returned what ``Trained`` has and what the class says that it keeps and sends.

        Args:
            trained: What the round returned.
            like: (S, P), as models are.

        Raises:
            TypeError, ValueError, RuntimeError: It returned another form, or something beside.
        """
        name = f"{type(self).__qualname__}.round"
        if not isinstance(trained, Trained):
            raise TypeError(f"{name} must return Trained(models), not a {type(trained).__name__}")
        for what, returned, declared in (
            ("sent", trained.sent, self.sends),
            ("metrics", trained.metrics, self.metrics),
        ):
            if {*returned} != {*declared}:
                where = "sends" if what == "sent" else what
                raise RuntimeError(
                    f"{name} returned {what} {sorted(returned)}, and the class has {where} {sorted(declared)}; they must be "
                    "the same"
                )
        if trained.own is not None and not self.personal:
            raise RuntimeError(f"{name} returned own; set personal = True in the class")
        if trained.state and not self.keeps:
            raise RuntimeError(f"{name} returned state; set keeps = True in the class")
        models = {
            "model": trained.model,
            "own": trained.own,
            **{f"sent[{key!r}]": each for key, each in trained.sent.items()},
        }
        for what, value in models.items():
            if value is not None and getattr(value, "shape", None) != like.shape:
                raise ValueError(
                    f"{name} returned {what} of {_form(value)}, not of {_form(like)} (hospitals, parameters)"
                )
        sites = len(like)
        for key, value in trained.state.items():
            if len(getattr(value, "shape", ())) == 0 or len(value) != sites:
                raise ValueError(
                    f"{name} returned state[{key!r}] of {_form(value)}, not a tensor with a row for each of {sites} hospitals"
                )
        for key, numbers in trained.metrics.items():
            if not hasattr(numbers, "__len__") or len(numbers) != sites:
                raise ValueError(f"{name} returned metrics[{key!r}] without a number for each of {sites} hospitals")


def _form(value: object) -> str:
    shape = getattr(value, "shape", None)
    return f"the type {type(value).__name__}" if shape is None else f"the shape {tuple(shape)}"


#: Plain steps.
PLAIN = LocalHalf()


def rows_where_finite(values: Tensor, otherwise: Tensor) -> Tensor:
    """(S, ...) ``values``, and the row of ``otherwise`` for a hospital whose numbers are not all finite."""
    finite = values.isfinite().flatten(1).all(1)
    return values.where(finite.reshape(-1, *[1] * (values.dim() - 1)), otherwise)
