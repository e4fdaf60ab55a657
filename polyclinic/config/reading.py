"""Values as they are written: ``key=value`` pairs, one value; and objects of Python as they would be written."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from polyclinic.errors import ConfigError


def parse_assignments(text: str) -> dict[str, Any]:
    """``"a=1, b=[2, 3]"`` as ``{"a": 1, "b": [2, 3]}``; bare words are text. Raises ConfigError on anything else."""
    if not text:  # most options of most runs, which are asked for many times a round
        return {}
    try:
        assigned: dict[str, Any] = tomllib.loads(f"value = {{{text}}}")["value"]
        if not any(isinstance(value, dict) for value in assigned.values()):
            return assigned
    except tomllib.TOMLDecodeError:
        pass  # with a bare word it is no TOML
    assigned = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{part!r} is not of the form key=value.")
        if key.strip() in assigned:
            raise ConfigError(f"{key.strip()!r} is given twice in {text!r}.")
        assigned[key.strip()] = parse_value(value.strip())
    return assigned


def keyword_arguments(text: str) -> dict[str, Any]:
    """``"beta-1=0.9"`` as ``{"beta_1": 0.9}``. Raises ConfigError as ``parse_assignments`` does."""
    return {key.replace("-", "_"): value for key, value in parse_assignments(text).items()}


def as_text(value: object) -> object:
    """A mapping as ``key=value`` pairs, a list or a number as its text; anything else as it is.

    Examples:
        >>> as_text({"eta": 0.1, "name": "x"}), as_text([64, 32]), as_text(16)
        ("eta=0.1, name='x'", '64, 32', '16')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_toml(content)}" for key, content in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return repr(value) if type(value) in (int, float) else value


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(list(value) if isinstance(value, tuple) else value)


def parse_value(text: str) -> Any:
    """A TOML value, or the text itself where it is none."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
