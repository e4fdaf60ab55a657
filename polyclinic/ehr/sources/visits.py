"""Several rows a patient as one: the latest visits in the order of time, each measured number a trajectory with a step for each.

What ``unroll`` reads is a draft of visits (``ehr.sources.drafting``), so no epsilon covers the choice of columns. A hospital's
mapping file makes trajectories of events by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from polyclinic.ehr.dates import iso_dates, read_moments
from polyclinic.ehr.schema import BEFORE_LATEST, Schema
from polyclinic.ehr.sources.drafting import Draft
from polyclinic.errors import DataError, several
from polyclinic.types import Floats, Ints

_DAY = 86_400e6  # microseconds
_NUMERIC = ("continuous", "integer", "binary")


def visit_times(cells: pd.Series, name: str, hospitals: pd.Series | None = None) -> Floats:
    """Return (rows,) times of visits: numbers as they are, dates in whatever format in days; NaN where a cell is neither.

    Args:
        cells: (rows,) texts, "" where missing.
        name: The column's name in messages.
        hospitals: (rows,) where there are several; each may write its dates otherwise.

    Raises:
        DataError: Where a hospital's cells are mostly neither, or dates whose day and month cannot be told apart.
    """
    is_number = bool(pd.to_numeric(cells[cells != ""], errors="coerce").notna().mean() > 0.5)
    if hospitals is None or hospitals.nunique() < 2:
        return _times(cells, repr(name), is_number)
    times = pd.Series(np.nan, index=cells.index)
    for hospital, own in cells.groupby(hospitals):
        times[own.index] = _times(own, f"{name!r} at {several([str(hospital)])}", is_number)
    return np.asarray(times, dtype=np.float64)


def _times(cells: pd.Series, column: str, is_number: bool) -> Floats:
    dates = None if is_number else iso_dates(cells)
    if not is_number and dates is None:
        raise DataError(
            f"Column {column} cannot be the time of visits: its cells are times of day, or dates whose day and month cannot be "
            "told apart; write them as 2024-12-31."
        )
    times = read_moments((cells if dates is None else dates).to_list(), is_number) / (1.0 if is_number else _DAY)
    if np.isnan(times).mean() > 0.5:
        raise DataError(f"Column {column} cannot be the time of visits: it must hold numbers, or dates as 2024-12-31.")
    return times


@dataclass(frozen=True, eq=False)
class Visits:
    """The order of visits: of each row that has a time the ``patient``'s number, the ``time`` and the ``step``, which is negative
    before the latest ``steps`` visits. Rows are in order of patient and time.

    undated: rows without a time, which no step has.
    """

    rows: pd.DataFrame
    steps: int
    undated: int

    @classmethod
    def of(cls, patients: pd.Series, times: Floats, steps: int) -> Visits:
        """Return the order of rows by patient and time; a row without a time (NaN) is left out.

        Args:
            patients: (rows,) each row's patient.
            times: (rows,) the times of visits.
            steps: The number of steps of a trajectory, of which the last is the latest visit.
        """
        rows = pd.DataFrame({"patient": pd.factorize(patients)[0], "time": times}).dropna()
        rows = rows.sort_values(["patient", "time"], kind="stable")
        rows["step"] = steps - 1 - rows.groupby("patient").cumcount(ascending=False)
        return cls(rows, steps, len(times) - len(rows))

    @property
    def last(self) -> Ints:
        """(patients,) the row of each patient's latest visit."""
        return np.asarray(self.rows.index[self.rows["step"] == self.steps - 1])

    @property
    def before_latest(self) -> pd.Series:
        """(rows,) how long each visit was before the patient's latest."""
        latest = self.rows.groupby("patient")["time"].transform("max")
        return latest - self.rows["time"]

    def latest(self, cells: pd.Series) -> pd.Series:
        """(patients,) each patient's latest cell that is not missing."""
        ordered = cells.loc[self.rows.index].groupby(self.rows["patient"], sort=True).last()
        return pd.Series(ordered.to_numpy(), dtype=cells.dtype)

    def trajectory(self, cells: pd.Series, name: str) -> dict[str, pd.Series]:
        """By the name of each step (patients,) the numbers at it, NaN where a patient has fewer visits."""
        recent = self.rows[self.rows["step"] >= 0]
        table = np.full((int(self.rows["patient"].max()) + 1, self.steps), np.nan)
        table[recent["patient"], recent["step"]] = cells.loc[recent.index].to_numpy(dtype=np.float64, na_value=np.nan)
        here = np.unique(recent["patient"])
        return {f"{name}_{step:02d}": pd.Series(table[here, step]) for step in range(self.steps)}


def unroll(draft: Draft, visits: Visits) -> Draft:
    """A draft with one row for each patient, in the order of ``visits.last``.

    Numbers that change from visit to visit become trajectories, of which the last step is the latest visit. Patients of fewer
    visits miss the first steps, and visits before the latest ``steps`` are left out. The time becomes a trajectory too,
    ``before latest``. Of every other column the latest cell that is not missing holds.
    """
    rows, steps, before = visits.rows, visits.steps, visits.before_latest
    done = replace(draft, columns=[], records={})
    for column in draft.columns:
        cells = draft.records[column["name"]]
        changes = bool((cells.loc[rows.index].groupby(rows["patient"]).nunique() > 1).any())
        if changes and column["kind"] in _NUMERIC and "role" not in column:
            _add_steps(done, column, visits.trajectory(cells, column["name"]))
        else:
            done.add(visits.latest(cells), **column)
            if changes and column.get("role") in (None, "label"):
                done.reads("Changing from visit to visit, of which the latest cell holds", column["name"])
    if before.any():
        high = float(before[rows["step"] >= 0].quantile(0.995))
        elapsed = {"name": BEFORE_LATEST, "kind": "continuous", "bounds": [0.0, max(high, 1e-9)]}
        _add_steps(done, elapsed, visits.trajectory(before, BEFORE_LATEST))
    longest = int(rows.groupby("patient").size().max())
    done.notes.append(
        f"{len(rows):,} visits of {len(visits.last):,} patients are sequences of {steps} steps, the last the latest visit"
        + (f"; patients have up to {longest:,} visits, and the earlier ones are left out." if longest > steps else ".")
    )
    if visits.undated:
        done.notes.append(f"{visits.undated:,} rows have no time that can be read, and are left out.")
    return done


def _add_steps(done: Draft, column: dict[str, Any], cells: Mapping[str, pd.Series]) -> None:
    """Add the trajectory of a column of visits."""
    properties = {key: value for key, value in column.items() if key in ("name", "unit", "bounds", "centre", "spread")}
    done.columns.append(
        {"bounds": [0.0, 1.0], **properties, "kind": "trajectory", "steps": len(cells), "nullable": True, "clip": True,
         "whole": column["kind"] != "continuous"}
    )  # fmt: skip
    done.records |= cells


def sequences(records: pd.DataFrame, visits: Visits, schema: Schema) -> pd.DataFrame:
    """Return new visits under a schema that ``unroll`` drafted, one row for each patient.

    They are as in training, but for the choice of columns.

    Args:
        records: By the schema's names, a number for each visit where the schema has a trajectory.
        visits: The order of the records' rows.
        schema: The drafted schema.
    """
    cells: dict[str, pd.Series] = {}
    for column in schema.columns:
        if column.kind != "trajectory":
            cells |= {column.name: visits.latest(records[column.name])} if column.name in records else {}
        else:
            numbers = visits.before_latest if column.name == BEFORE_LATEST else records[column.name]
            cells |= visits.trajectory(numbers, column.name)
    return pd.DataFrame(cells)
