"""Sites that the records themselves name: by a column, with small ones pooled, or by time."""

from __future__ import annotations

import numpy as np
import pandas as pd

from polyclinic.ehr.checks import identifiers
from polyclinic.ehr.partition.patients import Deal, people, round_shares, site_rows
from polyclinic.ehr.schema import Schema
from polyclinic.errors import DataError
from polyclinic.types import Ints

OTHER = "other"


def by_column(records: pd.DataFrame, schema: Schema, column: str) -> dict[str, Ints]:
    """Row indices for each value of a column, in order of first appearance.

    A patient with rows under several values belongs to the first. Raises DataError if the column or a cell is missing.
    """
    if column not in records.columns:
        raise DataError(f"The records have no column {column!r} to split by; name one of their columns.")
    person, first_row, _ = people(records, schema)
    names = identifiers(records[column], "records")
    numbers, values = pd.factorize(np.array([names[row] for row in first_row], dtype=object))
    rows = site_rows(numbers.astype(np.int64), person, len(values))
    return {str(value): index for value, index in zip(values, rows, strict=True)}


def pooled(groups: dict[str, Ints], records: pd.DataFrame, schema: Schema, smallest: int) -> dict[str, Ints]:
    """The groups with ``smallest`` patients or more, and those of all the others as one group "other", last.

    A group that is itself named "other" is among the pooled.
    """
    person, _, _ = people(records, schema)
    large = {
        name: index for name, index in groups.items() if name != OTHER and len(np.unique(person[index])) >= smallest
    }
    small = [index for name, index in groups.items() if name not in large]
    return large | ({OTHER: np.sort(np.concatenate(small))} if small else {})


def by_time(records: pd.DataFrame, schema: Schema, column: str, sites: int) -> Deal:
    """Sites of equal size, from the earliest patients to the latest by their first cell of ``column``.

    column: numbers, or dates that pandas reads. Raises DataError if the column or a cell is missing or is neither.
    """
    if column not in records.columns:
        raise DataError(f"The records have no column {column!r} to order by; name one of their columns.")
    moment = pd.to_numeric(records[column], errors="coerce")
    if moment.isna().any():
        dates = pd.to_datetime(records[column], errors="coerce", format="mixed")
        moment = dates.astype("int64").astype("float64").where(dates.notna())
    if moment.isna().any():
        row = int(moment.isna().to_numpy().argmax()) + 1
        raise DataError(f"records: column {column!r}, data row {row}: the cell is neither a number nor a date.")
    person, _, count = people(records, schema)
    first = np.full(count, np.inf)
    np.minimum.at(first, person, moment.to_numpy(dtype=np.float64))
    site_of = np.empty(count, dtype=np.int64)
    site_of[np.argsort(first, kind="stable")] = np.repeat(np.arange(sites), round_shares(np.ones(sites), count))
    return site_rows(site_of, person, sites)
