"""Density estimation at a hospital: private steps of a flow on every patient's rows, as of a classifier.

Neighbouring relation: add or remove one patient. What spreads 0/1 and whole numbers and fills missing cells is drawn anew in
every round, row by row, of nothing but the record, the model that the round begins with and the site's own stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from polyclinic.ehr.shard import Rows
from polyclinic.synthesis.flows.fills import Law, Laws
from polyclinic.synthesis.flows.recipe import Recipe
from polyclinic.training import classification
from polyclinic.training.losses import DENSITY
from polyclinic.training.synthesis import Judged
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays, Builder, Ints


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
        classification.check(build, arrays, self.recipe.width, engine)

    def train(
        self, build: Builder, arrays: Arrays, work: Sequence[SiteWork], settings: TrainSettings
    ) -> list[SiteUpdate]:
        """Each site's flow after its steps. All rows of a patient are in a batch together; their gradient is clipped once."""
        return classification.train(build, arrays, self.shown(work, arrays), replace(settings, loss=DENSITY))

    def shown(self, work: Sequence[SiteWork], arrays: Arrays) -> list[SiteWork]:
        """The sites with rows as the flow sees them, which begins with ``arrays``, or with those of a site's own."""
        laws = _Known(self.recipe, arrays)
        return [
            replace(site, rows=spread(self.recipe, site.rows, self.noise(site), site.number, laws.of(site)))
            for site in work
        ]


class _Known:
    """The laws by which missing cells are filled, each made once for all sites that begin with the same arrays."""

    def __init__(self, recipe: Recipe, arrays: Arrays) -> None:
        self._recipe, self._arrays, self._made = recipe, arrays, dict[int, Law]()

    def of(self, site: SiteWork) -> Callable[[Ints], Laws]:
        """A function of the classes whose laws are asked for."""
        return partial(self._recipe.laws, {**self._arrays, **site.own}) if site.own else self._shared

    def _shared(self, classes: Ints) -> Laws:
        self._made |= self._recipe.laws(self._arrays, [k for k in map(int, classes) if k not in self._made])
        return self._made


def spread(
    recipe: Recipe, rows: Rows, rng: np.random.Generator, hospital: int = 0, laws: Callable[[Ints], Laws] | None = None
) -> Rows:
    """Encoded records of the hospital of this number as a flow sees them: (n, V) in its coordinates; the same patients.

    laws: of classes, what missing cells are drawn from; the standard normal where there are none.
    """
    z, there = recipe.layout.rows(rows.x, rows.y, hospital), recipe.coordinates
    asked = np.unique(recipe.layout.labels(z[there.missing(z)]))
    v, _ = there.drawn(z, rng, laws(asked) if laws else None)
    return Rows(v, np.zeros(len(v), dtype=np.int64), rows.patient, rows.patients)
