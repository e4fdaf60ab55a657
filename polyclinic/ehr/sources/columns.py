"""A hospital's own columns, units and categories as those of the public schema, by a mapping file of the hospital.

The file says for each of the schema's columns from which own column it comes and how: renamed, converted, recoded, or
missing. A source reads the own columns (``own_schema``), and ``apply_mapping`` makes each chunk of them the schema's.

Units of one dimension convert by a factor and an offset; between a mass and an amount of a substance its molar mass stands.
Factors are those of the SI (BIPM 2019) and of the international inch, pound and calorie by definition.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import Field, ValidationError

from polyclinic.ehr.checks import texts
from polyclinic.ehr.schema import BOUNDED_KINDS, Column, Schema
from polyclinic.ehr.sources.cells import read_numbers
from polyclinic.ehr.sources.chunks import Chunk
from polyclinic.errors import ConfigError, nearest
from polyclinic.toml import Declared, all_problems, read_toml


class Origin(Declared):
    """Where one column of the schema comes from.

    Args:
        from: The own column's name, the schema's if it is not given; of a trajectory the part before ``_00``.
        unit: The own unit of cells that name none; all become the schema's.
        substance: Whose concentration it is, where a mass becomes an amount.
        factor, offset: A number becomes ``number * factor + offset``, where no unit is named.
        decimal: The decimal point, where it is a comma.
        limits: Of a number, "<0.4" is read as 0.4. Of a binary column, it is 1 where a cell is such a limit and 0
            elsewhere.
        separator: What stands between the codes of a code set, if not ";".
        values: Own categories or codes and the schema's; an empty one is missing, and what is not listed stays as it
            is.
        missing: The texts that stand for a missing cell (``["-9"]``). Where it is true, the hospital lacks the column,
            and every cell is missing.
        default: The hospital lacks the column, and every cell is this.
    """

    name: str = Field("", alias="from")
    unit: str = ""
    substance: str = ""
    factor: float | None = Field(None, allow_inf_nan=False)
    offset: float | None = Field(None, allow_inf_nan=False)
    decimal: Literal["", ",", "."] = ""
    limits: bool = False
    separator: str = Field("", max_length=1)
    values: dict[str, str] = Field(default_factory=dict)
    missing: bool | tuple[str, ...] = False
    default: str | float | None = None

    @property
    def is_lacking(self) -> bool:
        """Whether the hospital has no such column."""
        return self.missing is True or self.default is not None

    @property
    def marks(self) -> tuple[str, ...]:
        """The texts that stand for a missing cell."""
        return self.missing if isinstance(self.missing, tuple) else ()

    @property
    def converts(self) -> bool:
        return bool(self.unit) or self.factor is not None or self.offset is not None

    def numbers(self, column: Column) -> tuple[float, float]:
        """(factor, offset) of the conversion. Raises ConfigError for units that do not convert."""
        if self.unit:
            return conversion(self.unit, column.unit, self.substance)
        return 1.0 if self.factor is None else self.factor, self.offset or 0.0


class ColumnMapping(Declared):
    """A mapping file: ``[columns.NAME]`` for each column of the schema that the hospital has otherwise.

    Columns that are not named are read under the schema's own names.
    """

    columns: dict[str, Origin] = Field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path, schema: Schema) -> ColumnMapping:
        """The mapping in a TOML file, checked against the schema. Raises ConfigError naming the file, line and key."""
        values = read_toml(path, "mapping file")
        try:
            mapping = cls.model_validate(values)
        except ValidationError as problems:
            raise ConfigError(
                "\n".join(f"{_place(path, key)}: {words}" for key, words in all_problems(problems, cls))
            ) from None
        faults = [(name, _problem(name, origin, schema)) for name, origin in mapping.columns.items()]
        if wrong := [f"{_place(path, ('columns', name, *at[0]))}: {at[1]}" for name, at in faults if at is not None]:
            raise ConfigError("\n".join(wrong))
        own_schema(mapping, schema)
        return mapping

    def origin(self, column: Column) -> Origin:
        """Where a column comes from."""
        return self.columns.get(column.name, _SAME)


_SAME = Origin()


def _place(path: str | Path, key: tuple[str, ...]) -> str:
    """File, line and key: the line of the key, or of its table's heading where it has none of its own."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    heading = next((n for n, line in enumerate(lines, 1) if _heads(line, key[:2])), None)
    inside = (
        n
        for n, line in enumerate(lines, 1)
        if heading and n > heading and re.match(rf"\s*\"?{re.escape(key[-1])}\"?\s*=", line)
    )
    key_line = next(inside, None) if len(key) > 2 else None
    line = key_line or heading
    return f"{path}{f', line {line}' if line else ''}, key {'.'.join(key)!r}"


def _heads(line: str, key: tuple[str, ...]) -> bool:
    named = line.partition("#")[0].strip()
    return named.startswith("[") and [part.strip(' "') for part in named.strip("[]").split(".", 1)] == list(key)


def _problem(name: str, origin: Origin, schema: Schema) -> tuple[tuple[str, ...], str] | None:
    """The key within a column's table that is impossible, and why; None where all is well."""
    column = next((column for column in schema.columns if column.name == name and column.is_read), None)
    if column is None:
        names = [column.name for column in schema.columns if column.is_read]
        return (), f"the schema {schema.name!r} has no such column.{nearest(name, names)}"
    numeric, identifies = (
        column.kind in BOUNDED_KINDS and column.role == "feature",
        column.role in ("patient_id", "site", "time"),
    )
    if origin.missing is True and origin.default is not None:
        return ("default",), "a column is missing or has a default, not both."
    if origin.is_lacking and (origin.name or origin.converts or origin.values or origin.limits):
        return (
            "missing" if origin.missing is True else "default",
        ), "a column that the hospital lacks has no other key."
    if origin.marks and identifies:
        return ("missing",), "an identifier is never missing."
    if (origin.decimal or origin.limits) and not numeric and not (origin.limits and _is_flag(column)):
        return ("decimal" if origin.decimal else "limits",), (
            f"only numbers are read so, and the column is of kind {column.kind!r}."
        )
    if origin.separator and column.kind != "code_set":
        return ("separator",), f"only a code set has separators, and the column is of kind {column.kind!r}."
    if origin.missing is True and (column.is_label or identifies or not (column.nullable or column.kind == "code_set")):
        return ("missing",), "the schema's column is not nullable, so that it cannot be missing."
    if origin.default is not None and (column.is_label or column.role == "patient_id"):
        return ("default",), f"the {column.role} of every row cannot be the same."
    if origin.unit and (origin.factor is not None or origin.offset is not None):
        return ("unit",), "give a unit, or factor and offset, not both."
    if origin.converts and not numeric:
        return ("unit" if origin.unit else "factor" if origin.factor is not None else "offset",), (
            f"only numbers convert, and the schema's column is of kind {column.kind!r} and role {column.role!r}."
        )
    if origin.factor == 0:
        return ("factor",), "the factor is 0, which would make every cell the same."
    if origin.substance and not origin.unit:
        return ("substance",), "a substance goes with a unit."
    if origin.unit:
        try:
            origin.numbers(column)
        except ConfigError as error:
            return ("unit",), str(error)
    if origin.values and (numeric or identifies):
        return ("values",), f"only categories are recoded, and the schema's column is of kind {column.kind!r}."
    if strange := [
        new
        for new in origin.values.values()
        if column.categories and not column.other and new not in ("", *column.categories)
    ]:
        return ("values",), f"{strange[0]!r} is no category of the schema; it has {', '.join(column.categories[:8])}."
    return None


def _is_flag(column: Column) -> bool:
    return column.kind == "binary" and column.role == "feature" and not column.categories


def own_schema(mapping: ColumnMapping, schema: Schema) -> Schema:
    """The schema by which a source reads the hospital's own columns: their names, and their categories with the schema's.

    Raises ConfigError where two columns of the schema would come from one. For reading only: cells are checked when they are
    the schema's.
    """
    columns: list[Column] = []
    flags = [column for column in schema.columns if _is_flag(column) and mapping.origin(column).limits]
    for column in [*(column for column in schema.columns if column not in flags), *flags]:
        origin = mapping.origin(column)
        if origin.is_lacking or (column in flags and (origin.name or column.name) in [other.name for other in columns]):
            continue
        own = {"name": origin.name or column.name}
        if origin.values:
            more = tuple(value for value in origin.values if value and value not in column.categories)
            own["categories"] = (*column.categories, *more)  # type: ignore[assignment]
        columns.append(column.model_copy(update=own))
    names = [name for column in columns if column.is_read for name in column.record_names]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"The mapping reads the own column {repeated[0]!r} twice; every column is of one own column.")
    return schema.model_copy(update={"columns": tuple(columns)})


def apply_mapping(frame: pd.DataFrame, mapping: ColumnMapping, schema: Schema) -> pd.DataFrame:
    """Return the rows of ``frame`` with exactly the columns that the schema reads.

    Numbers are converted (and rounded, where the schema's are whole), categories recoded, columns that the hospital
    lacks filled as the mapping says. A cell that is not a number stays as it is, for the schema's checks to refuse.

    Args:
        frame: Records in the hospital's own columns.
        mapping: Where each column of the schema comes from.
        schema: The public schema.
    """
    columns: dict[str, pd.Series] = {}
    for column in (column for column in schema.columns if column.is_read):
        origin = mapping.origin(column)
        own = column.model_copy(update={"name": origin.name or column.name})
        for name, its in zip(column.record_names, own.record_names, strict=True):
            if origin.is_lacking:
                cell = None if origin.missing else _text(origin.default)
                columns[name] = pd.Series([cell] * len(frame), index=frame.index, dtype=object, name=name)
                continue
            cells = frame[its].rename(name)
            if origin.marks:
                marked = pd.Series(texts(cells), index=cells.index, dtype=object).isin(origin.marks)
                cells = cells.astype(object).where(~marked, None)
            if origin.converts or origin.decimal or origin.limits:
                cells = _flag_limits(cells) if _is_flag(column) else _convert_units(cells, origin, column)
            if origin.separator:
                cells = pd.Series(texts(cells), index=cells.index, name=name).str.replace(
                    origin.separator, ";", regex=False
                )
            if origin.values:
                cells = _recode(cells, origin.values, several=column.kind == "code_set")
            columns[name] = cells
    return pd.DataFrame(columns, index=frame.index)


def map_columns(chunks: Iterable[Chunk], mapping: ColumnMapping, schema: Schema) -> Iterator[Chunk]:
    """Yield the chunks with the schema's columns; as they are where the mapping says nothing.

    Args:
        chunks: Records in the hospital's own columns.
        mapping: Where each column of the schema comes from.
        schema: The public schema.
    """
    for chunk in chunks:
        yield replace(chunk, records=apply_mapping(chunk.records, mapping, schema)) if mapping.columns else chunk


def _text(value: str | float | None) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _flag_limits(cells: pd.Series) -> pd.Series:
    return (
        read_numbers(pd.Series(texts(cells), index=cells.index, dtype=object)).beyond.astype("int64").rename(cells.name)
    )


def _convert_units(cells: pd.Series, origin: Origin, column: Column) -> pd.Series:
    """The numbers in the column's unit; a cell that is not a number, or in a unit that does not convert, stays as it is."""
    read = read_numbers(pd.Series(texts(cells), index=cells.index, dtype=object), origin.decimal or ".")
    numbers, units = pd.Series(np.nan, index=cells.index), read.units
    for unit in units.unique():
        factor, offset = origin.numbers(column)
        if unit:
            try:
                factor, offset = conversion(unit, column.unit, origin.substance)
            except ConfigError:
                continue
        here = (units == unit) & (origin.limits | ~read.beyond)
        numbers[here] = read.values[here] * factor + offset
    numbers = numbers.round() if column.kind == "integer" else numbers
    convertible = numbers.notna() | cells.isna()
    return (numbers if convertible.all() else numbers.astype(object).where(convertible, cells)).rename(cells.name)


def _recode(cells: pd.Series, values: dict[str, str], several: bool) -> pd.Series:
    def new(cell: str) -> str | None:
        if not several:
            return values.get(cell, cell) or None
        codes = [values.get(code.strip(), code.strip()) for code in cell.split(";")]
        return ";".join(dict.fromkeys(code for code in codes if code)) or None

    return pd.Series([new(cell) for cell in texts(cells)], index=cells.index, dtype=object, name=cells.name)


@dataclass(frozen=True)
class Unit:
    """One unit: ``value`` of it is ``value * factor + offset`` of its dimension's base."""

    dimension: str
    factor: float
    offset: float = 0.0


_MASS, _AMOUNT = "mass concentration", "amount concentration"  # bases g/L and mol/L
UNITS: dict[str, Unit] = {
    "g/L": Unit(_MASS, 1.0), "g/dL": Unit(_MASS, 10.0), "mg/dL": Unit(_MASS, 0.01), "mg/L": Unit(_MASS, 1e-3),
    "ug/dL": Unit(_MASS, 1e-5), "ug/L": Unit(_MASS, 1e-6), "ng/mL": Unit(_MASS, 1e-6), "ng/dL": Unit(_MASS, 1e-8),
    "mol/L": Unit(_AMOUNT, 1.0), "mmol/L": Unit(_AMOUNT, 1e-3), "umol/L": Unit(_AMOUNT, 1e-6), "nmol/L": Unit(_AMOUNT, 1e-9),
    "degC": Unit("temperature", 1.0), "degF": Unit("temperature", 5 / 9, -160 / 9), "K": Unit("temperature", 1.0, -273.15),
    "mmHg": Unit("pressure", 0.133322387415), "kPa": Unit("pressure", 1.0), "cmH2O": Unit("pressure", 0.0980665),
    "kg": Unit("mass", 1.0), "g": Unit("mass", 1e-3), "lb": Unit("mass", 0.45359237), "oz": Unit("mass", 0.028349523125),
    "m": Unit("length", 1.0), "cm": Unit("length", 0.01), "mm": Unit("length", 1e-3), "in": Unit("length", 0.0254),
    "ft": Unit("length", 0.3048),
    "L": Unit("volume", 1.0), "dL": Unit("volume", 0.1), "mL": Unit("volume", 1e-3),
    "s": Unit("time", 1.0), "min": Unit("time", 60.0), "h": Unit("time", 3600.0), "days": Unit("time", 86_400.0),
    "weeks": Unit("time", 604_800.0),
    "%": Unit("share", 0.01), "fraction": Unit("share", 1.0),
}  # fmt: skip
_SPELLINGS = {unit.lower(): unit for unit in UNITS} | {
    "µg/dl": "ug/dL", "µg/l": "ug/L", "µmol/l": "umol/L", "°c": "degC", "°f": "degF", "c": "degC", "f": "degF", "k": "K",
    "mm hg": "mmHg", "hours": "h", "hour": "h", "minutes": "min", "seconds": "s", "day": "days", "lbs": "lb", "cmh2o": "cmH2O",
}  # fmt: skip
#: Molar masses in g/mol (CIAAW 2021 atomic weights). Urea as nitrogen counts its two atoms of nitrogen, triglycerides as
#: triolein, haemoglobin its monomer.
SUBSTANCES: dict[str, float] = {
    "cholesterol": 386.65, "triglycerides": 885.4, "glucose": 180.16, "creatinine": 113.12, "urea": 60.06,
    "urea nitrogen": 28.014, "bilirubin": 584.67, "calcium": 40.078, "magnesium": 24.305, "phosphorus": 30.974,
    "uric acid": 168.11, "lactate": 90.08, "haemoglobin": 16_114.5, "iron": 55.845, "sodium": 22.990, "potassium": 39.098,
}  # fmt: skip


def conversion(unit: str, into: str, substance: str = "") -> tuple[float, float]:
    """Return (factor, offset) that turn a number in one unit into a number in another.

    Args:
        unit: The number's unit.
        into: The unit that it gets.
        substance: Whose mass or amount it is, needed where one becomes the other.

    Raises:
        ConfigError: For an unknown unit or substance, and for units that do not convert.
    """
    if unit.strip().lower() == into.strip().lower():
        return 1.0, 0.0
    source, other = _unit_of(unit), _unit_of(into)
    factor = source.factor / other.factor
    if {source.dimension, other.dimension} == {_MASS, _AMOUNT}:
        if substance not in SUBSTANCES:
            raise ConfigError(
                f"{unit} becomes {into} only for a known substance, not {substance!r}; known are {', '.join(SUBSTANCES)}."
                f"{nearest(substance, SUBSTANCES)}"
            )
        molar = SUBSTANCES[substance]
        return (factor / molar if source.dimension == _MASS else factor * molar), 0.0
    if source.dimension != other.dimension:
        raise ConfigError(f"{unit} is a {source.dimension} and {into} a {other.dimension}: neither becomes the other.")
    return factor, (source.offset - other.offset) / other.factor


def unit_spelling(unit: str) -> str:
    """The unit as ``UNITS`` spells it, "" where it is not known."""
    return _SPELLINGS.get(unit.strip().lower(), "")


def _unit_of(unit: str) -> Unit:
    if (symbol := _SPELLINGS.get(unit.strip().lower())) is None:
        raise ConfigError(f"The unit {unit!r} is not known; known are {', '.join(UNITS)}.{nearest(unit, UNITS)}")
    return UNITS[symbol]
