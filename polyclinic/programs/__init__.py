"""Kinds of run: what hospitals are asked for, what that costs, and what the server makes of it.

A kind of run is a value of one class, ``Program``. The rooms of the server and of the hospital ask it; they never ask which
one it is.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from polyclinic.config import RunConfig
from polyclinic.programs.program import Program

__all__ = ["Program", "program_of"]

# Loaded when a run is of that kind: a hospital that trains a classifier needs no generator.
_PLACES = {
    "supervised": "supervised:Supervised", "convex": "convex:Convex", "sums": "sums:SyntheticSums",
    "posterior": "sums:Posterior", "game": "games:Games", "density": "densities:Densities",
}  # fmt: skip


def program_of(config: RunConfig) -> Program:
    """The program of a run; nothing that the configuration names is loaded yet."""
    module, _, name = _PLACES[config.kind].partition(":")
    return cast(Program, getattr(import_module(f"{__name__}.{module}"), name)(config))
