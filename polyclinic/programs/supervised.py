"""A model of labelled records, trained in private steps towards an objective; and tasks that other packages bring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from dp_accounting import DpEvent

from polyclinic.config import RunConfig
from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError, why
from polyclinic.objectives.classes import Classification
from polyclinic.objectives.objective import Objective
from polyclinic.plugins import model_named, objective_of, task_named
from polyclinic.programs.program import Program
from polyclinic.training.task import Task, TrainSettings
from polyclinic.types import Builder

if TYPE_CHECKING:
    from polyclinic.training.auditing.subject import Claim, Subject


@dataclass(frozen=True)
class Supervised(Program):
    """The run's ``task`` trains the run's ``model``; a program of another package says in ``trains`` what does."""

    @property
    def trains(self) -> Task:
        """What hospitals do with their shards. Raises ConfigError for a name that stands for no task."""
        task: Task = task_named(self.config.task)
        return task

    def check_names(self) -> None:
        model_named(self.config.model)
        super().check_names()

    def objective(self, schema: Schema) -> Objective:
        return self._towards(schema.labels)

    def builder(self, schema: Schema) -> Builder:
        return build_for(self.config, len(feature_names(schema)), self.objective(schema))

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

    def check(self, schema: Schema) -> None:
        super().check(schema)
        self.local(schema)

    @property
    def lets_join(self) -> bool:
        return self.config.task == "classification"

    @property
    def takes_local_halves(self) -> bool:
        return bool(getattr(self.trains, "takes_local_halves", False))

    def subject(self, claim: Claim) -> Subject:
        from polyclinic.training.auditing.subject import Subject

        kind, names = (
            ("ordinal" if self.config.objective == "ordinal" else "categorical"),
            map(str, range(claim.classes)),
        )
        objective = self._towards((Column(name="class", kind=kind, role="label", categories=tuple(names)),))

        def build(features: int) -> Builder:
            return build_for(self.config, features, objective)

        return Subject(**vars(claim), task=self._task(objective), build=build)

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


def build_for(config: RunConfig, features: int, objective: Objective) -> Builder:
    """A builder of empty modules of the run's model, for so many features and the objective's outputs, with its head behind them.

    The builder raises ConfigError when the configuration key ``model`` names something that makes no module.
    """
    from torch import nn

    from polyclinic.objectives.objective import WithHead

    make = model_named(config.model)

    def build() -> nn.Module:
        try:
            module = make(features, objective.outputs, config.widths)
        except Exception as error:
            raise ConfigError(
                f"Configuration key 'model' has the value {config.model!r}, which does not build a torch module from "
                f"(features, classes, widths): {why(error)}."
            ) from error
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"Configuration key 'model' has the value {config.model!r}, which must build a torch nn.Module, "
                f"not a {type(module).__name__}."
            )
        head = objective.head()
        if head is None:
            return module
        return WithHead(module, head)

    return build
