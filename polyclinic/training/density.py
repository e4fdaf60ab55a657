"""Density estimation at a hospital: private steps of a flow on every patient's rows, as of a classifier.

Neighbouring relation: add or remove one patient. The noise that spreads 0/1, whole and missing numbers is drawn anew in every
round, row by row, of nothing but the site's own stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from polyclinic.ehr.shard import Rows
from polyclinic.synthesis.flows.recipe import Recipe
from polyclinic.training import classification
from polyclinic.training.losses import DENSITY
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
        """Raises ConfigError for a flow that mixes patients, or that does not fit the arrays."""
        classification.check(build, arrays, self.recipe.layout.width, engine)

    def train(
        self, build: Builder, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings
    ) -> list[SiteUpdate]:
        """Each site's flow after its steps. All rows of a patient are in a batch together; their gradient is clipped once."""
        return classification.train(build, arrays, self.shown(work), replace(settings, loss=DENSITY))

    def shown(self, work: Sequence[SiteWork]) -> list[SiteWork]:
        """The sites with rows as the flow sees them."""
        recipe = self.recipe
        return [replace(site, rows=spread(recipe, site.rows, self.noise(site), site.number)) for site in work]


def spread(recipe: Recipe, rows: Rows, rng: np.random.Generator, hospital: int = 0) -> Rows:
    """Encoded records of the hospital of this number as a flow sees them: (n, D) in its coordinates; the same patients."""
    v, _ = recipe.coordinates.drawn(recipe.layout.rows(rows.x, rows.y, hospital), rng)
    return Rows(v, np.zeros(len(v), dtype=np.int64), rows.patient, rows.patients)
