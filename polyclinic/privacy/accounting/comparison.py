"""Epsilon of DP-SGD by every way to account it, for showing them side by side. What is enforced is ``accounting``'s."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import cast

import numpy as np

from polyclinic.errors import ConfigError, nearest
from polyclinic.privacy.accounting import ACCOUNTANTS, Accountant, Relation, check_terms, dpsgd_event, epsilon
from polyclinic.privacy.accounting.composition import (
    advanced_composition,
    amplify,
    basic,
    clt_mu,
    gdp_epsilon,
    kairouz,
    zcdp_epsilon,
)
from polyclinic.privacy.events import MOVES
from polyclinic.types import Floats

SHOWN = ("basic", "advanced", "rdp", "zcdp", "gdp", "pld", "prv")
APPROXIMATE = ("gdp",)
_SHARES = np.linspace(0.02, 0.98, 25)
_POINTS, _FEW_POINTS = 25, 5
_LARGEST_GRID = 2**23  # beyond, Opacus' answer would take minutes and gigabytes
_QUICK_GRID = 2**19


def shown_epsilon(
    accountant: str, sample_rate: float, noise_multiplier: float, steps: int, delta: float,
    relation: Relation = "add-remove", largest_grid: int = _LARGEST_GRID,
) -> float:  # fmt: skip
    """Epsilon at ``delta`` of ``steps`` Poisson sampled Gaussian sums, as one of ``SHOWN`` sees it.

    "basic" and "advanced" take every step for what it is at its own delta: exactly that of the Gaussian, amplified by the
    sample. "basic" gives each step delta / steps. "advanced" is the better of Dwork, Rothblum and Vadhan's and of Kairouz,
    Oh and Viswanath's, with the best of 25 shares of delta for the steps. "zcdp" knows no sampling: every step is a
    Gaussian over all patients. "gdp" is a limit theorem's approximation, the rest are upper bounds. "prv" is Opacus'.

    Args:
        accountant: One of ``SHOWN``.
        sample_rate: Probability with which a patient is in a step.
        noise_multiplier: Standard deviation of a step's noise over the clip norm.
        steps: Number of sums.
        delta: Of the guarantee.
        relation: The neighbouring relation.
        largest_grid: "prv" is infinite where its grid would have more points than this.

    Raises:
        ConfigError: for values out of range, an unknown accountant, and "prv" under "replace-one", which it cannot.
    """
    if accountant not in SHOWN:
        raise ConfigError(
            f"accountant must be one of {', '.join(SHOWN)}, got {accountant!r}.{nearest(accountant, SHOWN)}"
        )
    check_terms(delta, "pld", relation)
    event = dpsgd_event(sample_rate, noise_multiplier, steps)
    if accountant in ACCOUNTANTS:
        return epsilon(event, delta, cast(Accountant, accountant), relation)
    if accountant == "gdp":
        mu = clt_mu(sample_rate, noise_multiplier, steps, relation)
        return gdp_epsilon(mu, delta) if math.isfinite(mu) else math.inf
    if accountant == "prv":
        if relation != "add-remove":
            raise ConfigError(f"accountant 'prv' knows only the relation 'add-remove', got {relation!r}.")
        return _prv(sample_rate, noise_multiplier, steps, delta, largest_grid)
    # A replaced patient moves the sum by twice the clip norm.
    noise = noise_multiplier / MOVES[relation]
    if accountant == "zcdp":
        return zcdp_epsilon(steps / (2 * noise**2), delta)

    def step(own: float) -> tuple[float, float]:
        return amplify(gdp_epsilon(1 / noise, min(own / sample_rate, 1.0)), own / sample_rate, sample_rate)

    if accountant == "basic":
        return basic(*step(delta / steps), steps)[0]
    costs = [step(share * delta / steps) for share in _SHARES]
    slack = (1 - _SHARES) * delta
    forms: tuple[Callable[..., tuple[float, float]], ...] = advanced_composition, kairouz
    return min(form(*cost, steps, left)[0] for cost, left in zip(costs, slack, strict=True) for form in forms)


def curves(
    sample_rate: float, noise_multiplier: float, steps: int, delta: float, relation: Relation = "add-remove"
) -> dict[str, tuple[Floats, Floats]]:
    """Steps (m,) and epsilon (m,), both finite, of every accountant that can answer quickly; m is at most 25.

    Args:
        sample_rate: Probability with which a patient is in a step.
        noise_multiplier: Standard deviation of a step's noise over the clip norm.
        steps: Number of sums at the end of each curve.
        delta: Of the guarantee.
        relation: The neighbouring relation.

    Raises:
        ConfigError: for values out of range.
    """
    dpsgd_event(sample_rate, noise_multiplier, steps)
    curve_by_accountant = {}
    for accountant in SHOWN:
        if accountant == "prv" and relation != "add-remove":
            continue
        points = _FEW_POINTS if accountant == "prv" else _POINTS
        grid = np.unique(np.ceil(np.linspace(steps / points, steps, points)))
        eps = np.array([
            shown_epsilon(accountant, sample_rate, noise_multiplier, int(n), delta, relation, _QUICK_GRID) for n in grid
        ])  # fmt: skip
        if np.isfinite(eps).all():
            curve_by_accountant[accountant] = grid, eps
    return curve_by_accountant


def _prv(rate: float, noise: float, steps: int, delta: float, largest_grid: int) -> float:
    """Opacus' upper bound, its estimate plus 0.01; Gopi, Lee and Wutschitz 2021."""
    # Loads torch, and warns of the orders that it tries on its way.
    from opacus.accountants import PRVAccountant
    from opacus.accountants.analysis.prv import PoissonSubsampledGaussianPRV, compute_safe_domain_size

    error, slack = 0.01, delta / 1000
    prv = PoissonSubsampledGaussianPRV(rate, noise)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reach = compute_safe_domain_size(prvs=[prv], max_self_compositions=[steps], eps_error=error, delta_error=slack)
        if 2 * reach / (error / math.sqrt(steps * math.log(12 / slack) / 2)) > largest_grid:
            return math.inf
        accountant = PRVAccountant()
        accountant.history = [(noise, rate, steps)]
        try:
            return max(0.0, float(accountant.get_epsilon(delta, eps_error=error, delta_error=slack)))
        except (ValueError, RuntimeError):  # of numerics that fail
            return math.inf
