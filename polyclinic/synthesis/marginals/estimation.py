"""The model of largest entropy that fits noisy marginals: Private-PGM (McKenna, Sheldon and Miklau 2019), by the package mbi."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.types import Floats, Ints

_ITERATIONS = 1000
# Steps begin far too long and are halved until they fit, which is cheap; the library's own begin far too short.
_FIRST_STEP = 64.0
_LEAST = 1e-6

Clique = tuple[int, ...]
#: Frequencies of the columns of a clique, one axis for each.
Clusters = list[tuple[Clique, Floats]]


@dataclass(frozen=True, eq=False)
class Measured:
    """A noisy marginal. values: (cells,) frequencies; deviation: (cells,) of their noise, above 0.

    groups: for each column of the clique the group of each of its cells, where the values are those of groups.
    """

    clique: Clique
    values: Floats
    deviation: Floats
    groups: tuple[Ints, ...] | None = None


def library(name: str) -> Any:
    """A module of the optional extra. Raises ConfigError where it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(
            f"Model 'marginals' needs the package {name.partition('.')[0]!r} at the server, which is not installed; install it "
            "with `pip install 'polyclinic[marginals]'`."
        ) from None


def model_cells(sizes: Ints, cliques: Sequence[Clique]) -> int:
    """How many numbers the tables of a model over these cliques have in all."""
    return sum(int(np.prod(sizes[list(clique)])) for clique in maximal(sizes, cliques))


def fit(sizes: Ints, measured: Sequence[Measured], iterations: int = _ITERATIONS) -> Clusters:
    """The maximal cliques of the fitted model and their frequencies.

    sizes: (A,) cells of each column; ``measured`` holds the last column alone, every other with it, and any others. Each is
    weighted by the inverse variance of its noise.
    """
    mbi, jnp = library("mbi"), library("jax.numpy")
    domain = _domain(mbi, sizes)
    cliques = maximal(sizes, [one.clique for one in measured])
    smallest = min(float(one.deviation.min()) for one in measured)
    terms = [(_names(one.clique), one.values, one.deviation / smallest, _matrices(one)) for one in measured]

    def loss(marginals: Any) -> Any:
        total = 0.0
        for names, values, deviation, matrices in terms:
            found = marginals.project(names).values
            for axis, matrix in enumerate(matrices):
                found = jnp.moveaxis(jnp.tensordot(matrix, found, axes=(1, axis)), 0, axis)
            total += 0.5 * jnp.sum(((found.ravel() - values) / deviation) ** 2)
        return total

    model = mbi.estimation.mirror_descent(
        domain,
        mbi.MarginalLossFn([_names(clique) for clique in cliques], loss, 2.0 / _FIRST_STEP),
        known_total=1.0,
        potentials=_independent(mbi, jnp, domain, cliques, measured),
        # Of the library's ways to the same marginals the quickest to compile.
        marginal_oracle=mbi.marginal_oracles.message_passing_shafer_shenoy,
        iters=iterations,
    )
    return [(clique, np.asarray(model.project(_names(clique)).values, dtype=np.float64)) for clique in cliques]


def _domain(mbi: Any, sizes: Ints) -> Any:
    return mbi.Domain(_names(range(len(sizes))), tuple(int(size) for size in sizes))


def _names(columns: Sequence[int]) -> tuple[str, ...]:
    # Of equal length, so that the library's order by text is the order of numbers.
    return tuple(f"{column:04d}" for column in columns)


def maximal(sizes: Ints, cliques: Sequence[Clique]) -> list[Clique]:
    """The maximal cliques of a junction tree in which each of ``cliques`` lies in one."""
    mbi = library("mbi")
    tree, _ = mbi.junction_tree.make_junction_tree(_domain(mbi, sizes), [_names(clique) for clique in cliques])
    return sorted(tuple(sorted(int(name) for name in clique)) for clique in tree.nodes)


def _matrices(measured: Measured) -> list[Floats]:
    """For each axis the 0/1 matrix (groups, cells) that adds up the cells of a group."""
    return [np.eye(int(own.max()) + 1)[:, own] for own in measured.groups or ()]


def _independent(mbi: Any, jnp: Any, domain: Any, cliques: list[Clique], measured: Sequence[Measured]) -> Any:
    """Potentials of the model of columns that are independent given the last, from which the steps start."""
    found = mbi.CliqueVector.zeros(domain, [_names(clique) for clique in cliques])
    last = len(domain.attributes) - 1
    for one in measured:
        if one.groups is None and one.clique[-1] == last:
            home = next(_names(clique) for clique in cliques if set(one.clique) <= set(clique))
            own = domain.project(_names(one.clique))
            logs = np.log(np.maximum(one.values, _LEAST)).reshape(own.shape)
            if len(one.clique) == 2:
                logs -= np.log(np.exp(logs).sum(axis=0))
            found[home] = found[home] + mbi.Factor(own, jnp.asarray(logs)).expand(found[home].domain)
    return found
