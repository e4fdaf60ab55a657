"""A model of labelled records, trained in private steps: classification, and tasks that other packages bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from dp_accounting import DpEvent

from polyclinic.config import RunConfig
from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError, why
from polyclinic.plugins import model_named, task_named
from polyclinic.programs.program import Program
from polyclinic.training.task import Task, TrainSettings
from polyclinic.types import Builder

if TYPE_CHECKING:
    from torch import Tensor

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

    def builder(self, schema: Schema) -> Builder:
        return build_for(self.config, len(feature_names(schema)), schema.num_classes)

    def plain_price(self, settings: TrainSettings, begun: bool = False) -> DpEvent:
        return self.trains.event(settings, begun)

    def plain_task(self, schema: Schema, question: Mapping[str, np.ndarray] | None = None) -> Task:
        return self.trains

    def converging_task(self, schema: Schema) -> Task | None:
        return self.plain_task(schema) if self.config.task == "classification" else None

    def check(self, schema: Schema) -> None:
        super().check(schema)
        self.local(schema)

    @property
    def lets_join(self) -> bool:
        return self.config.task == "classification"

    @property
    def takes_local_halves(self) -> bool:
        return bool(getattr(self.trains, "takes_local_halves", False))

    def probabilities(self, outputs: Tensor) -> Tensor:
        found: Callable[[Tensor], Tensor] = getattr(self.trains, "probabilities", super().probabilities)
        return found(outputs)

    def subject(self, claim: Claim) -> Subject:
        from polyclinic.training.auditing.subject import Subject

        def build(features: int) -> Builder:
            return build_for(self.config, features, claim.classes)

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


def build_for(config: RunConfig, features: int, classes: int) -> Builder:
    """A builder of empty modules of the run's model, for so many features and classes.

    The builder raises ConfigError when the configuration key ``model`` names something that makes no module.
    """
    from torch import nn

    make = model_named(config.model)

    def build() -> nn.Module:
        try:
            module = make(features, classes, config.widths)
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
        return module

    return build
