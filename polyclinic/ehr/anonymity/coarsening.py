"""Coarser records: fewer columns, public bins, rounding, limits, code chapters, short ZIP codes, shifted dates.

Every rule is public and declared, so nothing is estimated from records. A rule gives the column's cells and the column
of the schema that fits them, so that coarsened records train as any others. Coarser is not private: it takes detail
away, and proves nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import ConfigDict

from polyclinic.ehr.anonymity.labels import ISO_DATE, CodeSystem, chapter, interval_name, short_zip, three_digits
from polyclinic.ehr.checks import code_sets, codes, numbers, texts
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError, DataError, nearest
from polyclinic.files import SECRET, reason, write_file
from polyclinic.toml import Declared, checked, read_model
from polyclinic.types import Floats

_MOST_BINS = 10_000
_KEY_BYTES = 32
_IDENTIFIERS = ("patient_id", "site", "time")


class Finite(Declared):
    """A declared table whose numbers are finite."""

    model_config = ConfigDict(allow_inf_nan=False)


class Bins(Finite):
    """Numbers into bins: of one ``width`` from ``low`` to ``high``, or between ``edges``.

    What the public bounds allow beyond is a bin at either end. A bin holds its lower end and not its upper end; the last one
    holds both where the public bounds end there. The column becomes ordinal.
    """

    column: str
    low: float | None = None
    high: float | None = None
    width: float | None = None
    edges: tuple[float, ...] = ()
    do: Literal["bins"] = "bins"

    def apply(self, values: pd.Series, column: Column) -> tuple[pd.Series, Column]:
        """The names of the bins. Raises ConfigError for a column without public bounds and for impossible bins."""
        low, high = _bounds(column, "bins", ("integer", "continuous"))
        edges = self._edges(column)
        whole = column.kind == "integer" and all(edge.is_integer() for edge in edges)
        names = [interval_name(a, b, whole) for a, b in pairwise(edges)]
        cells = numbers(values, column, column.name)
        place = np.searchsorted(edges, cells, side="right") - 1
        below, above = low < edges[0], high > edges[-1]
        if not above:
            place = np.minimum(place, len(names) - 1)
            names[-1] = interval_name(edges[-2], edges[-1] + 1, whole) if whole else f"{names[-1][:-1]}]"
        names = [*([f"below {edges[0]:g}"] if below else []), *names, *([f"{edges[-1]:g} or more"] if above else [])]
        if len(names) < 2:
            raise refused(column, "bins", "one bin holds nothing to tell; leave the column out of `keep` instead")
        places = np.clip(place + below, 0, len(names) - 1).tolist()
        found = [None if math.isnan(cell) else names[i] for i, cell in zip(places, cells.tolist(), strict=True)]
        changes = {"kind": "ordinal", "bounds": None, "categories": tuple(names)}
        return pd.Series(found, dtype=object, index=values.index), _update(column, **changes)

    def _edges(self, column: Column) -> list[float]:
        if self.edges:
            if (self.low, self.high, self.width) != (None, None, None):
                raise refused(column, "bins", "give edges, or low, high and width, not both")
            if len(self.edges) < 2 or any(b <= a for a, b in pairwise(self.edges)):
                raise refused(column, "bins", "edges must be two or more numbers that rise")
            return list(self.edges)
        if self.low is None or self.high is None or self.width is None:
            raise refused(column, "bins", "low, high and width are needed, or edges")
        parts = (self.high - self.low) / self.width if self.width > 0 else 0.0
        if not (1 <= round(parts) <= _MOST_BINS and math.isclose(parts, round(parts), abs_tol=1e-9)):
            raise refused(
                column, "bins", f"width must be positive and divide high - low into 1 to {_MOST_BINS:,} parts"
            )
        return [float(edge) for edge in np.round(self.low + self.width * np.arange(round(parts) + 1), 12)]


class Round(Finite):
    """Numbers to the nearest multiple of ``to``; the bounds too."""

    column: str
    to: float
    do: Literal["round"] = "round"

    def apply(self, values: pd.Series, column: Column) -> tuple[pd.Series, Column]:
        """The rounded numbers. Raises ConfigError for a column without bounds, and where one multiple alone is left."""
        bounds = _bounds(column, "round", ("integer", "continuous"))
        if not (self.to > 0 and math.isfinite(self.to)):
            raise refused(column, "round", "to must be positive and finite")
        if column.kind == "integer" and not self.to.is_integer():
            raise refused(column, "round", "to must be a whole number for a column of kind 'integer'")
        low, high = (float(np.round(bound / self.to) * self.to) for bound in bounds)
        if low >= high:
            raise refused(column, "round", "to leaves one number of the public bounds; give a smaller one")
        cells = np.clip(np.round(numbers(values, column, column.name) / self.to) * self.to, low, high)
        return _numeric(cells, values, column), _update(column, bounds=(low, high))


class Limit(Finite):
    """Top- and bottom-coding: numbers above ``high`` become ``high``, those below ``low`` become ``low``."""

    column: str
    low: float | None = None
    high: float | None = None
    do: Literal["limit"] = "limit"

    def apply(self, values: pd.Series, column: Column) -> tuple[pd.Series, Column]:
        """The limited numbers. Raises ConfigError for a column without bounds and where the limits leave nothing."""
        low, high = _bounds(column, "limit", ("integer", "continuous"))
        low = low if self.low is None else max(low, self.low)
        high = high if self.high is None else min(high, self.high)
        if low >= high:
            raise refused(column, "limit", "low and high must leave a part of the public bounds")
        return _numeric(np.clip(numbers(values, column, column.name), low, high), values, column), _update(
            column, bounds=(low, high)
        )


class Codes(Finite):
    """Diagnosis codes (ICD-9-CM or ICD-10) to their first three digits or to their chapters."""

    column: str
    system: CodeSystem
    to: Literal["three-digits", "chapter"]
    do: Literal["codes"] = "codes"

    def apply(self, values: pd.Series, column: Column) -> tuple[pd.Series, Column]:
        """The coarser codes, of a categorical column or a code set. Raises ConfigError for other kinds."""
        shorten = three_digits if self.to == "three-digits" else chapter
        return _renamed(values, column, "codes", lambda code: shorten(code, self.system))


class Zip(Finite):
    """The first ``keep`` digits of ZIP codes; with three, areas of 20,000 people or fewer become 000, as HIPAA asks."""

    column: str
    keep: int = 3
    do: Literal["zip"] = "zip"

    def apply(self, values: pd.Series, column: Column) -> tuple[pd.Series, Column]:
        """The short codes of a categorical column. Raises ConfigError for other kinds and unless 1 <= keep <= 5."""
        if not 1 <= self.keep <= 5:
            raise refused(column, "zip", "keep must lie between 1 and 5")
        return _renamed(values, column, "zip", lambda code: short_zip(code, self.keep))


class ShiftDates(Finite):
    """Dates moved by a number of days that is each patient's own, so that intervals within a patient stay.

    most: days, at most that far either way. The numbers follow from the patient's id and a key that the hospital keeps
    to itself (HMAC-SHA-256): who has the key can undo them, who has not cannot.
    """

    column: str
    most: int = 365
    do: Literal["shift-dates"] = "shift-dates"


def _renamed(values: pd.Series, column: Column, what: str, rename: Callable[[str], str]) -> tuple[pd.Series, Column]:
    if column.kind not in ("categorical", "code_set"):
        raise refused(column, what, f"kind {column.kind!r} has no codes; allowed are categorical and code_set")
    lookup = {category: rename(category) for category in column.categories}
    categories = tuple(dict.fromkeys(lookup.values()))
    (codes if column.kind == "categorical" else code_sets)(values, column, column.name)
    if column.kind == "categorical" and len(categories) < 2:
        raise refused(column, what, "all categories become one; leave the column out of `keep` instead")
    cells = [_each(cell, lookup, column) for cell in texts(values)]
    return pd.Series(cells, dtype=object, index=values.index), _update(column, categories=categories)


def _each(cell: str, lookup: Mapping[str, str], column: Column) -> str | None:
    if column.kind == "categorical":
        return lookup[cell] if cell else None
    return ";".join(dict.fromkeys(lookup[code.strip()] for code in cell.split(";") if code.strip()))


def _numeric(cells: Floats, values: pd.Series, column: Column) -> pd.Series:
    found = pd.Series(cells, index=values.index)
    return found.astype("Int64" if column.nullable else "int64") if column.kind == "integer" else found


def _bounds(column: Column, what: str, kinds: Iterable[str]) -> tuple[float, float]:
    if column.kind not in kinds or column.bounds is None:
        raise refused(column, what, f"kind {column.kind!r} has no numbers; allowed are {', '.join(kinds)}")
    return column.bounds


def refused(column: Column, what: str, sentence: str) -> ConfigError:
    """What to raise where a rule does not suit its column."""
    return ConfigError(f"Coarsening: rule {what!r} of column {column.name!r}: {sentence}.")


def _update(column: Column, **changes: Any) -> Column:
    return Column(**(column.model_dump() | changes))


Rule = Bins | Round | Limit | Codes | Zip | ShiftDates
_KINDS: dict[str, type[Rule]] = {
    "bins": Bins, "round": Round, "limit": Limit, "codes": Codes, "zip": Zip, "shift-dates": ShiftDates,
}  # fmt: skip


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
    """The rules in a TOML file: ``keep = [...]`` and one ``[[rules]]`` table each, with ``do`` and ``column``.

    Raises ConfigError naming the file and the field.
    """
    file = read_model(_File, path, "file of rules")
    rules = (_rule(given, f"{path}: rule {place}") for place, given in enumerate(file.rules, 1))
    return Coarsening(tuple(rules), tuple(file.keep))


class _File(Declared):
    keep: list[str] = []
    rules: list[dict[str, Any]] = []


def _rule(given: Mapping[str, Any], source: str) -> Rule:
    do = given.get("do")
    if do not in _KINDS:
        hint = nearest(str(do), _KINDS)
        raise ConfigError(f"{source}: do is {do!r}; it must be one of {', '.join(_KINDS)}.{hint}")
    return checked(_KINDS[do], given, source)


def coarsen(
    records: pd.DataFrame, schema: Schema, coarsening: Coarsening, key: bytes | None = None
) -> tuple[pd.DataFrame, Schema]:
    """The coarser records and the schema that they fit; ``records`` stay as they are.

    key: 32 secret bytes (``new_key``), needed where dates are shifted. Raises ConfigError for a rule that does not suit
    its column or names none, DataError for cells that the schema does not allow.
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
            raise refused(column, rule.do, f"a column of kind {column.kind!r} and role {column.role!r} stays as it is")
        if isinstance(rule, ShiftDates):
            cells[rule.column] = _shifted(records, schema, rule, key)
        else:
            cells[rule.column], columns[rule.column] = rule.apply(cells[rule.column], column)
    return pd.DataFrame(cells), Schema(name=schema.name, columns=tuple(columns.values()), unit=schema.unit)


def _shifted(records: pd.DataFrame, schema: Schema, rule: ShiftDates, key: bytes | None) -> pd.Series:
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
                f"Coarsening: column {rule.column!r}, data row {row}: the cell is no date such as 2024-05-17; "
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
        found = bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        found = b""
    if len(found) != _KEY_BYTES:
        raise ConfigError(f"{path}: it must hold a key of {_KEY_BYTES} bytes in hexadecimal, or not exist.")
    return found


def shift_days(patient: str, key: bytes, most: int) -> int:
    """Days from -most to most by which a patient's dates move: the same for one patient and key. HMAC-SHA-256."""
    word = int.from_bytes(hmac.new(key, patient.encode(), hashlib.sha256).digest()[:16], "big")
    return word % (2 * most + 1) - most


def shifted_date(cell: str, days: int) -> str:
    """The ISO date at the start of the cell moved; what follows it, such as the time of day, stays.

    Raises ValueError where there is none, OverflowError where the calendar ends.
    """
    if not ISO_DATE.match(cell):
        raise ValueError("no date such as 2024-05-17")
    return f"{(date.fromisoformat(cell[:10]) + timedelta(days)).isoformat()}{cell[10:]}"
