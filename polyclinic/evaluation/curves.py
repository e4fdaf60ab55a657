"""Calibration and decision curves of two classes: whether a probability means what it says, and what acting on it is worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from polyclinic.evaluation.metrics import Floats
from polyclinic.evaluation.weighted import Bools, binned

THRESHOLDS = np.arange(1, 100) / 100
_Z = 1.959963984540054  # the normal distribution's 97.5 % quantile


def calibration_curve(chance: Floats, event: Bools) -> list[dict[str, float | None]]:
    """For each of ten bins of equal width that holds a row: what was predicted and what came about.

    chance, event: (n,).  Each bin: ``share`` of all rows, mean ``predicted`` probability, ``observed`` share, and ``low``,
    ``high``, its 95 % interval (Wilson 1927), which takes rows for independent.
    """
    inside = binned(chance).astype(np.float64)
    counts = inside.sum(axis=0)
    found: list[dict[str, float | None]] = []
    for k in np.flatnonzero(counts):
        rows, observed = counts[k], float(inside[:, k] @ event / counts[k])
        middle = (observed + _Z**2 / (2 * rows)) / (1 + _Z**2 / rows)
        half = _Z * np.sqrt(observed * (1 - observed) / rows + _Z**2 / (4 * rows**2)) / (1 + _Z**2 / rows)
        found.append({
            "share": float(rows / len(chance)), "predicted": float(inside[:, k] @ chance / rows), "observed": observed,
            "low": float(max(0.0, middle - half)), "high": float(min(1.0, middle + half)),
        })  # fmt: skip
    return found


def net_benefit(chance: Floats, event: Bools) -> Callable[[Floats], Floats]:
    """A function of weights (B, n) that gives (B, T) the net benefit of treating above each of ``THRESHOLDS``.

    True less false positives per patient, a false one weighed by the odds of the threshold (Vickers and Elkin 2006).
    """
    odds = THRESHOLDS / (1 - THRESHOLDS)
    treated = chance[:, None] >= THRESHOLDS
    worth = np.where(event[:, None], 1.0, -odds) * treated
    return lambda weights: weights @ worth / weights.sum(axis=1)[:, None]


def treat_all(event: Bools) -> Floats:
    """(T,) the net benefit of treating everybody; that of treating nobody is 0."""
    share = float(event.mean())
    return np.asarray(share - (1 - share) * THRESHOLDS / (1 - THRESHOLDS))


def error_by_chance(chance: Floats, count: int, rng: np.random.Generator) -> float:
    """The calibration error that a perfectly calibrated model stays below in 95 of 100 such samples.

    chance: (n,).  What comes about is drawn ``count`` times from the probabilities themselves (consistency resampling,
    Broecker and Smith 2007); takes rows for independent.
    """
    inside = binned(chance).astype(np.float64)
    expected, errors = chance @ inside, []
    step = max(1, 2_000_000 // len(chance))
    for begin in range(0, count, step):
        came = (rng.random((min(step, count - begin), len(chance))) < chance).astype(np.float64)
        errors.append(np.abs(came @ inside - expected).sum(axis=1) / len(chance))
    return float(np.quantile(np.concatenate(errors), 0.95))


def decision_curve(chance: Floats, event: Bools, band: tuple[Floats, Floats]) -> dict[str, Any]:
    """The decision curve as it is told: ``thresholds``, ``model``, ``low``, ``high``, ``all``, each a list (T,).

    band: lower and upper ends (T,) of the model's 95 % interval.
    """
    model = net_benefit(chance, event)(np.ones((1, len(chance))))[0]
    curves = {"thresholds": THRESHOLDS, "model": model, "low": band[0], "high": band[1], "all": treat_all(event)}
    return {name: [round(float(value), 6) for value in curve] for name, curve in curves.items()}
