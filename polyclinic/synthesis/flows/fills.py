"""What a flow says of cells that are missing: draws from the normal law with its mean and covariance, given a record's others.

So training is stochastic expectation maximisation of the likelihood of the cells that are there (Celeux and Diebolt 1985; of
flows Richardson et al. 2020, "MCFlow"), with a normal law in place of the flow's own where a draw is conditioned. A draw is a
function of one record, of the flow that everybody knows, and of noise: it moves no other patient's row and costs no privacy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from polyclinic.types import Bools, Floats, Ints

_LOG_ROOT = 0.5 * np.log(2 * np.pi)
# Draws of a flow for its mean and covariance, at least; as many for each of its numbers; and the share that is added to each
# variance, or to 1 where that is more.
_DRAWS, _EACH, _RIDGE = 256, 4, 1e-3
# Numbers of the equations that are solved at once.
_AT_ONCE = 1 << 22


@dataclass(frozen=True, eq=False)
class Law:
    """A normal law of F numbers. mean: (F,); covariance: (F, F), positive definite."""

    mean: Floats
    covariance: Floats


#: The law of each class.
Laws = Mapping[int, Law]


def law_of(inverse: Callable[[Floats], Floats], features: int, low: Floats, high: Floats) -> Law:
    """The law of a flow's draws within bounds: exact where the flow is affine and keeps within them.

    Args:
        inverse: (n, F) standard normal numbers to draws; the numbers are always the same.
        features: F.
        low: (F,) least values, to which draws are clipped.
        high: (F,) largest values.
    """
    v = np.clip(np.nan_to_num(inverse(_even_draws(features))), low, high)
    centred = v - v.mean(0)
    covariance = centred.T @ centred / len(v)
    return Law(v.mean(0), covariance + np.diag(_RIDGE * np.maximum(np.diag(covariance), 1.0)))


def fill_rows(
    v: Floats, absent: Bools, labels: Ints, laws: Laws, normal: Floats, low: Floats, high: Floats
) -> tuple[Floats, Floats]:
    """(n, F) rows with ``absent`` cells drawn, and the (n,) log-density of that.

    Each is drawn by the law of the row's class given its other cells. A row's result does not depend on the other rows.

    Args:
        v: (n, F) rows.
        absent: (n, F) whether a cell is missing.
        labels: (n,) classes.
        laws: The law of each class that has rows with missing cells.
        normal: (n, F) standard normal numbers that draws are made of; 0 gives conditional means.
        low: (F,) the least that a conditional mean may be.
        high: (F,) the most that it may be.
    """
    out, log_density, some_absent = np.array(v, dtype=np.float64), np.zeros(len(v)), absent.any(1)
    for label in np.unique(labels[some_absent]):
        law, rows = laws[int(label)], np.flatnonzero((labels == label) & some_absent)
        count = max(1, _AT_ONCE // v.shape[1] ** 2)
        for start in range(0, len(rows), count):
            some = rows[start : start + count]
            out[some], log_density[some] = _conditional(v[some], absent[some], law, normal[some], low, high)
    return out, log_density


def _conditional(
    v: Floats, absent: Bools, law: Law, normal: Floats, low: Floats, high: Floats
) -> tuple[Floats, Floats]:
    """As ``fill_rows``, of one law: the rows' inverse covariances hold the conditional law's precision."""
    # With the rows and columns of absent cells exchanged for those of the identity, the inverse is that of the others alone.
    both = absent[:, :, None] | absent[:, None, :]
    seen = np.where(both, np.eye(len(law.mean)), law.covariance)
    off = np.where(absent, 0.0, v - law.mean)
    weights = np.linalg.solve(seen, np.where(absent[:, :, None] | ~absent[:, None, :], 0.0, law.covariance))
    middle = np.clip(law.mean + np.einsum("nij,ni->nj", weights, off), low, high)
    left = law.covariance - np.einsum("nij,ik->njk", weights, law.covariance)
    left = np.where(absent[:, :, None] & absent[:, None, :], left, np.eye(len(law.mean)))
    root = np.linalg.cholesky((left + left.mT) / 2)
    drawn = middle + np.einsum("nij,nj->ni", root, np.where(absent, normal, 0.0))
    spread = np.log(np.diagonal(root, axis1=1, axis2=2))
    each = np.where(absent, -0.5 * normal**2 - _LOG_ROOT - spread, 0.0)
    return np.where(absent, drawn, v), each.sum(1)


@cache
def _even_draws(features: int) -> Floats:
    """(n, F) numbers of mean 0 and covariance 1 exactly, otherwise as normal ones."""
    draws = np.random.default_rng(0).standard_normal((max(_DRAWS, _EACH * features), features))
    draws -= draws.mean(0)
    return np.asarray(draws @ np.linalg.inv(np.linalg.cholesky(draws.T @ draws / len(draws))).T)
