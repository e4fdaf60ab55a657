"""Boosted trees by rounds of sums: all leaves of a forest of totally random trees take each step together (batched updates,
Maddock et al. 2022, section 4.3), along the directions in which they move together (``models.forest.Directions``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from polyclinic.models.forest import Directions
from polyclinic.training.boosting.shapes import Shapes
from polyclinic.types import Arrays


@dataclass(frozen=True, eq=False)
class Trees(Shapes):
    """``Shapes`` whose functions are directions of a forest's leaves. Questions and sums are the same; the model has leaves."""

    name: ClassVar[str] = "trees"

    def arrays(self, state: Arrays, like: Arrays) -> Arrays:
        """The model as the arrays of ``models.forest.Forest``; those of ``like`` before there is one."""
        if "weights" not in state:
            return like
        directions, moved = cast(Directions, self.layout.basis), state["weights"] @ self.outcome.contrasts.T
        leaves = (directions.tables @ moved).reshape(like["leaves"].shape)
        middle = self.outcome.levels @ state["intercept"] - (directions.offset + state["centre"]) @ moved
        return {
            name: np.ascontiguousarray(value).astype(like[name].dtype)
            for name, value in {"leaves": leaves, "intercept": middle}.items()
        }
