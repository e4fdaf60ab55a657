"""The types of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Reals = NDArray[np.floating[Any]]  # of any precision
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
#: Arrays by name.
Arrays = dict[str, np.ndarray]
