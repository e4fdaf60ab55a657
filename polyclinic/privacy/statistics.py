"""Paid statistics for standardising: one noisy sum of bounded per-patient contributions, and mean and std from it.

Takes encoded values in [-1, 1] with NaN for missing cells; what the columns mean is not known here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from polyclinic.privacy.streams import Stream
from polyclinic.types import Bools, Ints, Reals

_SMALLEST_STD = 2 / 50  # one fiftieth of the public range [-1, 1]
# Of encoded columns, (usual value, spread), before any record is seen.
_USUAL_MEAN, _USUAL_VARIANCE = (0.0, 0.3), (0.1, 0.05)


@dataclass(frozen=True)
class Moments:
    """``total``: (1 + k + 2 d,) sum over patients; ``sensitivity``: most that adding or removing one patient moves it.

    Layout: patients times ``count_weight``, observed share of the k nullable columns, sums of the d values, sums of
    the d squares.
    """

    total: Reals
    sensitivity: float


def moments(x: Reals, patient: Ints, patients: int, nullable: Bools | None = None) -> Moments:
    """Sum over patients of (w, observed, value, value^2), each patient's rows averaged first.

    x: (rows, d) in [-1, 1], anything beyond is clipped; NaN or infinite counts as missing and adds zero.
    patient: (rows,) index below ``patients``. nullable: (d,) columns that may be missing, all by default; only those
    need an observed count. However many rows a patient has, the contribution's L2 norm is at most sqrt(w^2 + k + 2 d).
    """
    nullable = np.ones(x.shape[1], dtype=bool) if nullable is None else nullable
    observed = np.isfinite(x)
    value = np.where(observed, np.clip(x, -1.0, 1.0), 0.0)
    weight = count_weight(nullable)
    rows = np.concatenate([np.full((len(x), 1), weight), observed[:, nullable], value, value**2], axis=1)
    counts = np.bincount(patient, minlength=patients)
    # Weights of a patient's rows add up to one.
    return Moments((1.0 / counts[patient]) @ rows, sensitivity(nullable))


def sensitivity(nullable: Bools) -> float:
    """The most that a patient moves a total."""
    return math.hypot(count_weight(nullable), math.sqrt(_others(nullable)))


def count_weight(nullable: Bools) -> float:
    """The weight of the number of patients in a contribution: half the norm of all the rest.

    At weight 1 the noise on the count would grow with the number of columns; at half the norm it is sqrt(5) times the
    noise multiplier whatever the columns, and the noise on the rest grows by 12 %.
    """
    return max(1.0, 0.5 * math.sqrt(_others(nullable)))


def patient_count(total: Reals, nullable: Bools) -> float:
    """The number of patients in a total, as noisy as the total is."""
    return float(total[0]) / count_weight(nullable)


def _others(nullable: Bools) -> int:
    return int(nullable.sum()) + 2 * len(nullable)


def noisy_moments(exact: Moments, noise_multiplier: float | None, stream: Stream) -> Reals:
    """The total plus N(0, (noise_multiplier * sensitivity)^2) noise; unchanged, and not private, when it is None.

    Accounted as one Gaussian event of ``noise_multiplier``. Raises ValueError if that is not positive and finite.
    """
    if noise_multiplier is None:
        return exact.total
    if not (math.isfinite(noise_multiplier) and noise_multiplier > 0):
        raise ValueError(f"noise_multiplier must be positive and finite, got {noise_multiplier}.")
    return exact.total + noise_multiplier * exact.sensitivity * stream.normal(len(exact.total))


def standardiser(total: Reals, nullable: Bools, noise: float | None = None) -> tuple[Reals, Reals]:
    """Mean and std, (d,) each, from a total (of several sites, added up) in the layout of ``Moments``.

    noise: standard deviation of the noise in each number of the total; None for exact sums. Noisy means and variances are
    drawn towards those of a column whose public bounds were chosen with room, the more the noisier they are, so that they
    help at any noise: means lie in [-1, 1], stds in [1/25, 1]. Exact stds of constant or never observed columns are 1.
    Pure post-processing.
    """
    d, k = len(nullable), int(nullable.sum())
    observed = np.full(d, patient_count(total, nullable))
    observed[nullable] = total[1 : 1 + k]
    observed = np.maximum(observed, np.finfo(float).tiny if noise is None else 1.0)
    mean = np.clip(total[1 + k : 1 + k + d] / observed, -1.0, 1.0)
    variance = total[1 + k + d :] / observed - mean**2
    if noise is None:
        return mean, np.sqrt(np.where(variance > 1e-12, variance, 1.0))
    error = noise / observed
    mean = _drawn(mean, error**2, *_USUAL_MEAN)
    variance = _drawn(variance, error**2 * (1 + 4 * mean**2), *_USUAL_VARIANCE)
    return mean, np.sqrt(np.clip(variance, _SMALLEST_STD**2, 1.0))


def _drawn(value: Reals, error: Reals, usual: float, spread: float) -> Reals:
    """The best guess of a number near ``usual``, give or take ``spread``, that was seen with ``error``, a variance."""
    trust = spread**2 / (spread**2 + error)
    found: Reals = usual + trust * (value - usual)
    return found
