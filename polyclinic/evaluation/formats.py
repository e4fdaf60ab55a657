"""How a report writes a value: an undefined or withheld one says so, and one that was not measured is a dash."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from polyclinic.evaluation.judges import CLASSES, TITLES
from polyclinic.evaluation.privacy_text import NOT_RELEASED, share

Summary = Mapping[str, Any]


def finite(value: object) -> float | None:
    """The number, or ``None``."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def metric(value: object) -> str:
    """Three digits; what was not released says so."""
    number = finite(value)
    if value == NOT_RELEASED:
        return NOT_RELEASED
    # jinja2 passes its Undefined for a key that is absent, which is neither None nor a number
    return f"{number:.3f}" if number is not None else "undefined" if value is None or isinstance(value, float) else "–"


def epsilon(value: object) -> str:
    """Two digits; without one there is no guarantee."""
    number = finite(value)
    if number is None:
        return "no guarantee"
    return f"{number:.2f}" if 0.01 <= number < 1e6 or number == 0 else f"{number:.1e}"


def budget(value: object) -> str:
    """As it was given."""
    number = finite(value)
    return "no limit" if number is None else f"{number:g}"


def spending(site: Summary, private: bool) -> str:
    """A hospital's epsilon and its budget; in a private run it may be one that nobody asked yet."""
    if finite(site.get("epsilon")) is None:
        return "not known" if private else "no guarantee"
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
    """Whole, with commas; what was not released says so."""
    number = finite(value)
    return f"{number:,.0f}" if number is not None else NOT_RELEASED if value == NOT_RELEASED else "–"


def dataset_title(summary: Summary) -> str:
    """What a title calls the run's records: the dataset's name, of ``package.module:Name`` the last part."""
    return str(summary.get("dataset", "records")).rpartition(":")[2]


def part(mapping: Summary, key: str) -> dict[str, Any]:
    """A mapping's mapping; empty where there is none."""
    value = mapping.get(key)
    return dict(value) if isinstance(value, Mapping) else {}


def mark_withheld(row: Summary) -> dict[str, Any]:
    """A row of a summary's metrics, with ``NOT_RELEASED`` for each figure that the policies did not let leave."""
    withheld = ["patients"] * (row.get("released") is not None)  # a simulation alone tells how many there are
    withheld += [name for name in TITLES if name in row or name in CLASSES.by_round] * (row.get("released") is False)
    return {**row, **{key: NOT_RELEASED for key in withheld if row.get(key) is None}}


def estimate(value: object) -> tuple[str, str]:
    """A value, and beside it its interval, or what chance alone gives; empty where neither is told."""
    if not isinstance(value, Mapping):
        return ("undefined" if value is None else "–"), ""
    low, high, chance = (finite(value.get(key)) for key in ("low", "high", "by_chance"))
    beside = f"{low:.3f} to {high:.3f}" if low is not None and high is not None else ""
    return metric(value.get("value")), beside if chance is None else f"by chance to {chance:.3f}"


def span(interval: Summary) -> str:
    """A value with its interval, in one text."""
    shown, beside = estimate(interval)
    return f"{shown} ({beside})" if beside else shown


def figure(value: float) -> str:
    """Three digits that count."""
    return f"{value:.3g}" if math.isfinite(value) else "undefined"


def percent(value: float) -> str:
    """A share that was measured, which is no bound, to three digits that count."""
    return f"{100 * value:.3g} %"


def size(count: float) -> str:
    """Bytes in the unit that makes a small number of them."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
