"""How dates are read: in whatever format, as ISO 8601 text; each by itself, as a moment; and by the ISO 8601 of a mapping file.

Tables of one's own, splits by time, mappings, cohorts and coarser labels all read dates by these.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from polyclinic.ehr.checks import texts
from polyclinic.errors import DataError
from polyclinic.types import Floats

#: The date at the start of a cell.
ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_DAY = r"\d{1,2}[-/. ](?:\d{1,2}|[A-Za-z]{3,9})[-/., ]+\d{2,4}"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?[AaPp][Mm])?"
_DATE = re.compile(
    rf"(?:\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|{_DAY}|[A-Za-z]{{3,9}} \d{{1,2}},? \d{{4}})"
    rf"(?:[T ]{_CLOCK}(?: ?Z| ?[-+]\d{{2}}:?\d{{2}})?)?|{_CLOCK}"
)


def share_of_dates(given: pd.Series) -> float:
    """The share of the cells (none of them missing) that are dates or times of day, in whatever format."""
    return float(given.str.fullmatch(_DATE.pattern).mean())


def iso_dates(cells: pd.Series) -> pd.Series | None:
    """(rows,) dates and times in whatever formats as ISO 8601 text, "" where a cell is none.

    None for times of day, and where the day or the month may stand first and no cell decides which.

    Examples:
        >>> iso_dates(pd.Series(["2024-03-01", "31/12/2023", "1 Mar 2024"])).tolist()
        ['2024-03-01T00:00:00', '2023-12-31T00:00:00', '2024-03-01T00:00:00']
    """
    row, unique = pd.factorize(cells)
    own = pd.Series(unique, dtype=object)
    if own.str.fullmatch(_CLOCK).any():
        return None
    parts = own.str.extract(r"^(\d{1,2})[-/](\d{1,2})[-/]\d{2,4}").dropna().astype(int)
    day_first, month_first = bool((parts[0] > 12).any()), bool((parts[1] > 12).any())
    if len(parts) and day_first == month_first:
        return None
    read = pd.to_datetime(own, format="ISO8601", utc=True, errors="coerce")
    rest = own[read.isna() & own.str.fullmatch(_DATE.pattern)]
    dotted = rest.str.match(r"\d{1,2}\.")
    for some, first in ((rest[dotted], True), (rest[~dotted], day_first)):
        if len(some):
            read[some.index] = pd.to_datetime(some, format="mixed", dayfirst=first, utc=True, errors="coerce")
    text = read.dt.strftime("%Y-%m-%dT%H:%M:%S").fillna("")
    return pd.Series(text.to_numpy(dtype=object)[row], index=cells.index)


def count_days(values: pd.Series) -> float:
    """The share of the numbers that are days written as 19991231."""
    whole = values.dropna()
    whole = whole[(whole % 1 == 0) & whole.between(18_000_101, 21_001_231)].astype(np.int64)
    month, day = whole // 100 % 100, whole % 100
    return int((month.between(1, 12) & day.between(1, 31)).sum()) / max(1, int(values.count()))


def read_moments(cells: Sequence[object] | NDArray[np.object_], is_number: bool) -> Floats:
    """Each cell, read by itself, as a number or as microseconds since 1970 in UTC; NaN where it cannot be read.

    Dates are ISO 8601, or with dots and the day first. A date with slashes cannot be read: which part is the month is not known.
    """
    if is_number:
        return np.array([_number(cell) for cell in cells], dtype=np.float64)
    values = pd.Series(list(cells), dtype=object)
    text = values.where(values.notna(), "").astype(str).str.strip()
    text = text.where(text.str.match(r"\d"), "")  # pandas reads "now"
    # With digits beyond microseconds pandas would read all cells in nanoseconds, which end in 2262.
    short = text.str.replace(r"([.,]\d{6})\d+", r"\1", regex=True)
    dotted = short.str.replace(
        r"^(\d\d?)\.(\d\d?)\.(\d{4})", lambda date: f"{date[3]}-{date[2]:0>2}-{date[1]:0>2}", regex=True
    )
    dates = pd.to_datetime(dotted, errors="coerce", format="ISO8601", utc=True)
    return np.asarray(dates.dt.as_unit("us").astype("int64").astype("float64").where(dates.notna()), dtype=np.float64)


def _number(cell: object) -> float:
    try:
        return float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan


def read_dates(cells: pd.Series, what: str) -> pd.Series:
    """(rows,) ISO 8601 dates and times, as dates or as text, as datetime64 in UTC, numbered anew; missing ones NaT.

    Raises DataError, naming ``what``, for others.
    """
    cells = pd.Series(texts(cells), dtype=object)
    is_given = cells != ""
    read = pd.to_datetime(cells.where(is_given), format="ISO8601", utc=True, errors="coerce").dt.tz_localize(None)
    if read[is_given].isna().any():
        raise DataError(f"{what}: a cell is not a date of the form 2020-01-31 or 2020-01-31T10:15:00.")
    return read


def whole_years(begin: pd.Series, end: pd.Series) -> pd.Series:
    """Whole years from each date to the other, as an age is told; NaN where one is missing."""
    first, last = begin.dt, end.dt
    before = (last.month < first.month) | ((last.month == first.month) & (last.day < first.day))
    return (last.year - first.year - before).astype(np.float64)
