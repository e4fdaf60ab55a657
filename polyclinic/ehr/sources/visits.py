"""Several rows a patient as one: the latest visits in the order of time, each measured number a trajectory with a step for each.

What it reads is a draft of visits (``ehr.sources.drafting``), so no epsilon covers the choice of columns. A hospital's mapping
file makes trajectories of events by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from polyclinic.ehr.sources.drafting import Draft
from polyclinic.ehr.split import read_moments
from polyclinic.errors import DataError
from polyclinic.types import Floats

_DAY = 86_400e6  # microseconds
_NUMERIC = ("continuous", "integer", "binary")


def visit_times(cells: pd.Series, name: str) -> Floats:
    """(rows,) the times of visits: numbers as they are, dates in days; NaN where a cell is neither.

    Raises DataError for a column that is mostly neither.
    """
    given = cells[cells != ""]
    is_number = bool(pd.to_numeric(given, errors="coerce").notna().mean() > 0.5)
    times = read_moments(cells.to_list(), is_number) / (1.0 if is_number else _DAY)
    if np.isnan(times).mean() > 0.5:
        raise DataError(
            f"Column {name!r} cannot be the time of visits: it must hold numbers, or dates as 2024-12-31 or 31.12.2024."
        )
    return times


def unroll(draft: Draft, patients: pd.Series, times: Floats, steps: int) -> tuple[Draft, Floats]:
    """A draft with one row for each patient, and the place of its latest visit among the rows.

    Numbers that change from visit to visit become trajectories of ``steps`` steps, of which the last is the latest visit.
    Patients of fewer visits miss the first steps, and visits before the latest ``steps`` are left out. The time becomes a
    trajectory too, ``before latest``. Of every other column the latest cell that is not missing holds.

    Args:
        draft: Of the visits.
        patients: (rows,) whose visit a row is.
        times: (rows,) as ``visit_times`` gives them; a row without a time is left out.
        steps: How many visits the public schema has room for.
    """
    rows = pd.DataFrame({"patient": pd.factorize(patients)[0], "time": times}).dropna()
    rows = rows.sort_values(["patient", "time"], kind="stable")
    rows["step"] = steps - 1 - rows.groupby("patient").cumcount(ascending=False)
    latest = rows[rows["step"] == steps - 1]
    last = latest.index.to_numpy()
    recent = rows[rows["step"] >= 0]
    before = rows["patient"].map(latest.set_index("patient")["time"]) - rows["time"]
    done = Draft(rules=draft.rules, notes=list(draft.notes), left_out=draft.left_out)
    for column in draft.columns:
        cells = draft.records[column["name"]]
        changes = bool((cells.loc[rows.index].groupby(rows["patient"]).nunique() > 1).any())
        if changes and column["kind"] in _NUMERIC and "role" not in column:
            _add_steps(done, column, cells, recent, steps)
        else:
            ordered = cells.loc[rows.index].groupby(rows["patient"], sort=True).last()
            done.add(pd.Series(ordered.to_numpy(), dtype=cells.dtype), **column)
            if changes and column.get("role") in (None, "label"):
                done.notes.append(f"Column {column['name']!r} changes from visit to visit; the latest holds.")
    if before.any():
        high = float(before[recent.index].quantile(0.995))
        elapsed = {"name": "before latest", "kind": "continuous", "bounds": [0.0, max(high, 1e-9)], "clip": True}
        _add_steps(done, elapsed, before, recent, steps)
    longest, patients_seen = int(rows.groupby("patient").size().max()), len(last)
    done.notes.append(
        f"{len(rows):,} visits of {patients_seen:,} patients are sequences of {steps} steps, the last the latest visit"
        + (f"; patients have up to {longest:,} visits, and the earlier ones are left out." if longest > steps else ".")
    )
    if lost := len(times) - len(rows):
        done.notes.append(f"{lost:,} rows have no time that can be read, and are left out.")
    return done, last


def _add_steps(done: Draft, column: dict[str, Any], cells: pd.Series, recent: pd.DataFrame, steps: int) -> None:
    """Add the trajectory of a column of visits."""
    properties = {key: value for key, value in column.items() if key in ("name", "unit", "bounds", "centre", "spread")}
    whole = column["kind"] != "continuous"
    done.columns.append(
        {
            "bounds": [0.0, 1.0],
            **properties,
            "kind": "trajectory",
            "steps": steps,
            "nullable": True,
            "clip": True,
            "whole": whole,
        }
    )
    table = np.full((int(recent["patient"].max()) + 1, steps), np.nan)
    table[recent["patient"], recent["step"]] = cells.loc[recent.index].to_numpy(dtype=np.float64, na_value=np.nan)
    here = np.unique(recent["patient"])
    for step in range(steps):
        done.records[f"{column['name']}_{step:02d}"] = pd.Series(table[here, step])
