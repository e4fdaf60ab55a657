"""Values as they are written: ``key=value`` pairs, one value."""

from __future__ import annotations

import tomllib
from typing import Any

from polyclinic.errors import ConfigError


def parse_assignments(text: str) -> dict[str, Any]:
    """``"a=1, b='x'"`` as ``{"a": 1, "b": "x"}``; bare words are text. Raises ConfigError on anything else."""
    found: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{part!r} is not of the form key=value.")
        found[key.strip()] = parse_value(value.strip())
    return found


def parse_value(text: str) -> Any:
    """A TOML value, or the text itself where it is none."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
