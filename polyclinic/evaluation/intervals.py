"""Confidence intervals: of shares in closed form, of anything else by the bootstrap over rows or over their patients.

A resample is a row of weights: how often each row was drawn. A statistic of weights of one is the value itself, so that
scores of many resamples are computed at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from polyclinic.errors import ConfigError
from polyclinic.types import Bools, Floats, Ints

LEVEL = 0.95
REDRAWS = 100  # of a resample that lacks a class; of very many rare classes one is lacking nevertheless
AT_ONCE = 2_000_000  # entries of a piece of the weights: some 16 MB


@dataclass(frozen=True)
class Interval:
    """A value with its confidence interval; each is ``None`` where the data do not define it."""

    value: float | None
    low: float | None = None
    high: float | None = None

    @property
    def ends(self) -> tuple[float, float, float]:
        """The value and both ends of an interval that is defined."""
        assert self.value is not None and self.low is not None and self.high is not None
        return self.value, self.low, self.high


def wilson(successes: int, trials: int, level: float = LEVEL) -> Interval:
    """Return a share with its score interval (Wilson 1927); undefined without trials.

    Args:
        successes: How many of the trials succeeded.
        trials: Their number.
        level: The confidence level.

    Raises:
        ValueError: Unless 0 <= successes <= trials.

    Examples:
        >>> [round(end, 4) for end in wilson(81, 263).ends]
        [0.308, 0.2553, 0.3662]
    """
    return _share(successes, trials, level, "wilson")


def clopper_pearson(successes: int, trials: int, level: float = LEVEL) -> Interval:
    """Return a share with its exact interval (Clopper and Pearson 1934); undefined without trials.

    Args:
        successes: How many of the trials succeeded.
        trials: Their number.
        level: The confidence level, which the interval covers at least.

    Raises:
        ValueError: Unless 0 <= successes <= trials.

    Examples:
        >>> [round(end, 4) for end in clopper_pearson(0, 20).ends]
        [0.0, 0.0, 0.1684]
    """
    return _share(successes, trials, level, "exact")


def difference(first: Interval, second: Interval) -> Interval:
    """first - second of two independent shares with their Wilson intervals (Newcombe 1998, method 10).

    Examples:
        >>> [round(end, 4) for end in difference(wilson(56, 70), wilson(48, 80)).ends]
        [0.2, 0.0524, 0.3339]
    """
    if first.value is None or second.value is None:
        return Interval(None)
    a, b = first.ends, second.ends
    apart = a[0] - b[0]
    return Interval(apart, apart - math.hypot(a[0] - a[1], b[2] - b[0]), apart + math.hypot(a[2] - a[0], b[0] - b[1]))


def excess(attack: Interval, control: Interval) -> Interval:
    """(attack - control) / (1 - control): of what the control leaves to be learned, the share that is learned.

    At most 1, below 0 where the control does better; undefined where the control always succeeds. The interval follows from
    both intervals' half widths by linear propagation. Giomi et al. 2023.

    Examples:
        >>> round(excess(wilson(60, 100), wilson(20, 100)).value, 3)
        0.5
    """
    if attack.value is None or control.value is None or control.value == 1:
        return Interval(None)
    a, c = attack.ends, control.ends
    left = 1 - c[0]
    value = (a[0] - c[0]) / left
    half = math.hypot((a[2] - a[1]) / 2 / left, (1 - a[0]) / left**2 * (c[2] - c[1]) / 2)
    return Interval(value, value - half, min(1.0, value + half))


def bootstrap(
    statistic: Callable[[Floats], Floats],
    rows: int,
    rng: np.random.Generator,
    count: int = 1000,
    patients: NDArray[np.generic] | None = None,
    labels: Ints | None = None,
) -> tuple[Floats, Floats]:
    """Return the statistic of the rows as they are (...), and of ``count`` resamples (count, ...); NaN where undefined.

    Efron 1979.

    Args:
        statistic: Of weights (b, rows), gives (b, ...).
        rows: The number of rows.
        rng: Draws the resamples.
        count: The number of resamples.
        patients: (rows,), whose rows are drawn together; None draws each row by itself.
        labels: As in ``resamples``.

    Raises:
        ConfigError: If ``count`` is below 1.

    Examples:
        >>> ages = np.array([61.0, 70.0, 55.0, 48.0, 66.0])
        >>> mean, draws = bootstrap(lambda weights: weights @ ages / weights.sum(axis=1), 5, np.random.default_rng(0), 200)
        >>> float(mean), draws.shape
        (60.0, (200,))
        >>> low, high = percentiles(float(mean), draws).ends[1:]
        >>> bool(48 <= low < 60 < high <= 70)
        True
    """
    value = statistic(np.ones((1, rows)))[0]
    parts = [statistic(weights) for weights in resamples(rows, count, rng, patients, labels)]
    return value, np.concatenate(parts)


def percentiles(value: float, draws: Floats, level: float = LEVEL) -> Interval:
    """Return the value with the percentile interval of its draws. Efron and Tibshirani 1993.

    Args:
        value: The statistic of the rows as they are; if not finite, the result is undefined.
        draws: (count,) the statistic of each resample; those that are not finite are left out.
        level: The confidence level.
    """
    if not np.isfinite(value):
        return Interval(None)
    defined = draws[np.isfinite(draws)]
    if not defined.size:
        return Interval(float(value))
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(value), float(low), float(high))


def summarize_repetitions(values: Sequence[float], share: float = 0.0, level: float = LEVEL) -> dict[str, float | None]:
    """A metric over repetitions of a run: ``runs``, ``mean``, ``sd``, ``se``, and ``low`` to ``high``.

    Args:
        values: The metric of each repetition, at least one.
        share: Where the repetitions hold out other patients, the number of held-out patients for each training patient; 0 where
            they hold out the same.
        level: The confidence level of the interval, between 0 and 1.

    Returns:
        The mean; the standard deviation of the sample (n - 1); the standard error of the mean; and the interval of Student's t
        with n - 1 degrees of freedom. Of one repetition all but the first two are None.

    Training sets of different splits share patients, so that the metric's variance over n splits is not 1/n of that of one split.
    The standard error is therefore sd * sqrt(1/n + share), for random splits and for folds (Nadeau and Bengio 2003, section 3;
    Bouckaert and Frank 2004 for repeated folds). With share 0 it is sd / sqrt(n).

    Examples:
        >>> found = summarize_repetitions([0.80, 0.82, 0.84])
        >>> [round(found[name], 4) for name in ("mean", "sd", "se", "low", "high")]
        [0.82, 0.02, 0.0115, 0.7703, 0.8697]
    """
    number, mean = len(values), float(np.mean(values))
    if number < 2:
        return {"runs": number, "mean": mean, "sd": None, "se": None, "low": None, "high": None}
    deviation = float(np.std(values, ddof=1))
    error = deviation * math.sqrt(1 / number + share)
    half = float(stdtrit(number - 1, 0.5 + level / 2)) * error
    return {"runs": number, "mean": mean, "sd": deviation, "se": error, "low": mean - half, "high": mean + half}


def resamples(
    rows: int,
    count: int,
    rng: np.random.Generator,
    patients: NDArray[np.generic] | None,
    labels: Ints | None = None,
) -> Iterator[Floats]:
    """Yield the weights of ``count`` resamples in pieces (b, rows).

    Args:
        rows: The number of rows.
        count: The number of resamples.
        rng: Draws them.
        patients: (rows,), whose rows move together; None draws each row by itself.
        labels: (rows,) classes from 0; a resample that lacks one of them is drawn again. Drawing within classes instead
            would hold their shares fixed, and make what depends on them look surer than it is.

    Raises:
        ConfigError: If ``count`` is below 1.
    """
    if count < 1:
        raise ConfigError(f"resamples must be at least 1, not {count}.")
    unit = np.arange(rows) if patients is None else np.unique(patients, return_inverse=True)[1]
    units = int(unit.max(initial=-1)) + 1
    has = np.zeros((units, 0)) if labels is None else _classes(unit, labels)
    piece = max(1, AT_ONCE // max(rows, 1))
    for begin in range(0, count, piece):
        weights = _draw(units, min(piece, count - begin), rng)
        for _ in range(REDRAWS):
            if not len(lacking := np.flatnonzero((weights @ has == 0).any(axis=1))):
                break
            weights[lacking] = _draw(units, len(lacking), rng)
        yield weights[:, unit]


def weighted_auroc(positive: Bools, score: Floats, weights: Floats) -> Floats:
    """Return (b,) chance that a positive row scores above a negative one, ties half, in each resample; NaN with one class.

    Args:
        positive: (n,) whether each row is positive.
        score: (n,) higher for rows that are likelier positive.
        weights: (b, n), non-negative.

    Examples:
        >>> weighted_auroc(np.array([True, False, True]), np.array([0.9, 0.4, 0.4]), np.ones((1, 3)))
        array([0.75])
    """
    order = np.argsort(score, kind="stable")
    ranks = score[order]
    ties = np.flatnonzero(np.concatenate([[True], ranks[1:] != ranks[:-1]]))
    ranked = weights[:, order]
    hits = np.add.reduceat(ranked * positive[order], ties, axis=1)
    misses = np.add.reduceat(ranked * ~positive[order], ties, axis=1)
    above = (hits * (np.cumsum(misses, axis=1) - misses / 2)).sum(axis=1)
    return ratio(above, hits.sum(axis=1) * misses.sum(axis=1))


def ratio(above: Floats, below: Floats) -> Floats:
    """above / below, NaN where below is zero."""
    return np.asarray(np.divide(above, below, out=np.full(np.shape(above), np.nan), where=below != 0))


def _draw(units: int, count: int, rng: np.random.Generator) -> Floats:
    """(count, units) how often each unit is among as many drawn with replacement."""
    drawn = rng.integers(units, size=(count, units)) + units * np.arange(count)[:, None]
    return np.bincount(drawn.ravel(), minlength=count * units).reshape(count, units).astype(np.float64)


def _classes(unit: Ints, labels: Ints) -> Floats:
    """(units, classes) 1 where a unit has a row of a class, of those that any has."""
    present, number = np.unique(labels, return_inverse=True)
    has = np.zeros((int(unit.max()) + 1, len(present)))
    has[unit, number] = 1.0
    return has


def _share(successes: int, trials: int, level: float, method: Literal["wilson", "exact"]) -> Interval:
    from scipy.stats import binomtest  # scipy takes a while to load

    if not 0 <= successes <= trials:
        raise ValueError(f"0 <= successes <= trials must hold, got {successes} and {trials}.")
    if trials == 0:
        return Interval(None)
    ends = binomtest(successes, trials).proportion_ci(level, method)
    return Interval(successes / trials, float(ends.low), float(ends.high))
