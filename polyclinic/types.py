"""The types of arrays and of what builds a model, and the arrays of one part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import nn

Floats = NDArray[np.float64]
Reals = NDArray[np.floating[Any]]  # of any precision
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
#: Labels of rows: int64 class numbers (rows,), or float64 numbers, (rows,) or (rows, columns).
Labels = NDArray[Any]
#: Arrays by name.
Arrays = dict[str, np.ndarray]
#: Makes an empty module, into which arrays are loaded.
Builder = Callable[[], "nn.Module"]


def under(arrays: Mapping[str, np.ndarray], prefix: str) -> Arrays:
    """The arrays whose names begin with ``prefix``, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
