"""Events of patients, such as laboratory values and diagnoses, to one row for each patient by declared measures.

Pure functions over tables: which events count is declared in public, nothing is learned from them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pandas as pd

from polyclinic.ehr.checks import texts
from polyclinic.ehr.dates import read_dates, whole_years
from polyclinic.ehr.sources.cells import read_numbers
from polyclinic.errors import DataError
from polyclinic.types import Bools, Floats, Ints

Take = Literal["first", "last", "mean", "min", "max", "sum", "count", "any", "codes", "years"]

_HOUR = np.timedelta64(1, "h")
_NUMERIC = ("mean", "min", "max", "sum")


@dataclass(frozen=True)
class Measure:
    """One column of the result: which events of a patient count, and what is taken of them.

    Args:
        name: The column's name.
        take: "first" or "last" (by time, else by order); "mean", "min", "max" or "sum" of numbers; "count"; "any" (1 or
            0). "codes" is the set, separated by ';'. "years" are whole ones, from the value, a date, to the index.
        codes: Those that count, a trailing ``*`` standing for any ending; none takes all.
        start, end: Hours from the row's index, from ``start`` to before ``end``.
        position: With "first" and "last", 1 is the event next to it.
        characters: Where not 0, "codes" cuts each code to this length.
        units: For each unit that may stand beside a value, (factor, offset) to the column's own. None takes values as
            they are.
        values: Texts and what they are read as.
        within: Numbers outside are artefacts and do not count.
        limits: "<0.4" is read as 0.4.
        default: What a patient without such an event gets, if not a missing cell.
    """

    name: str
    take: Take = "first"
    codes: tuple[str, ...] = ()
    start: float = -math.inf
    end: float = math.inf
    position: int = 0
    characters: int = 0
    units: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)
    within: tuple[float, float] | None = None
    limits: bool = False
    default: str | None = None

    @property
    def is_timed(self) -> bool:
        """Whether events need a time relative to an index."""
        return math.isfinite(self.start) or math.isfinite(self.end)


def steps(measure: Measure, count: int, hours: float) -> tuple[Measure, ...]:
    """Return the measures of a trajectory ``name_00``, ``name_01``, ..., one for each step.

    Args:
        measure: The measure of which each step takes a part.
        count: The number of steps.
        hours: The length of a step, from the measure's start. With 0 the steps are the first (or last) ``count`` events
            instead.
    """
    named = [replace(measure, name=f"{measure.name}_{step:02d}") for step in range(count)]
    if not hours:
        return tuple(replace(step_measure, position=step) for step, step_measure in enumerate(named))
    begin = measure.start if math.isfinite(measure.start) else 0.0
    return tuple(
        replace(step_measure, start=begin + step * hours, end=min(measure.end, begin + (step + 1) * hours))
        for step, step_measure in enumerate(named)
    )


def one_row_each(
    patients: pd.DataFrame, events: pd.DataFrame, measures: Sequence[Measure], source: str = "events"
) -> pd.DataFrame:
    """Return a row for each of ``patients``, in their order, with a column for each measure.

    ``index`` and ``time`` are both datetime64, or both hours. Events of others are passed over.

    Args:
        patients: ``patient`` (distinct texts; a stay's key where a row is a stay) and, where a measure needs it,
            ``index``.
        events: ``patient`` and, as far as measures need them, ``time``, ``code`` (text), ``value``, ``unit`` (text),
            and ``event``: rows with the same one are one event under several codes.
        measures: The columns of the result.
        source: The events' name in messages.

    Raises:
        DataError: Naming ``source`` and column, never a value.
    """
    number = pd.Index(patients["patient"]).get_indexer(pd.Index(events["patient"]))
    own_events, row = events[number >= 0], number[number >= 0]
    return pd.DataFrame(
        {measure.name: _column(patients, own_events, row, measure, source) for measure in measures},
        index=patients.index,
    )


def matching(codes: pd.Series, wanted: Sequence[str]) -> Bools:
    """Which codes are among the wanted ones, a trailing ``*`` standing for any ending; all where none is wanted."""
    if not wanted:
        return np.ones(len(codes), dtype=bool)
    exact, starts = set(wanted), tuple(code[:-1] for code in wanted if code.endswith("*"))
    matches = [code for code in codes.unique().tolist() if code in exact or str(code).startswith(starts)]
    return np.asarray(codes.isin(matches), dtype=bool)


def _column(patients: pd.DataFrame, events: pd.DataFrame, row: Ints, measure: Measure, source: str) -> pd.Series:
    chosen = np.ones(len(events), dtype=bool)
    if measure.codes:
        chosen &= matching(events["code"], measure.codes)
    if measure.is_timed:
        hours = _hours(patients, events, row)
        chosen &= (hours >= measure.start) & (hours < measure.end)
    events, row = events[chosen], row[chosen]
    if "event" in events.columns and measure.take != "codes":
        first = ~events["event"].duplicated().to_numpy()
        events, row = events[first], row[first]
    values = _take(patients, events, row, measure, source)
    out = pd.Series(values, index=range(len(patients)), dtype=object if values.dtype == object else None)
    if measure.default is not None and measure.take not in ("count", "any", "codes"):
        out = out.astype(object).where(out.notna(), measure.default)
    out.index = patients.index
    return out


def _take(patients: pd.DataFrame, events: pd.DataFrame, row: Ints, measure: Measure, source: str) -> pd.Series:
    size = len(patients)
    if measure.take in ("count", "any"):
        counts = np.bincount(row, minlength=size)
        return pd.Series(counts if measure.take == "count" else (counts > 0).astype(np.int64))
    if measure.take == "codes":
        return _code_sets(events["code"], row, measure, size)
    values, usable = _values(events, measure, source)
    values, events, row = values[usable], events[usable], row[usable]
    if measure.take in _NUMERIC:
        return values.astype(np.float64).groupby(row).agg(measure.take).reindex(range(size))
    time = events["time"].to_numpy() if "time" in events.columns else 0
    table = pd.DataFrame({"value": values.reset_index(drop=True), "row": row, "time": time})
    if measure.take == "last":
        table = table[::-1]
    table = table.sort_values("time", ascending=measure.take != "last", kind="stable", na_position="last")
    out = table.groupby("row").nth(measure.position).set_index("row")["value"].reindex(range(size))
    return _years(patients, out, source, measure.name) if measure.take == "years" else out


def _code_sets(codes: pd.Series, row: Ints, measure: Measure, size: int) -> pd.Series:
    cut = [measure.values.get(code, code)[: measure.characters or None] for code in texts(codes)]
    sets: list[set[str]] = [set() for _ in range(size)]
    for patient, code in zip(row.tolist(), cut, strict=True):
        if code:
            sets[patient].add(code)
    return pd.Series([";".join(sorted(codes)) for codes in sets], dtype=object)


def _values(events: pd.DataFrame, measure: Measure, source: str) -> tuple[pd.Series, Bools]:
    """Values read by the measure's units and texts, and which of them are there and no artefacts."""
    cells = events["value"].reset_index(drop=True)
    if measure.values:
        read = [measure.values.get(cell, cell) or None for cell in texts(cells)]
        cells = pd.Series(read, dtype=object)
    usable = cells.notna().to_numpy(dtype=bool)
    if not (measure.units or measure.within or measure.limits or measure.take in _NUMERIC):
        return cells, usable
    if measure.limits:
        cells = read_numbers(pd.Series(texts(cells), dtype=object)).values
    numbers = pd.to_numeric(cells.where(usable), errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    if not np.isfinite(numbers[usable]).all():
        raise DataError(f"{source}: column {measure.name!r}: a value is not a finite number; read it by 'values'.")
    if measure.units:
        units = pd.Series(texts(events["unit"]))
        if not units[usable].isin(list(measure.units)).all():
            raise DataError(f"{source}: column {measure.name!r}: a value has a unit that 'units' does not list.")
        factor, offset = (units.map({unit: pair[i] for unit, pair in measure.units.items()}) for i in (0, 1))
        numbers = numbers * factor.to_numpy(dtype=np.float64) + offset.to_numpy(dtype=np.float64)
    if measure.within is not None:
        usable = usable & (numbers >= measure.within[0]) & (numbers <= measure.within[1])
    return pd.Series(numbers), usable


def _hours(patients: pd.DataFrame, events: pd.DataFrame, row: Ints) -> Floats:
    """Hours from each event's index to its time; NaN, which is in no window, where either is missing."""
    since = events["time"].to_numpy() - patients["index"].to_numpy()[row]
    if since.dtype.kind == "m":
        return np.where(np.isnat(since), np.nan, since / _HOUR)
    return np.asarray(since, dtype=np.float64)


def _years(patients: pd.DataFrame, dates: pd.Series, source: str, name: str) -> pd.Series:
    if "index" not in patients.columns or not pd.api.types.is_datetime64_any_dtype(patients["index"]):
        raise DataError(f"{source}: column {name!r}: 'years' needs an index that is a date.")
    born = read_dates(dates, f"{source}: column {name!r}")
    return whole_years(born, patients["index"].reset_index(drop=True))
