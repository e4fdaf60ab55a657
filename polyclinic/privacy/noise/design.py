"""Toeplitz factorisations of least error: the loss and its gradient in the coefficients of C, and minimising it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.privacy.noise.sensitivity import Participation
from polyclinic.types import Reals

Objective = Literal["max", "mean"]


def check_objective(objective: str) -> None:
    """Raises ConfigError if ``objective`` is neither "max" nor "mean"."""
    if objective not in ("max", "mean"):
        raise ConfigError(f"objective must be 'max' or 'mean', the prefix sums' error, got {objective!r}.")


def log_loss(
    column: Reals, solve: Callable[[Reals], Reals], participation: Participation, objective: Objective
) -> tuple[float, Reals]:
    """Logarithm of sensitivity^2 times the largest or mean variance of the prefix sums, and its (T,) gradient.

    column: (T,) first column of C; solve: C^-1 times a (T,) vector. The sensitivity is that of a non-negative column that
    does not rise. With w the first column of C^-1 and b = A w, dw = -w * w * dc (products of power series).
    """
    from scipy.signal import correlate

    steps = len(column)
    shifts = [times * participation.separation for times in range(participation.within(steps))]
    moved = np.zeros(steps)
    for shift in shifts:
        moved[shift:] += column[: steps - shift]
    inverse = solve(np.eye(1, steps)[0])
    prefix = np.cumsum(inverse)
    # b_t is in the prefix sums from t on.
    share = np.ones(steps) if objective == "max" else np.arange(steps, 0, -1) / steps
    variance = share @ prefix**2
    squared = moved @ moved
    gradient = -2 * correlate(share * prefix, np.cumsum(solve(inverse)))[steps - 1 :] / variance
    for shift in shifts:
        gradient[: steps - shift] += 2 * moved[shift:] / squared
    return float(np.log(squared) + np.log(variance)), gradient


def minimised(
    loss: Callable[[Reals], tuple[float, Reals]], start: Reals, bounds: list[tuple[float, float]] | None = None
) -> Reals:
    """Where the loss, given with its gradient, has a minimum near ``start``: L-BFGS-B to the last digits it finds."""
    from scipy.optimize import minimize

    options = {"maxiter": 5000, "maxfun": 10000, "ftol": 1e-15, "gtol": 1e-10, "maxcor": 30}
    found: Reals = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    return found


def shared(values: Reals) -> Reals:
    """The same array, no longer to be written to: what processes share must not change under one of them."""
    values.setflags(write=False)
    return values
