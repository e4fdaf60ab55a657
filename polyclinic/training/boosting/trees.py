"""Boosted trees by rounds of sums: all leaves of a forest of totally random trees take each step together (batched updates,
Maddock et al. 2022, section 4.3), along the directions in which they move together (``Directions``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import torch
from torch.nn import functional

from polyclinic.ehr.encoding import feature_names, feature_slices
from polyclinic.ehr.schema import NUMERIC_KINDS, Schema
from polyclinic.models.forest import DEPTH, DIRECTIONS, TREES, Forest, forest
from polyclinic.privacy.streams import generator
from polyclinic.training.boosting.shapes import Shapes
from polyclinic.types import Arrays, Floats

# Made-up patients: how many, which part of 0/1 cells is 1, and of cells that may be missing is.
_PATIENTS, _ONES, _MISSING = 1000, 0.3, 0.1
# The variances along all directions add up to those of so many columns; one has at least this part of the largest.
_SPREAD, _LEAST = 8.0, 1e-6
_ROWS_AT_ONCE = 4096


def made_up_rows(schema: Schema, patients: int, seed: int) -> Floats:
    """(patients, features) standardised rows whose columns are independent: normal numbers, equally frequent categories.

    Args:
        schema: The public schema.
        patients: The number of rows.
        seed: The seed of the rows.
    """
    rng, x = generator(seed, "rows"), np.zeros((patients, len(feature_names(schema))))
    for column, at in feature_slices(schema):
        shape = (patients, at.stop - at.start)
        if column.kind in NUMERIC_KINDS:
            x[:, at] = rng.standard_normal(shape)
        elif column.kind == "categorical":
            classes = rng.integers(len(column.categories), size=patients)
            x[:, at] = np.eye(len(column.categories))[classes, int(column.drop_first) :]
        else:
            x[:, at] = rng.random(shape) < _ONES
        if column.nullable:
            gone = rng.random(patients) < _MISSING
            x[gone, at] = 0.0 if column.kind in ("categorical", "code_set") else np.nan
    return x


class Directions:
    """The directions in which the leaves of a forest move together while they are trained.

    With leaves of one variance, a priori, the outputs of patients vary most along the leading principal components of the leaves
    that patients share. They are those of made-up patients, so that they are public.

    Attributes:
        usual: (q,) the variance of a row along each direction, before any patient is seen.
        tables: (trees * 2 ** depth, q) what each leaf adds along each direction, and ``offset`` (q,) what a mean row has.
        farthest: No row is longer along all of them.
    """

    def __init__(self, grown: Forest, made_up: Floats, most: int) -> None:
        self._forest = grown
        trees, leaves = grown.leaves.shape[:2]
        inside = np.zeros((len(made_up), trees * leaves), np.float32)
        np.put_along_axis(inside, self._places(made_up), 1.0, axis=1)
        shared = (inside @ inside.T).astype(np.float64) / trees  # sums of whole numbers, the same on every machine
        shared -= shared.mean(axis=0)
        shared -= shared.mean(axis=1, keepdims=True)
        values, vectors = (part[..., ::-1][..., :most] for part in np.linalg.eigh(shared / len(made_up)))
        clear = values > _LEAST * values[0]
        values, vectors = values[clear], vectors[:, clear]
        vectors = vectors * np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(len(values))])
        scale = np.sqrt(_SPREAD / values.sum())
        self.usual: Floats = values * scale**2
        self.tables: Floats = inside.T.astype(np.float64) @ (vectors * (scale / np.sqrt(values * len(made_up)) / trees))
        self.offset: Floats = inside.mean(axis=0, dtype=np.float64) @ self.tables
        # A row's leaves are a vector of length 1, of which this is a rotation.
        self.farthest = float(scale + np.linalg.norm(self.offset))

    @classmethod
    def of(
        cls, schema: Schema, trees: int = TREES, depth: int = DEPTH, directions: int = DIRECTIONS, seed: int = 0
    ) -> Directions:
        """At most ``directions`` of a forest of ``forest``.

        Args:
            schema: The public schema.
            trees: The number of trees.
            depth: The depth of each.
            directions: The most directions.
            seed: The seed of the forest and of the made-up rows.

        Raises:
            ValueError: As ``forest``.
        """
        grown = forest(0, 1, schema, trees, depth, directions, seed)
        assert isinstance(grown, Forest)
        return cls(grown, made_up_rows(schema, _PATIENTS, seed), directions)

    def rows(self, x: Floats) -> Floats:
        """(n, q) of (n, features) rows, NaN where a cell is missing."""
        tables = torch.from_numpy(self.tables)
        parts = [
            functional.embedding_bag(torch.from_numpy(self._places(part)), tables, mode="sum").numpy()
            for part in np.array_split(x, len(x) // _ROWS_AT_ONCE + 1)
        ]
        return np.asarray(np.concatenate(parts) - self.offset)

    def _places(self, x: Floats) -> np.ndarray:
        return np.asarray(self._forest.places(torch.from_numpy(x.astype(np.float32))).numpy())


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
