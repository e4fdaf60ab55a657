"""Meta-analysis of one effect over several hospitals, from the estimates and standard errors that they released."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from polyclinic.errors import DataError
from polyclinic.types import Floats

_STEPS, _CLOSE = 10_000, 1e-12


@dataclass(frozen=True)
class Pooled:
    """A pooled effect: its estimate, standard error, interval and p-value of no effect."""

    estimate: float
    error: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class MetaAnalysis:
    """What several estimates of one effect say together.

    fixed, random: The pooled effect, under one true effect and under true effects that vary. q, q_p: Cochran's Q and its p-value.
    tau2: Variance of the true effects. i2: Share of the variance that is between hospitals, 0 to 1. prediction: Interval of a new
    hospital's true effect; None of two hospitals.
    """

    fixed: Pooled
    random: Pooled
    hospitals: int
    q: float
    q_p: float
    tau2: float
    i2: float
    prediction: tuple[float, float] | None


def meta_analysis(
    estimates: Floats, errors: Floats, method: str = "reml", hartung_knapp: bool = True, level: float = 0.95
) -> MetaAnalysis:
    """The meta-analysis of (h,) estimates with (h,) standard errors.

    Args:
        estimates, errors: Of each hospital.
        method: Of the variance between hospitals: ``reml``, restricted maximum likelihood (Viechtbauer 2005, equation 8), or
            ``dl``, DerSimonian and Laird (1986, equation 8).
        hartung_knapp: Whether the random effect has the standard error of Hartung and Knapp (2001) and Student's t; otherwise the
            usual one and the normal distribution.
        level: Of all intervals.

    Raises:
        DataError: for fewer than two estimates, or numbers that are none.

    Examples:
        >>> pooled = meta_analysis(np.array([0.10, 0.30, 0.35]), np.array([0.10, 0.12, 0.15]), "dl", hartung_knapp=False)
        >>> round(pooled.random.estimate, 3), round(pooled.q, 3)
        (0.225, 2.633)
    """
    y, v = np.asarray(estimates, np.float64), np.asarray(errors, np.float64) ** 2
    if len(y) < 2 or not (np.isfinite(y).all() and np.isfinite(v).all() and (v > 0).all()):
        raise DataError("A meta-analysis needs finite estimates and positive standard errors of two hospitals or more.")
    degrees, w = len(y) - 1, 1 / v
    mean = float(w @ y / w.sum())
    q = float(w @ (y - mean) ** 2)
    tau2 = max(0.0, (q - degrees) / float(w.sum() - (w**2).sum() / w.sum()))
    for _ in range(_STEPS if method == "reml" else 0):
        wide, before = 1 / (v + tau2), tau2
        tau2 = max(0.0, float(wide**2 @ ((y - wide @ y / wide.sum()) ** 2 - v) / (wide**2).sum() + 1 / wide.sum()))
        if abs(tau2 - before) <= _CLOSE * tau2:
            break
    wide = 1 / (v + tau2)
    centre, error, law = float(wide @ y / wide.sum()), 1 / float(np.sqrt(wide.sum())), stats.norm()
    if hartung_knapp:
        error, law = error * float(np.sqrt(wide @ (y - centre) ** 2 / degrees)), stats.t(degrees)
    half = float(law.ppf((1 + level) / 2)) * float(np.hypot(error, np.sqrt(tau2)))
    typical = degrees * w.sum() / (w.sum() ** 2 - (w**2).sum())
    prediction = (centre - half, centre + half) if degrees > 1 else None
    return MetaAnalysis(
        _pool(mean, 1 / float(np.sqrt(w.sum())), stats.norm(), level), _pool(centre, error, law, level), len(y), q,
        float(stats.chi2.sf(q, degrees)), tau2, float(tau2 / (tau2 + typical)), prediction,
    )  # fmt: skip


def _pool(estimate: float, error: float, law: stats.rv_continuous, level: float) -> Pooled:
    half = float(law.ppf((1 + level) / 2)) * error
    return Pooled(
        estimate, error, estimate - half, estimate + half, float(2 * law.sf(abs(estimate) / max(error, 1e-300)))
    )
