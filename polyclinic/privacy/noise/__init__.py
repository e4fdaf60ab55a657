"""Noise over time for local training and server aggregation alike; docs/privacy/noise.md compares the processes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from polyclinic.errors import ConfigError, nearest
from polyclinic.privacy.noise.process import Factorisation, NoiseProcess, PrefixError, State, error, warning
from polyclinic.privacy.noise.sensitivity import Participation
from polyclinic.privacy.noise.toeplitz import Independent, SquareRoot

__all__ = ["NOISE", "NoiseProcess", "Participation", "PrefixError", "State", "error", "noise_process", "warning"]

NOISE: dict[str, Callable[..., Factorisation]] = {"independent": Independent, "sqrt-toeplitz": SquareRoot}


def noise_process(name: str, steps: int, restart: int | None = None, **options: Any) -> NoiseProcess:
    """The noise process of that name over ``steps`` steps, begun anew every ``restart`` steps (never by default).

    Raises ConfigError for an unknown name or option, or an option out of its range.
    """
    if name not in NOISE:
        raise ConfigError(f"The noise process {name!r} is unknown; known are {', '.join(NOISE)}.{nearest(name, NOISE)}")
    known = set(inspect.signature(NOISE[name]).parameters) - {"steps"}
    for option in options:
        if option not in known:
            raise ConfigError(f"The noise process {name!r} takes no option {option!r}.{nearest(option, known)}")
    length = steps if restart is None else restart
    for field, value, most in (("steps", steps, None), ("restart", length, steps)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
            allowed = "at least 1" if most is None else f"1 to {most}"
            raise ConfigError(f"{field} of a noise process must be a whole number, {allowed}, got {value!r}.")
    return NoiseProcess(name, steps, NOISE[name](length, **options))
