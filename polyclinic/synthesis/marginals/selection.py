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


def dependence(pairs: Ints, measured: list[Floats], noise: float, by_class: list[Floats], variance: Floats) -> Floats:
    """(P,) how far each pair is from independence within each class of the label: L1, corrected for noise.

    Args:
        pairs: (P, 2) pairs of columns.
        measured: The pairs' tables, flat.
        noise: The standard deviation in each cell of these.
        by_class: For each column, the label last, (groups, K) frequencies, the label's on its diagonal.
        variance: (A,) of the noise of a class' groups, added up.
    """
    shares = np.maximum(by_class[-1].sum(axis=0), 1e-12)
    within, unsure = [], []
    for own, spread in zip(by_class, variance, strict=True):
        positive = np.maximum(own, 0.0)
        total = positive.sum(axis=0)
        within.append(np.where(total > 0, positive / np.where(total > 0, total, 1.0), 1.0 / len(own)))
        # No two distributions are further apart than this, however loud the noise in a rare class.
        unsure.append(np.minimum(spread / shares**2, 1.0))
    distances = []
    for (first, second), table in zip(pairs, measured, strict=True):
        p, q = within[first], within[second]
        each = (p**2).sum(axis=0) * unsure[second] + (q**2).sum(axis=0) * unsure[first]
        expected = table.size * noise**2 + float((shares**2 * each).sum())
        distances.append(distance(table - ((p * shares) @ q.T).ravel(), expected))
    return np.array(distances)


def spanning_tree(pairs: Ints, weights: Floats, columns: int) -> Ints:
    """(edges, 2) the tree with the largest weights (Chow and Liu 1968; McKenna et al. 2021, algorithm 3).

    Pairs without weight are left out: to measure what shows no dependence would add noise alone. Columns that then
    stand apart are independent of the others.

    Args:
        pairs: (P, 2) pairs of columns.
        weights: (P,) the weight of each, 0 or more.
        columns: The number of columns.
    """
    edges = csr_matrix((-weights, (pairs[:, 0], pairs[:, 1])), shape=(columns, columns))
    edges.eliminate_zeros()
    first, second = minimum_spanning_tree(edges).nonzero()
    tree = np.sort(np.stack([first, second], axis=1).astype(np.int64), axis=1)
    return tree[np.lexsort(tree.T[::-1])]


def worth(
    pairs: Ints, errors: Floats, costs: Floats, most: tuple[int, int], fits: Callable[[list[tuple[int, int]]], bool]
) -> Ints:
    """(m, 2) the pairs, in their order, by which most is gained if all are asked at once: the sum of errors less costs.

    So more pairs are asked where there is more budget, or more that depends on something.

    Args:
        pairs: (P, 2) pairs of columns.
        errors: (P,) what the model is wrong by.
        costs: (P,) what a measurement alone would be; of m tables each is sqrt(m) times as loud.
        most: At most so many pairs, and how many tables are asked beside them.
        fits: Whether a model of these pairs fits into memory; a pair with which none does is left out.
    """
    limit, beside = most
    gains = []
    for count in range(1, limit + 1):
        scores = errors - costs * np.sqrt(count + beside)
        gains.append(np.sort(np.maximum(scores, 0.0))[-count:].sum())
    count = int(np.argmax(gains)) + 1
    scores = errors - costs * np.sqrt(count + beside)
    chosen: list[tuple[int, int]] = []
    for place in np.argsort(-scores, kind="stable"):
        if scores[place] <= 0 or len(chosen) == count:
            break
        pair = (int(pairs[place, 0]), int(pairs[place, 1]))
        if fits([*chosen, pair]):
            chosen.append(pair)
    return np.array(sorted(chosen), dtype=np.int64).reshape(-1, 2)
