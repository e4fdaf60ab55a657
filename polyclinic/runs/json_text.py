"""JSON by RFC 8259, which has no infinity and no NaN: the only form in which the server writes it."""

from __future__ import annotations

import json
import math
from typing import Any


def json_text(value: Any, indent: int | None = None) -> str:
    """``value`` as JSON; a number that is not finite becomes null.

    >>> json_text({"epsilon": float("inf"), "rounds": 2})
    '{"epsilon": null, "rounds": 2}'
    """
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_without_infinities(value), indent=indent, allow_nan=False)


def _without_infinities(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_infinities(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_infinities(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
