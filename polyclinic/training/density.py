"""Density estimation at a hospital: private steps of a flow on every patient's rows, as of a classifier.

Neighbouring relation: add or remove one patient. The numbers that spread 0/1 and whole numbers and fill missing cells
are drawn anew in every round, row by row. They are drawn of nothing but the record, the model that the round begins
with and the site's own stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np

from polyclinic.ehr.shard import Rows
from polyclinic.models.flows import ConditionalFlow
from polyclinic.synthesis.flows.fills import Law, Laws
from polyclinic.synthesis.flows.recipe import Recipe
from polyclinic.training import classification
from polyclinic.training.losses import DENSITY
from polyclinic.training.modules import load
from polyclinic.training.synthesis import Judged
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays, Builder


def own_noise(site: SiteWork) -> np.random.Generator:
    """What spreads a site's cells: draws of nothing but the site's own stream."""
    return np.random.default_rng(int(site.layers.uniform(1)[0] * 2**53))


@dataclass(frozen=True, eq=False)
class DensityTask(Judged):
    """A round is steps of a flow at each site.

    noise: of a site, what spreads its cells; an audit's draws nothing.
    """

    recipe: Recipe
    noise: Callable[[SiteWork], np.random.Generator] = own_noise
    name: str = "synthesis"

    #: The flow's steps cost what those of private classification do.
    event = staticmethod(classification.event)

    def check(self, build: Builder, arrays: Arrays, features: int, engine: str = "auto", private: bool = True) -> None:
        """Checks that the flow does not mix patients, and that it fits the arrays.

        Args:
            build: Makes the flow.
            arrays: The flow's arrays.
            features: Of no weight here: the recipe has the width of a row.
            engine: How per-patient gradients are computed.
            private: Of no weight here: patients are always kept apart.

        Raises:
            ConfigError: It mixes patients or does not fit.
        """
        classification.check(build, arrays, self.recipe.width, engine)

    def train(
        self, build: Builder, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings
    ) -> list[SiteUpdate]:
        """Each site's flow after its steps. All rows of a patient are in a batch together; their gradient is clipped once.

        Args:
            build: Makes the flow.
            arrays: The flow's arrays, from which all sites start.
            work: Each site's part.
            settings: The settings of the round, whose loss is replaced.
        """
        return classification.train(build, arrays, self.show_rows(build, arrays, work), replace(settings, loss=DENSITY))

    def show_rows(self, build: Builder, arrays: Arrays, work: Sequence[SiteWork]) -> list[SiteWork]:
        """The sites with rows as the flow sees them.

        Args:
            build: Makes the flow.
            arrays: The arrays with which the flow begins, but for those of a site's own.
            work: Each site's part.
        """
        shared = _Laws(self.recipe, build, arrays)
        return [
            replace(
                site,
                rows=spread(
                    self.recipe, site.rows, self.noise(site), site.number,
                    _Laws(self.recipe, build, {**arrays, **site.own}) if site.own else shared,
                ),
            )
            for site in work
        ]  # fmt: skip


class _Laws(dict[int, Law]):
    """What missing cells of each class are drawn from, made when it is first asked for."""

    def __init__(self, recipe: Recipe, build: Builder, arrays: Arrays) -> None:
        super().__init__()
        self._recipe, self._build, self._arrays = recipe, build, arrays

    def __missing__(self, label: int) -> Law:
        self |= self._recipe.laws(self._flow, [label])
        return self[label]

    @cached_property
    def _flow(self) -> ConditionalFlow:
        return cast(ConditionalFlow, load(self._build, self._arrays).double().eval())


def spread(recipe: Recipe, rows: Rows, rng: np.random.Generator, hospital: int = 0, laws: Laws | None = None) -> Rows:
    """Encoded records as a flow sees them: (n, V) in its coordinates; the same patients.

    Args:
        recipe: The flow's recipe, with its coordinates.
        rows: The encoded records.
        rng: The source of what spreads cells.
        hospital: The number of the records' hospital, from 0.
        laws: What missing cells are drawn from, by class; the standard normal where there are none.
    """
    v, _ = recipe.coordinates.draw(recipe.layout.rows(rows.x, rows.y, hospital), rng, laws)
    return Rows(v, np.zeros(len(v), dtype=np.int64), rows.patient, rows.patients)
