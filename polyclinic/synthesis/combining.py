"""Inference from several synthetic (or imputed) tables: one estimate, its variance, and an interval.

q: the mean of the m estimates, u: the mean of their variances as each table by itself gives them, b: the variance of the
estimates, with divisor m - 1. None of the rules knows of privacy noise that all tables share. docs/synthesis/inference.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy import stats

from polyclinic.errors import ConfigError
from polyclinic.types import Bools, Floats, Reals

#: partial: m tables of one fitted generator (Reiter 2003, Survey Methodology 29; Drechsler 2018, PSD).
#: single: the same from the variances alone, one table being enough (Raab, Nowok, Dibben 2016, J. Privacy and
#: Confidentiality 7(3), T_s).
#: full: each table of a generator drawn anew from its posterior (Raghunathan, Reiter, Rubin 2003, J. Official Statistics 19).
#: multiple-imputation: real tables whose missing cells were filled in m times (Rubin 1987, Section 3.1).
Rule = Literal["partial", "single", "full", "multiple-imputation"]
Values = Sequence[float] | Sequence[Sequence[float]] | Reals


@dataclass(frozen=True, eq=False)
class Combined:
    """What m tables say together of one quantity, shapes (), or of k, shapes (k,).

    within, between: u and b.  adjusted: where rule 'full' gave no positive variance, and the alternative stands for it.
    """

    rule: Rule
    sets: int
    estimate: Floats
    variance: Floats
    degrees_of_freedom: Floats
    within: Floats
    between: Floats
    adjusted: Bools

    @property
    def standard_error(self) -> Floats:
        return np.sqrt(self.variance)

    @property
    def missing(self) -> Floats:
        """The fraction of information that is missing, of rule 'multiple-imputation' (Rubin 1987, Section 3.1)."""
        spread = (1 + 1 / self.sets) * self.between
        share = (spread + 2 * self.within / (self.degrees_of_freedom + 3)) / np.where(spread > 0, self.variance, 1.0)
        return np.where(spread > 0, share, 0.0)

    def interval(self, level: float = 0.95) -> tuple[Floats, Floats]:
        """Lower and upper end, of Student's t. Raises ConfigError for a level outside (0, 1)."""
        if not 0 < level < 1:
            raise ConfigError(f"The level of an interval is {level}; it must lie between 0 and 1.")
        half = stats.t.ppf((1 + level) / 2, self.degrees_of_freedom) * self.standard_error
        return self.estimate - half, self.estimate + half


def combine(
    estimates: Values, variances: Values, rule: Rule = "partial", *, ratio: float = 1.0, complete_df: float = np.inf
) -> Combined:  # fmt: skip
    """Combines the (m,) or (m, k) estimates of m tables and their variances (squared standard errors).

    A table of more rows than the real one gives smaller variances, though nothing more is known; N / n u is again that
    of n rows. With u the mean of the variances and b the variance of the estimates, the rules are these.

    - partial: T = N / n u + b / m, with (m - 1) (1 + m N / n u / b)^2 degrees of freedom
    - single: T = (N / n + 1 / m) u, infinitely many
    - full: T = (1 + 1 / m) b - u, with (m - 1) (1 - u / ((1 + 1 / m) b))^2. Where T <= 0 the alternative N / n u
        (Reiter 2002, J. Official Statistics 18), with m - 1, ours, which is on the safe side
    - multiple-imputation: T = u + (1 + 1 / m) b, with (m - 1) (1 + u / ((1 + 1 / m) b))^2

    Neighbours, privacy: uses nothing but the tables, so it is free; privacy noise that all m tables share is in none of
        these.

    Args:
        estimates: (m,) or (m, k) estimates.
        variances: Their variances, of the same shape.
        rule: The combining rule.
        ratio: Rows of one synthetic table by rows of the real one, N / n.
        complete_df: Degrees of freedom of the analysis where no cell is missing, which lower those of rule
            multiple-imputation (Barnard and Rubin 1999, Equation 3).

    Raises:
        ConfigError: The rule is unknown, there are fewer than 2 tables (1 for 'single'), or values cannot be.
    """
    if rule not in get_args(Rule):
        raise ConfigError(f"The combining rule is {rule!r}; allowed are {', '.join(get_args(Rule))}.")
    q, u = np.asarray(estimates, dtype=np.float64), np.asarray(variances, dtype=np.float64)
    _check(q, u, rule, ratio)
    m = len(q)
    within: Floats = np.asarray(u.mean(axis=0))
    between: Floats = np.asarray(q.var(axis=0, ddof=1)) if m > 1 else np.zeros_like(within)
    adjusted = np.zeros(within.shape, dtype=bool)
    if rule == "single":
        variance, freedom = within * (ratio + 1 / m), np.full(within.shape, np.inf)
    elif rule == "full":
        spread = (1 + 1 / m) * between
        adjusted = spread <= within
        variance = np.where(adjusted, ratio * within, spread - within)
        freedom = np.where(adjusted, m - 1, (m - 1) * (1 - within / np.where(adjusted, np.inf, spread)) ** 2)
    else:
        sampling, spread = (ratio * within, between / m) if rule == "partial" else (within, (1 + 1 / m) * between)
        variance = sampling + spread
        with np.errstate(divide="ignore", invalid="ignore"):
            freedom = np.where(spread > 0, (m - 1) * (1 + sampling / spread) ** 2, np.inf)
            if rule == "multiple-imputation" and np.isfinite(complete_df):
                observed = (complete_df + 1) / (complete_df + 3) * complete_df * sampling / variance
                freedom = 1 / (1 / freedom + 1 / observed)
    return Combined(rule, m, np.asarray(q.mean(axis=0)), variance, freedom, within, between, adjusted)


def _check(q: Floats, u: Floats, rule: Rule, ratio: float) -> None:
    least = 1 if rule == "single" else 2
    if q.ndim not in (1, 2) or q.shape != u.shape:
        raise ConfigError(f"Estimates have shape {q.shape} and variances {u.shape}; both must be (m,) or (m, k).")
    if len(q) < least:
        raise ConfigError(f"Rule {rule!r} got {len(q)} tables; it needs {least} or more.")
    if not (np.isfinite(q).all() and np.isfinite(u).all() and (u >= 0).all()):
        raise ConfigError("An estimate or a variance is not finite, or a variance is below 0; leave that quantity out.")
    if not 0 < ratio < np.inf:
        raise ConfigError(f"The ratio of synthetic to real rows is {ratio}; it must be above 0.")
    if rule == "multiple-imputation" and ratio != 1.0:
        raise ConfigError(f"The ratio is {ratio}, but imputed tables have the rows of the real one; leave it at 1.")
