"""Anyone's own tables as a dataset for a simulation: hospitals' files or data frames, read as they come, under a drafted schema.

The draft (``ehr.sources.drafting``) looks at the records, which a simulation may do and a real hospital's schema may not: no
epsilon covers it, and the run's notes say so.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from polyclinic.digests import digest
from polyclinic.ehr.datasets.dataset import Dataset
from polyclinic.ehr.schema import BEFORE_LATEST, RECORDED_ROLES, Column, Schema
from polyclinic.ehr.sources.cells import (
    CODES,
    Numbers,
    code_separator,
    decimal_marks,
    one_identifier,
    read_numbers,
    text_table,
    usual_name,
    yes_or_no,
)  # fmt: skip
from polyclinic.ehr.sources.columns import conversion
from polyclinic.ehr.sources.draft_numbers import (
    BEYOND,
    named_units_convert,
    substance_of,
    with_named_unit,
    without_unit,
)
from polyclinic.ehr.sources.drafting import draft_tables, leaks
from polyclinic.ehr.sources.files import SUFFIXES, found_files, unread_files, whole_table
from polyclinic.ehr.sources.joining import Roles, join_tables, usual_site
from polyclinic.ehr.sources.visits import Visits, sequences, unroll, visit_times
from polyclinic.errors import ConfigError, DataError, nearest, several

SITE = "hospital"
_MOST_STEPS = 100
_ROWS_OF_SITE = 20  # of each hospital on average, at the least
_SITES = re.compile(
    r"hosp|klinik|clinic($|[\W_])|cent(er|re)|site|trust|facility|institution|krankenhaus|h[oô]pital", re.I
)
_HELD: dict[str, Mapping[str, pd.DataFrame]] = {}


@dataclass(frozen=True)
class Reading:
    """How the columns of tables are read.

    Args:
        label, patient: Columns of the outcome and of the patient; where they are empty, those of a usual name.
        site: Column of the hospital, where tables hold several.
        leave_out: Columns that are no features, such as those written after the outcome.
        missing: Texts that stand for a missing cell, in any column, beside the usual ones.
        time, steps: Of visits, several rows a patient: the column of their time, and how many of the latest become the steps of
            trajectories.
        kind: "ordered" or "number" where the run's objective takes such a label alone; "time" where the label is an analysis's
            time, a number too.
    """

    label: str = ""
    patient: str = ""
    site: str = ""
    leave_out: str | Sequence[str] = ()
    missing: str | Sequence[str] = ()
    time: str = ""
    steps: int = 0
    kind: Literal["", "ordered", "number", "time"] = ""

    def __post_init__(self) -> None:
        for name in ("leave_out", "missing"):
            object.__setattr__(self, name, tuple(filter(None, _several(getattr(self, name)))))


def tables(files: str | Sequence[str] = "", frames: str = "", **columns: Any) -> Dataset:
    """The dataset of files or data frames.

    Args:
        files: A folder or a pattern of CSV or Parquet files, one for each hospital; one file of all hospitals; or several, each
            as ``path`` or ``name=path``.
        frames: What ``hold`` returned for data frames, in place of ``files``.
        columns: The fields of ``Reading``.

    Raises:
        ConfigError: for a column that does not exist, with the nearest name.
        DataError: for files that cannot be read, and for tables that nothing can be learned from.
    """
    reading = Reading(**columns)
    if frames:
        if frames not in _HELD:
            raise ConfigError(
                "The run's tables are data frames of the Python session that began it, which other processes do not have; write "
                "them to files and give Federation.from_tables their paths."
            )
        return _from_frames(frames, reading)
    places = hospital_files(files)
    stamps = tuple((str(file), file.stat().st_mtime_ns, file.stat().st_size) for _, file in places)
    unread = tuple(file.name for text in _several(files) for file in unread_files(Path(text.partition("=")[2] or text)))
    return _from_files(tuple(name for name, _ in places), stamps, unread, _title(files), reading)


def hold(frames: Mapping[str, pd.DataFrame]) -> str:
    """Keep data frames, one for each hospital, for runs of this process; returns the text that stands for them."""
    parts = [
        f"{name} {list(frame.columns)} {pd.util.hash_pandas_object(frame.astype(str), index=False).sum()}"
        for name, frame in frames.items()
    ]
    key = digest(*parts)
    _HELD[key] = {name: frame.copy() for name, frame in frames.items()}
    return key


def absolute(place: str) -> str:
    """``path`` or ``name=path`` with the path from the root, so that processes that work elsewhere find it too."""
    name, equals, path = place.rpartition("=")
    return f"{name}{equals}{Path(path).expanduser().resolve()}"


def hospital_files(files: str | Sequence[str]) -> list[tuple[str, Path]]:
    """Each hospital's name and file, as ``tables`` takes them. Raises ConfigError where there are none, or two of a name."""
    given = _several(files)
    if not any(given):
        raise ConfigError(
            "The dataset 'tables' needs files; give `--data FOLDER`, or dataset-options=\"files='FOLDER', label='COLUMN'\"."
        )
    places = []
    for text in given:
        name, equals, path = text.partition("=")
        for file in found_files(Path(path if equals else text).expanduser()):
            places.append((name.strip() if equals else _stem(file), file))
    names = Counter(name for name, _ in places)
    if twice := [name for name, times in names.items() if times > 1]:
        raise ConfigError(f"Two files are of a hospital named {twice[0]!r}; give them other names, as name=path.")
    return places


def _stem(file: Path) -> str:
    suffix = next(suffix for suffix in SUFFIXES if file.name.lower().endswith(suffix))
    return file.name[: -len(suffix)]


def _title(files: str | Sequence[str]) -> str:
    return Path(_several(files)[0].rpartition("=")[2]).stem.removesuffix(".csv") or "tables"


def _several(texts: object) -> tuple[str, ...]:
    """One text or several; a number, as -9 may have been read, as its text."""
    return tuple(map(str, texts)) if isinstance(texts, list | tuple) else (str(texts),)


@lru_cache(maxsize=4)
def _from_frames(key: str, reading: Reading) -> Dataset:
    return _dataset(_HELD[key], f"tables-{key[:8]}", reading)


@lru_cache(maxsize=4)
def _from_files(
    names: tuple[str, ...],
    stamps: tuple[tuple[str, int, int], ...],
    unread: tuple[str, ...],
    title: str,
    reading: Reading,
) -> Dataset:
    frames, problems = {}, []
    for name, (file, _, _) in zip(names, stamps, strict=True):
        try:
            frames[name] = whole_table(Path(file))
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    notes = [f"Not read, for they are neither CSV nor Parquet: {several(unread)}."] if unread else []
    return _dataset(frames, title, reading, notes)


def _dataset(frames: Mapping[str, pd.DataFrame], title: str, reading: Reading, notes: Sequence[str] = ()) -> Dataset:
    empty = [name for name, frame in frames.items() if frame.empty]
    if len(empty) == len(frames):
        what = "rows" if any(len(frame.columns) for frame in frames.values()) else "columns"
        raise DataError(f"There are no {what} in the table of {several(empty)}.")
    cells, files, spelt, doubts = join_tables(
        {name: text_table(frame, reading.missing) for name, frame in frames.items()}
    )
    site = reading.site or (usual_site(list(cells)) if len(frames) == 1 else "")
    label_by = "--time" if reading.kind == "time" else "--label"
    roles = Roles.find(list(cells), reading.label, reading.patient, site, reading.leave_out, label_by)
    time, steps = _visits(reading, roles, list(cells))
    if not roles.label:
        raise ConfigError(
            f"The tables need a label; name the column of the outcome by --label: {several(cells, most=12)}."
        )
    twice = {
        name
        for frame in frames.values()
        for name, times in Counter(str(column).strip() for column in frame).items()
        if times > 1
    } - {""}
    if unclear := twice & {roles.label, roles.patient, roles.site}:
        raise DataError(f"{title}: two columns are named {min(unclear)!r}; give them names of their own.")
    others = [] if roles.site else _likely_sites(cells, files, roles)
    sites = cells.pop(roles.site) if roles.site else files
    cells, sites, lost = _whole(
        cells, sites, roles, sites if roles.site else [name for name in frames if name not in empty]
    )
    if empty:
        lost.append(f"Hospitals that take no part, for their table has no rows: {several(empty)}.")
    if cells.empty:
        raise DataError(f"{title}: no row has a value in the label column {roles.label!r}; name another by --label.")
    several_sites = bool(roles.site) or len(frames) > 1
    draft = draft_tables(cells.drop(columns=time) if time else cells, sites, roles, reading.kind)
    if all(column.get("role") for column in draft.columns):
        raise DataError(f"{title}: no column can be learned from. {' '.join(draft.doubts)}".strip())
    if several_sites:
        column = SITE if SITE not in draft.records else f"{SITE} of the table"
        draft.add(sites, name=column, kind="categorical", role="site")
    if roles.patient and several_sites:
        patients, shared = own_patients(roles.patient, draft.records[roles.patient], sites)
        draft.records[roles.patient] = patients
        draft.notes += shared
    if several_sites:
        rows = pd.util.hash_pandas_object(cells, index=False).groupby(sites).sum()
        if again := list(map(str, rows.index[rows.duplicated()])):
            draft.notes.append(f"The rows of {several(again)} are those of another hospital; give a file only once.")
    if twice:
        draft.reads(
            "Of columns with the same name, each after the first has its place in the table added to its name",
            *sorted(twice),
        )
    if time:
        order = Visits.of(draft.records[roles.patient], visit_times(cells[time], time, sites), steps)
        draft, last = unroll(draft, order), order.last
        cells, sites = cells.loc[last].reset_index(drop=True), sites.loc[last].reset_index(drop=True)
    leaking, answers = leaks(draft, roles.label), draft.records[roles.label].groupby(sites).nunique()
    if several_sites and (alike := list(map(str, answers.index[answers == 1]))):
        draft.notes.append(f"All labels are the same at {several(alike)}: nothing can be judged there.")
    unit = "patient" if roles.patient else "record"
    schema = Schema.from_dict({"name": title, "unit": unit, "columns": draft.columns})
    # Columns that are no features may split the patients by time.
    records = pd.DataFrame({**draft.records, **{name: cells[name] for name in cells if name not in draft.records}})
    hospitals = tuple(dict.fromkeys(sites)) if several_sites else ()
    drafted = (
        "The schema was drafted from the records themselves, which no epsilon covers: a simulation may look; real hospitals need "
        "public bounds and categories, which `polyclinic schema draft` lists for confirmation."
    )
    head = [
        f"The label is {roles.label!r}, the patient {repr(roles.patient) if roles.patient else 'each row'}, the hospital "
        + (f"the value of {roles.site!r}." if roles.site else "the file." if several_sites else "dealt.")
        + (f" {draft.label}" if draft.label else ""),
    ]
    if not roles.patient:
        copies = int(cells.duplicated().sum())
        same = f" {copies:,} rows are copies of others." if copies else ""
        head.append(f"No column names the patient, so that each row counts as one: name it by --patient.{same}")
    likely = several([f"`--site {shlex.quote(name)}`" for name in others], most=3)
    if not several_sites:
        head.append(
            "Records were dealt evenly to made-up hospitals, for no column is known to name theirs; give it "
            f"{f'by {likely}, if that is it' if likely else 'by --site'}."
        )
    elif likely:
        head.append(f"Each file is taken for a hospital. If a column names the hospitals, give it by {likely}.")
    if leaking:
        each = "each of " if leaking[1:] else ""
        head.insert(
            0,
            f"Alone, {each}{several(map(repr, leaking), most=12)} tells the label of nearly every row. Leave out by --leave-out "
            "whatever is written after the outcome, or the model only copies it.",
        )
    return Dataset(
        name=title, title=f"{title}, tables of one's own", description="Tables that were given for this run.", schema=schema,
        licence="yours", citation="yours", patients=records[roles.patient].nunique() if roles.patient else len(records),
        rows=len(records), default_sites=len(hospitals) or 4, default_partitioner="natural" if hospitals else "iid",
        load=lambda: records.copy(), available=lambda: True, natural_sites=hospitals,
        notes=(*head, *doubts, *notes, *lost, *draft.doubts), readings=(drafted, *spelt, *draft.all_readings),
    )  # fmt: skip


def _likely_sites(cells: pd.DataFrame, files: pd.Series, roles: Roles) -> list[str]:
    """Columns that may name the hospital: by their names, a few values of many rows each, several of them within a file."""
    named = [
        name for name in cells if _SITES.search(name) and name not in {roles.label, roles.patient, *roles.leave_out}
    ]
    values = {name: cells.loc[cells[name] != "", name] for name in named}
    return [
        name
        for name, given in values.items()
        if given.nunique() <= len(given) / _ROWS_OF_SITE and (given.groupby(files).nunique() > 1).any()
    ]


def _visits(reading: Reading, roles: Roles, names: Sequence[str]) -> tuple[str, int]:
    """The column of the visits' time and the number of steps; "" and 0 where rows are no visits."""
    time, steps = reading.time, reading.steps
    if not time and not steps:
        return "", 0
    own = time if time in names else usual_name(names, [time])
    if time and not own:
        raise ConfigError(
            f"--time names {time!r}, which is not a column of the tables."
            f"{nearest(time, names) or f' They have {several(names)}.'}"
        )
    given = {"--time, the column of their time": own, "--steps": steps, "--patient": roles.patient}
    if lacking := [option for option, value in given.items() if not value]:
        raise ConfigError(f"Visits become sequences by --time, --steps and --patient; give {several(lacking)} too.")
    if not 2 <= steps <= _MOST_STEPS:
        raise ConfigError(f"--steps is {steps}, which must be from 2 to {_MOST_STEPS}.")
    return own, steps


def _whole(
    cells: pd.DataFrame, sites: pd.Series, roles: Roles, hospitals: Iterable[str]
) -> tuple[pd.DataFrame, pd.Series, list[str]]:
    """The rows that have a label, a patient and a hospital, their hospitals, and notes of the others and of hospitals without."""
    lacks = {"the label": cells[roles.label] == "", "the hospital": sites == ""}
    if roles.patient:
        lacks["the patient"] = cells[roles.patient] == ""
    whole = ~np.logical_or.reduce(list(lacks.values()))
    counts = [f"{int(rows.sum()):,} {what}" for what, rows in lacks.items() if rows.any()]
    notes = [f"Rows left out, of {len(cells):,}, for what they lack: {', '.join(counts)}."] if counts else []
    if gone := [name for name in dict.fromkeys(filter(None, hospitals)) if name not in set(sites[whole])]:
        notes.append(f"Hospitals that take no part, for none of their rows is whole: {several(gone)}.")
    return cells[whole].reset_index(drop=True), sites[whole].reset_index(drop=True), notes


def own_patients(patient: str, cells: pd.Series, sites: pd.Series) -> tuple[pd.Series, list[str]]:
    """Return (rows,) patients with the hospital's name before the number, and a note where numbers are at several hospitals.

    Args:
        patient: The name of the patient column, for the note.
        cells: (rows,) the patients' numbers as text.
        sites: (rows,) the hospitals' names.
    """
    own, hospitals_of = sites + "/" + cells, sites.groupby(cells).nunique()
    if not (shared := int((hospitals_of > 1).sum())):
        return own, []
    return own, [
        f"{shared:,} values of {patient!r} occur at several hospitals and are taken for different patients. If they are the same "
        f"people, set privacy.overlap to {hospitals_of.max()}, so that epsilon covers all their hospitals."
    ]


def read_as(frame: pd.DataFrame, schema: Schema) -> tuple[pd.DataFrame, list[str]]:
    """New rows under a schema that ``tables`` drafted, its features, and its label where the frame has it; and notes.

    Cells may be written as they were in the tables. Of visits a row is a patient, with a column for each step, as ``pulse_00``.
    A column that is not there is missing in every row where the schema allows that, with a note.

    Raises:
        DataError: for other columns that are not there, all of them at once, and for a comma that may stand for a point or for
            thousands.
    """
    return _read_as(text_table(frame), schema, [(name, c) for c in schema.columns for name in c.record_names])


def read_visits(frame: pd.DataFrame, schema: Schema, time: str) -> tuple[pd.DataFrame, pd.Index, list[str]]:
    """New visits under a schema that ``tables`` drafted with ``time`` and ``steps``: one row for each patient, as ``read_as``.

    Args:
        frame: Visits as they stand in the tables, with the columns of the patient and of ``time``.
        schema: It has trajectories.
        time: The column of the visits' time.

    Returns:
        The records, their patients by the identifiers of the frame, and notes of what was left out.

    Raises:
        DataError: as ``read_as``, and where no visit has a time.
    """
    cells, patient = text_table(frame), schema.patient_id
    assert patient is not None, "a sequence is of a patient"
    own = {name: name if name in cells else usual_name(cells, [name]) for name in (patient.name, time)}
    if lacking := [name for name, there in own.items() if not there]:
        raise DataError(
            f"The table lacks columns that visits need: {several(map(repr, lacking))}.{nearest(lacking[0], cells)}"
        )
    given = cells[own[patient.name]]
    named = (given != "").to_numpy()
    cells, given = cells[named].reset_index(drop=True), given[named].reset_index(drop=True)
    steps = next(column.steps for column in schema.columns if column.kind == "trajectory")
    visits = Visits.of(one_identifier(given), visit_times(cells[own[time]], time), steps)
    if visits.rows.empty:
        raise DataError("The table has no visit of a named patient whose time can be read.")
    wanted = [(column.name, column) for column in schema.columns if column.name != BEFORE_LATEST]
    read, notes = _read_as(cells, schema, wanted)
    records = sequences(read, visits, schema)
    lost = {"patient": int((~named).sum()), "time that can be read": visits.undated}
    notes += [f"{rows:,} rows without a {what} are left out." for what, rows in lost.items() if rows]
    return records, pd.Index(given[visits.last], name=patient.name), notes


def _read_as(
    cells: pd.DataFrame, schema: Schema, wanted: Sequence[tuple[str, Column]]
) -> tuple[pd.DataFrame, list[str]]:
    """The ``wanted`` columns of records, each of a column of the schema, read from trimmed text, and notes."""
    columns = {column.name: column for column in schema.columns}
    records, absent, unclear = dict[str, pd.Series](), dict[str, bool](), list[str]()
    for name, column in wanted:
        limited = name.removesuffix(BEYOND)
        source = limited if limited in columns and not usual_name(cells, [name]) else name
        own = source if source in cells else usual_name(cells, [source])
        if column.role not in RECORDED_ROLES or (column.is_label and not own):
            continue
        if not own:
            own = next((other for other in cells if _is_in_another_unit(other, source)), "")
        if not own:
            absent.setdefault(source, may_lack(columns.get(source, column), cells))
        given = cells[own] if own else pd.Series("", index=cells.index, dtype=object)
        given = with_named_unit(given, own) if own and _is_in_another_unit(own, source) else given
        commas = given.str.contains(",", regex=False).any()
        sure = decimal_marks(given) if commas else frozenset()
        numbers = read_numbers(given, "," if sure == {","} else ".")
        if source != name:
            records[name] = numbers.beyond.astype("Int64")
        elif column.kind in ("integer", "continuous", "trajectory"):
            if commas and not sure:
                unclear.append(own)
            values = _within(numbers, column)
            values = values.round() if column.kind == "integer" or column.whole else values
            records[name] = values.astype("Int64") if column.kind == "integer" else values
        elif column.kind == "binary" and not column.categories:
            unlike = {cell for cell in given.unique() if yes_or_no(pd.Series([cell], dtype=object)) is None}
            truth = yes_or_no(given.where(~given.isin(unlike), ""))
            assert truth is not None
            records[name] = truth.where(~given.isin(unlike), given) if unlike else pd.to_numeric(truth).astype("Int64")
        elif column.kind == "code_set":
            mark = code_separator(given) or ";"
            records[name] = given.str.split(mark).map(
                lambda codes: ";".join(code.strip() for code in codes if code.strip())
            )
        else:
            spelling = {category.casefold(): category for category in column.categories}
            records[name] = given.map(lambda cell, spelling=spelling: spelling.get(cell.casefold(), cell) or None)
    notes = lacking_notes(absent, schema, cells)
    if unclear:
        raise DataError(
            f"In {several(map(repr, unclear), most=8)} a comma before three digits may stand for a point or for thousands; write "
            "numbers with points."
        )
    return pd.DataFrame(records, index=cells.index), notes


def _is_in_another_unit(name: str, other: str) -> bool:
    return name != other and without_unit(name) == without_unit(other) and named_units_convert(name, other)


def may_lack(column: Column, names: Iterable[str]) -> bool:
    """Whether a table of these columns may lack the column: its cells may be missing, and no step of a trajectory is there."""
    return (column.nullable or column.kind == "code_set") and not set(column.record_names) & set(names)


def lacking_notes(absent: Mapping[str, bool], schema: Schema, names: Iterable[str]) -> list[str]:
    """Return a note of the columns that a table lacks, and whose every cell so is missing.

    Args:
        absent: By each column's name whether it may be lacking.
        schema: The schema under which the table is read.
        names: The table's own columns, of which the note names a similar one.

    Raises:
        DataError: For columns that may not be lacking, and where no feature would be left.
    """
    names = list(names)
    if needed := [name for name, may in absent.items() if not may]:
        raise DataError(
            f"The table lacks columns that the model needs: {several(map(repr, needed), most=8)}.{nearest(needed[0], names)} The "
            "schema allows no missing cell in them, so that an empty column does not help."
        )
    if absent.keys() >= {column.name.removesuffix(BEYOND) for column in schema.features}:
        raise DataError(f"The table has no column that the model reads: {several(map(repr, absent), most=8)}.")
    similar = nearest(next(iter(absent)), names) if absent else ""
    lacking = several(map(repr, absent), most=8)
    return [f"The table lacks columns, which are read as missing in every row: {lacking}.{similar}"] if absent else []


def _within(numbers: Numbers, column: Column) -> pd.Series:
    """The numbers in the column's unit, without codes for missing that lie far beyond its bounds."""
    values = numbers.values.copy()
    low, high = column.bounds or (-np.inf, np.inf)
    for unit in set(numbers.units) - {"", column.unit.lower()} if column.unit else ():
        try:
            factor, offset = conversion(unit, column.unit, substance_of(column.name))
        except ConfigError as error:
            raise DataError(f"Column {column.name!r}: {error}") from None
        here = numbers.units == unit
        values[here] = values[here] * factor + offset
    far = ((values < 0) & (low >= 0)) | ((values > 1.5 * high) & (high > 0))
    return values.where(~(far & values.isin(CODES)))
