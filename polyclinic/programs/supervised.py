"""A model of labelled records, trained in private steps towards an objective; and tasks that other packages bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from logging import getLogger
from typing import TYPE_CHECKING

import numpy as np
from dp_accounting import DpEvent

from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError
from polyclinic.objectives.classes import Classification
from polyclinic.objectives.objective import Objective, telling_labels, with_head
from polyclinic.plugins import BUILT_IN, dataset_of, objective_of, task_named
from polyclinic.programs.building import Model
from polyclinic.programs.program import Program
from polyclinic.training.task import Task, TrainSettings
from polyclinic.types import Arrays, Builder

if TYPE_CHECKING:
    from torch import Tensor

    from polyclinic.training.auditing.subject import Claim, Subject

_log = getLogger(__name__)


@lru_cache
def _warn_of_probabilities(model: str) -> None:
    """Once for each model, for it is looked at where a run is asked for and where it begins."""
    _log.warning(
        "The model %r gives probabilities, as of a softmax or a sigmoid. Training takes them for logits and applies its own, so "
        "that it learns slowly and predicts too cautiously; let the model return what comes before.", model,
    )  # fmt: skip


@dataclass(frozen=True)
class Supervised(Program):
    """The run's ``task`` trains the run's ``model``; a program of another package says in ``trains`` what does.

    Examples:
        >>> from polyclinic.config import RunConfig
        >>> program = Supervised(RunConfig(model="logistic"))
        >>> schema = dataset_of(program.config).schema
        >>> program.objective(schema).columns, {name: array.shape for name, array in program.first(schema).items()}
        (('0', '1'), {'0.weight': (2, 30), '0.bias': (2,)})
    """

    @property
    def trains(self) -> Task:
        """What hospitals do with their shards. Raises ConfigError for a name that stands for no task."""
        task: Task = task_named(self.config.task)
        return task

    @property
    def model(self) -> Model:
        """The network that hospitals train."""
        return Model(self.config)

    @property
    def any_width(self) -> bool:
        return not self.model.asks_schema

    def check_names(self) -> None:
        self.model.builder(1, 1, None)
        super().check_names()

    def objective(self, schema: Schema) -> Objective:
        return self._towards(schema.labels)

    def _trial_output(self, build: Builder, arrays: Arrays, schema: Schema) -> Tensor | None:
        """What the model makes of made-up rows; None of a task that other packages bring, which may want anything.

        Raises ConfigError for outputs that the task does not take.
        """
        from polyclinic.training.modules import check_outputs

        if self.config.task not in BUILT_IN["tasks"]:
            return None
        return check_outputs(build, arrays, self.width(schema), self.objective(schema).allowed)

    def builder(self, schema: Schema) -> Builder:
        objective = self.objective(schema)
        return with_head(self.model.builder(len(feature_names(schema)), objective.outputs, schema), objective)

    def plain_price(self, settings: TrainSettings, begun: bool = False) -> DpEvent:
        return self.trains.event(settings, begun)

    def plain_task(self, schema: Schema, question: Mapping[str, np.ndarray] | None = None) -> Task:
        return self._task(self.objective(schema))

    def _towards(self, labels: tuple[Column, ...]) -> Objective:
        # Another task has a loss of its own, and predicts probabilities of classes.
        return objective_of(self.config, labels) if self.config.task == "classification" else Classification(labels)

    def _task(self, objective: Objective) -> Task:
        if self.config.task != "classification":
            return self.trains
        from polyclinic.training.classification import Towards

        return Towards(objective)

    def converging_task(self, schema: Schema) -> Task | None:
        return self.plain_task(schema) if self.config.task == "classification" else None

    def check(self, schema: Schema) -> None:
        super().check(schema)
        self.local(schema)
        from polyclinic.training.modules import are_probabilities

        made = self._trial_output(self.builder(schema), self.first(schema), schema)
        if made is not None and self.objective(schema).has_classes and are_probabilities(made):
            _warn_of_probabilities(self.config.model)

    def check_training(
        self, task: Task, schema: Schema, build: Builder, arrays: Arrays, settings: TrainSettings
    ) -> None:
        self._trial_output(build, arrays, schema)
        super().check_training(task, schema, build, arrays, settings)

    @property
    def lets_join(self) -> bool:
        return self.config.task == "classification"

    @property
    def takes_local_halves(self) -> bool:
        return bool(getattr(self.trains, "takes_local_halves", False))

    def predicting(self, schema: Schema) -> Callable[[Tensor], Tensor]:
        predict: Callable[[Tensor], Tensor] | None = getattr(self.plain_task(schema), "probabilities", None)
        return predict or super().predicting(schema)

    def subject(self, claim: Claim) -> Subject:
        from polyclinic.training.auditing.subject import Subject

        names = tuple(str(number) for number in range(claim.classes))
        objective = self._towards(
            claim.columns or (Column(name="class", kind="categorical", role="label", categories=names),)
        )
        schema = dataset_of(self.config).schema if self.model.asks_schema else None
        labels = np.arange(claim.classes) if objective.has_classes else telling_labels(objective)

        def build(features: int) -> Builder:
            return with_head(self.model.builder(features, objective.outputs, schema), objective)

        return Subject(**vars(claim), task=self._task(objective), build=build, labels=labels)

    def local(self, schema: Schema) -> list[str]:
        from polyclinic.training.modules import load

        module = load(self.builder(schema), self.first(schema))
        names, stays = list(module.state_dict()), set(self.local_half.stays(module))
        if stays >= set(names):
            raise ConfigError(
                f"Configuration key 'strategy' has the value {self.config.strategy!r}, which leaves no array of the model to "
                "share."
            )
        return [name for name in names if name in stays]
