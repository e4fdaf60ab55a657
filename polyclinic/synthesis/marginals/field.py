"""A Markov random field over columns of cells: its marginals and its conditional frequencies by potentials, many at once.

Columns stand in an order in which each one's parents lie together in an earlier column's family (a perfect order of a
chordal graph). So one pass up and one down the families is exact (Lauritzen and Spiegelhalter 1988).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyclinic.types import Floats, Ints

# The length of a step along the imaginary axis: its square is nothing beside 1, so that derivatives are exact.
_STEP = 1e-30
# So that a case that no patient may have is never quite impossible, and what follows from it is a number.
_SMALLEST = 1e-280
# Fields that are computed together.
_TOGETHER = 64

Numbers = NDArray[Any]  # float64 or complex128


@dataclass(frozen=True, eq=False)
class Field:
    """p(x) is proportional to the exponential of the sum of a table of potentials for each of ``cliques``.

    sizes: (A,) cells of each column.
    order, parents: as of a ``NetworkSynthesizer``.
    cliques: each lies in one family, a column and its parents.
    d: cells of all cliques' tables, which are flat and one behind another.
    """

    sizes: Ints
    order: tuple[int, ...]
    parents: tuple[tuple[int, ...], ...]
    cliques: tuple[tuple[int, ...], ...]

    @cached_property
    def cells(self) -> Ints:
        """(cliques,) cells of each one's table."""
        return np.array([int(np.prod(self.sizes[list(clique)])) for clique in self.cliques], dtype=np.int64)

    @cached_property
    def _families(self) -> list[tuple[int, ...]]:
        """The axes of each place's table: the parents, the column itself last."""
        return [(*above, own) for own, above in zip(self.order, self.parents, strict=True)]

    @cached_property
    def _above(self) -> list[int]:
        """For each place that of its latest parent; -1 without parents."""
        place = {column: at for at, column in enumerate(self.order)}
        return [max((place[parent] for parent in above), default=-1) for above in self.parents]

    @cached_property
    def _homes(self) -> list[int]:
        """The place in whose family each clique lies: its latest column's."""
        place = {column: at for at, column in enumerate(self.order)}
        return [max(place[column] for column in clique) for clique in self.cliques]

    def conditionals(self, potentials: Numbers) -> list[Numbers]:
        """For each place (c, cells of the parents, cells) frequencies, of (c, d) potentials of c fields."""
        tables = self._conditionals(potentials)[0]
        return [table.reshape(len(potentials), -1, table.shape[-1]) for table in tables]

    def marginals(self, potentials: Numbers) -> Numbers:
        """(c, d) frequencies of the cliques' cells, of (c, d) potentials of c fields."""
        return self._marginals(self._conditionals(potentials)[0])

    def evaluate(self, potentials: Floats) -> tuple[Floats, Floats]:
        """(c,) logarithms of the constants that make the densities sum to 1, and the (c, d) ``marginals``, their gradients."""
        conditionals, total = self._conditionals(potentials)
        return total, self._marginals(conditionals)

    def _marginals(self, conditionals: list[Numbers]) -> Numbers:
        joints: list[Numbers] = []
        for at, conditional in enumerate(conditionals):
            if self._above[at] < 0:
                shape = (len(conditional), *(1 for _ in self.parents[at]), -1)
                joints.append(conditional.reshape(shape))
                continue
            above = _onto(joints[self._above[at]], self._families[self._above[at]], self.parents[at])
            joints.append(above[..., None] * conditional)
        marginals = [
            _onto(joints[home], self._families[home], clique).reshape(len(joints[home]), -1)
            for home, clique in zip(self._homes, self.cliques, strict=True)
        ]
        return np.concatenate(marginals, axis=1)

    def slope(self, potentials: Floats, direction: Floats) -> Floats:
        """(c, d) derivative of the marginals along (c, d) ``direction`` of the potentials.

        It is the product of the covariance of a row's cells with ``direction`` (an exponential family's).
        """
        length = _STEP / max(float(np.abs(direction).max(initial=0.0)), 1e-300)
        moved = potentials + 1j * (length * direction)
        return np.asarray(self.marginals(moved).imag / length)

    def covariance(self, potentials: Floats) -> Floats:
        """(d, d) of the indicators of a row's cells in one field of (d,) potentials."""
        total = len(potentials)
        matrix = np.empty((total, total))
        for first in range(0, total, _TOGETHER):
            directions = np.eye(total)[first : first + _TOGETHER]
            matrix[first : first + len(directions)] = self.slope(np.tile(potentials, (len(directions), 1)), directions)
        return (matrix + matrix.T) / 2.0

    def _conditionals(self, potentials: Numbers) -> tuple[list[Numbers], Floats]:
        """Each place's conditional frequencies, and the logarithms of the constants."""
        count, total = len(potentials), np.zeros(len(potentials))
        tables: list[Numbers] = [np.zeros((count, *(1 for _ in family))) for family in self._families]
        parts = np.split(potentials, np.cumsum(self.cells)[:-1], axis=1)
        for clique, home, values in zip(self.cliques, self._homes, parts, strict=True):
            own = values.reshape(count, *self.sizes[list(clique)])
            tables[home] = tables[home] + _into(own, clique, self._families[home])
        conditionals: list[Numbers] = [np.empty(0)] * len(tables)
        for at, logs in enumerate(tables):
            most = _most(logs)
            tables[at] = _exponential(logs, most)
            total += most.ravel()
        for at in range(len(tables) - 1, -1, -1):
            table = tables[at]
            size = self.sizes[list(self._families[at])]
            if table.shape[1:] != tuple(size):
                table = np.broadcast_to(table, (count, *size))
            message = table.sum(axis=-1)
            conditionals[at] = table / message[..., None]
            scale = _most(message)
            total += np.log(scale.ravel())
            if (above := self._above[at]) >= 0:
                message = _into(message / scale, self.parents[at], self._families[above])
                tables[above] = tables[above] * message + _SMALLEST
        return conditionals, total


def _most(values: Numbers) -> Floats:
    """The largest real part of each field's table, with axes of length 1."""
    return np.asarray(values.real.max(axis=tuple(range(1, values.ndim)), keepdims=True))


def _exponential(logs: Numbers, most: Floats) -> Numbers:
    """The exponential over that of ``most``, never 0; of an imaginary part its first order."""
    values: Numbers = np.exp(np.maximum(logs.real - most, -300.0))
    return values + 1j * (values * logs.imag) if np.iscomplexobj(logs) else values


def _into(values: Numbers, columns: Sequence[int], family: Sequence[int]) -> Numbers:
    """(c, ...) a table over ``columns`` with axes of ``family``, of length 1 where it has no such column."""
    ordered = sorted(range(len(columns)), key=lambda at: family.index(columns[at]))
    moved = values.transpose(0, *(1 + at for at in ordered))
    own = iter(moved.shape[1:])
    return moved.reshape(len(values), *(next(own) if column in columns else 1 for column in family))


def _onto(joint: Numbers, family: Sequence[int], columns: Sequence[int]) -> Numbers:
    """(c, ...) the marginal over ``columns``, in their order, of a table over ``family``."""
    others = tuple(1 + at for at, column in enumerate(family) if column not in columns)
    left = [column for column in family if column in columns]
    marginal: Numbers = np.asarray(joint.sum(axis=others))
    return marginal.transpose(0, *(1 + left.index(column) for column in columns))


def order_of(
    root: int, cliques: list[tuple[int, ...]], columns: int
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Each column after the neighbours that it depends on, and these (Tarjan and Yannakakis 1984).

    Args:
        root: The first column.
        cliques: The maximal cliques of a chordal graph.
        columns: The number of columns.
    """
    near: list[set[int]] = [set() for _ in range(columns)]
    for clique in cliques:
        for column in clique:
            near[column] |= set(clique) - {column}
    order, parents = [root], [()]  # type: tuple[list[int], list[tuple[int, ...]]]
    while len(order) < columns:
        done = set(order)
        nearest = max(
            (column for column in range(columns) if column not in done),
            key=lambda candidate: len(near[candidate] & done),
        )
        order.append(nearest)
        parents.append(tuple(sorted(near[nearest] & done)))
    return tuple(order), tuple(parents)
