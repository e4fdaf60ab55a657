"""Which pairs of columns to measure well, from noisy counts alone: nothing here costs privacy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import minimum_spanning_tree

from polyclinic.types import Floats, Ints


def all_pairs(columns: int) -> Ints:
    """(P, 2) each two different columns, the first before the second."""
    return np.stack(np.triu_indices(columns, 1), axis=1).astype(np.int64)


def distance(difference: Floats, noise: float) -> float:
    """The L1 norm of a table of differences without noise, estimated from one whose squares have the sum ``noise`` too much.

    sqrt(cells) times the L2 norm: the L1 norm where all differences are equal, as in any table of two by two, else above it.
    """
    return float(np.sqrt(difference.size * max(float((difference**2).sum()) - noise, 0.0)))


def dependence(
    pairs: Ints, measured: list[Floats], noise: float, alone: list[Floats], variance: list[Floats]
) -> Floats:
    """(P,) how far each pair is from independence: L1, corrected for noise.

    measured: the pairs' tables, flat, deviation ``noise`` in each cell. alone: the columns' frequencies over the same groups,
    with their ``variance``.
    """
    found = []
    for (first, second), table in zip(pairs, measured, strict=True):
        p, q = alone[first], alone[second]
        expected = table.size * noise**2
        expected += float((p**2).sum() * variance[second].sum() + (q**2).sum() * variance[first].sum())
        found.append(distance(table - np.outer(p, q).ravel(), expected))
    return np.array(found)


def spanning_tree(pairs: Ints, weights: Floats, columns: int) -> Ints:
    """(edges, 2) the tree with the largest weights (Chow and Liu 1968; McKenna et al. 2021, algorithm 3).

    Pairs without weight are left out: to measure what shows no dependence would add noise alone. Columns that then stand
    apart are independent of the others.
    """
    edges = csr_matrix((-weights, (pairs[:, 0], pairs[:, 1])), shape=(columns, columns))
    edges.eliminate_zeros()
    first, second = minimum_spanning_tree(edges).nonzero()
    found = np.sort(np.stack([first, second], axis=1).astype(np.int64), axis=1)
    return found[np.lexsort(found.T[::-1])]


def worst(pairs: Ints, scores: Floats, most: int, fits: Callable[[list[tuple[int, int]]], bool]) -> Ints:
    """(up to ``most``, 2) pairs of the largest scores above 0 for which a model still ``fits`` into memory, in their order."""
    found: list[tuple[int, int]] = []
    for place in np.argsort(-scores, kind="stable"):
        if scores[place] <= 0 or len(found) == most:
            break
        pair = (int(pairs[place, 0]), int(pairs[place, 1]))
        if fits([*found, pair]):
            found.append(pair)
    return np.array(sorted(found), dtype=np.int64).reshape(-1, 2)
