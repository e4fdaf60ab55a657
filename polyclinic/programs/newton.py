"""A logistic regression by rounds of sums: noisy Newton steps, of which the last makes risks calibrated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from polyclinic.ehr.encoding import feature_names
from polyclinic.ehr.schema import Schema
from polyclinic.programs.building import Model
from polyclinic.programs.program import Program, State
from polyclinic.programs.sums import ModelHalf, Sums
from polyclinic.training import classification
from polyclinic.training.logistic.newton import LEAST_ROUNDS, Newton, NewtonTask, Table
from polyclinic.training.task import Task
from polyclinic.types import Arrays, Builder

if TYPE_CHECKING:
    from torch import Tensor

    from polyclinic.training.auditing.fixed import Fixed
    from polyclinic.training.auditing.subject import Claim


@lru_cache(maxsize=16)
def _method(schema: Schema, rounds: int, recalibrates: bool) -> Newton:
    """Of all runs of a sweep, whose rounds ask for it many times, the same."""
    features = len(feature_names(schema))
    table = Table(schema, np.zeros(features), np.ones(features), np.zeros(features, dtype=bool))
    return Newton(table, rounds, recalibrates)


@dataclass(frozen=True)
class NewtonSteps(Sums):
    """Task classification of model ``logistic`` with ``training.optimizer`` newton."""

    limits_noise: ClassVar[bool] = True
    round_is: ClassVar[str] = "a noisy Newton step"

    def method(self, schema: Schema) -> Newton:
        return _method(schema, self.config.rounds, self.config.training.recalibrate)

    def classes(self, schema: Schema, classes: Sequence[float]) -> np.ndarray:
        return np.ones(1)

    def builder(self, schema: Schema) -> Builder:
        return Model(self.config).builder(self.width(schema), schema.num_classes, schema)

    def converging_task(self, schema: Schema) -> Task:
        task: Task = classification
        return task

    def predicting(self, schema: Schema) -> Callable[[Tensor], Tensor]:
        return classification.probabilities

    def first(self, schema: Schema, classes: Sequence[float] = ()) -> Arrays:
        return Program.first(self, schema)

    def plain_task(self, schema: Schema, question: Mapping[str, np.ndarray] | None = None) -> NewtonTask:
        task = NewtonTask(self.method(schema), name=self.config.task)
        return task if question is None else task.asked(question)

    def half(self, schema: Schema, classes: Sequence[float], learning_rate: float) -> ModelHalf:
        return ModelHalf(self.method(schema))

    def check_noise(self, schema: Schema, noise_multiplier: float, noise: float, fewest: float) -> None:
        """Raises ConfigError where a secure sum would cut sums short."""
        self.check_length(self.method(schema).size(1, {}), noise_multiplier, fewest)

    def subject(self, claim: Claim) -> Fixed:
        return replace(super().subject(claim), counts=lambda shard: self.patient_sums(shard.schema).exact(shard))

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

    @property
    def lets_join(self) -> bool:
        return True
