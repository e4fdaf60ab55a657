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

#: Options of the model ``trees`` where none are given.
TREES, DEPTH, DIRECTIONS = 256, 5, 100
_MOST = {"trees": 512, "depth": 7, "directions": 300, "seed": 2**32}
# Thresholds of a number lie between these quantiles of a normal distribution.
_TAIL = 0.02


class Forest(nn.Module):
    """(B, features) rows, NaN where a cell is missing, to (B, outputs): an intercept and the number of one leaf of each tree.

    A question asks whether some features add up to more than its threshold. A tree of fewer questions answers the
    others with yes.

    Attributes:
        leaves: (trees, 2 ** depth, outputs) numbers that are added up.
        intercept: (outputs,).
        questions: (features, trees * depth) 1 for the features that a question is about.
        thresholds: Of the questions.
        sides: In place of a missing cell, above or below all.
    """

    #: Missing cells must reach the model as NaN.
    reads_missing = True

    def __init__(self, schema: Schema, outputs: int, trees: int = TREES, depth: int = DEPTH, seed: int = 0) -> None:
        super().__init__()
        questions, thresholds, sides = _draw_trees(schema, trees, depth, seed)
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
    """Return a forest over a schema's encoded features that predicts the same for everybody.

    Args:
        features: The width of a row; the questions follow from the schema.
        outputs: The number of outputs.
        schema: The schema of the rows.
        trees: From 1 to 512.
        depth: From 1 to 7.
        directions: In which leaves move together, from 1 to 300; only training reads them.
        seed: Of the questions, which are public.

    Raises:
        ValueError: For what is no whole number or outside these limits, and for a negative seed or one that is too
            large.
    """
    for name, value in {"trees": trees, "depth": depth, "directions": directions, "seed": seed}.items():
        least = int(name != "seed")
        # A hospital computes with trees * 2 ** depth * directions numbers.
        if not isinstance(value, int) or not least <= value <= _MOST[name]:
            raise ValueError(f"{name} is {value}; it must be a whole number from {least} to {_MOST[name]}")
    return Forest(schema, outputs, trees, depth, seed)


@lru_cache(maxsize=8)
def _draw_trees(schema: Schema, trees: int, depth: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The questions of all trees, their thresholds and their answers for missing cells."""
    rng, columns = np.random.Generator(np.random.Philox(seed)), feature_slices(schema)
    count = trees * depth
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
