"""How a report writes a value: an undefined one says so, and one that was not measured is a dash."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from polyclinic.evaluation.privacy_text import share

Summary = Mapping[str, Any]


def finite(value: object) -> float | None:
    """The number, or ``None``."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def metric(value: object) -> str:
    """Three digits."""
    number = finite(value)
    # jinja2 passes its Undefined for a key that is absent, which is neither None nor a number
    return f"{number:.3f}" if number is not None else "undefined" if value is None or isinstance(value, float) else "–"


def epsilon(value: object) -> str:
    """Two digits; without one there is no guarantee."""
    number = finite(value)
    return "no guarantee" if number is None else f"{number:.2f}" if number >= 0.01 or number == 0 else f"{number:.1e}"


def budget(value: object) -> str:
    """As it was given."""
    number = finite(value)
    return "no limit" if number is None else f"{number:g}"


def spent(site: Summary) -> str:
    """A hospital's epsilon and its budget."""
    if finite(site.get("epsilon")) is None:
        return "no guarantee"
    limit = finite(site.get("budget"))
    return epsilon(site["epsilon"]) + (f" of {limit:g}" if limit is not None else " (no limit)")


def delta(value: object) -> str:
    """One digit and a power of ten."""
    number = finite(value)
    return "–" if number is None else f"{number:.1e}".replace("e-0", "e-")


def in_percent(value: object) -> str:
    """A share, rounded up."""
    number = finite(value)
    return "–" if number is None else share(number)


def count(value: object) -> str:
    """Whole, with commas."""
    number = finite(value)
    return "–" if number is None else f"{number:,.0f}"


def part(mapping: Summary, key: str) -> dict[str, Any]:
    """A mapping's mapping; empty where there is none."""
    value = mapping.get(key)
    return dict(value) if isinstance(value, Mapping) else {}


def estimate(value: object) -> tuple[str, str]:
    """A value, and beside it its interval, or what chance alone gives; empty where neither is told."""
    if not isinstance(value, Mapping):
        return ("undefined" if value is None else "–"), ""
    low, high, chance = (finite(value.get(key)) for key in ("low", "high", "by_chance"))
    beside = f"{low:.3f} to {high:.3f}" if low is not None and high is not None else ""
    return metric(value.get("value")), beside if chance is None else f"by chance to {chance:.3f}"
