"""Columns of numbers as a draft reads them: the marks of their decimals, their unit and bounds, and whether they are features."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from polyclinic.ehr.dates import count_days
from polyclinic.ehr.sources.cells import Numbers, decimal_marks, missing_codes, plain_name, read_numbers
from polyclinic.ehr.sources.columns import SUBSTANCES, conversion, unit_spelling
from polyclinic.errors import ConfigError, count_text

IDENTIFIERS = re.compile(
    r"(^|[\W_])id$|[a-z]I[Dd]$|(stay|ward|unit|patient|person|subject|visit|case|encounter|admission|record|provider|doctor)_?id$"
)
_NUMBERED = re.compile(r"(^|[\W_])(no|nr|number|index)$|[a-z]Nr$")
_DATED = re.compile(r"date|datum|\bdob\b|birthday", re.IGNORECASE)
_UNIT = re.compile(r"[\[(]\s*([^\[(]+?)\s*[\])]$")
_PARTS = ("values", "beyond", "units")
#: Of the cells of a column, how many at the least must be of a kind for the column to be of it.
MOST_CELLS = 0.9
BEYOND = " beyond limit"  # ends the name of a column of flags
MOST_CATEGORIES = 20
FEWEST_ROWS = 5  # a category of fewer rows could tell who it is


def decimal_commas(cells: pd.DataFrame, hospitals: pd.Series) -> dict[str, dict[str, str]]:
    """By column and hospital the mark of a decimal point, where it is a comma."""
    decimals: dict[str, dict[str, str]] = {}
    commas = [name for name in cells if cells[name].str.contains(",", regex=False).any()]
    if not commas:
        return decimals
    for hospital, rows in cells.groupby(hospitals, sort=False):
        sure = {name: decimal_marks(rows[name]) for name in commas}
        usual = Counter("".join(marks) for marks in sure.values() if len(marks) == 1)
        everywhere = usual[","] > usual["."]
        for name in cells if everywhere else commas:
            if not rows[name].str.contains("[,.]", regex=True).any():
                continue
            marks = sure[name] if name in sure else decimal_marks(rows[name])
            if marks == {","} or (not marks and everywhere):
                decimals.setdefault(name, {})[str(hospital)] = ","
    return decimals


def read_column(cells: pd.Series, hospitals: pd.Series, commas: Mapping[str, str]) -> Numbers:
    """Return the numbers in a column, by each hospital's mark of decimals.

    Args:
        cells: (rows,) the column as it stands.
        hospitals: (rows,) the hospitals' names.
        commas: By hospital its mark of decimals; a hospital that is not in it has ".".
    """
    if not commas:
        return read_numbers(cells)
    parts = [read_numbers(rows, commas.get(str(hospital), ".")) for hospital, rows in cells.groupby(hospitals)]
    return Numbers(*(pd.concat([getattr(part, name) for part in parts])[cells.index] for name in _PARTS))


def draft_bounds(values: pd.Series, low: float, high: float) -> tuple[pd.Series, dict[str, Any]]:
    """Return the records of a column of numbers, and its draft with these bounds.

    Args:
        values: (rows,) numbers, NaN where missing.
        low, high: The bounds, in the column's unit.
    """
    numeric = values.dropna()
    whole, clipped = bool((numeric % 1 == 0).all()), np.clip(numeric.to_numpy(), low, high)
    return values.astype("Int64") if whole else values, {
        "kind": "integer" if whole else "continuous", "bounds": [low, high], "clip": True, "centre": float(clipped.mean()),
        "spread": float(clipped.std(ddof=1)),
    }  # fmt: skip


def repeated_far(numeric: pd.Series) -> float | None:
    """The largest number, where it is whole, of at least ``FEWEST_ROWS`` rows, and twice as far as the others reach."""
    if (numeric == (far := numeric.max())).sum() < FEWEST_ROWS or far % 1:
        return None
    rest = numeric[numeric < far]
    reach = rest.quantile(0.999) - rest.min()
    return float(far) if rest.nunique() > MOST_CATEGORIES and far > rest.max() + reach else None


def missing_marks(codes: Sequence[float], words: pd.Series) -> dict[str, Any]:
    """The mapping's rule for cells that are read as missing: codes and, where they are few, words."""
    common = words.value_counts()
    marks = [f"{code:g}" for code in codes] + [str(word) for word, rows in common.items() if rows >= FEWEST_ROWS]
    return {"missing": marks} if marks else {}


def number_of_cells(chosen: pd.Series, name: str) -> str:
    """How many cells of a column are chosen, for a note."""
    return f"{count_text(int(chosen.sum()), 'cell')} of {name!r}"


def convert_units(name: str, read: Numbers, readings: list[tuple[str, str]]) -> str | None:
    """Convert numbers in place into the commonest unit and return it: "" where there is none, None where some do not convert.

    Args:
        name: The column's name, which may say whose concentration it is.
        read: The numbers and the units beside them, changed in place.
        readings: Gets a note for each unit that was converted.
    """
    values, units = read.values, read.units
    if not read.is_written:
        return ""
    counts = units[(units != "") & values.notna()].value_counts()
    if counts.empty:
        return ""
    main = str(counts.index[0])
    substance = substance_of(name)
    for other in map(str, counts.index[1:]):
        try:
            factor, offset = conversion(other, main, substance)
        except ConfigError:
            return None
        here = units == other
        values[here] = (values[here] * factor + offset).round(4)
        units_read = f"from {unit_spelling(other)} to {unit_spelling(main)}"
        readings.append(("Converted", f"{number_of_cells(here, name)} {units_read}"))
    return unit_spelling(main) or (main if counts.iloc[0] >= FEWEST_ROWS else "")


def substance_of(name: str) -> str:
    """The substance of molar mass that the column's name names, or ""."""
    return next((substance for substance in SUBSTANCES if plain_name(substance) in plain_name(name)), "")


def has_few_values(distinct: int, rows: int) -> bool:
    """Whether numbers by the name of an identifier are rather the codes of a list."""
    return distinct <= MOST_CATEGORIES or rows >= 50 * distinct


def why_no_feature(name: str, numeric: pd.Series, values: pd.Series, hospitals: pd.Series) -> str:
    """Return why numbers are no feature: they name people or rows, or are days; "" where they may be one.

    Args:
        name: The column's name.
        numeric: The numbers that are not missing.
        values: (rows,) the column's numbers, NaN where missing.
        hospitals: (rows,) the hospitals' names.
    """
    whole = bool((numeric % 1 == 0).all())
    if not whole:
        return ""
    distinct = numeric.nunique()
    if IDENTIFIERS.search(name) and not has_few_values(distinct, len(numeric)):
        return "an identifier"
    if distinct <= MOST_CATEGORIES:
        return ""
    once = not pd.DataFrame({"v": numeric, "h": hospitals[numeric.index]}).duplicated().any()
    if once and (
        _NUMBERED.search(name) or values.dropna().groupby(hospitals).apply(lambda v: v.is_monotonic_increasing).all()
    ):
        return "an identifier"
    if count_days(numeric) >= MOST_CELLS or (
        _DATED.search(name) and numeric.between(7_000, 90_000).mean() >= MOST_CELLS
    ):
        return "a date or a time"
    return ""


def without_unit(name: str) -> str:
    """A column's plain name before what stands in brackets at its end."""
    return plain_name(_UNIT.sub("", name))


def named_units_convert(name: str, into: str) -> bool:
    """Whether the units at the ends of two columns' names are known, and one converts into the other."""
    try:
        conversion(unit_of(name), unit_of(into), substance_of(into))
    except ConfigError:
        return False
    return unit_of(name) != ""


def with_named_unit(cells: pd.Series, name: str) -> pd.Series:
    """Cells with the unit of their column's name behind each number that has none and is no code for missing."""
    read = read_numbers(cells)
    as_it_is = read.values.isna() | (read.units != "") | read.values.isin(missing_codes(read.values))
    return cells.where(as_it_is, cells + f" {unit_of(name)}")


def unit_of(name: str) -> str:
    """The known unit at the end of a column's name, as ``Weight [kg]`` or ``glucose (mg/dL)`` have it, or ""."""
    match = _UNIT.search(name)
    return unit_spelling(match[1]) if match else ""
