"""The model of largest entropy that fits noisy marginals: Private-PGM (McKenna, Sheldon and Miklau 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from logging import getLogger

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_matrix

from polyclinic.synthesis.marginals.field import Field, order_of
from polyclinic.types import Floats, Ints

# Nats that half a square of what is left, by its noise, weighs against: as if so many patients more were as independence has it.
_NATS = 10.0
# The least variance of a number, in squares of frequencies, that a fit counts; and then, where that was done in time, as in small
# models: to follow less noise takes thousands of steps.
_LEAST_VARIANCES = (1e-4, 1e-6, 1e-8)
_CONVERGED = 1e-5
_OPTIONS = {"maxiter": 1000, "maxcor": 20, "ftol": 1e-12, "gtol": 1e-7}
# What steps may leave of a frequency and say nothing, by the deviation of its noise, or by so much where that is smaller.
_UNSAID, _SMALL = 0.1, 1e-3
_LEAST = 1e-6
_log = getLogger(__name__)

Clique = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Measured:
    """A noisy marginal. values: (cells,) frequencies; deviation: (cells,) of their noise, above 0.

    groups: for each column of the clique the group of each of its cells, where the values are those of groups.
    """

    clique: Clique
    values: Floats
    deviation: Floats
    groups: tuple[Ints, ...] | None = None

    def cells(self, sizes: Ints) -> Ints:
        """(cells of the clique's table,) which of the values each of them takes part in."""
        cells = np.zeros(1, dtype=np.int64)
        for column, own in zip(self.clique, self.groups or [None] * len(self.clique), strict=True):
            axis = np.arange(sizes[column]) if own is None else own
            cells = (cells[:, None] * (int(axis.max()) + 1) + axis).ravel()
        return cells


def sum_matrix(sizes: Ints, measured: Sequence[Measured], cliques: Sequence[Clique]) -> csr_matrix:
    """(values of all, cells of the cliques' tables) which cells each measured value adds up.

    Args:
        sizes: (A,) cells of each column.
        measured: The noisy marginals.
        cliques: The columns of each table, in the order of the tables' cells.
    """
    cells = np.array([int(np.prod(sizes[list(clique)])) for clique in cliques], dtype=np.int64)
    starts = dict(zip(cliques, np.cumsum(cells) - cells, strict=True))
    rows, columns, before = [], [], 0
    for marginal in measured:
        own = marginal.cells(sizes)
        rows.append(before + own)
        columns.append(starts[marginal.clique] + np.arange(len(own)))
        before += len(marginal.values)
    place = np.concatenate(rows), np.concatenate(columns)
    return csr_matrix((np.ones(len(place[0])), place), (before, int(cells.sum())))


def model_cells(sizes: Ints, cliques: Sequence[Clique]) -> int:
    """How many numbers the tables of a model over these cliques have in all."""
    return sum(int(np.prod(sizes[list(clique)])) for clique in maximal(sizes, cliques))


def maximal(sizes: Ints, cliques: Sequence[Clique]) -> list[Clique]:
    """The maximal cliques of a chordal graph in which each of ``cliques`` lies in one.

    Columns are left out one after another, first the one whose table with its neighbours is smallest, and its
    neighbours are joined.
    """
    near: dict[int, set[int]] = {column: set() for column in range(len(sizes))}
    for clique in cliques:
        for column in clique:
            near[column] |= set(clique) - {column}
    logs = np.log(sizes)
    cost = {column: float(logs[[column, *others]].sum()) for column, others in near.items()}
    joined: list[set[int]] = []
    while near:
        column = min(near, key=lambda candidate: (cost[candidate], candidate))
        others = near.pop(column)
        if not any(others | {column} <= before for before in joined):
            joined.append(others | {column})
        for other in others:
            near[other] = (near[other] | others) - {column, other}
            cost[other] = float(logs[[other, *near[other]]].sum())
    return sorted(tuple(sorted(clique)) for clique in joined)


def fit(sizes: Ints, measured: Sequence[Measured]) -> tuple[Field, Floats]:
    """The model as a field over the measured cliques, and its (d,) potentials.

    Of all distributions it is the one with the smallest sum of two terms. The first is the squares of what is left,
    each by the variance of its noise. The second is ten nats of divergence from columns that are independent given the
    last. Its dual is smooth and without bounds: a weight for each measured number, by which its cells' potentials rise.

    sizes: (A,) cells of each column.
    measured: the last column alone, every other with it, and any others.
    """
    cliques = tuple(dict.fromkeys(marginal.clique for marginal in measured))
    field = Field(sizes, *order_of(len(sizes) - 1, maximal(sizes, cliques), len(sizes)), cliques)
    adds = sum_matrix(sizes, measured, cliques)
    values = np.concatenate([marginal.values for marginal in measured])
    deviation = np.concatenate([marginal.deviation for marginal in measured])
    start, weights = _independent(sizes, measured, cliques), np.zeros(len(values))
    for least in _LEAST_VARIANCES:
        slack = max(_NATS, least / float(deviation.min()) ** 2) * deviation**2
        # About the curvature of each number of the dual, so that one step suits all.
        scale = 1.0 / np.sqrt(np.maximum(values, slack.min()) + slack)

        def dual(scaled: Floats, slack: Floats = slack, scale: Floats = scale) -> tuple[float, Floats]:
            weights = scaled * scale
            total, marginals = field.evaluate((start + adds.T @ weights)[None])
            slope = adds @ marginals[0] - values + slack * weights
            return float(total[0] - values @ weights + 0.5 * slack @ weights**2), slope * scale

        optimum = minimize(dual, weights / scale, jac=True, method="L-BFGS-B", options=_OPTIONS)
        done = bool(np.abs(optimum.jac).max() < _CONVERGED)
        if done or least == _LEAST_VARIANCES[0]:
            weights = scale * optimum.x
            short = float((np.abs(optimum.jac) / (scale * np.maximum(deviation, _SMALL))).max())
            if short > _UNSAID:
                _log.warning(
                    "The fit of the marginals stopped after %d steps, before it was done: a frequency is off by up to %.2g "
                    "deviations of its noise. Fewer bins or columns make a smaller model.", optimum.nit, short,
                )  # fmt: skip
        if not done:
            break
    return field, np.asarray(start + adds.T @ weights)


def _independent(sizes: Ints, measured: Sequence[Measured], cliques: Sequence[Clique]) -> Floats:
    """(d,) potentials of columns that are independent given the last, from which the steps start."""
    potentials = {clique: np.zeros(int(np.prod(sizes[list(clique)]))) for clique in cliques}
    for marginal in measured:
        if marginal.groups is None and marginal.clique[-1] == len(sizes) - 1:
            logs = np.log(np.maximum(marginal.values, _LEAST)).reshape(sizes[list(marginal.clique)])
            potentials[marginal.clique] = (
                logs - np.log(np.exp(logs).sum(axis=0)) if len(marginal.clique) == 2 else logs
            ).ravel()
    return np.concatenate(list(potentials.values()))
