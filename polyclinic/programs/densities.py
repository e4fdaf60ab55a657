"""Synthetic patients by a density: hospitals' flows are averaged as classifiers are, and draw the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from dp_accounting import DpEvent

from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.plugins import dataset_of
from polyclinic.programs.program import Collected, Half, State
from polyclinic.programs.synthetic import Synthetic, make_model
from polyclinic.synthesis.flows.recipe import Recipe
from polyclinic.synthesis.flows.synthesizer import FlowRows
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.synthesizer import Synthesizer
from polyclinic.training import classification
from polyclinic.training.density import DensityTask
from polyclinic.training.task import TrainSettings
from polyclinic.types import Arrays, Builder

if TYPE_CHECKING:
    from polyclinic.training.auditing.subject import Claim, Subject


@dataclass(frozen=True)
class Densities(Synthetic):
    """Synthetic patients by a normalizing flow, trained in private steps.

    Examples:
        >>> from polyclinic.config import RunConfig
        >>> program = Densities(RunConfig(task="synthesis", model="maf"))
        >>> schema = dataset_of(program.config).schema
        >>> program.recipe(program.layout(schema)).transforms, program.why_model(schema)
        (3, '')
    """

    @property
    def shows_baselines(self) -> bool:
        return self.config.synthesis.baselines

    def recipe(self, layout: Layout) -> Recipe:
        """The run's density. Raises ConfigError for an unknown name, or an option that it does not take."""
        recipe = make_model("densities", self.config, layout, self.options)
        if not isinstance(recipe, Recipe):
            raise ConfigError(
                f"Configuration key 'model' has the value {self.config.model!r}, which makes no polyclinic Recipe."
            )
        return recipe

    def why_model(self, schema: Schema) -> str:
        """Which dependences layers of few units lose."""
        recipe = self.recipe(self.layout(schema))
        features = recipe.coordinates.features
        if not recipe.lost:
            return ""
        return (
            f"The flow's layers have {recipe.hidden} units for {features} numbers of a row: within a transform "
            f"{recipe.lost:,} of {features * (features - 1) // 2:,} pairs of numbers cannot depend on each other; the option "
            f"hidden={features} lets all."
        )

    def width(self, schema: Schema) -> int:
        return self.recipe(self.layout(schema)).width

    def builder(self, schema: Schema) -> Builder:
        return self.recipe(self.layout(schema)).module

    def plain_price(self, settings: TrainSettings, begun: bool = False) -> DpEvent:
        return classification.event(settings, begun)

    def plain_task(self, schema: Schema, question: Mapping[str, np.ndarray] | None = None) -> DensityTask:
        return DensityTask(self.recipe(self.layout(schema)))

    def half(self, schema: Schema, classes: Sequence[float], learning_rate: float) -> Half:
        return DensityHalf(self.recipe(self.layout(schema)), self.frequencies(schema, classes))

    def subject(self, claim: Claim) -> Subject:
        from polyclinic.training.auditing.densities import of_density

        recipe = self.recipe(self.layout(dataset_of(self.config).schema))
        return of_density(recipe, claim)


@dataclass(frozen=True, eq=False)
class DensityHalf(Half):
    """Rows are drawn by the newest flow, or by an average over rounds (``recipe.ema``).

    classes: (K,) frequencies of the label. The state's ``averaged`` is not yet corrected for its beginning at zero.

    Examples:
        >>> from types import SimpleNamespace
        >>> half = DensityHalf(SimpleNamespace(ema=0.5), classes=np.array([0.5, 0.5]))
        >>> state, sent = half.absorb(1, half.first(), {}, Collected({"weight": np.array([2.0])}))
        >>> state["averaged"]["weight"].tolist(), sent["weight"].tolist()
        ([1.0], [2.0])
    """

    recipe: Recipe
    classes: np.ndarray

    def first(self) -> State:
        return {"averaged": {}, "rounds": 0}

    def absorb(self, number: int, state: State, sent: Arrays, collected: Collected) -> tuple[State, Arrays]:
        """The state with the mean flow in its average, and the mean flow as it is, which hospitals are sent next.

        Args:
            number: Of the round; not used.
            state: Before the round.
            sent: Not used.
            collected: With the hospitals' mean flow.
        """
        stays, before = self.recipe.ema, state["averaged"]
        averaged = {name: stays * before.get(name, 0.0) + (1 - stays) * value for name, value in collected.mean.items()}
        return {"averaged": averaged, "rounds": state["rounds"] + 1}, collected.mean

    def synthesizer(self, state: State) -> Synthesizer | None:
        if not state["rounds"]:
            return None
        share = 1 - self.recipe.ema ** state["rounds"]  # as Adam corrects for a mean that begins at zero
        flow = {name: np.asarray(value / share, dtype=np.float32) for name, value in state["averaged"].items()}
        return FlowRows(self.recipe, flow, self.classes)
