"""Kinds of run: what hospitals are asked for, what that costs, and what the server makes of it.

A kind of run is a value of one class, ``Program``. The rooms of the server and of the hospital ask it; they never ask which
one it is.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from importlib import import_module

from polyclinic.config import RunConfig
from polyclinic.config.keys import with_dashes
from polyclinic.errors import ConfigError, nearest
from polyclinic.plugins import is_program, resolve
from polyclinic.programs.program import Choice, Collected, Half, Program, State

__all__ = ["Choice", "Collected", "Half", "Program", "State", "forget_programs", "program_of"]

# Loaded when a run is of that kind: a hospital that trains a classifier needs no generator.
_PLACES = {
    "supervised": "supervised:Supervised", "newton": "newton:NewtonSteps", "boosting": "boosting:Boosting",
    "convex": "convex:Convex", "sums": "sums:SyntheticSums", "game": "games:Games", "density": "densities:Densities",
    "posterior": "analyses.posterior:Posterior", "regression": "analyses.regression:Regression",
    "components": "analyses.components:Components", "clusters": "analyses.clusters:Clusters",
    "effect": "analyses.effect:Effect",
    "survival": "analyses.survival:Survival", "cox": "analyses.cox:Cox",
}  # fmt: skip

#: What an option may be, by the type of its default, and how that is said.
_TYPES: dict[type, tuple[tuple[type, ...], str]] = {
    str: ((str,), "a text"), bool: ((bool,), "true or false"), int: ((int,), "a whole number"),
    float: ((int, float), "a number"), tuple: ((list, tuple), "a list"),
}  # fmt: skip


def program_of(config: RunConfig) -> Program:
    """The program of a run.

    Of a built-in one nothing that the configuration names is loaded yet. Another package's, by its name in the entry points
    ``polyclinic.programs``, is loaded, so that a hospital asks its policy first.

    Raises ConfigError for an entry point that is no ``Program``, or options that it does not take.

    Examples:
        >>> type(program_of(RunConfig())).__name__
        'Supervised'
        >>> type(program_of(RunConfig(task="synthesis", model="wgan"))).__name__
        'Games'
    """
    if is_program(config.task):
        return _from_plugin(config)
    return _own(config)


@lru_cache(maxsize=8)
def _own(config: RunConfig) -> Program:
    module, _, name = _PLACES[config.kind.name].partition(":")
    return _make(getattr(import_module(f"{__name__}.{module}"), name), config)


def forget_programs() -> None:
    """Look up anew what configurations name when a program is next asked for: a name may stand for another by then.

    Examples:
        >>> program = program_of(RunConfig())
        >>> program_of(RunConfig()) is program
        True
        >>> forget_programs()
        >>> program_of(RunConfig()) is program
        False
    """
    _own.cache_clear()


def _from_plugin(config: RunConfig) -> Program:
    kind = resolve("programs", config.task)
    if not (isinstance(kind, type) and issubclass(kind, Program)):
        raise ConfigError(
            f"Configuration key 'task' has the value {config.task!r}, which must stand for a subclass of "
            f"polyclinic.programs.Program, not for an object of type {type(kind).__name__}."
        )
    return _make(kind, config)


def _make(kind: type[Program], config: RunConfig) -> Program:
    options = config.program_options if "task-options" in config.kind.reads else {}
    allowed = {field.name: field.default for field in fields(kind)[1:]}
    for name, value in options.items():
        if name not in allowed:
            raise ConfigError(
                f"Configuration key 'task-options' names {with_dashes(name)!r}; the task {config.task!r} takes "
                f"{', '.join(map(with_dashes, allowed)) or 'no options'}.{nearest(name, allowed)}"
            )
        types, what = _TYPES.get(type(allowed[name]), ((object,), ""))
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types and what):
            raise ConfigError(
                f"Configuration key 'task-options' has {with_dashes(name)} {repr(value)[:50]}; it must be {what}."
            )
    try:
        return kind(config, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"Configuration key 'task-options' of task {config.task!r}: {error}.") from None
