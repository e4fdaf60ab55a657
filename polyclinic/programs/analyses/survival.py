"""Survival of groups of patients, and at each hospital, by one round of counts on a public grid of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError, DataError
from polyclinic.inference.survival import Curve, LogRank, log_rank, survival_curve
from polyclinic.programs.analyses import Analysis, Cell, Result, Table
from polyclinic.programs.program import State
from polyclinic.training.survival.counts import Cells, Outcome, SurvivalCounts, grid_of
from polyclinic.training.synthesis import LEAST
from polyclinic.types import Floats

if TYPE_CHECKING:
    pass

# How a patient counts in the interval inside which the patient was censored.
_WITHIN = {"half": 0.5, "before": 0.0}
# Rows of a group in the table; figures and analysis.json have all.
_MOST_ROWS = 12


@dataclass(frozen=True)
class Survival(Analysis):
    """Kaplan-Meier and Nelson-Aalen curves with intervals, medians, and a log-rank test of groups.

    time, event: Columns; empty: those of the roles ``duration`` and ``event``. by: A column with categories, whose groups are
    compared.
    edges: The ends of the intervals, rising, in the time's unit; without any, ``intervals`` equal parts of its bounds.
    within: A patient who is censored inside an interval is at risk in ``half`` of it, or in none of it (``before``).
    hospitals: Also by hospital, and the test compares patients within hospitals; not with secure.aggregation.
    fewest: 3 or more; without privacy a hospital answers only if it has that many patients of each of its groups.
    """

    time: str = ""
    event: str = ""
    by: str = ""
    edges: Sequence[float] = ()
    intervals: int = 20
    within: str = "half"
    hospitals: bool = False
    fewest: int = 5

    def method(self, schema: Schema) -> SurvivalCounts:
        if self.within not in _WITHIN:
            raise ConfigError(
                f"Configuration key 'task-options' has within {self.within!r}; allowed are {', '.join(_WITHIN)}."
            )
        if self.fewest < LEAST:
            raise ConfigError(
                f"Configuration key 'task-options' has fewest {self.fewest}; allowed are whole numbers from {LEAST} on."
            )
        outcome = Outcome.of(schema, self.time, self.event, self.by)
        grid = grid_of(outcome.time, self.edges, self.intervals, _WITHIN[self.within])
        return SurvivalCounts(Cells.of_shards(schema), outcome, grid, self.fewest, self.hospitals)

    def result(self, method: Any, state: State) -> Result:
        """Tables of groups and of curves. Raises DataError where noise hides at once who is at risk."""
        counts: SurvivalCounts = method
        by_hospital = _counts(counts, state)
        names = sorted(by_hospital, key=int)
        strata, noises = [by_hospital[name][0] for name in names], [by_hospital[name][1] for name in names]
        total, noise = np.sum(strata, axis=0), float(np.linalg.norm(noises))
        groups, several = counts.outcome.groups, len(counts.outcome.groups) > 1
        curves = {"all": survival_curve(counts.grid, total.sum(axis=0), noise * np.sqrt(len(groups)))}
        if several:
            curves |= {
                name: survival_curve(counts.grid, cells, noise) for name, cells in zip(groups, total, strict=True)
            }
        at_hospitals = {
            f"hospital {name}": survival_curve(counts.grid, cells.sum(axis=0), own * np.sqrt(len(groups)))
            for name, cells, own in zip(names, strata, noises, strict=True)
            if counts.separate
        }
        if not len(curves["all"].edges):
            raise DataError("The noise hides how many patients are at risk: a larger epsilon or more patients may do.")
        start = float((counts.outcome.time.bounds or (0.0, 1.0))[0])
        test = log_rank(counts.grid, strata, noises) if several else None
        patients = {"all": float(total.sum()), **dict(zip(groups, total.sum(axis=1).tolist(), strict=True))}
        patients |= dict(zip(at_hospitals, (float(cells.sum()) for cells in strata), strict=False))
        tables = (_groups(counts, curves | at_hospitals, patients, test), *_curves(counts, curves))
        shown = {"survival": {name: curve for name, curve in curves.items() if not several or name != "all"}}
        shown |= {"survival-hospitals": at_hospitals} if at_hospitals else {}
        numbers = {
            name: {"unit": counts.outcome.time.unit, "start": start, "curves": _curve_points(some)}
            for name, some in shown.items()
        }
        if test:
            numbers["log-rank"] = {"statistic": test.statistic, "freedom": test.freedom, "p": test.p}
        return Result(f"Survival until {counts.outcome.event.name}", tables, numbers, self._notes(self.noisy(noise)))

    def _notes(self, noisy: bool) -> tuple[str, ...]:
        inside = "in half of that interval" if self.within == "half" else "until the interval before it"
        notes = [f"A patient who is censored inside an interval is at risk {inside}."]
        if self.hospitals:
            notes.append("Hospitals are numbered as in the run's table of hospitals.")
        if noisy:
            notes.append(
                "Counts are noisy: numbers of patients are estimates, and may be negative. Intervals and the test count the "
                "noise. Curves were made monotone, and end where too few patients are surely at risk."
            )
        return tuple(notes)


def _counts(method: SurvivalCounts, state: State) -> dict[str, tuple[Floats, float]]:
    """(groups, cells) counts and the noise in each, by the hospital's number; of all together under 1."""
    of = {name: (arrays, state["weights"][name]) for name, arrays in state["each"].items()} or {
        "1": (state["arrays"], state["patients"])
    }
    if any("mean" not in arrays for arrays, _ in of.values()):
        raise DataError("no hospital answered.")
    return {
        name: (arrays["mean"].reshape(-1, method.grid.size) * patients, float(arrays["noise"][0]) * patients)
        for name, (arrays, patients) in of.items()
    }


def _groups(
    method: SurvivalCounts, curves: dict[str, Curve], patients: dict[str, float], test: LogRank | None
) -> Table:
    expected = dict(zip(method.outcome.groups, test.expected, strict=True)) if test else {}
    rows: list[tuple[Cell, ...]] = []
    for name, curve in curves.items():
        until = float(curve.edges[-1]) if len(curve.edges) else None
        rows.append((name, patients[name], float(curve.events.sum()), expected.get(name), *curve.median, until))
    median = f"Median{_in_unit(method)}"
    columns = ("Group", "Patients", "Events", "Expected", median, "Low", "High", "Until")
    forms = {"Patients": ".0f", "Events": ".0f", "Expected": ".1f", **dict.fromkeys(columns[4:], "g")}
    note = (
        "Until: the end of the curve. Low and High: of the median's interval of 95 %. A median and these stand for the interval "
        "of the grid that ends there."
    )
    if test:
        how = ", patients compared within hospitals" if method.separate else ""
        p = "< 0.001" if test.p < 0.001 else f"= {test.p:.3f}"
        result = f"chi-squared {test.statistic:.2f} on {test.freedom} degrees of freedom, p {p}"
        note = f"Log-rank test{how}: {result}. {note}"
    return Table("groups", "Groups", columns, tuple(rows), forms, note)


def _in_unit(method: SurvivalCounts) -> str:
    unit = method.outcome.time.unit
    return f" ({unit})" if unit else ""


def _curves(method: SurvivalCounts, curves: dict[str, Curve]) -> tuple[Table, Table]:
    survival, hazard = list[tuple[Cell, ...]](), list[tuple[Cell, ...]]()
    for name, curve in curves.items():
        shown = np.linspace(0, len(curve.edges) - 1, min(len(curve.edges), _MOST_ROWS)).round().astype(int)
        for k in np.unique(shown):
            end, counts = float(curve.edges[k]), (float(curve.at_risk[k]), float(curve.events[k]))
            survival.append((name, end, *counts, *map(float, curve.survival[:, k])))
            hazard.append((name, end, *map(float, curve.hazard[:, k])))
    until, cut = f"Until{_in_unit(method)}", max(len(curve.edges) for curve in curves.values()) > _MOST_ROWS
    few = f" Of more intervals {_MOST_ROWS} are shown; analysis.json has all." if cut else ""
    forms = {
        until: "g",
        "At risk": ".0f",
        "Events": ".0f",
        **dict.fromkeys(("Survival", "Hazard", "Low", "High"), ".3f"),
    }
    event = method.outcome.event.name
    return Table(
        "survival", f"Survival until {event}", ("Group", until, "At risk", "Events", "Survival", "Low", "High"), tuple(survival),
        forms, f"By Kaplan and Meier, on the grid. Low and High are the ends of 95 % intervals.{few}",
    ), Table(
        "hazard", f"Cumulative hazard of {event}", ("Group", until, "Hazard", "Low", "High"), tuple(hazard), forms,
        f"By Nelson and Aalen, on the grid. Low and High are the ends of 95 % intervals.{few}",
    )  # fmt: skip


def _curve_points(curves: dict[str, Curve]) -> list[dict[str, Any]]:
    return [
        {"name": name, "edges": curve.edges.tolist(), "at_risk": curve.at_risk.tolist(), "events": curve.events.tolist(),
         **dict(zip(("survival", "low", "high"), curve.survival.tolist(), strict=True)),
         **dict(zip(("hazard", "hazard_low", "hazard_high"), curve.hazard.tolist(), strict=True))}
        for name, curve in curves.items()
    ]  # fmt: skip
