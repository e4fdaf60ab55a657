"""Coarser records: fewer columns, the labels of hierarchies, rounding, limits, shifted dates.

Every rule is public and declared, so nothing is estimated from records. A rule gives the column's cells and the column
of the schema that fits them, so that coarsened records train as any others. Coarser is not private: it takes detail
away, and proves nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field, SerializeAsAny

from polyclinic.ehr.anonymity.hierarchies import KINDS as HIERARCHIES
from polyclinic.ehr.anonymity.hierarchies import MOST_INTERVALS, Finite, Hierarchy, Intervals, coarser_column
from polyclinic.ehr.checks import code_sets, codes, numbers, texts
from polyclinic.ehr.dates import ISO_DATE
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError, DataError, nearest
from polyclinic.files import SECRET, reason, write_file
from polyclinic.toml import Declared, build_model, read_model
from polyclinic.types import Floats

_KEY_BYTES = 32
_IDENTIFIERS = ("patient_id", "site", "time")


class Generalise(Finite):
    """A column's labels at a ``level`` of a hierarchy, the last one by default: in the file the hierarchy's own keys.

    The largest number that the public bounds allow belongs to the last interval.
    """

    column: str
    hierarchy: SerializeAsAny[Hierarchy]
    level: int = Field(0, ge=0)

    @property
    def kind(self) -> str:
        return self.hierarchy.kind

    def apply(self, values: pd.Series, column: Column) -> tuple[pd.Series, Column]:
        """The labels. Raises ConfigError for another kind of column, a level that is not there, and where one label is left."""
        hierarchy, numeric = self.hierarchy, isinstance(self.hierarchy, Intervals)
        if self.level > hierarchy.levels:
            raise refusal(column, self.kind, f"level must be {hierarchy.levels} at most, as many as it has")
        if isinstance(hierarchy, Intervals):
            last, whole = _bounds(column, self.kind)[1], hierarchy.whole and column.kind == "integer"
            hierarchy = hierarchy.model_copy(update={"last": last, "whole": whole})
        elif column.kind not in ("categorical", "code_set"):
            raise refusal(column, self.kind, f"kind {column.kind!r} has no codes; allowed are categorical and code_set")
        level = self.level or hierarchy.levels
        if numeric and len(hierarchy.points(*_bounds(column, self.kind), level)) > MOST_INTERVALS:
            raise refusal(
                column, self.kind, f"the public bounds hold more than {MOST_INTERVALS:,} intervals; give wider ones"
            )
        coarse = coarser_column(column, hierarchy, level)
        if coarse is None:
            raise refusal(
                column, self.kind, "all cells become one, which tells nothing; leave the column out of `keep` instead"
            )
        return _label_cells(values, column, lambda cell: hierarchy.labels(cell)[level - 1]), coarse


class Round(Finite):
    """Numbers to the nearest multiple of ``to``; the bounds too."""

    column: str
    to: float
    kind: Literal["round"] = "round"

    def apply(self, values: pd.Series, column: Column) -> tuple[pd.Series, Column]:
        """The rounded numbers. Raises ConfigError for a column without bounds, and where one multiple alone is left."""
        bounds = _bounds(column, "round")
        if not (self.to > 0 and math.isfinite(self.to)):
            raise refusal(column, "round", "to must be positive and finite")
        if column.kind == "integer" and not self.to.is_integer():
            raise refusal(column, "round", "to must be a whole number for a column of kind 'integer'")
        low, high = (float(np.round(bound / self.to) * self.to) for bound in bounds)
        if low >= high:
            raise refusal(column, "round", "to leaves one number of the public bounds; give a smaller one")
        cells = np.clip(np.round(numbers(values, column, column.name) / self.to) * self.to, low, high)
        return _numeric(cells, values, column), _update(column, bounds=(low, high))


class Limit(Finite):
    """Top- and bottom-coding: numbers above ``high`` become ``high``, those below ``low`` become ``low``."""

    column: str
    low: float | None = None
    high: float | None = None
    kind: Literal["limit"] = "limit"

    def apply(self, values: pd.Series, column: Column) -> tuple[pd.Series, Column]:
        """The limited numbers. Raises ConfigError for a column without bounds and where the limits leave nothing."""
        low, high = _bounds(column, "limit")
        low = low if self.low is None else max(low, self.low)
        high = high if self.high is None else min(high, self.high)
        if low >= high:
            raise refusal(column, "limit", "low and high must leave a part of the public bounds")
        return _numeric(np.clip(numbers(values, column, column.name), low, high), values, column), _update(
            column, bounds=(low, high)
        )


class ShiftDates(Finite):
    """Dates moved by a number of days that is each patient's own, so that intervals within a patient stay.

    most: days, at most that far either way. The numbers follow from the patient's id and a key that the hospital keeps
    to itself (HMAC-SHA-256): who has the key can undo them, who has not cannot.
    """

    column: str
    most: int = 365
    kind: Literal["shift-dates"] = "shift-dates"


def _label_cells(values: pd.Series, column: Column, label: Callable[[Any], str]) -> pd.Series:
    """The cells' labels, those of codes in a set each; missing cells stay missing."""
    if column.bounds is not None:
        cells = numbers(values, column, column.name).tolist()
        of_number = {cell: label(cell) for cell in dict.fromkeys(cells) if not math.isnan(cell)}
        return pd.Series([of_number.get(cell) for cell in cells], dtype=object, index=values.index)
    of_code = {category: label(category) for category in column.categories}
    if column.kind == "categorical":
        codes(values, column, column.name)
        coarse = [of_code[cell] if cell else None for cell in texts(values)]
        return pd.Series(coarse, dtype=object, index=values.index)
    code_sets(values, column, column.name)
    sets = ([of_code[code.strip()] for code in cell.split(";") if code.strip()] for cell in texts(values))
    return pd.Series([";".join(dict.fromkeys(labels)) for labels in sets], dtype=object, index=values.index)


def _numeric(cells: Floats, values: pd.Series, column: Column) -> pd.Series:
    series = pd.Series(cells, index=values.index)
    return series.astype("Int64" if column.nullable else "int64") if column.kind == "integer" else series


def _bounds(column: Column, what: str) -> tuple[float, float]:
    if column.kind not in ("integer", "continuous") or column.bounds is None:
        raise refusal(column, what, f"kind {column.kind!r} has no numbers; allowed are integer, continuous")
    return column.bounds


def refusal(column: Column, what: str, sentence: str) -> ConfigError:
    """Return the error to raise where a rule does not suit its column.

    Args:
        column: The column of the rule.
        what: The rule's kind.
        sentence: The reason, without a full stop.
    """
    return ConfigError(f"Coarsening: rule {what!r} of column {column.name!r}: {sentence}.")


def _update(column: Column, **changes: Any) -> Column:
    return Column(**(column.model_dump() | changes))


Rule = Generalise | Round | Limit | ShiftDates
_KINDS: dict[str, type[Rule]] = {"round": Round, "limit": Limit, "shift-dates": ShiftDates}


@dataclass(frozen=True)
class Coarsening:
    """keep: the columns that stay, all where it is empty. rules: applied in order."""

    rules: tuple[Rule, ...] = ()
    keep: tuple[str, ...] = ()

    @property
    def needs_key(self) -> bool:
        """Whether a rule shifts dates."""
        return any(isinstance(rule, ShiftDates) for rule in self.rules)


def read_coarsening(path: str | Path) -> Coarsening:
    """The rules in a TOML file: ``keep = [...]`` and one ``[[rules]]`` table each, with ``kind`` and ``column``.

    Raises ConfigError naming the file and the field.
    """
    file = read_model(_File, path, "file of rules")
    rules = (_rule(given, f"{path}: rule {place}") for place, given in enumerate(file.rules, 1))
    return Coarsening(tuple(rules), tuple(file.keep))


class _File(Declared):
    keep: list[str] = []
    rules: list[dict[str, Any]] = []


def _rule(given: Mapping[str, Any], source: str) -> Rule:
    kind = given.get("kind")
    if kind in _KINDS:
        return build_model(_KINDS[kind], given, source)
    if kind not in HIERARCHIES:
        allowed = [*HIERARCHIES, *_KINDS]
        hint = nearest(str(kind), allowed)
        raise ConfigError(f"{source}: kind is {kind!r}; it must be one of {', '.join(allowed)}.{hint}")
    own = {name: value for name, value in given.items() if name in ("column", "level")}
    hierarchy = build_model(
        HIERARCHIES[kind], {name: value for name, value in given.items() if name not in own}, source
    )
    return build_model(Generalise, {**own, "hierarchy": hierarchy}, source)


def coarsen(
    records: pd.DataFrame, schema: Schema, coarsening: Coarsening, key: bytes | None = None
) -> tuple[pd.DataFrame, Schema]:
    """Return the coarser records and the schema that they fit; ``records`` stay as they are.

    Args:
        records: The table, one row for each record.
        schema: The schema that the records fit.
        coarsening: The columns that stay and the rules that coarsen them.
        key: 32 secret bytes (``new_key``), needed where dates are shifted.

    Raises:
        ConfigError: For a rule that does not suit its column or names none.
        DataError: For cells that the schema does not allow.
    """
    columns = {column.name: column for column in schema.columns if column.is_read}
    for name in (*coarsening.keep, *(rule.column for rule in coarsening.rules)):
        if name not in columns:
            raise ConfigError(f"Coarsening: schema {schema.name!r} has no column {name!r}.{nearest(name, columns)}")
    if coarsening.keep:
        columns = {name: column for name, column in columns.items() if name in coarsening.keep}
    cells = {name: records[name] for column in columns.values() for name in column.record_names}
    for rule in coarsening.rules:
        if (column := columns.get(rule.column)) is None:
            raise ConfigError(f"Coarsening: a rule is for column {rule.column!r}, which `keep` leaves out.")
        if column.kind == "trajectory" or (column.role in _IDENTIFIERS and not isinstance(rule, ShiftDates)):
            raise refusal(
                column, rule.kind, f"a column of kind {column.kind!r} and role {column.role!r} stays as it is"
            )
        if isinstance(rule, ShiftDates):
            cells[rule.column] = _shift_dates(records, schema, rule, key)
        else:
            cells[rule.column], columns[rule.column] = rule.apply(cells[rule.column], column)
    return pd.DataFrame(cells), Schema(name=schema.name, columns=tuple(columns.values()), unit=schema.unit)


def _shift_dates(records: pd.DataFrame, schema: Schema, rule: ShiftDates, key: bytes | None) -> pd.Series:
    if schema.patient_id is None:
        raise ConfigError("Coarsening: shift-dates needs a patient_id column in the schema.")
    if key is None or len(key) < _KEY_BYTES or rule.most < 1:
        raise ConfigError("Coarsening: shift-dates needs a secret key of 32 bytes, and most must be 1 or greater.")
    patients = texts(records[schema.patient_id.name])
    days = {patient: shift_days(patient, key, rule.most) for patient in set(patients)}
    out: list[str | None] = []
    for row, (cell, patient) in enumerate(zip(texts(records[rule.column]), patients, strict=True), 1):
        try:
            out.append(shifted_date(cell, days[patient]) if cell else None)
        except (ValueError, OverflowError):
            raise DataError(
                f"Coarsening: column {rule.column!r}, data row {row}: the cell is not a date such as 2024-05-17; "
                "correct the record."
            ) from None
    return pd.Series(out, dtype=object, index=records.index)


def new_key() -> bytes:
    """32 bytes of the operating system's entropy: a key for ``shift_days`` that the hospital keeps secret."""
    return secrets.token_bytes(_KEY_BYTES)


def key_in(path: Path) -> bytes:
    """The key in a file, made there for its owner's eyes alone if there is none. Raises ConfigError for another file."""
    if not path.exists():
        key = new_key()
        try:
            write_file(path, key.hex() + "\n", mode=SECRET, exclusive=True)
        except OSError as error:
            raise ConfigError(f"{path}: the key cannot be written: {reason(error)}.") from None
        return key
    try:
        key_bytes = bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        key_bytes = b""
    if len(key_bytes) != _KEY_BYTES:
        raise ConfigError(f"{path}: it must hold a key of {_KEY_BYTES} bytes in hexadecimal, or not exist.")
    return key_bytes


def shift_days(patient: str, key: bytes, most: int) -> int:
    """Return the days, from -most to most, by which a patient's dates move: the same for one patient and key.

    HMAC-SHA-256 of the patient under the key gives the number.

    Args:
        patient: The patient's id as text.
        key: The secret key.
        most: The largest shift in days.
    """
    word = int.from_bytes(hmac.new(key, patient.encode(), hashlib.sha256).digest()[:16], "big")
    return word % (2 * most + 1) - most


def shifted_date(cell: str, days: int) -> str:
    """The ISO date at the start of the cell moved; what follows it, such as the time of day, stays.

    Raises ValueError where there is none, OverflowError where the calendar ends.
    """
    if not ISO_DATE.match(cell):
        raise ValueError("no date such as 2024-05-17")
    return f"{(date.fromisoformat(cell[:10]) + timedelta(days)).isoformat()}{cell[10:]}"
