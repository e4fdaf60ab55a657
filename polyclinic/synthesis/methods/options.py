"""Options of methods, checked where a method is made."""

from __future__ import annotations

from typing import Any

from polyclinic.errors import ConfigError


def check_number(method: str, name: str, value: Any, low: float, high: float, whole: bool = False) -> None:
    """Checks that a value is a number (a whole one) within bounds.

    Args:
        method: The method's name, for the message.
        name: The option's name, for the message.
        value: The value that was given.
        low: The least value that is allowed.
        high: The largest value that is allowed.
        whole: Whether it must be a whole number.

    Raises:
        ConfigError: It is not.
    """
    fits = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not (fits and low <= value <= high):
        kind = "whole number" if whole else "number"
        allowed = f"a {kind} from {low:g} to {high:g}" if low < high else f"{low:g}"
        raise ConfigError(f"Option {name!r} of method {method!r} is {value!r}; it must be {allowed}.")


def check_switch(method: str, name: str, value: Any) -> None:
    """Checks that a value is True or False.

    Args:
        method: The method's name, for the message.
        name: The option's name, for the message.
        value: The value that was given.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"Option {name!r} of method {method!r} is {value!r}; it must be true or false.")
