"""Shares of successful attacks with their confidence intervals, and what one is above its baseline."""

from __future__ import annotations

import math

from scipy import stats

from polyclinic.evaluation.synthetic.resampling import Interval

LEVEL = 0.95


def wilson(successes: int, trials: int, level: float = LEVEL) -> Interval:
    """A share with its score interval (Wilson 1927); undefined without trials.

    Raises ValueError unless 0 <= successes <= trials.
    """
    _check(successes, trials)
    if trials == 0:
        return Interval(None)
    z = _z(level)
    share = successes / trials
    centre = (successes + z**2 / 2) / (trials + z**2)
    half = z / (trials + z**2) * math.sqrt(trials * share * (1 - share) + z**2 / 4)
    return Interval(share, max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half)))


def clopper_pearson(successes: int, trials: int, level: float = LEVEL) -> Interval:
    """A share with its exact interval (Clopper and Pearson 1934), which covers at least ``level``; undefined without trials.

    Raises ValueError unless 0 <= successes <= trials.
    """
    _check(successes, trials)
    if trials == 0:
        return Interval(None)
    tail = (1 - level) / 2
    low = float(stats.beta.ppf(tail, successes, trials - successes + 1)) if successes else 0.0
    high = float(stats.beta.isf(tail, successes + 1, trials - successes)) if successes < trials else 1.0
    return Interval(successes / trials, low, high)


def difference(attack: Interval, baseline: Interval) -> Interval:
    """attack - baseline of two independent shares with their Wilson intervals (Newcombe 1998, method 10)."""
    if attack.value is None or baseline.value is None:
        return Interval(None)
    a, b = _known(attack), _known(baseline)
    apart = a[0] - b[0]
    return Interval(apart, apart - math.hypot(a[0] - a[1], b[2] - b[0]), apart + math.hypot(a[2] - a[0], b[0] - b[1]))


def excess(attack: Interval, control: Interval) -> Interval:
    """(attack - control) / (1 - control): of what the control leaves to be learned, the share that is learned.

    At most 1, below 0 where the control does better; undefined where the control always succeeds. The interval follows from
    both intervals' half widths by linear propagation. Giomi et al. 2023.
    """
    if attack.value is None or control.value is None or control.value == 1:
        return Interval(None)
    a, c = _known(attack), _known(control)
    left = 1 - c[0]
    value = (a[0] - c[0]) / left
    half = math.hypot((a[2] - a[1]) / 2 / left, (1 - a[0]) / left**2 * (c[2] - c[1]) / 2)
    return Interval(value, value - half, min(1.0, value + half))


def _known(found: Interval) -> tuple[float, float, float]:
    assert found.value is not None and found.low is not None and found.high is not None
    return found.value, found.low, found.high


def _z(level: float) -> float:
    return float(stats.norm.isf((1 - level) / 2))


def _check(successes: int, trials: int) -> None:
    if not 0 <= successes <= trials:
        raise ValueError(f"0 <= successes <= trials must hold, got {successes} and {trials}.")
