"""Forests of totally random trees, whose leaves alone are trained (Maddock et al. 2022, section 4.1: splits cost no privacy).

A tree puts 1 to ``depth`` questions to a row, and the answers name its leaf. The questions follow from the schema, the options
and a seed, so that a hospital draws them itself. All nodes of a level have the same question: over many random trees two rows
share a leaf as often as if each node had its own.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from polyclinic.ehr.encoding import feature_names, feature_slices
from polyclinic.ehr.schema import NUMERIC_KINDS, Schema
from polyclinic.privacy.streams import generator
from polyclinic.types import Floats

#: Options of the model ``trees`` where none are given.
TREES, DEPTH, DIRECTIONS = 256, 5, 100
_MOST = {"trees": 512, "depth": 7, "directions": 300}
# Thresholds of a number lie between these quantiles of a normal distribution.
_TAIL = 0.02
# Made-up patients: how many, which part of 0/1 cells is 1, and of cells that may be missing is.
_PATIENTS, _ONES, _MISSING = 1000, 0.3, 0.1
# The variances along all directions add up to those of so many columns; one has at least this part of the largest.
_SPREAD, _LEAST = 8.0, 1e-6
_ROWS_AT_ONCE = 4096


class Forest(nn.Module):
    """(B, features) rows, NaN where a cell is missing, to (B, outputs): an intercept and the number of one leaf of each tree.

    Attributes:
        leaves: (trees, 2 ** depth, outputs) numbers that are added up.
        intercept: (outputs,).
        questions: (features, trees * depth) 1 for the features that a question is about: do they add up to more than its
            ``thresholds``? ``sides``: in place of a missing cell, above or below all. A tree of fewer questions answers the
            others with yes.
    """

    #: Missing cells must reach the model as NaN.
    reads_missing = True

    def __init__(self, schema: Schema, outputs: int, trees: int = TREES, depth: int = DEPTH, seed: int = 0) -> None:
        super().__init__()
        questions, thresholds, sides = _drawn(schema, trees, depth, seed)
        self.questions = nn.Buffer(torch.from_numpy(questions), persistent=False)
        self.thresholds = nn.Buffer(torch.from_numpy(thresholds), persistent=False)
        self.sides = nn.Buffer(torch.from_numpy(sides), persistent=False)
        self.digits = nn.Buffer(2 ** torch.arange(depth), persistent=False)
        self.leaves = nn.Parameter(torch.zeros(trees, 2**depth, outputs))
        self.intercept = nn.Parameter(torch.zeros(outputs))

    def places(self, x: Tensor) -> Tensor:
        """(B, trees) the number of each row's leaf of each tree among the leaves of all."""
        gone = x.isnan()
        sums = torch.where(gone, 0.0, x) @ self.questions
        lacks = gone.to(x.dtype) @ self.questions > 0.5
        answers = torch.where(lacks, self.sides, sums) > self.thresholds
        trees, leaves = self.leaves.shape[:2]
        numbers = (answers.reshape(-1, trees, len(self.digits)) * self.digits).sum(-1)
        return numbers + leaves * torch.arange(trees, device=x.device)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.intercept + functional.embedding(self.places(x), self.leaves.flatten(0, 1)).sum(-2)
        return outputs


def forest(
    features: int, outputs: int, schema: Schema, trees: int = TREES, depth: int = DEPTH, directions: int = DIRECTIONS,
    seed: int = 0,
) -> nn.Module:  # fmt: skip
    """A forest over a schema's encoded features that predicts the same for everybody.

    directions: As ``Directions`` has them; only training reads them. seed: Of the questions, which are public.
    Raises ValueError for fewer than 1, or more than 512 trees, a depth of 7 or 300 directions.
    """
    for name, value in {"trees": trees, "depth": depth, "directions": directions}.items():
        if not 1 <= value <= _MOST[name]:  # a hospital computes with trees * 2 ** depth * directions numbers
            raise ValueError(f"{name} is {value}; it must be from 1 to {_MOST[name]}")
    return Forest(schema, outputs, trees, depth, seed)


@lru_cache(maxsize=8)
def _drawn(schema: Schema, trees: int, depth: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The questions of all trees, their thresholds and their answers for missing cells."""
    rng, columns, count = generator(seed, "trees"), feature_slices(schema), trees * depth
    questions = np.zeros((len(feature_names(schema)), count), np.float32)
    thresholds = np.full(count, -np.inf, np.float32)
    sides = np.where(rng.random(count) < 0.5, np.inf, -np.inf).astype(np.float32)
    for tree in range(trees):
        for place in range(tree * depth, tree * depth + int(rng.integers(1, depth + 1))):
            column, at = columns[rng.integers(len(columns))]
            asked = rng.integers(at.start, at.stop)
            questions[asked, place] = 1.0
            thresholds[place] = 0.5
            if column.kind in NUMERIC_KINDS:
                thresholds[place] = NormalDist().inv_cdf(rng.uniform(_TAIL, 1 - _TAIL))
            elif column.kind == "categorical":  # some categories beside the others
                some = rng.random(at.stop - at.start) < 0.5
                some[asked - at.start] = True
                if not some.all() or column.drop_first:
                    questions[at, place] = some
    return questions, thresholds, sides


def made_up_rows(schema: Schema, patients: int, seed: int) -> Floats:
    """(patients, features) standardised rows whose columns are independent: normal numbers, equally frequent categories."""
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
    that patients share. They are those of made-up patients, so that they are public. Noise in the sums of single leaves would
    hide what the leaves of many trees say together.

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
        """At most ``directions`` of a forest of ``forest``. Raises ValueError as that does."""
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
