"""What the arrays of a synthesizer's file must be like: checked when it is read, before anything is drawn by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from polyclinic.errors import DataError

# Frequencies are held in single precision at least.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class Numbers:
    """Numbers of ``shape``, from ``low`` to ``high`` and finite.

    whole: of an integer type. shares: the last axis adds up to 1. endless: minus infinity is one of them.
    """

    shape: tuple[int, ...]
    low: float = -np.inf
    high: float = np.inf
    whole: bool = False
    shares: bool = False
    endless: bool = False

    def hold(self, values: np.ndarray) -> bool:
        """Whether ``values`` are such numbers.

        Examples:
            >>> half = Numbers((2,), shares=True)
            >>> half.hold(np.array([0.5, 0.5])), half.hold(np.array([0.5, np.nan])), half.hold(np.array([1.5, -0.5]))
            (True, False, False)
        """
        if values.shape != self.shape or values.dtype.kind not in ("iu" if self.whole else "iuf"):
            return False
        finite = np.isfinite(values) | (self.endless & np.isneginf(values))
        low, high = (0.0, 1.0 + _ROUNDING) if self.shares else (self.low, self.high)
        adds_up = not self.shares or np.allclose(values.sum(axis=-1), 1.0, rtol=0.0, atol=_ROUNDING)
        return bool(finite.all() and (values >= low).all() and (values <= high).all() and adds_up)

    def __str__(self) -> str:
        if self.shares:
            what = "numbers from 0 to 1 that add up to 1 along the last axis"
        else:
            what = "whole numbers" if self.whole else "finite numbers"
            ends = (("from", self.low), ("to", self.high))
            what = " ".join([what, *(f"{word} {end:g}" for word, end in ends if np.isfinite(end))])
        return f"{what}, of shape {self.shape}"


def check_arrays(arrays: Mapping[str, np.ndarray], allowed: Mapping[str, Numbers]) -> None:
    """Raises DataError, in one sentence, for an array that is missing, not named in ``allowed``, or not as it says there."""
    for name, numbers in allowed.items():
        if name not in arrays:
            raise DataError(f"the array {name!r} is missing")
        if not numbers.hold(np.asarray(arrays[name])):
            raise DataError(f"the array {name!r} must hold {numbers}")
    if others := sorted(set(arrays) - set(allowed)):
        raise DataError(f"the array {others[0]!r} is none of its own")


def check_finite(arrays: Mapping[str, np.ndarray]) -> None:
    """Raises DataError for an array with a number that is not finite, as those of a module, whose shapes the module checks."""
    for name, values in arrays.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise DataError(f"the array {name!r} must hold finite numbers")
