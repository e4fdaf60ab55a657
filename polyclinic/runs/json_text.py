"""JSON by RFC 8259, which has no infinity and no NaN: the only form in which the server writes it."""

from __future__ import annotations

import json
import math
from itertools import islice
from typing import Any

_AT_ONCE = 100_000


def json_text(value: Any, indent: int | None = None) -> str:
    """``value`` as JSON; a number that is not finite becomes null.

    Examples:
        >>> json_text({"epsilon": float("inf"), "rounds": 2})
        '{"epsilon": null, "rounds": 2}'
    """
    try:
        return _dump(value, indent)
    except ValueError:
        return _dump(_without_infinities(value), indent)


def _dump(value: Any, indent: int | None) -> str:
    """As ``json.dumps``, which would hold every word of a text of a gigabyte apart."""
    if indent is None:
        return json.dumps(value, allow_nan=False)
    words = json.JSONEncoder(indent=indent, allow_nan=False).iterencode(value)
    return "".join(iter(lambda: "".join(islice(words, _AT_ONCE)), ""))


def _without_infinities(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_infinities(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_infinities(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
