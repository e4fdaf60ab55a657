"""Closed forms of composition: what several releases, a group of patients or a sample cost together.

Pure functions for showing, for checking the accountants, and for releases of which only an epsilon and a delta are known.
Each holds for whatever neighbouring relation its inputs hold for, unless it says otherwise. The Gaussian limit theorem
at the end is an approximation and no bound: it can show, and never enforces.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize, special

from polyclinic.errors import ConfigError

_LOG_LARGEST = 700.0  # where exp comes near to overflow


def basic(epsilon: float, delta: float, count: int) -> tuple[float, float]:
    """(epsilon, delta) of ``count`` releases that each cost that much; basic composition, Dwork and Roth 2014.

    Args:
        epsilon: Of each release.
        delta: Of each release.
        count: Number of releases.

    Examples:
        >>> basic(epsilon=0.5, delta=1e-6, count=4)
        (2.0, 4e-06)
    """
    return count * epsilon, count * delta


def advanced_composition(epsilon: float, delta: float, count: int, slack: float) -> tuple[float, float]:
    """(epsilon, delta) of ``count`` releases by advanced composition, Dwork, Rothblum and Vadhan 2010.

    Args:
        epsilon: Of each release.
        delta: Of each release.
        count: Number of releases.
        slack: By how much delta is larger than under basic composition, so that epsilon is smaller.

    Examples:
        >>> epsilon, delta = advanced_composition(epsilon=0.1, delta=0.0, count=100, slack=1e-6)
        >>> round(epsilon, 2), delta  # where basic composition says 10
        (6.31, 1e-06)
    """
    together = math.sqrt(2 * count * math.log(1 / slack)) * epsilon + count * epsilon * _expm1(epsilon)
    return together, count * delta + slack


def kairouz(epsilon: float, delta: float, count: int, slack: float) -> tuple[float, float]:
    """(epsilon, delta) of ``count`` releases, epsilon never above that of ``basic``.

    The closed form of Kairouz, Oh and Viswanath 2017.

    Args:
        epsilon: Of each release.
        delta: Of each release.
        count: Number of releases.
        slack: The part of delta that composition itself may use.

    Examples:
        >>> epsilon, delta = kairouz(epsilon=0.1, delta=0.0, count=100, slack=1e-6)
        >>> round(epsilon, 2), round(delta, 9)
        (5.76, 1e-06)
    """
    mean = count * epsilon * math.tanh(epsilon / 2)
    spread = epsilon * math.sqrt(2 * count)
    logs = math.log(math.e + math.sqrt(count) * epsilon / slack), math.log(1 / slack)
    together = min(count * epsilon, *(mean + spread * math.sqrt(log) for log in logs))
    return together, -math.expm1(count * math.log1p(-delta) + math.log1p(-slack))


def optimal_delta(epsilon: float, count: int, total: float) -> float:
    """The least delta at ``total`` epsilon of ``count`` releases of pure ``epsilon`` each: none is better for all of them.

    Kairouz, Oh and Viswanath 2017, Theorem 3.3, between its points as well. It is the divergence of ``count`` randomised
    responses, sum over l of C(count, l) p^(count - l) (1 - p)^l (1 - e^(total - (count - 2 l) epsilon))+.

    Args:
        epsilon: Of each release, at delta 0.
        count: Number of releases.
        total: Epsilon of all of them together.

    Examples:
        >>> two = [optimal_delta(epsilon=0.5, count=2, total=total) for total in (1.0, 0.5)]
        >>> round(two[0], 9), round(two[1], 4)
        (0.0, 0.1525)
    """
    lies = np.arange(count + 1)
    log_choices = special.gammaln(count + 1) - special.gammaln(lies + 1) - special.gammaln(count - lies + 1)
    log_mass = log_choices - lies * epsilon - count * math.log1p(math.exp(-epsilon))
    loss = (count - 2 * lies) * epsilon
    return float(np.sum(np.exp(log_mass) * -np.expm1(np.minimum(total - loss, 0.0))))


def optimal(epsilon: float, delta: float, count: int, target: float) -> float:
    """The least epsilon at delta ``target`` of ``count`` releases of (``epsilon``, ``delta``) each.

    Kairouz, Oh and Viswanath 2017, Theorem 3.3.

    Args:
        epsilon: Of each release.
        delta: Of each release.
        count: Number of releases.
        target: Delta of all of them together; epsilon is infinite if their own deltas are more than that.

    Examples:
        >>> round(optimal(epsilon=0.1, delta=0.0, count=100, target=1e-6), 2)
        4.77
    """
    log_kept = count * math.log1p(-delta)
    left = (target + math.expm1(log_kept)) / math.exp(log_kept)
    if left <= 0:
        return math.inf
    return _root(lambda total: optimal_delta(epsilon, count, total) - left, count * epsilon)


def group(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """(epsilon, delta) for ``size`` patients together, by group privacy, Dwork and Roth 2014.

    Its sum of delta (1 + e^epsilon + ... + e^((size - 1) epsilon)) is exact.

    Args:
        epsilon: For one patient.
        delta: For one patient.
        size: Number of patients.

    Examples:
        >>> epsilon, delta = group(epsilon=1.0, delta=1e-6, size=3)
        >>> epsilon, round(delta, 9)
        (3.0, 1.1107e-05)
    """
    return size * epsilon, delta * (_expm1(size * epsilon) / _expm1(epsilon) if epsilon else size)


def group_zcdp(rho: float, size: int) -> float:
    """rho for ``size`` patients together; group privacy, Bun and Steinke 2016.

    Examples:
        >>> group_zcdp(rho=0.1, size=2)
        0.4
    """
    return size**2 * rho


def group_gdp(mu: float, size: int) -> float:
    """mu for ``size`` patients together; group privacy, Dong, Roth and Su 2022.

    Examples:
        >>> group_gdp(mu=0.5, size=2)
        1.0
    """
    return size * mu


def amplify(epsilon: float, delta: float, rate: float) -> tuple[float, float]:
    """(epsilon, delta) of a mechanism that runs on a random sample, which holds each patient with probability ``rate``.

    Balle, Barthe and Gaboardi 2018, Theorem 8 for Poisson sampling, and their result for sampling without replacement.
    The sample must stay hidden: a server that sees which hospitals took part gives no amplification.

    Args:
        epsilon: Of the mechanism on the sample. Poisson sampling: under "add-remove", of what holds for one added or removed
            on the sample; under "replace-one", of what holds on it for both. Sampling without replacement: under "replace-one",
            and under "add-remove" with the larger number of patients, of what holds for one replaced on the sample.
        delta: Of the mechanism on the sample, in the same sense.
        rate: In (0, 1]; sample / patients without replacement.

    Raises:
        ConfigError: if the rate is outside (0, 1].

    Examples:
        >>> epsilon, delta = amplify(epsilon=1.0, delta=1e-5, rate=0.1)
        >>> round(epsilon, 3), round(delta, 9)
        (0.159, 1e-06)
    """
    if not 0 < rate <= 1:
        raise ConfigError(f"rate must lie in (0, 1], got {rate}.")
    if epsilon > _LOG_LARGEST:
        return epsilon + math.log(rate), rate * delta
    return math.log1p(rate * math.expm1(epsilon)), rate * delta


def zcdp_epsilon_classic(rho: float, delta: float) -> float:
    """rho + 2 sqrt(rho log(1/delta)); Bun and Steinke 2016, Proposition 1.3.

    Examples:
        >>> round(zcdp_epsilon_classic(rho=0.1, delta=1e-5), 2)
        2.25
    """
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Epsilon at ``delta`` of a ``rho``-zCDP release by the best real order; Canonne, Kamath and Steinke 2020,
    Proposition 12.

    Examples:
        >>> round(zcdp_epsilon(rho=0.1, delta=1e-5), 2), round(zcdp_epsilon_classic(rho=0.1, delta=1e-5), 2)
        (1.91, 2.25)
    """

    def at(log_above: float) -> float:
        above = math.exp(log_above)  # order - 1
        order = 1 + above
        return rho * order - (math.log(delta) + math.log(order)) / above + math.log(above / order)

    best = math.log(math.sqrt(math.log(1 / delta) / rho)) if rho else 0.0
    minimum = optimize.minimize_scalar(at, bounds=(best - 5, best + 5), method="bounded", options={"xatol": 1e-9})
    return max(0.0, float(minimum.fun)) if rho else 0.0


def gdp_delta(mu: float, epsilon: float) -> float:
    """delta at ``epsilon`` of a ``mu``-GDP release; the duality of Dong, Roth and Su 2022.

    Examples:
        >>> round(gdp_delta(mu=1.0, epsilon=1.0), 4), round(gdp_delta(mu=1.0, epsilon=4.0), 6)
        (0.1269, 4.7e-05)
    """
    if mu == 0:
        return max(0.0, -math.expm1(epsilon))
    up, down = special.log_ndtr(mu / 2 - epsilon / mu), epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
    return float(np.exp(up) * -np.expm1(min(down - up, 0.0)))


def gdp_epsilon(mu: float, delta: float) -> float:
    """The least epsilon at ``delta`` of a ``mu``-GDP release; 0 where not even that is needed.

    Examples:
        >>> round(gdp_epsilon(mu=0.25, delta=1e-5), 2)  # a Gaussian of noise multiplier 4
        0.93
    """
    # Chernoff: the loss is Gaussian with mean mu^2 / 2 and deviation mu.
    return _root(lambda eps: gdp_delta(mu, eps) - delta, mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta)))


def clt_mu(rate: float, noise: float, steps: int, relation: str = "add-remove") -> float:
    """mu in the limit of many steps of Poisson sampled Gaussians: rate sqrt(steps (e^(1/noise^2) - 1)).

    Bu, Dong, Long and Su 2020. Where a patient is replaced, by the same argument, from the variance of the
    difference of two opposite contributions: rate sqrt(steps 4 sinh(1/noise^2)). An approximation from below or above:
    at rate 0.001, noise 0.5, 1000 steps and delta 1e-5 it gives 0.85, where 3.24 is spent.

    Args:
        rate: Probability with which a patient is in a step.
        noise: Standard deviation of a step's noise over the clip norm.
        steps: Number of steps.
        relation: "add-remove"; any other counts a patient as replaced.

    Examples:
        >>> mu = clt_mu(rate=0.01, noise=1.0, steps=1000)
        >>> round(mu, 3), round(gdp_epsilon(mu, 1e-5), 2)
        (0.415, 1.62)
    """
    precision = noise**-2
    if precision > _LOG_LARGEST:
        return math.inf
    excess = math.expm1(precision) if relation == "add-remove" else 4 * math.sinh(precision)
    return rate * math.sqrt(steps * excess)


def clt_mu_uniform(rate: float, noise: float, steps: int) -> float:
    """mu in the limit of many steps of Gaussians on samples of a fixed size, for a replaced patient.

    It is rate sqrt(2 steps (e^(1/noise^2) Phi(1.5/noise) + 3 Phi(-0.5/noise) - 2)); Dong, Roth and Su 2022.

    Args:
        rate: Share of the patients in a sample.
        noise: Standard deviation of a step's noise over the sensitivity.
        steps: Number of steps.

    Examples:
        >>> round(clt_mu_uniform(rate=0.01, noise=1.0, steps=1000), 3)
        0.541
    """
    excess = math.exp(noise**-2) * special.ndtr(1.5 / noise) + 3 * special.ndtr(-0.5 / noise) - 2
    return rate * math.sqrt(2 * steps * float(excess))


def _expm1(x: float) -> float:
    return math.expm1(x) if x < _LOG_LARGEST else math.inf


def _root(excess: object, above: float) -> float:
    """The zero, from above, of a function of epsilon that falls; 0 if it is never positive."""
    assert callable(excess)
    if excess(0.0) <= 0:
        return 0.0
    if excess(above) >= 0:  # rounding, where mu is huge
        return above
    epsilon = float(optimize.brentq(excess, 0.0, above, xtol=1e-12, rtol=1e-12))
    return min(above, epsilon * (1 + 1e-9))
