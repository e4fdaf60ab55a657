"""Noise over time for local training and server aggregation alike; docs/privacy/noise.md compares the processes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any

from polyclinic.errors import ConfigError, nearest
from polyclinic.privacy.noise.process import Factorisation, NoiseProcess, PrefixError, State, error, warning
from polyclinic.privacy.noise.sensitivity import Participation, check_count

__all__ = ["NOISE", "NoiseProcess", "Participation", "PrefixError", "State", "error", "noise_process", "warning"]

#: By the name of a process where its factorisation is made, which is loaded when a run asks for it.
NOISE = {
    "independent": "polyclinic.privacy.noise.factorisations:Independent",
    "sqrt-toeplitz": "polyclinic.privacy.noise.factorisations:SquareRoot",
    "banded": "polyclinic.privacy.noise.factorisations:Banded.design",
    "blt": "polyclinic.privacy.noise.factorisations:Buffered",
    "dense": "polyclinic.privacy.noise.factorisations:Dense",
    "tree": "polyclinic.privacy.noise.tree:Tree",
}


def noise_process(
    name: str, steps: int, *, participation: Participation | None = None, restart: int | None = None, **options: Any
) -> NoiseProcess:
    """The noise process of that name over ``steps`` steps.

    Args:
        name: One of ``NOISE``.
        steps: Number of steps.
        participation: What "banded" and "blt" are optimised for, once by default. Whatever it is, the process'
            ``sensitivity`` is true for any other.
        restart: The process begins anew every so many steps; never by default.
        options: Of "banded": bands, objective ("max" or "mean" error). Of "blt": buffers, objective. Of "tree": honaker,
            completed.

    Raises:
        ConfigError: for an unknown name or option, or an option out of its range.

    Examples:
        >>> once = Participation(separation=1, times=1)
        >>> process = noise_process("sqrt-toeplitz", steps=100, participation=once)
        >>> round(error(process, once).rms_max, 2), error(noise_process("independent", steps=100), once).rms_max
        (2.53, 10.0)
    """
    if name not in NOISE:
        raise ConfigError(f"The noise process {name!r} is unknown; known are {', '.join(NOISE)}.{nearest(name, NOISE)}")
    check_count("steps of a noise process", steps)
    length = steps if restart is None else restart
    check_count("restart of a noise process", length, steps)
    module, _, place = NOISE[name].partition(":")
    make: Callable[..., Factorisation] = attrgetter(place)(import_module(module))
    parameters = inspect.signature(make).parameters
    takes = set(parameters) - {"steps", "participation"}
    for option in options:
        if option not in takes:
            raise ConfigError(f"The noise process {name!r} takes no option {option!r}.{nearest(option, takes)}")
    if not isinstance(participation, Participation | None):
        raise ConfigError(
            f"participation is not an option of a noise process but what it is made for, got {participation!r}."
        )
    if "participation" in parameters:
        options["participation"] = participation or Participation(1, 1)
    return NoiseProcess(name, steps, make(length, **options))
