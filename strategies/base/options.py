"""What options of strategies are checked for."""

from __future__ import annotations

import math


def check_number(name: str, value: object, least: float, most: float = math.inf, above: bool = False) -> None:
    """Check that ``value`` is a finite number from ``least`` to ``most``.

    Args:
        name: Of the option, for the error's message.
        value: What was given.
        least: The smallest number that is allowed.
        most: The largest number that is allowed.
        above: Refuses ``least`` itself.

    Raises:
        ValueError: if it is not.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if number and least <= value <= most and not (above and value == least):  # type: ignore[operator]
        return
    floor = f"above {least:g}" if above else f"of at least {least:g}"
    ceiling = "" if most == math.inf else f" and at most {most:g}"
    raise ValueError(f"{name.replace('_', '-')} must be a number {floor}{ceiling}, got {value!r}")


def check_count(name: str, value: object) -> None:
    """Raises ValueError unless ``value`` is a whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name.replace('_', '-')} must be a whole number of at least 0, got {value!r}")
