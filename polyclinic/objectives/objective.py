"""The shape of an objective, and the check that its loss is one of each row alone.

An objective knows the schema's label columns and its options, all of them public. It says how many outputs a model has, what
the loss of a row is, and what the outputs predict, in the label's unit. How good predictions are is judged elsewhere
(``polyclinic.evaluation.judges``), by their kind. Nothing here sees features or spends privacy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from polyclinic.ehr.schema import CLASS_KINDS, Column
from polyclinic.errors import ConfigError
from polyclinic.types import Builder, Floats, Labels

#: Kinds of predictions: probabilities of classes, of ordered classes, of several labels; numbers; quantiles; counts; survival.
Predicted = Literal["classes", "ranks", "sets", "numbers", "quantiles", "counts", "survival"]


@dataclass(frozen=True)
class Objective(ABC):
    """What a model is trained towards. A subclass adds its options as fields and refuses what it cannot take in ``check``.

    labels: The schema's label columns.
    name: As in the configuration. predicts: The kind of its predictions. regression: What a model of one linear layer is called.
    Raises ConfigError, in one sentence, for labels or options that it does not take.
    """

    labels: tuple[Column, ...]

    name: ClassVar[str]
    predicts: ClassVar[Predicted]
    regression: ClassVar[str] = "linear model"
    #: Whether the loss is minus a log-likelihood, not just in proportion to one.
    is_likelihood: ClassVar[bool] = True
    #: The momentum of a run that names none; None where that of any run suits.
    momentum: ClassVar[float | None] = None
    #: The longest step that a run takes where no learning rate is given, with what momentum adds to it (``usual_rate``).
    longest_step: ClassVar[float] = math.inf

    def __post_init__(self) -> None:
        self.check()

    @abstractmethod
    def check(self) -> None:
        """Raises ConfigError for labels and options that do not go together."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many numbers the run's model gives for a row."""

    @property
    def logits(self) -> int:
        """How many numbers a row has behind the ``head``: the O of ``losses`` and ``predictions``."""
        return self.outputs

    @property
    def allowed(self) -> tuple[int, ...]:
        """Which numbers of outputs, behind the head, the losses take; the first is ``logits``."""
        return (self.logits,)

    @property
    def has_classes(self) -> bool:
        """Whether predictions are probabilities of the label's classes."""
        return self.predicts in ("classes", "ranks")

    @property
    def label(self) -> str:
        """The names of the labels, for a reader."""
        return ", ".join(column.name for column in self.labels)

    @property
    def unit(self) -> str:
        """The units of the labels, for a reader; empty where they have none."""
        return ", ".join(sorted({column.unit for column in self.labels if column.unit}))

    def head(self) -> nn.Module | None:
        """A new module of the objective's own, trained behind the model's outputs; None where there is none."""
        return None

    @property
    def loss(self) -> str | Objective:
        """What ``TrainSettings.loss`` is set to: the objective, or one of ``training.losses`` by name where that is the same."""
        return self

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The names of the C numbers that are predicted for a row."""

    @abstractmethod
    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(...) the loss of each row, of (..., O) outputs and its labels, (...) or (..., columns). Differentiable, row by row."""

    @abstractmethod
    def predictions(self, outputs: Tensor) -> Tensor:
        """(n, C) float64 predictions of (n, O) float64 outputs: probabilities, or numbers in the label's unit."""

    @abstractmethod
    def outputs_of(self, predictions: Tensor) -> Tensor:
        """(n, O) outputs that predict so, as far as predictions tell; the loss of predictions is theirs."""

    @abstractmethod
    def constant(self, labels: Labels) -> Floats:
        """(C,) what is best predicted for everybody, where nothing is known of a patient, by (n, ...) labels, n > 0."""

    def losses_of(self, predictions: Floats, labels: Labels) -> Floats:
        """(n,) the losses of (n, C) predictions."""
        outputs = self.outputs_of(torch.from_numpy(np.array(predictions, dtype=np.float64)))
        return np.asarray(self.losses(outputs, torch.from_numpy(np.array(labels))).numpy(), dtype=np.float64)

    def confidences(self, predictions: Floats, labels: Labels) -> Floats:
        """(n,) how well (n, C) predictions fit their rows, by a number that differs between models about as a normal one does."""
        return -self.losses_of(predictions, labels)

    def label_columns(self, labels: Labels) -> Floats:
        """(n, L) the labels as columns of about one size, for another model's input."""
        columns = labels.reshape(len(labels), -1).astype(np.float64)
        return np.asarray(columns / np.maximum(np.abs(columns).max(axis=0, initial=0.0), 1.0))

    def refuse(self, why: str) -> ConfigError:
        """The error of labels or options that the objective does not take."""
        return ConfigError(f"Configuration key 'objective' has the value {self.name!r}, {why}.")

    def number(self) -> Column:
        """The one label, which has bounds. Raises ConfigError for other labels."""
        if len(self.labels) != 1 or self.labels[0].kind not in ("continuous", "integer"):
            raise self.refuse(
                f"which takes one label of kind 'continuous' or 'integer'; {self.label_kinds()}{self.remedy}"
            )
        return self.labels[0]

    def label_kinds(self) -> str:
        """The labels and their kinds, for a message."""
        kinds = ", ".join(f"{column.name!r} of kind {column.kind!r}" for column in self.labels)
        return f"the schema's label is {kinds}" if len(self.labels) == 1 else f"the schema's labels are {kinds}"

    @property
    def remedy(self) -> str:
        """Where the label gets another kind, for a message."""
        return ": write the kind in a schema (data.schema-file), or name the column of your own tables by --label"


class WithHead(nn.Sequential):
    """A model and the head behind it; the model's ``representation`` is the whole's."""

    representation: str | None

    def __init__(self, model: nn.Module, head: nn.Module) -> None:
        super().__init__(model, head)
        inner = getattr(model, "representation", None)
        self.representation = f"0.{inner}" if isinstance(inner, str) else None


def with_head(build: Builder, objective: Objective) -> Builder:
    """A builder of the model that ``build`` makes with the objective's head behind it, where it has one."""
    if objective.head() is None:
        return build
    return lambda: WithHead(build(), cast(nn.Module, objective.head()))


def usual_objective(labels: tuple[Column, ...]) -> str:
    """The name of the objective of a run that names none, by the kind of its labels."""
    if len(labels) > 1:
        return "multi-label" if all(column.kind == "binary" for column in labels) else "hazards"
    (label,) = labels
    return "classification" if label.kind in CLASS_KINDS else "multi-label" if label.kind == "code_set" else "squared"


def made_up_labels(labels: tuple[Column, ...], rows: int) -> Labels:
    """Labels that the columns allow, of the form of a hospital's; a function of the columns alone."""
    parts = [_made_up(column, rows) for column in labels]
    return parts[0] if len(parts) == 1 else np.stack([part.astype(np.float64) for part in parts], axis=1)


def _made_up(column: Column, rows: int) -> Labels:
    number = np.arange(rows)
    if column.kind in CLASS_KINDS:
        return number % max(2, len(column.categories))
    if column.kind == "code_set":
        return ((number[:, None] + np.arange(len(column.categories))) % 2).astype(np.float64)
    values = np.linspace(*(column.bounds or (0.0, 1.0)), rows)
    return np.round(values) if column.kind == "integer" else values


def telling_labels(objective: Objective) -> Labels:
    """(2, ...) labels that the columns allow, far from each other, each of which moves a model whose outputs are 0."""
    labels = made_up_labels(objective.labels, 8)
    outputs = torch.zeros(len(labels), objective.logits, dtype=torch.float64, requires_grad=True)
    (slopes,) = torch.autograd.grad(objective.losses(outputs, torch.from_numpy(labels)).sum(), outputs)
    return labels[slopes.abs().sum(1).numpy() > 0][[-1, 0]]


def check_rows_apart(objective: Objective) -> None:
    """Raises ConfigError for losses and predictions of a row that depend on other rows or on what was computed before.

    Losses must be one finite, differentiable number for each row. Both are tried on made-up outputs and labels: a check that can
    find carelessness, and cannot prove that code written to deceive behaves.
    """
    rows = 7
    outputs = torch.linspace(-2, 2, rows * objective.logits, dtype=torch.float64).reshape(rows, -1)
    labels = torch.from_numpy(made_up_labels(objective.labels, rows))

    def losses(outputs: Tensor, labels: Tensor) -> list[Tensor]:
        outputs = outputs.clone().requires_grad_()
        losses = objective.losses(outputs, labels)
        return [losses, torch.autograd.grad(losses.sum(), outputs)[0]]

    def predictions(outputs: Tensor, labels: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return [objective.predictions(outputs.clone())]

    for what, number, compute, form in (
        ("losses", "one finite number", losses, (rows,)),
        ("predictions", "finite, one for each of its columns,", predictions, (rows, len(objective.columns))),
    ):
        try:
            together = compute(outputs, labels)
            alone = [compute(outputs[row : row + 1], labels[row : row + 1]) for row in range(rows)]
            compute(3 * outputs.flip(0) + 0.5, labels.flip(0))
            parts = [*compute(outputs, labels), *map(torch.cat, zip(*alone, strict=True))]
            fits = together[0].shape == form and all(bool(torch.isfinite(part).all()) for part in together)
            fits = fits and all(torch.allclose(*pair) for pair in zip(together + together, parts, strict=True))
        except ConfigError:
            raise
        except Exception as error:  # a stranger's code may raise anything
            raise objective.refuse(f"whose {what} cannot be computed ({type(error).__name__})") from error
        if not fits:
            raise objective.refuse(
                f"whose {what} of a row must be {number} and depend on that row alone, so that clipping one patient bounds that "
                "patient's influence"
            )
