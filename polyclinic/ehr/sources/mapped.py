"""Records from the tables of a clinical database by a mapping file.

One reader for OMOP, MIMIC and eICU, and for FHIR once it is flattened: they differ in the usual columns of their tables.
The tables are files in a folder, or a database behind a SQLAlchemy URL. Each is read once, in chunks; in memory are the rows,
and of one table the events that the mapping names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
import pandas as pd

from polyclinic.ehr.checks import texts
from polyclinic.ehr.dates import read_dates
from polyclinic.ehr.events import Measure, matching, one_row_each
from polyclinic.ehr.schema import Column, Schema
from polyclinic.ehr.sources.cells import MISSING
from polyclinic.ehr.sources.chunks import ROWS, Chunk, Place, as_chunks, of_cohort
from polyclinic.ehr.sources.files import SUFFIXES, column_names, read_table
from polyclinic.ehr.sources.mapping import EICU, MIMIC3, MIMIC4, OMOP, ColumnOf, IndexOf, Layout, Mapping, Table
from polyclinic.ehr.sources.sql import CREDENTIALS, Database
from polyclinic.errors import DataError


def layout_source(layout: Layout) -> Callable[[Place, Schema], Iterator[Chunk]]:
    """The source that reads a folder or database of that layout by the mapping file that option ``mapping`` names."""

    def read(place: Place, schema: Schema) -> Iterator[Chunk]:
        place.allow("mapping", *CREDENTIALS)
        mapping = Mapping.read(place.path("mapping"), schema)
        tables = Database.at(place) if "://" in place.text else Folder(place.folder / place.text)
        return map_tables(tables, layout, mapping, schema)

    return read


omop, mimic3, mimic4, eicu = (layout_source(layout) for layout in (OMOP, MIMIC3, MIMIC4, EICU))


def map_tables(tables: Tables, layout: Layout, mapping: Mapping, schema: Schema) -> Iterator[Chunk]:
    """Yield the records that a mapping makes of tables.

    Args:
        tables: The tables of a clinical database.
        layout: The usual columns of the database's tables.
        mapping: Which table gives which column of the schema.
        schema: The public schema.

    Raises:
        DataError: Naming tables and columns, never a cell.
    """
    cohort = mapping.cohort(schema, tables.name)
    columns = (*mapping.columns, *mapping.helpers)
    rows = _rows(tables, mapping)
    wanted = [_column_request(tables, layout, mapping, column) for column in columns]
    event = _index_event(tables, layout, mapping)
    if event is not None:
        rows["index"] = _event_times(tables, event, rows)
    kinds = {column.name: column for column in schema.columns}
    cells: dict[str, pd.DataFrame] = {}
    for table in dict.fromkeys(wanted_column.table for wanted_column in wanted):
        of_table = [wanted_column for wanted_column in wanted if wanted_column.table == table]
        for wanted_column, events in zip(of_table, _events(tables, table, of_table), strict=True):
            # Where a table counts minutes, it counts them from the layout's own index, unless an event is it.
            patients = rows.assign(index=0.0) if wanted_column.minutes and event is None else rows
            keys = pd.DataFrame({"by": rows[f"by {wanted_column.by}"], "patient": rows["patient"]})
            name = wanted_column.column.name
            measures = wanted_column.column.measures(kinds.get(name) or Column(name=name, kind="binary", role="ignore"))
            cells[name] = one_row_each(patients, events.merge(keys, on="by"), measures, wanted_column.source)
    records = pd.concat(
        [*(cells[column.name] for column in columns), *([rows["index"]] if "index" in rows else [])], axis=1
    )
    frames = (records.iloc[start : start + ROWS].reset_index(drop=True) for start in range(0, len(records), ROWS))
    patient = schema.patient_id.name if schema.patient_id else None
    yield from of_cohort(as_chunks(frames, tables.name), cohort, patient, tables.name, f"rows of {mapping.rows.table}")


def _rows(tables: Tables, mapping: Mapping) -> pd.DataFrame:
    """One row for each row of the records: ``patient`` (its key), ``index``, and ``by NAME`` for what tables join by."""
    rows, table = mapping.rows, mapping.rows.table.lower()
    event = rows.index if isinstance(rows.index, IndexOf) else None
    joined = [column.by for column in (*mapping.columns, *mapping.helpers)] + ([event.by] if event else [])
    joins = {(by or rows.key).lower() for by in joined} | {rows.key.lower()}
    index = [rows.index.lower()] if isinstance(rows.index, str) else []
    names = list(dict.fromkeys([*joins, *index, *(name.lower() for name in rows.where)]))
    where = {name.lower(): allowed for name, allowed in rows.where.items()}
    parts = [pd.DataFrame(columns=names)]
    for frame in tables.frames(table, names):
        chosen = _where(frame, where)
        parts.append(frame[chosen])
    all_rows, source = pd.concat(parts, ignore_index=True), f"{tables.name}, table {table!r}"
    out = pd.DataFrame({f"by {name}": texts(all_rows[name]) for name in joins}, dtype=object)
    out["patient"] = out[f"by {rows.key.lower()}"]
    if (out["patient"] == "").any() or out["patient"].duplicated().any():
        raise DataError(f"{source}: column {rows.key!r} must tell rows apart; it is missing or repeated in some.")
    if index:
        out["index"] = read_dates(all_rows[index[0]], f"{source}: column {rows.index!r}")
    return out


@dataclass(frozen=True)
class _Wanted:
    """What one column wants of its table: ``used`` has the table's columns of its time, code, value and unit."""

    column: ColumnOf
    table: str
    source: str
    by: str
    used: dict[str, str]
    minutes: bool

    @property
    def names(self) -> list[str]:
        return [self.by, *self.used.values(), *(name.lower() for name in self.column.where)]

    def of(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The events of a chunk of the table, with the columns that ``one_row_each`` takes, and ``by`` for the patient."""
        column = self.column
        chosen = _where(frame, {name.lower(): allowed for name, allowed in column.where.items()})
        if column.codes:
            chosen &= matching(pd.Series(texts(frame[self.used["code"]]), dtype=object), column.codes)
        events = frame[chosen]
        out = pd.DataFrame({"by": pd.Series(texts(events[self.by]), dtype=object)})
        for what, name in self.used.items():
            if what in ("value", "event"):
                out[what] = events[name].astype(object).to_numpy()
                continue
            cells = pd.Series(texts(events[name]), dtype=object)
            timed = f"{self.source}: column {name!r}"
            out[what] = cells if what != "time" else _hours(cells, timed) if self.minutes else read_dates(cells, timed)
        return out


def _counts_minutes(layout: Layout, table: str) -> bool:
    return layout.get(table.lower(), Table()).minutes


def _index_event(tables: Tables, layout: Layout, mapping: Mapping) -> _Wanted | None:
    """What the index wants of its table where it is an event's time."""
    index = mapping.rows.index
    if not isinstance(index, IndexOf):
        return None
    time = index.time or layout.get(index.table.lower(), Table()).time
    if not time:
        table = f"{tables.name}, table {index.table.lower()!r}"
        raise DataError(f"{table}: 'index' needs 'time', the name of a column of this table.")
    column = ColumnOf.model_validate({**index.model_dump(), "name": "index", "time": time, "value": time})
    return _column_request(tables, layout, mapping, column)


def _event_times(tables: Tables, event: _Wanted, rows: pd.DataFrame) -> pd.Series:
    """For each row the time of the event that is its index: a date or, where the table counts minutes, hours."""
    (events,) = _events(tables, event.table, [event])
    keys = pd.DataFrame({"by": rows[f"by {event.by}"], "patient": rows["patient"]})
    events_by_patient = events.assign(value=events["time"]).merge(keys, on="by")
    return one_row_each(rows, events_by_patient, [Measure("index", event.column.take)], event.source)["index"]


def _column_request(tables: Tables, layout: Layout, mapping: Mapping, column: ColumnOf) -> _Wanted:
    rows = mapping.rows
    table, by = (column.table or rows.table).lower(), (column.by or rows.key).lower()
    usual, source = layout.get(table, Table()), f"{tables.name}, table {table!r}"
    names = {
        "time": column.time or usual.time,
        "code": column.code or usual.code,
        "value": column.value or usual.value,
        "unit": column.unit or usual.unit,
    }
    is_timed = math.isfinite(column.start) or math.isfinite(column.end) or column.hours > 0
    of_rows = (table, by) == (rows.table.lower(), rows.key.lower())  # one event a row needs no order
    needed = {
        "time": is_timed or (column.take in ("first", "last") and not of_rows),
        "code": bool(column.codes) or column.take == "codes",
        "value": column.take not in ("count", "any", "codes"),
        "unit": bool(column.units),
    }
    for what in ("code", "value", "unit", *(["time"] if is_timed else [])):
        if needed[what] and not names[what]:
            raise DataError(f"{source}: column {column.name!r} needs {what!r}, the name of a column of this table.")
    if is_timed and not usual.minutes and not rows.index:
        raise DataError(f"{source}: column {column.name!r}: 'from', 'to' and 'hours' need 'index' of [rows].")
    if is_timed and isinstance(rows.index, IndexOf) and usual.minutes != _counts_minutes(layout, rows.index.table):
        raise DataError(
            f"{source}: column {column.name!r}: its times and the index must be both dates or both minutes."
        )
    used = {what: name.lower() for what, name in names.items() if needed[what] and name}
    if tables.event and needed["code"]:
        used["event"] = tables.event
    return _Wanted(column, table, source, by, used, usual.minutes)


def _events(tables: Tables, table: str, wanted: Sequence[_Wanted]) -> list[pd.DataFrame]:
    """The events of each of the wanted columns, in one pass over their table."""
    names = list(dict.fromkeys(name for column in wanted for name in column.names))
    parts = [[column.of(pd.DataFrame(columns=names, dtype=object))] for column in wanted]
    for frame in tables.frames(table, names):
        for own, column in zip(parts, wanted, strict=True):
            if len(part := column.of(frame)):
                own.append(part)
    return [pd.concat(own[1:] or own, ignore_index=True) for own in parts]


def _where(frame: pd.DataFrame, where: dict[str, tuple[str, ...]]) -> np.ndarray:
    chosen = np.ones(len(frame), dtype=bool)
    for name, allowed in where.items():
        chosen &= pd.Series(texts(frame[name]), dtype=object).isin(allowed).to_numpy()
    return chosen


def _hours(cells: pd.Series, what: str) -> pd.Series:
    present = cells != ""
    minutes = pd.to_numeric(cells.where(present), errors="coerce").astype(np.float64)
    if minutes[present].isna().any():
        raise DataError(f"{what}: a cell is not a number of minutes.")
    return minutes / 60.0


class Tables(Protocol):
    """A set of tables. ``name`` is how messages call it.

    event: the column by which rows of one event under several codes know each other, or "" where each row is an event.
    """

    event: ClassVar[str]

    @property
    def name(self) -> str: ...

    def frames(self, table: str, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
        """The columns (lower case) of one table in chunks. Raises DataError where one is not there."""
        ...


@dataclass(frozen=True)
class Folder:
    """CSV or Parquet files named as their tables, in a folder or its subfolders; upper and lower case are alike.

    A folder named as a table holds its parts.
    """

    event: ClassVar[str] = ""
    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def frames(self, table: str, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
        for file in self._files(table):
            present = {name.lower(): name for name in column_names(file)}
            actual = [present.get(name, name) for name in columns]
            usual = dict.fromkeys(actual, MISSING)
            for frame in read_table(file, actual, missing=usual):
                frame.columns = pd.Index(columns)
                yield frame

    def _files(self, table: str) -> list[Path]:
        files = sorted(
            file
            for file in [*self.path.glob("*"), *self.path.glob("*/*")]
            if file.is_file()
            and file.name.lower().endswith(SUFFIXES)
            and table in (file.name.lower().split(".")[0], file.parent.name.lower() if file.parent != self.path else "")
        )
        if not files:
            raise DataError(f"{self.path}: there is no table {table!r}; it must be a {', '.join(SUFFIXES)} file here.")
        return files
