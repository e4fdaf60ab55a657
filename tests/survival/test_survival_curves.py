"""Survival curves from counts: as lifelines without noise, and with noise as sure as they say."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from lifelines import KaplanMeierFitter, NelsonAalenFitter
from lifelines.datasets import load_rossi, load_waltons
from lifelines.statistics import multivariate_logrank_test
from lifelines.utils import median_survival_times

from polyclinic.inference.survival import Grid, log_rank, survival_curve
from polyclinic.privacy.accounting import calibrate_noise_multiplier, gaussian_event
from polyclinic.types import Bools, Floats


def counts(grid: Grid, time: Floats, event: Bools, group: Floats | None = None) -> Floats:
    """(groups, cells) patients."""
    of = np.zeros(len(time), dtype=int) if group is None else np.unique(group, return_inverse=True)[1]
    cells = np.zeros((of.max() + 1, grid.size))
    np.add.at(cells, (of, grid.cell(time, event)), 1.0)
    return cells


def cohort(name: str) -> tuple[Floats, Bools, pd.DataFrame]:
    if name == "rossi":
        table = load_rossi()
        return table["week"].to_numpy(float), table["arrest"].to_numpy(bool), table.assign(group=table["fin"])
    if name == "waltons":
        table = load_waltons()
        return table["T"].to_numpy(float), table["E"].to_numpy(bool), table
    from sksurv.datasets import load_gbsg2, load_whas500

    x, y = (load_gbsg2 if name == "gbsg2" else load_whas500)()
    event, time = y.dtype.names
    return y[time].astype(float), y[event].astype(bool), x.assign(group=x["menostat" if name == "gbsg2" else "afb"])


@pytest.mark.parametrize("name", ["rossi", "waltons", "gbsg2", "whas500"])
@pytest.mark.parametrize("all_times", [False, True])
def test_curves_and_limits_are_those_of_lifelines(name: str, all_times: bool) -> None:
    time, event, _ = cohort(name)
    # With every time among the edges nobody is censored inside an interval.
    grid = Grid(np.unique(time if all_times else time[event]), 0.5 if all_times else 0.0)
    curve = survival_curve(grid, counts(grid, time, event)[0])
    theirs = KaplanMeierFitter().fit(time, event)
    shown = curve.survival[0] > 0
    assert shown.sum() >= len(shown) - 1
    assert curve.survival[0] == pytest.approx(theirs.predict(curve.edges).to_numpy(), abs=1e-9)
    limits = theirs.confidence_interval_survival_function_.loc[curve.edges[shown]].to_numpy()
    assert pytest.approx(limits, abs=1e-9) == curve.survival[1:, shown].T
    assert curve.median[0] == (theirs.median_survival_time_ if np.isfinite(theirs.median_survival_time_) else None)
    between = median_survival_times(theirs.confidence_interval_).iloc[0].to_numpy()
    assert list(curve.median[1:]) == [None if np.isinf(end) else end for end in between]
    hazards = NelsonAalenFitter(nelson_aalen_smoothing=False).fit(time, event)
    at = curve.edges[shown]
    if all_times:  # the interval of an event counts half
        assert curve.hazard[0] == pytest.approx(np.cumsum(curve.events / (curve.at_risk - curve.events / 2)))
        return
    assert curve.hazard[0, shown] == pytest.approx(hazards.cumulative_hazard_.loc[at].to_numpy()[:, 0], abs=1e-9)
    assert pytest.approx(hazards.confidence_interval_.loc[at].to_numpy(), abs=1e-9) == curve.hazard[1:, shown].T
    table = theirs.event_table.loc[curve.edges]
    assert curve.at_risk == pytest.approx(table["at_risk"]) and curve.events == pytest.approx(table["observed"])


@pytest.mark.parametrize("name", ["rossi", "waltons", "gbsg2", "whas500"])
def test_the_log_rank_test_is_that_of_lifelines(name: str) -> None:
    time, event, table = cohort(name)
    grid = Grid(np.unique(time[event]), 0.0)
    ours = log_rank(grid, [counts(grid, time, event, table["group"].to_numpy())], [0.0])
    theirs = multivariate_logrank_test(time, table["group"], event)
    assert ours.statistic == pytest.approx(theirs.test_statistic, abs=1e-9)
    assert ours.p == pytest.approx(theirs.p_value, abs=1e-9) and ours.freedom == 1
    assert ours.observed.sum() == event.sum() and ours.expected.sum() == pytest.approx(event.sum())


def test_several_groups_and_strata_are_compared_as_r_does() -> None:
    time, event, table = cohort("gbsg2")
    group = pd.qcut(table["age"], 3, labels=False).to_numpy()
    grid = Grid(np.unique(time[event]), 0.0)
    theirs = multivariate_logrank_test(time, group, event)
    assert log_rank(grid, [counts(grid, time, event, group)], [0.0]).statistic == pytest.approx(theirs.test_statistic)
    # A stratum by itself is its own test; of two the differences and their variances add up (statsmodels).
    from statsmodels.duration.survfunc import survdiff

    hospital = np.arange(len(time)) % 2
    parts = [counts(grid, time[hospital == h], event[hospital == h], group[hospital == h]) for h in (0, 1)]
    statistic, p = survdiff(time, event.astype(int), group, strata=hospital)
    ours = log_rank(grid, parts, [0.0, 0.0])
    assert [ours.statistic, ours.p] == pytest.approx([statistic, p]) and ours.freedom == 2
    with pytest.raises(ValueError, match="two of them"):
        log_rank(grid, [counts(grid, time, event)], [0.0])


def test_noise_adds_to_the_variance_of_the_test_as_redrawn_noise_does() -> None:
    """Of three groups: the mean of squared standardised differences is that of chi-squared where there is noise alone."""
    rng, grid = np.random.default_rng(0), Grid(np.arange(1.0, 6.0))
    whole = np.full((3, grid.size), 400.0)
    still = log_rank(grid, [whole], [0.0]).statistic
    drawn = [log_rank(grid, [whole + 100 * rng.standard_normal(whole.shape)], [100.0]).statistic for _ in range(300)]
    # Sampling counts in the variance too, and here nobody is sampled.
    assert still == pytest.approx(0, abs=1e-9) and 1.5 < np.mean(drawn) < 2.1


@pytest.mark.slow
def test_fifty_groups_on_two_thousand_intervals_fit_into_memory() -> None:
    grid = Grid(np.arange(1.0, 2001.0))
    tables = [np.random.default_rng(0).poisson(2, (50, grid.size)).astype(float)]
    tracemalloc.start()
    assert log_rank(grid, tables, [0.1]).freedom == 49
    assert tracemalloc.get_traced_memory()[1] < 600e6
    tracemalloc.stop()


def test_patients_who_are_censored_inside_an_interval_are_at_risk_in_half_of_it() -> None:
    grid = Grid(np.array([10.0, 20.0]))
    time, event = np.array([5.0, 5.0, 10.0, 15.0, 20.0, 25.0]), np.array([1, 0, 0, 1, 0, 1], dtype=bool)
    assert grid.cell(time, event).tolist() == [0, 2, 4, 1, 5, 6]
    curve = survival_curve(grid, counts(grid, time, event)[0])
    assert curve.at_risk.tolist() == [5.5, 3.0] and curve.events.tolist() == [1.0, 1.0]
    assert curve.survival[0].tolist() == pytest.approx([4.5 / 5.5, 4.5 / 5.5 * 2 / 3])
    assert survival_curve(Grid(grid.edges, 0.0), counts(grid, time, event)[0]).at_risk.tolist() == [5.0, 3.0]


def test_noise_widens_intervals_keeps_curves_monotone_and_ends_them_where_nobody_is_surely_at_risk() -> None:
    rng, grid = np.random.default_rng(0), Grid(np.arange(1.0, 13.0))
    time, event = made_up(rng, 1500)
    exact = counts(grid, time, event)[0]
    noisy = survival_curve(grid, exact + rng.normal(0, 60, grid.size), 60.0)
    plain, cut = survival_curve(grid, exact), len(noisy.edges)
    assert 3 <= cut < 12
    assert (np.diff(noisy.survival, axis=1) <= 1e-12).all() and (noisy.survival <= 1).all()
    assert (np.diff(noisy.hazard, axis=1) >= -1e-12).all()
    width = [curve.survival[2, :cut] - curve.survival[1, :cut] for curve in (plain, noisy)]
    assert (width[1] > width[0]).all()
    nobody = survival_curve(grid, rng.normal(0, 10, grid.size), 10.0)
    assert len(nobody.edges) == 0 and nobody.median == (None, None, None)


def made_up(rng: np.random.Generator, patients: int, rate: float = 0.1) -> tuple[Floats, Bools]:
    died, left = rng.exponential(1 / rate, patients), rng.uniform(0, 25, patients)
    return np.minimum(died, left), died <= left


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "patients"), [(1.0, 1500), (3.0, 600), (10.0, 300), (None, 300)])
def test_intervals_cover_and_the_test_errs_as_often_as_it_says(epsilon: float | None, patients: int) -> None:
    noise = calibrate_noise_multiplier(epsilon, 1e-5, gaussian_event) if epsilon else 0.0
    rng, grid, runs = np.random.default_rng(1), Grid(np.arange(1.0, 13.0)), 1500
    at, covered, hazards, wrong = np.array([1, 3, 7, 11]), np.zeros(4), np.zeros(4), 0
    alive = np.exp(-0.1 * grid.edges[at])
    for _ in range(runs):
        parts = []
        for _ in range(2):
            time, event = made_up(rng, patients // 2)
            parts.append(counts(grid, time, event)[0] + noise * rng.standard_normal(grid.size))
        curve = survival_curve(grid, sum(parts), noise * np.sqrt(2))
        assert len(curve.edges) > at[2]
        there = at[at < len(curve.edges)]
        covered[: len(there)] += (curve.survival[1, there] <= alive[: len(there)]) & (
            alive[: len(there)] <= curve.survival[2, there]
        )
        true = 0.1 * grid.edges[there]
        hazards[: len(there)] += (curve.hazard[1, there] <= true) & (true <= curve.hazard[2, there])
        wrong += log_rank(grid, [np.stack(parts)], [noise]).p < 0.05
    print(epsilon, covered / runs, hazards / runs, wrong / runs)
    assert ((covered / runs > 0.93) & (covered / runs < 0.97)).all()
    assert ((hazards / runs > 0.93) & (hazards / runs < 0.97)).all()
    assert 0.035 < wrong / runs < 0.065
