"""Tasks that end in tables of statistics: what they take where nothing is given; their options are ``task-options``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from polyclinic.config.programs import posterior
from polyclinic.config.programs.kinds import Kind
from polyclinic.config.programs.synthesis import check_one_sum, check_private_sums

if TYPE_CHECKING:
    from polyclinic.config.run import RunConfig

#: What analyses take where nothing is given.
DEFAULTS = posterior.DEFAULTS | {"split.fraction": 0.0}
#: The rounds of each analysis where nothing is given.
ROUNDS: dict[str, int] = {"regression": 10, "components": 2, "clusters": 8, "effect": 8, "survival": 1, "cox": 10}


def analysis_kind(given: Mapping[str, Any]) -> Kind:
    """The kind of an analysis, whose rounds are sums over all patients; ``given`` are flat keys."""
    task = str(given["task"])
    return Kind(
        task, frozenset({"task-options"}), DEFAULTS | {"rounds": ROUNDS[task]}, check_analysis,
        steps=False, counts_exactly=True, shares_noise=True, server_steps=False,
    )  # fmt: skip


def check_analysis(config: RunConfig) -> None:
    """Raises ValueError for keys that an analysis cannot be run with."""
    check_private_sums(config)
    check_one_sum(config)
    if config.data.imputation != "mean":
        raise ValueError(
            f"data.imputation is {config.data.imputation!r} but task is {config.task!r}, which says itself what it makes of a "
            "missing cell; set data.imputation to 'mean'"
        )
    if config.secure.noise:
        raise ValueError(
            f"secure.noise is {config.secure.noise:g} but task is {config.task!r}, whose intervals would leave that noise out; "
            "set secure.noise to 0.0"
        )
