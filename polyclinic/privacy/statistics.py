"""Paid statistics for standardising: how many patients are in each bin of each column, and middles and spreads from that.

Takes encoded values in [-1, 1] with NaN for missing cells; what the columns mean is not known here. Counts stand noise that sums
of squares do not: of a laboratory value whose public bounds are wide, all patients are in a few bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from polyclinic.privacy.streams import Stream
from polyclinic.types import Bools, Floats, Ints, Reals

_HALVINGS = 2.0 ** -np.arange(7, 13)
#: (bins + 1,) edges of a column's bins: 64 of equal width, the outermost ones halved again and again towards the bounds.
EDGES = 2 * np.unique(np.concatenate([np.linspace(0.0, 1.0, 65), _HALVINGS, 1 - _HALVINGS])) - 1
BINS = len(EDGES) - 1
_MIDDLES, _WIDTHS = (EDGES[1:] + EDGES[:-1]) / 2, np.diff(EDGES)
#: Mean and standard deviation of a numeric column of which nothing can be seen.
USUAL = (0.0, 0.5)
_SMALLEST_STD = 1e-3
# A column must have this many times more patients than a count has noise.
_LEAST_SIGNAL = 10.0
# The interval holds between the first two shares of the patients, in between so many standard deviations of noise less than all,
# and so many standard deviations of its own noise more.
_LEAST_SHARE, _MOST_SHARE, _ROOM, _SURE = 0.6, 0.98, 45.0, 2.0
# A bin with more than the first share of the patients is of one value where the bins beside it have less than the second.
_ONE_VALUE, _SPREADS = 0.4, 0.1
# Values outside of it count as far as they are so many standard deviations above the noise, and at most for so many times more.
_DOUBT, _MOST_LARGER = 2.0, 3.0


@dataclass(frozen=True)
class PatientTotal:
    """``total``: sum over patients; ``sensitivity``: most that adding or removing one patient moves it, in L2.

    Examples:
        >>> exact = binned_patients(np.array([[0.1], [-0.5]]), np.array([0, 1]), patients=2)
        >>> exact.total.shape, round(exact.sensitivity, 3)
        ((78,), 1.414)
    """

    total: Reals
    sensitivity: float


def binned_patients(x: Reals, patient: Ints, patients: int, nullable: Bools | None = None) -> PatientTotal:
    """The number of patients times its weight w, patients without a value by column, and patients by column and bin.

    These are 1 + k + d * ``BINS`` numbers: k columns are nullable of d. However many rows a patient has, the contribution's
    L2 norm is at most sqrt(w^2 + d): of each column one patient is in one bin or has none.

    Args:
        x: (rows, d) in [-1, 1], anything beyond counts at the bound; NaN or infinite counts as missing.
        patient: (rows,) index below ``patients``; a patient's rows count as one, each a part.
        patients: Number of patients.
        nullable: (d,) columns that may be missing, all by default.

    Examples:
        >>> x, patient = np.array([[0.1, np.nan], [0.1, 0.5], [-0.5, 0.5]]), np.array([0, 0, 1])
        >>> total = binned_patients(x, patient, patients=2).total
        >>> total[:3].tolist()  # patients; of each column those without a value
        [2.0, 0.0, 0.5]
    """
    nullable = np.ones(x.shape[1], dtype=bool) if nullable is None else nullable
    weight, observed = 1.0 / np.bincount(patient, minlength=patients)[patient], np.isfinite(x)
    present = float(len(np.unique(patient))) * count_weight(nullable)
    missing = weight @ ~observed[:, nullable]
    at = np.clip(np.searchsorted(EDGES, np.where(observed, x, 0.0), "right") - 1, 0, BINS - 1)
    counts = [
        np.bincount(at[observed[:, column], column], weight[observed[:, column]], BINS) for column in range(x.shape[1])
    ]
    return PatientTotal(np.concatenate([[present], missing, *counts]), sensitivity(nullable))


def sensitivity(nullable: Bools) -> float:
    """The most that a patient moves a total.

    Examples:
        >>> round(sensitivity(np.ones(16, dtype=bool)), 3)
        4.472
    """
    return math.hypot(count_weight(nullable), math.sqrt(len(nullable)))


def count_weight(nullable: Bools) -> float:
    """The weight of the number of patients in a contribution: half the norm of all the rest.

    At weight 1 the noise on the count would grow with the number of columns. At half the norm it is sqrt(5) times the
    noise multiplier whatever the columns, and the noise on the rest grows by 12 %.

    Examples:
        >>> count_weight(np.ones(16, dtype=bool)), count_weight(np.ones(2, dtype=bool))
        (2.0, 1.0)
    """
    return max(1.0, 0.5 * math.sqrt(len(nullable)))


def patient_count(total: Reals, nullable: Bools) -> float:
    """The number of patients in a total, as noisy as the total is.

    Examples:
        >>> nullable = np.ones(16, dtype=bool)
        >>> total = binned_patients(np.zeros((500, 16)), np.arange(500), 500, nullable).total
        >>> patient_count(total, nullable)
        500.0
    """
    return float(total[0]) / count_weight(nullable)


def noisy_total(exact: PatientTotal, noise_multiplier: float | None, stream: Stream) -> Reals:
    """The total plus N(0, (noise_multiplier * sensitivity)^2) noise, accounted as one Gaussian event of ``noise_multiplier``.

    Args:
        exact: The total with its sensitivity.
        noise_multiplier: Positive and finite. None leaves the total unchanged, and not private.
        stream: Draws the noise.

    Raises:
        ValueError: if the noise multiplier is not positive and finite.

    Examples:
        >>> from polyclinic.privacy.streams import keyed_stream
        >>> exact = PatientTotal(np.array([500.0, 20.0]), sensitivity=2.0)
        >>> noisy_total(exact, 4.0, keyed_stream(0, "noise")).round(1).tolist()
        [508.1, 11.7]
    """
    if noise_multiplier is None:
        return exact.total
    if not (math.isfinite(noise_multiplier) and noise_multiplier > 0):
        raise ValueError(f"noise_multiplier must be positive and finite, got {noise_multiplier}.")
    return exact.total + noise_multiplier * exact.sensitivity * stream.normal(len(exact.total))


def standardiser(total: Floats, nullable: Bools, noise: float = 0.0) -> tuple[Floats, Floats]:
    """Mean and standard deviation, (d,) each, from a total in the layout of ``binned_patients``. Pure post-processing.

    They are those of a normal distribution that is alike in the narrowest interval that holds 60 % to 98 % of the patients. The
    deviation is larger where values outside of the interval show that it must be. A column of which the noise hides too much has
    mean 0 and standard deviation 1/2.

    Args:
        total: (1 + k + d * ``BINS``,) of one site, or of several added up.
        nullable: (d,) columns that may be missing, k of them.
        noise: Standard deviation of the noise in each number of the total.

    Examples:
        >>> x = np.random.default_rng(0).normal(0.2, 0.1, (5000, 1))
        >>> nullable = np.ones(1, dtype=bool)
        >>> mean, std = standardiser(binned_patients(x, np.arange(5000), 5000, nullable).total, nullable)
        >>> mean.round(2).tolist(), std.round(2).tolist()
        ([0.2], [0.1])
    """
    d, k = len(nullable), int(nullable.sum())
    observed = np.full(d, patient_count(total, nullable))
    observed[nullable] -= total[1 : 1 + k]
    columns = zip(total[1 + k :].reshape(d, BINS), observed, strict=True)
    mean, std = np.array([_usual_values(counts, patients, noise) for counts, patients in columns]).reshape(d, 2).T
    return mean, std


def _usual_values(counts: Floats, patients: float, noise: float) -> tuple[float, float]:
    """Mean and standard deviation by the narrowest interval of bins that holds most of so many patients."""
    if patients <= max(_LEAST_SIGNAL * noise, 0.0):
        return USUAL
    share = min(max(1 - _ROOM * noise / patients, _LEAST_SHARE), _MOST_SHARE)
    below = np.concatenate([[0.0], np.cumsum(counts)])
    first, last = np.triu_indices(BINS + 1, 1)
    held = below[last] - below[first]
    holds = held - _SURE * noise * np.sqrt(last - first) >= share * patients
    if not holds.any():
        return USUAL
    narrowest = np.flatnonzero(holds)[np.argmin((EDGES[last] - EDGES[first])[holds])]
    share = min(max(held[narrowest] / patients, share), _MOST_SHARE)
    inside = slice(first[narrowest], last[narrowest])
    weight = np.maximum(counts[inside], 0.0)
    weight = weight / weight.sum()
    mean = float(weight @ _MIDDLES[inside])
    variance = float(weight @ ((_MIDDLES[inside] - mean) ** 2 + _WIDTHS[inside] ** 2 / 12)) / _truncated_variance(share)
    far = (_MIDDLES - mean) ** 2
    whole, error = float(far @ counts) / patients, noise * float(np.linalg.norm(far)) / patients
    fullest = int(np.argmax(counts))
    beside = counts[max(fullest - 1, 0) : fullest + 2].sum() - counts[fullest]
    if counts[fullest] > _ONE_VALUE * patients and beside - _SURE * math.sqrt(2) * noise < _SPREADS * patients:
        # Perhaps one value, as of those who have none of something: the others say how far values are apart.
        whole = min(max(whole, 0.0) + error, USUAL[1] ** 2)
    else:
        whole = min(whole - _DOUBT * error, _MOST_LARGER * variance)
    return mean, min(math.sqrt(max(variance, whole, _SMALLEST_STD**2)), 1.0)


def _truncated_variance(share: float) -> float:
    """Variance of a standard normal within its central ``share``."""
    normal = NormalDist()
    bound = normal.inv_cdf((1 + share) / 2)
    return 1 - 2 * bound * normal.pdf(bound) / share
