"""A logistic regression by rounds of sums: noisy Newton steps, of which the last makes risks calibrated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.schema import Schema
from polyclinic.programs.building import Model
from polyclinic.programs.program import State
from polyclinic.programs.sums import ModelSums
from polyclinic.training import classification
from polyclinic.training.logistic.newton import LEAST_ROUNDS, Newton, NewtonTask, Table
from polyclinic.training.task import Task
from polyclinic.types import Builder

if TYPE_CHECKING:
    from torch import Tensor


@lru_cache(maxsize=16)
def _method(schema: Schema, rounds: int, recalibrates: bool) -> Newton:
    """Of all runs of a sweep, whose rounds ask for it many times, the same."""
    features = len(feature_names(schema))
    table = Table(schema, np.zeros(features), np.ones(features), np.zeros(features, dtype=bool))
    return Newton(table, rounds, recalibrates)


@dataclass(frozen=True)
class NewtonSteps(ModelSums):
    """Task classification of model ``logistic`` with ``training.optimizer`` newton."""

    round_is: ClassVar[str] = "a noisy Newton step"

    def method(self, schema: Schema) -> Newton:
        return _method(schema, self.config.rounds, self.config.training.recalibrate)

    def builder(self, schema: Schema) -> Builder:
        return Model(self.config).builder(self.width(schema), schema.num_classes, schema)

    def converging_task(self, schema: Schema) -> Task:
        task: Task = classification
        return task

    def predicting(self, schema: Schema) -> Callable[[Tensor], Tensor]:
        return classification.probabilities

    def plain_task(self, schema: Schema, question: Mapping[str, np.ndarray] | None = None) -> NewtonTask:
        task = NewtonTask(self.method(schema), name=self.config.task)
        return task if question is None else task.with_question(question)

    def notes(self, state: State, scored: bool) -> list[str]:
        scale = {
            "measured": "by counts of all hospitals' patients in bins, or by the schema where it has a centre and a spread",
            "public": "by the schema's centres and spreads, or its bounds",
            "none": "by nothing",
        }[self.config.data.standardise]
        sentences = [
            "Noisy Newton steps trained the model, as suits classes and a logistic model; `training.optimizer=sgd` takes "
            f"gradient steps. Numeric features are scaled {scale}."
        ]
        if self.config.training.recalibrate and self.config.rounds > LEAST_ROUNDS:
            sentences.append("The last round recalibrated the risks: it shifted and stretched all logits.")
        return sentences
