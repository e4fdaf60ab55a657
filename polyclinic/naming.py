"""Objects in place of names: what Python gives ``Federation`` becomes the text by which the run finds it again.

A configuration is text, so that its run can be told, resumed and repeated. ``__main__:Name`` names what a script or a
notebook's cells define.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import partial
from inspect import isroutine, signature
from typing import Any

from flwr.serverapp.strategy import Strategy

from polyclinic.config import RunConfig
from polyclinic.config.keys import with_dashes
from polyclinic.config.reading import as_text, keyword_arguments
from polyclinic.ehr.partition import check_partitioner
from polyclinic.errors import ConfigError
from polyclinic.plugins import MODS, TABLES, mod_named, strategy_named
from polyclinic.strategies import BUILT_IN

_HERE = "__main__"
#: Keys that name an object, and those of them whose object hospitals use; of a strategy they use its half at hospitals.
_NAMING = ("dataset", "partitioner", "task", "objective", "model", "strategy", "evaluation.function")
_AT_HOSPITALS = ("dataset", "partitioner", "task", "objective", "model", "mods")
#: Keys of options, and a section, in which a function may stand for its name.
_OPTIONS = ("dataset-options", "partitioner-options", "task-options", "strategy-options", "evaluation")


def name_objects(options: Mapping[str, Any]) -> dict[str, Any]:
    """Configuration keys with the objects that a name can stand for replaced by their names, those among options and in the
    list of mods as well.

    A strategy that is made is its class and its arguments, as ``strategy-options``, and so is a ``functools.partial`` of a
    strategy, a partitioner or a model. A model that no other name leads to is held for runs of this process, a torch module with
    the weights that it has now. Raises ConfigError for an object that no name leads to, and for a strategy that is more than its
    class and arguments.
    """
    values = {key: _named_inside(key, value) for key, value in options.items()}
    for key in ("strategy", "partitioner", "model"):
        if isinstance(value := values.get(key), Strategy | partial) and not (key == "model" and _has_objects(value)):
            if isinstance(value, partial) and value.args:
                raise ConfigError(f"Configuration key {key!r} is a partial with unnamed arguments; give them by name.")
            kind, arguments = (value.func, value.keywords) if isinstance(value, partial) else _arguments(value)
            name = f"{key}-options"
            given = as_text(next((values.pop(other) for other in (f"{key}_options", name) if other in values), {}))
            made = as_text(_named_inside(name, arguments))
            values |= {key: kind, name: ", ".join(filter(None, (str(made), str(given))))}
    return {
        key: _name(key, value) if with_dashes(key) in _NAMING and not isinstance(value, str) else value
        for key, value in values.items()
    }


def as_keywords(sentence: str) -> str:
    """A sentence of the command line's options as one of Python's keywords.

    Examples:
        >>> as_keywords("--leave-out names 'x'.")
        "leave_out names 'x'."
    """
    return re.sub(r"--([a-z]+(?:-[a-z]+)*)", lambda option: option[1].replace("-", "_"), sentence)


def changeable(config: RunConfig) -> bool:
    """Whether hospitals use what may be another by now: an object of a script, a notebook or a reloaded module, or files."""
    named = any(":" in name for key in (*_AT_HOSPITALS, "strategy") for name in _names(config, key))
    return named or config.dataset == TABLES


def _names(config: RunConfig, key: str) -> tuple[str, ...]:
    """What stands for objects in the value of a key."""
    value = getattr(config, key)
    if key == "mods":
        return config.mod_names
    if key == "partitioner":
        return (check_partitioner(value).others,) if value else ()
    return (value,)


def _named_inside(key: str, value: Any) -> Any:
    """Functions among options, and mods of a list, replaced by their names."""
    if with_dashes(key) in _OPTIONS and isinstance(value, Mapping):
        return {name: _name(key, given) if callable(given) else given for name, given in value.items()}
    if with_dashes(key) == "mods" and not isinstance(value, str):
        if isinstance(value, Mapping):
            return ", ".join(f"{kind}={mod}" for kind, several in value.items() for mod in _mods(several))
        return ", ".join(_mods(value))
    return value


def _mods(value: Any) -> list[str]:
    """The names of one mod, or of several."""
    several = value if isinstance(value, list | tuple) else [value]
    return [mod if isinstance(mod, str) else _name("mods", mod) for mod in several]


def check_reach(config: RunConfig, jobs: int = 1) -> None:
    """Raises ConfigError where worker processes, or the ``jobs`` of a sweep, could not find what this session alone defines.

    A notebook is not read by them, and of a script that is, a name may have been bound anew since.
    """
    if config.workers == jobs == 1 and not config.ray_address:
        return
    setting = "jobs" if jobs > 1 else "workers"
    stay = f"leave {setting} at 1" + (" and ray-address empty" if jobs == 1 else "")
    if "frames" in keyword_arguments(config.dataset_options):
        raise ConfigError(
            f"{setting} is {max(jobs, config.workers)}, but the tables are data frames of this session, which worker processes "
            f"cannot see; write them to files and give Federation.from_tables their paths, or {stay}."
        )
    for key in (*_AT_HOSPITALS, "strategy"):
        # A strategy without a half at hospitals stays at the server.
        here = [name for name in _names(config, key) if name.startswith((f"{_HERE}:", "polyclinic.models.held:"))]
        if here and (key != "strategy" or hasattr(strategy_named(here[0]), "Local")):
            raise ConfigError(
                f"Configuration key {key!r} has the value {getattr(config, key)!r}, which worker processes cannot see; "
                f"write it into a module (a .py file) and import it from there, or {stay}."
            )


def _name(key: str, value: Any) -> str:
    key = with_dashes(key)
    if value is None or isinstance(value, int | float):  # of which any module may have some
        raise ConfigError(
            f"Configuration key {key!r} has the value {value!r}; it must be a name, or the object itself."
        )
    if key == "strategy" and not isinstance(value, type) and hasattr(value, "configure_fit"):
        strategy_named(_name(key, type(value)))  # says that it is of Flower's older API
    if key == "strategy" and (ours := next((name for name in BUILT_IN if strategy_named(name) is value), None)):
        return ours
    if key == "mods" and (ours := next((name for name in MODS if mod_named(name) is value), None)):
        return ours
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if name and getattr(sys.modules.get(str(module)), name, None) is value:
        return f"{module}:{name}"
    for module in (_HERE, *sorted(filter(_plain, set(sys.modules) - {_HERE}))):
        for name, candidate in list(getattr(sys.modules[module], "__dict__", {}).items()):
            # An underscore begins what IPython calls the values of past cells.
            if (
                candidate is value
                and not name.startswith("_")
                and not (key == "model" and module == _HERE and not isroutine(value))
            ):
                return f"{module}:{name}"
    if key == "model":
        from polyclinic.models.held import hold  # it loads torch

        return hold(value)
    made = "give its class, and its arguments as partitioner_options; or " if key == "partitioner" else ""
    raise ConfigError(
        f"Configuration key {key!r} has a value of type {type(value).__name__}, which no name leads to; {made}define it at "
        "the top level of a script or a notebook's cell, or name it as text: 'module:name'."
    )


def _has_objects(value: Any) -> bool:
    """Whether the arguments of a ``functools.partial`` are more than numbers and texts, which a configuration can hold."""
    plain = (bool, int, float, str, list, tuple)
    return bool(value.args) or not all(isinstance(given, plain) for given in value.keywords.values())


def _plain(module: str) -> bool:
    """Whether a configuration can name the module."""
    return all(part.isidentifier() and not part.startswith("_") for part in module.split("."))


def _arguments(strategy: Strategy) -> tuple[type[Strategy], dict[str, Any]]:
    """The class of a strategy and the arguments that make another like it, numbers, texts and functions."""
    kind = type(strategy)
    own = {name: getattr(strategy, name) for name in signature(kind).parameters if name in vars(strategy)}
    plain = {name: value for name, value in own.items() if isinstance(value, bool | int | float | str)}
    try:
        without = vars(kind(**plain))
        functions = {name: value for name, value in own.items() if isroutine(value) and without[name] is not value}
        same = vars(kind(**plain, **functions)) == vars(strategy)
    except (TypeError, ValueError):
        same = False
    if not same:
        raise ConfigError(
            f"Configuration key 'strategy' has the value {kind.__name__}(...), of which more is its own than arguments that are "
            "numbers, texts and functions, and which would carry that into the next run; give the class, and its arguments as "
            "strategy_options={'name': value}."
        )
    usual = {name: parameter.default for name, parameter in signature(kind).parameters.items()}
    numbers = {name: value for name, value in plain.items() if value != usual[name] and name != "hospitals"}
    return kind, numbers | functions
