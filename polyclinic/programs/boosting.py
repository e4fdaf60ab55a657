"""Boosting by rounds of sums over patients: shape functions of an additive model, or the leaves of random trees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from polyclinic.config import RunConfig
from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.models.additive import Basis, additive
from polyclinic.models.forest import forest
from polyclinic.objectives.objective import Objective
from polyclinic.plugins import objective_of
from polyclinic.programs.building import Model, check_options
from polyclinic.programs.program import State
from polyclinic.programs.sums import ModelSums
from polyclinic.training.boosting.outcome import Outcome
from polyclinic.training.boosting.shapes import Shapes, ShapesTask, Table
from polyclinic.training.boosting.trees import Directions, Trees
from polyclinic.types import Builder

if TYPE_CHECKING:
    from torch import Tensor


#: Of each model what builds it, the functions by which it is trained, its rounds, and what a reader must know of it.
_MODELS: dict[str, tuple[Callable[..., Any], type[Basis | Directions], type[Shapes], str]] = {
    "ebm": (additive, Basis, Shapes,
            "The model adds up one shape function for each feature, which the report draws. They are smooth as far as the noise "
            "demands: a change that the noise would hide is not in them, which does not say that it is not there."),
    "trees": (forest, Directions, Trees,
              "The splits of the trees are random, and follow from the schema alone; their leaves were trained."),
}  # fmt: skip


@lru_cache(maxsize=2)  # of trees it holds large tables
def _method(schema: Schema, config: RunConfig) -> Shapes:
    """Of a run, whose rounds ask for it many times, the same."""
    outcome = Outcome(objective_of(config, schema.labels), config.privacy.dp)
    build, functions, method, _ = _MODELS[config.model]
    check_options(config.model, build, config.builder_options, ("features", "outputs", "schema"), "model-options")
    try:
        basis = functions.of(schema, **config.builder_options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"model-options do not make a model {config.model!r}: {error}.") from None
    return method(Table.of_functions(schema, basis, outcome), outcome, config.rounds, config.privacy.dp)


@dataclass(frozen=True)
class Boosting(ModelSums):
    """Task classification of the models ``ebm`` and ``trees``."""

    round_is: ClassVar[str] = "a noisy step of the whole model"

    def method(self, schema: Schema) -> Shapes:
        return _method(schema, self.config)

    def objective(self, schema: Schema) -> Objective:
        return objective_of(self.config, schema.labels)

    def builder(self, schema: Schema) -> Builder:
        return Model(self.config).builder(self.width(schema), self.objective(schema).logits, schema)

    def predicting(self, schema: Schema) -> Callable[[Tensor], Tensor]:
        objective = self.objective(schema)
        return lambda outputs: objective.predictions(outputs.double())

    def plain_task(self, schema: Schema, question: Mapping[str, np.ndarray] | None = None) -> ShapesTask:
        task = ShapesTask(self.method(schema), name=self.config.task)
        return task if question is None else task.with_question(question)

    def notes(self, state: State, scored: bool) -> list[str]:
        return [_MODELS[self.config.model][-1]]
