"""The Kalman filter on noised gradients: what was released is made less noisy by what was released before.

The gradient moves by g_t = g_(t-1) + H d + drift, with d = x_t - x_(t-1) the last move and H the Hessian. Releases are
y_t = g_t + noise. The filter carries its last estimate along and blends in the release by a gain. That is
post-processing, so it costs no privacy; H d of patients' data is not, and must be part of the release (``look_ahead``).
The scalar gain is DiSK's (Zhang et al. 2024, "DiSK: Differentially private optimizer with simplified Kalman filter").
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

from polyclinic.errors import ConfigError
from polyclinic.types import Reals

if TYPE_CHECKING:
    from torch import Tensor

Vector = TypeVar("Vector", Reals, "Tensor")


def next_estimate(estimate: Vector, released: Vector, gain: float, carried: Vector | float = 0.0) -> Vector:
    """The next estimate: (1 - gain) (estimate + carried) + gain released. The first estimate is the first release.

    Args:
        estimate: The last estimate.
        released: The new release, of the same shape.
        gain: Weight of the release, in (0, 1].
        carried: How far the gradient is predicted to have moved since ``estimate``, of the same shape. It is computed from
            public or released values alone. 0 for a plain moving average, and for DiSK, whose release holds it already.

    Raises:
        ConfigError: if the gain is outside (0, 1].

    Examples:
        >>> import numpy as np
        >>> next_estimate(estimate=np.array([1.0, 0.0]), released=np.array([3.0, 1.0]), gain=0.5).tolist()
        [2.0, 0.5]
    """
    _check_gain(gain)
    return (1 - gain) * (estimate + carried) + gain * released


def look_ahead(gain: float, reach: float) -> tuple[float, float]:
    """Weights (a, b) of a patient's gradients at x + reach d and at x, for d the last move of the parameters x.

    DiSK's patient contributes a grad(x + reach d) + b grad(x), **clipped after the sum** to the clip norm: the sensitivity
    and the noise multiplier are those of DP-SGD. Filtered with no more carried, it has (1 - gain) H d in it, where H d is
    the finite difference between the two points. At reach = (1 - gain) / gain the weight b is 0, and one gradient does.
    Weights of each gradient clipped alone would have a sensitivity of |a| + |b| clip norms.
    Raises ConfigError if the gain is outside (0, 1] or the reach is not positive and finite.

    Examples:
        >>> look_ahead(gain=0.5, reach=1.0), look_ahead(gain=0.5, reach=2.0)
        ((1.0, 0.0), (0.5, 0.5))
    """
    _check_gain(gain)
    if not (math.isfinite(reach) and reach > 0):
        raise ConfigError(f"reach must be positive and finite, got {reach}.")
    ahead = (1 - gain) / (gain * reach)
    return ahead, 1 - ahead


def noise_gain(gain: float) -> float:
    """Variance of the noise in the estimate over that of a release, in the long run: gain / (2 - gain).

    Of independent noise; 0.7 leaves 0.538. Raises ConfigError if the gain is outside (0, 1].

    Examples:
        >>> round(noise_gain(0.7), 3)
        0.538
    """
    _check_gain(gain)
    return gain / (2 - gain)


def kalman_update(variance: float, drift: float, noise: float) -> tuple[float, float]:
    """The best gain of the next step, and the variance of the estimate's error after it (the scalar Riccati recursion).

    All variances are per coordinate.

    Args:
        variance: Of the last estimate's error.
        drift: Variance of what the dynamics leave out, a step.
        noise: Variance of a release's noise.

    Raises:
        ConfigError: if the noise is not positive, another is negative, or one is not finite.

    Examples:
        >>> kalman_update(variance=1.0, drift=0.0, noise=1.0)
        (0.5, 0.5)
    """
    _check_variances(variance=variance, drift=drift, noise=noise)
    predicted = variance + drift
    gain = predicted / (predicted + noise)
    return gain, (1 - gain) * predicted


def steady_gain(drift: float, noise: float) -> float:
    """The gain that ``kalman_update`` tends to: DiSK's constant, had one known drift and noise; 0 without any drift.

    Raises ConfigError as ``kalman_update``.

    Examples:
        >>> steady_gain(drift=0.5, noise=1.0), steady_gain(drift=0.0, noise=1.0)
        (0.5, 0.0)
    """
    _check_variances(drift=drift, noise=noise)
    # P = (q + sqrt(q^2 + 4 q r)) / 2 solves P = (1 - P / (P + r)) P + q.
    predicted = (drift + math.sqrt(drift * (drift + 4 * noise))) / 2
    return predicted / (predicted + noise)


def _check_gain(gain: float) -> None:
    if not 0 < gain <= 1:
        raise ConfigError(f"gain must lie in (0, 1], got {gain}.")


def _check_variances(noise: float, **others: float) -> None:
    if not (math.isfinite(noise) and noise > 0):
        raise ConfigError(f"noise must be positive and finite, got {noise}.")
    for name, value in others.items():
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{name} must be finite and at least 0, got {value}.")
