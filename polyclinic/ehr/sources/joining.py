"""Tables of several hospitals as one: which of their columns are the same, and which have a role."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from polyclinic.ehr.sources.cells import plain_name, usual_name
from polyclinic.ehr.sources.draft_numbers import named_units_convert, with_named_unit, without_unit
from polyclinic.errors import ConfigError, DataError, nearest, several

_PATIENTS = (
    "patient_id", "subject_id", "person_id", "uniquepid", "patient", "mrn", "pid", "patient_nr", "patient_no", "patient_number",
    "patient_nbr", "nhs_number", "patientennummer", "patienten_id", "subject", "id",
)  # fmt: skip
_SITES = (
    "hospital", "site", "hospital_id", "site_id", "hospital_name", "site_name", "hospital_code", "centre", "center", "clinic",
    "klinik", "krankenhaus",
)  # fmt: skip
_LABELS = (
    "label",
    "outcome",
    "target",
    "died",
    "death",
    "dead",
    "mortality",
    "event",
    "verstorben",
    "gestorben",
    "deces",
)


@dataclass(frozen=True)
class Roles:
    """Names of columns: of the outcome, the patient and the hospital, "" where there is none, and those that are no features."""

    label: str
    patient: str
    site: str
    leave_out: frozenset[str] = frozenset()

    @classmethod
    def find(
        cls, names: Sequence[str], label: str = "", patient: str = "", site: str = "", leave_out: Sequence[str] = (),
        label_by: str = "--label",
    ) -> Roles:  # fmt: skip
        """Return the roles of the named columns, however they are spelt; usual names stand in where none is given.

        Args:
            names: The columns of the tables.
            label: The label's column; empty looks for a usual name.
            patient: The patients' column; empty looks for a usual name.
            site: The hospitals' column; empty means none.
            leave_out: Columns that are not read.
            label_by: The option that names the label.

        Raises:
            ConfigError: For names that are no columns, all of them at once.
        """
        asked = [(label_by, label), ("--patient", patient), ("--site", site), *(("--leave-out", x) for x in leave_out)]
        own = {name: name if name in names else usual_name(names, [name]) for _, name in asked if name}
        they_have = f" They have {several(names, most=12)}."
        wrong = [
            f"{flag} names {name!r}, which is not a column of the tables."
            + (_several_labels(flag, name, names) or nearest(name, names) or they_have)
            for flag, name in asked
            if name and not own[name]
        ]
        if wrong:
            raise ConfigError(" ".join(wrong))
        return cls(
            own.get(label) or usual_name(names, _LABELS), own.get(patient) or usual_name(names, _PATIENTS), own.get(site, ""),
            frozenset(own[name] for name in leave_out),
        )  # fmt: skip


def _several_labels(flag: str, text: str, names: Sequence[str]) -> str:
    """How several labels are given, where ``text`` names several columns for the label; else ""."""
    columns = [usual_name(names, [part]) for part in text.split(",")]
    if flag != "--label" or len(columns) < 2 or not all(columns):
        return ""
    return f" For several labels, give the first by --label, and all by the key data.label: {','.join(columns)!r}."


def usual_site(names: Sequence[str]) -> str:
    """The column of a usual name for the hospital, or ""."""
    return usual_name(names, _SITES)


def join_tables(frames: Mapping[str, pd.DataFrame]) -> tuple[pd.DataFrame, pd.Series, list[str], list[str]]:
    """All rows under one spelling of each column's name, the file of each row, notes, and notes of what may make a result wrong.

    Columns of one name but for a unit in brackets, which files have each, are one where their units convert.

    Raises DataError for files that share no column with any other, which have no header or another.
    """
    commonest: dict[str, str] = {}
    renamed, joined = set(), {}
    for name, frame in frames.items():
        plain = Counter(map(plain_name, frame.columns))
        new = {
            column: commonest.setdefault(plain_name(column), column) if plain[plain_name(column)] == 1 else column
            for column in frame.columns
        }
        renamed |= {old for old, now in new.items() if old != now}
        joined[name] = frame.rename(columns=new)
    converted, doubts = _join_units(joined)
    holders = {
        column: [name for name in joined if column in joined[name]] for frame in joined.values() for column in frame
    }
    alone = [name for name, frame in joined.items() if all(len(holders[column]) == 1 for column in frame)]
    if len(joined) > 1 and alone:
        raise DataError(
            f"No column of {several(alone)} is among the others' columns; the first line of a file must name its columns, as the "
            "others' do."
        )
    notes = [f"Read as one column, for their units convert: {several(converted, most=8)}."] if converted else []
    if renamed:
        notes.append(f"Read under the other hospitals' spelling of their names: {several(sorted(renamed), most=8)}.")
    lacking = [
        f"{column} (at {len(names)} of {len(joined)})" for column, names in holders.items() if len(names) < len(joined)
    ]
    if lacking:
        notes.append(f"Not at every hospital, and missing at the others: {several(lacking, most=8)}.")
    cells = pd.concat(list(joined.values()), ignore_index=True).fillna("")
    files = np.repeat(np.array(list(joined), dtype=object), [len(frame) for frame in joined.values()])
    return cells, pd.Series(files, dtype=object), notes, doubts


def _join_units(frames: dict[str, pd.DataFrame]) -> tuple[list[str], list[str]]:
    """Make columns of one name but for the unit at its end one, in place, with the unit in each cell.

    Returns which were joined, and a doubt for each whose units do not convert.
    """
    groups: dict[str, list[str]] = {}
    for column in dict.fromkeys(column for frame in frames.values() for column in frame):
        groups.setdefault(without_unit(column), []).append(column)
    convertible, doubts = [], []
    for columns in groups.values():
        if len(columns) < 2 or any(len({*columns} & {*frame}) > 1 for frame in frames.values()):
            continue
        given = {name: sum(int((f[name] != "").sum()) for f in frames.values() if name in f) for name in columns}
        main = max(given, key=lambda name: given[name])
        names = " and ".join(map(repr, columns))
        if all(named_units_convert(column, main) for column in columns):
            convertible.append(names)
            for file, frame in frames.items():
                if own := [column for column in columns if column in frame]:
                    cells = with_named_unit(frame[own[0]], own[0])
                    frames[file] = frame.assign(**{own[0]: cells}).rename(columns={own[0]: main})
        else:
            doubts.append(
                f"{names} may be one quantity in units that are not known to convert: they are columns of their own, each "
                "missing at the hospitals that have another. Write one unit in all files."
            )
    return convertible, doubts
