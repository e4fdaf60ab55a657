"""A model of labelled records, trained in private steps: classification, and tasks that other packages bring."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from dp_accounting import DpEvent

from polyclinic.config import RunConfig
from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.plugins import model_named, task_named, why
from polyclinic.programs.program import Builder, Program
from polyclinic.training.task import Task, TrainSettings

if TYPE_CHECKING:
    from polyclinic.ehr.shard import Rows
    from polyclinic.training.auditing.faults import Fault
    from polyclinic.training.auditing.subject import Subject


@dataclass(frozen=True)
class Supervised(Program):
    """The run's ``task`` trains the run's ``model``."""

    def check_names(self) -> None:
        model_named(self.config.model)
        super().check_names()

    def builder(self, schema: Schema) -> Builder:
        return build_for(self.config, len(feature_names(schema)), schema.num_classes)

    def plain_price(self, settings: TrainSettings, begun: bool = False) -> DpEvent:
        event: DpEvent = task_named(self.config.task).event(settings, begun)
        return event

    def plain_task(self, schema: Schema, question: Mapping[str, np.ndarray] | None = None) -> Task:
        task: Task = task_named(self.config.task)
        return task

    def check(self, schema: Schema) -> None:
        super().check(schema)
        self.local(schema)

    def subject(
        self, rows: Rows, classes: int, settings: TrainSettings, rounds: int, epsilon: float,
        seed: int | None, fault: Fault,
    ) -> Subject:  # fmt: skip
        from polyclinic.training.auditing.subject import Subject

        return Subject(
            self.by_strategy(task_named(self.config.task)), lambda features: build_for(self.config, features, classes), settings,
            rounds, rows, classes, epsilon, self.config.delta, seed, fault,
        )  # fmt: skip

    def local(self, schema: Schema) -> list[str]:
        from polyclinic.training.modules import load, normalisation_arrays

        config = self.config
        module = load(self.builder(schema), self.first(schema))
        names = list(module.state_dict())
        local = set(normalisation_arrays(module)) if config.strategy == "fedbn" else set()
        if config.strategy == "fedbn" and not local:
            raise ConfigError(
                f"Configuration key 'strategy' has the value 'fedbn', but the model {config.model!r} has no normalisation "
                "layers to keep at hospitals; take strategy 'fedavg', with local-layers if you like."
            )
        for pattern in config.local_patterns:
            matching = fnmatch.filter(names, pattern)
            if not matching:
                raise ConfigError(
                    f"Configuration key 'local-layers' names {pattern!r}, which no array of the model matches; they are "
                    f"{', '.join(names)}."
                )
            local.update(matching)
        if local >= set(names):
            raise ConfigError("Configuration key 'local-layers' leaves no array of the model to share.")
        return [name for name in names if name in local]


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
