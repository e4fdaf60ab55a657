"""The types of arrays, and the arrays of one part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Reals = NDArray[np.floating[Any]]  # of any precision
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
#: Arrays by name.
Arrays = dict[str, np.ndarray]


def under(arrays: Mapping[str, np.ndarray], prefix: str) -> Arrays:
    """The arrays whose names begin with ``prefix``, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
