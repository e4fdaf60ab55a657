"""Noise over time for local training and server aggregation alike; docs/privacy/noise.md compares the processes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from polyclinic.errors import ConfigError, nearest
from polyclinic.privacy.noise.factorisations import Banded, Buffered, Dense, Independent, SquareRoot
from polyclinic.privacy.noise.process import Factorisation, NoiseProcess, PrefixError, State, error, warning
from polyclinic.privacy.noise.sensitivity import Participation, check_count
from polyclinic.privacy.noise.tree import Tree

__all__ = ["NOISE", "NoiseProcess", "Participation", "PrefixError", "State", "error", "noise_process", "warning"]

NOISE: dict[str, Callable[..., Factorisation]] = {
    "independent": Independent,
    "sqrt-toeplitz": SquareRoot,
    "banded": Banded.designed,
    "blt": Buffered,
    "dense": Dense,
    "tree": Tree,
}


def noise_process(
    name: str, steps: int, *, participation: Participation | None = None, restart: int | None = None, **options: Any
) -> NoiseProcess:
    """The noise process of that name over ``steps`` steps, begun anew every ``restart`` steps (never by default).

    ``participation`` is what "banded" and "blt" are optimised for, once by default; whatever it is, the process'
    ``sensitivity`` is true for any other. Options: "banded" bands, objective ("max" or "mean" error); "blt" buffers,
    objective; "tree" honaker, completed.
    Raises ConfigError for an unknown name or option, or an option out of its range.
    """
    if name not in NOISE:
        raise ConfigError(f"The noise process {name!r} is unknown; known are {', '.join(NOISE)}.{nearest(name, NOISE)}")
    check_count("steps of a noise process", steps)
    length = steps if restart is None else restart
    check_count("restart of a noise process", length, steps)
    takes = set(inspect.signature(NOISE[name]).parameters) - {"steps", "participation"}
    for option in options:
        if option not in takes:
            raise ConfigError(f"The noise process {name!r} takes no option {option!r}.{nearest(option, takes)}")
    if not isinstance(participation, Participation | None):
        raise ConfigError(
            f"participation is no option of a noise process but what it is made for, got {participation!r}."
        )
    if "participation" in inspect.signature(NOISE[name]).parameters:
        options["participation"] = participation or Participation(1, 1)
    return NoiseProcess(name, steps, NOISE[name](length, **options))
