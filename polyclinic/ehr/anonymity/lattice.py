"""Full-domain generalisation: one level for each quasi-identifier, the least lossy of all combinations that reach a target.

The combinations form a lattice. Where one misses the target, so do all below it, so a binary search on a path to the top
(El Emam et al. 2009) rules out many at once; the others are taken in the order of a lower bound of their loss, until
the bound passes the best that was found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polyclinic.ehr.anonymity.classes import combined
from polyclinic.ehr.anonymity.hierarchies import Ladder
from polyclinic.ehr.anonymity.target import Demand
from polyclinic.errors import ConfigError
from polyclinic.types import Bools, Floats, Ints

MOST_NODES = 2_000_000


@dataclass(frozen=True, eq=False)
class Choice:
    """levels: of each quasi-identifier. of_row: (rows,) class of each row. kept: (rows,) bool rows that stay.

    loss: mean over rows and quasi-identifiers, 1 for a suppressed row. is_least: whether no other combination loses less.
    looked_at: combinations that were tried. of: all there are.
    """

    levels: tuple[int, ...]
    of_row: Ints
    kept: Bools
    loss: float
    is_least: bool
    looked_at: int
    of: int


def best_levels(ladders: Sequence[Ladder], demand: Demand) -> Choice:
    """The combination of levels that reaches the demand and loses least.

    Raises ConfigError for a lattice of more than ``MOST_NODES``, DataError where not even ``*`` everywhere reaches it.
    """
    shape = [ladder.top + 1 for ladder in ladders]
    if math.prod(shape) > MOST_NODES:
        raise ConfigError(
            f"The hierarchies have {math.prod(shape):,} combinations of levels; at most {MOST_NODES:,} can be searched. "
            "Declare fewer levels, name fewer quasi-identifiers, or use the method mondrian."
        )
    nodes: Ints = np.indices(shape).reshape(len(shape), -1).T.astype(np.int64)
    bound: Floats = np.mean([ladder.mean_losses[nodes[:, i]] for i, ladder in enumerate(ladders)], axis=0)
    order = np.argsort(bound, kind="stable")
    search = _Search(ladders, demand, nodes[order], bound[order])
    top = tuple(ladder.top for ladder in ladders)
    if not search.reaches(top):
        raise demand.hopeless()
    while (place := search.next()) is not None:
        search.climb(tuple(search.nodes[place].tolist()), top)
    assert search.best is not None
    levels, of_row, kept, loss = search.best
    return Choice(levels, of_row, kept, loss, demand.is_monotone, len(search.tried), len(nodes))


class _Search:
    def __init__(self, ladders: Sequence[Ladder], demand: Demand, nodes: Ints, bound: Floats) -> None:
        self.ladders, self.demand, self.nodes, self.bound = ladders, demand, nodes, bound
        self.open = np.ones(len(nodes), dtype=np.bool_)
        self.tried: dict[tuple[int, ...], bool] = {}
        self.best: tuple[tuple[int, ...], Ints, Bools, float] | None = None

    def next(self) -> int | None:
        """The first combination that is still open and may lose less than the best."""
        place = int(np.argmax(self.open))
        less = self.best is None or self.bound[place] < self.best[3] - 1e-12
        return place if self.open[place] and less else None

    def climb(self, start: tuple[int, ...], top: tuple[int, ...]) -> None:
        """Find where the path from ``start`` to the top begins to reach the demand; what lies below is ruled out."""
        path = _path(start, top)
        low, high = 0, len(path) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.reaches(path[middle]) else (middle + 1, high)

    def reaches(self, levels: tuple[int, ...]) -> bool:
        if levels not in self.tried:
            self.tried[levels] = self._try(levels)
        return self.tried[levels]

    def _try(self, levels: tuple[int, ...]) -> bool:
        of_row = combined([ladder.numbers[level] for ladder, level in zip(self.ladders, levels, strict=True)])
        kept = self.demand.kept(of_row)
        if self.demand.too_many(kept):
            self.open &= ~(self.nodes <= levels).all(axis=1)
            return False
        self.open &= ~(self.nodes == levels).all(axis=1)
        loss = _loss(self.ladders, levels, kept)
        if self.best is None or _rank(loss, levels) < _rank(self.best[3], self.best[0]):
            self.best = (levels, of_row, kept, loss)
        return True


def _rank(loss: float, levels: tuple[int, ...]) -> tuple[float, int]:
    """Of equal losses the lower levels are better: they say the same, and say it plainly."""
    return round(loss, 12), sum(levels)


def _loss(ladders: Sequence[Ladder], levels: Sequence[int], kept: Bools) -> float:
    each = [
        np.where(kept, ladder.losses[level][ladder.numbers[level]], 1.0).mean()
        for ladder, level in zip(ladders, levels, strict=True)
    ]
    return float(np.mean(each))


def _path(start: tuple[int, ...], top: tuple[int, ...]) -> list[tuple[int, ...]]:
    """One level more at each step, always of the column that is lowest on its ladder."""
    path, now = [start], list(start)
    while tuple(now) != top:
        rising = [i for i in range(len(now)) if now[i] < top[i]]
        now[min(rising, key=lambda i: now[i] / top[i])] += 1
        path.append(tuple(now))
    return path
