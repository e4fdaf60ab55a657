"""The cut-off of a score that is best by the index of Fowlkes and Mallows (1983), the root of precision times recall."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from polyclinic.errors import ConfigError


def fowlkes_mallows_cutoff(y: ArrayLike, score: ArrayLike) -> float:
    """The number above which a score counts as positive: in the middle below the score of the largest index, the larger of ties.

    y: (n,) 0 or 1; score: (n,). Fitted to synthetic rows it costs no privacy; fitted to real ones it does.
    Raises ConfigError unless both classes are there and scores are finite.
    """
    truth, values = np.asarray(y, dtype=bool), np.asarray(score, dtype=np.float64)
    if truth.all() or not truth.any() or not np.isfinite(values).all():
        raise ConfigError("A cut-off needs rows of both classes and finite scores.")
    levels = np.unique(values)
    called = len(values) - np.searchsorted(np.sort(values), levels)
    hits = truth.sum() - np.searchsorted(np.sort(values[truth]), levels)
    index = hits / np.sqrt(called * float(truth.sum()))
    best = len(levels) - 1 - int(np.argmax(index[::-1]))
    below = levels[best - 1] if best else levels[0] - 1.0
    return float((levels[best] + below) / 2)
