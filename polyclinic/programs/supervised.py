"""A model of labelled records, trained in private steps: classification, and tasks that other packages bring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from dp_accounting import DpEvent

from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.plugins import dataset_of, task_named
from polyclinic.programs.building import Model
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

    def outputs(self, schema: Schema) -> int:
        """How many numbers of the model a row's loss takes."""
        return schema.num_classes

    def builder(self, schema: Schema) -> Builder:
        return self.model.builder(len(feature_names(schema)), self.outputs(schema), schema)

    def plain_price(self, settings: TrainSettings, begun: bool = False) -> DpEvent:
        return self.trains.event(settings, begun)

    def plain_task(self, schema: Schema, question: Mapping[str, np.ndarray] | None = None) -> Task:
        return self.trains

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

        schema = dataset_of(self.config).schema if self.model.asks_schema else None

        def build(features: int) -> Builder:
            return self.model.builder(features, claim.classes, schema)

        return Subject(**vars(claim), task=self.trains, build=build)

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
