"""Objects in place of names: what Python gives ``Federation`` becomes the text by which the run finds it again.

A configuration is text, so that its run can be told, resumed and repeated. ``__main__:Name`` names what a script or a
notebook's cells define.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from inspect import signature
from typing import Any

from flwr.serverapp.strategy import Strategy

from polyclinic.config import RunConfig
from polyclinic.config.keys import dashed
from polyclinic.config.reading import written
from polyclinic.errors import ConfigError
from polyclinic.plugins import strategy_named
from polyclinic.strategies import BUILT_IN

_HERE = "__main__"
#: Keys that name an object, and those of them whose object hospitals use; of a strategy they use its half at hospitals.
_NAMING = ("dataset", "task", "model", "strategy")
_AT_HOSPITALS = ("dataset", "task", "model")


def named(options: Mapping[str, Any]) -> dict[str, Any]:
    """Configuration keys with a dataset, task, model or strategy that is an object replaced by its name.

    A strategy that is made, or a ``functools.partial`` of one, is its class and its arguments, as ``strategy-options``.
    Raises ConfigError for an object that no name leads to, and for a strategy that is more than its class and arguments.
    """
    values = dict(options)
    if isinstance(strategy := values.get("strategy"), Strategy | partial):
        given = written(
            next((values.pop(key) for key in ("strategy_options", "strategy-options") if key in values), {})
        )
        made = (strategy.func, strategy.keywords) if isinstance(strategy, partial) else _arguments(strategy)
        values |= {
            "strategy": made[0],
            "strategy-options": ", ".join(filter(None, (str(written(made[1])), str(given)))),
        }
    return {
        key: _name(key, value) if dashed(key) in _NAMING and not isinstance(value, str) else value
        for key, value in values.items()
    }


def changeable(config: RunConfig) -> bool:
    """Whether hospitals use an object that may be another by now: a script's, a notebook's, or a reloaded module's."""
    return any(":" in getattr(config, key) for key in (*_AT_HOSPITALS, "strategy"))


def check_reach(config: RunConfig) -> None:
    """Raises ConfigError where worker processes could not find what this session alone defines.

    A notebook is not read by them, and of a script that is, a name may have been bound anew since.
    """
    if config.workers == 1 and not config.ray_address:
        return
    for key in (*_AT_HOSPITALS, "strategy"):
        value = getattr(config, key)
        if not value.startswith(f"{_HERE}:"):
            continue
        # A strategy without a half at hospitals stays at the server.
        if key != "strategy" or hasattr(strategy_named(value), "Local"):
            raise ConfigError(
                f"Configuration key {key!r} has the value {value!r}, which worker processes cannot see; write it into a "
                "module (a .py file) and import it from there, or leave workers at 1 and ray-address empty."
            )


def _name(key: str, value: Any) -> str:
    if dashed(key) == "strategy" and (ours := next((name for name in BUILT_IN if strategy_named(name) is value), None)):
        return ours
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if name and getattr(sys.modules.get(str(module)), name, None) is value:
        return f"{module}:{name}"
    # An underscore begins what IPython calls the values of past cells.
    for name, one in vars(sys.modules[_HERE]).items():
        if one is value and not name.startswith("_"):
            return f"{_HERE}:{name}"
    raise ConfigError(
        f"Configuration key {dashed(key)!r} has a value of type {type(value).__name__}, which no name leads to; define it at "
        "the top level of a script or a notebook's cell, or name it as text: 'module:name'."
    )


def _arguments(strategy: Strategy) -> tuple[type[Strategy], dict[str, bool | int | float | str]]:
    """The class of a strategy and the arguments that make another like it."""
    kind = type(strategy)
    own = [name for name in signature(kind).parameters if name in vars(strategy)]
    plain = {name: value for name in own if isinstance(value := getattr(strategy, name), bool | int | float | str)}
    try:
        same = vars(kind(**plain)) == vars(strategy)
    except (TypeError, ValueError):
        same = False
    if not same:
        raise ConfigError(
            f"Configuration key 'strategy' has the value {kind.__name__}(...), of which more is its own than arguments that are "
            "numbers and texts, and which would carry that into the next run; give the class, and its arguments as "
            "strategy_options={'name': value}."
        )
    usual = {name: parameter.default for name, parameter in signature(kind).parameters.items()}
    return kind, {name: value for name, value in plain.items() if value != usual[name] and name != "hospitals"}
