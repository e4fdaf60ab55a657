"""Options of methods, checked where a method is made."""

from __future__ import annotations

from typing import Any

from polyclinic.errors import ConfigError


def check_number(method: str, name: str, value: Any, low: float, high: float, whole: bool = False) -> None:
    """Raises ConfigError unless ``value`` is a number (a whole one) from ``low`` to ``high``."""
    fits = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not (fits and low <= value <= high):
        kind = "whole number" if whole else "number"
        allowed = f"a {kind} from {low:g} to {high:g}" if low < high else f"{low:g}"
        raise ConfigError(f"Option {name!r} of method {method!r} is {value!r}; it must be {allowed}.")


def check_switch(method: str, name: str, value: Any) -> None:
    """Raises ConfigError unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"Option {name!r} of method {method!r} is {value!r}; it must be true or false.")
