"""Methods of sums by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polyclinic.synthesis.sums import SumsMethod

METHODS: dict[str, Callable[..., SumsMethod] | Any] = {}
