"""Tables without a schema, for looks at risk inside a hospital."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

from polyclinic.ehr.sources import files
from polyclinic.errors import DataError

_CODE = re.compile(r"zip|postal|postcode", re.IGNORECASE)
_LEADING_ZERO = re.compile(r"-?0\d")


def read_table(path: str | Path) -> pd.DataFrame:
    """The table in a CSV or Parquet file as it is: numbers where every known cell of a column is one, else text.

    Cells such as 02139 and columns named after ZIP or postal codes stay text; dates become ISO text; empty cells, NA, NaN,
    null and ? are missing. Raises DataError, with the file and never a cell, for what cannot be read or has no rows.
    """
    file = Path(path)
    files.check_suffix(file)
    if not file.is_file():
        raise DataError(f"{path}: there is no such file.")
    header = files.column_names(file)
    names = [name.strip() for name in header]
    if "" in names:
        raise DataError(f"{path}: a name of the header is empty.")
    if len(set(names)) < len(names):
        raise DataError(f"{path}: two columns of the header have the same name.")
    frames = list(files.read_table(file, header))
    if not any(map(len, frames)):
        raise DataError(f"{path}: there are no records; give a file with at least one row under its header.")
    found = pd.concat(frames, ignore_index=True).set_axis(names, axis=1)
    typed = pd.DataFrame({name: _typed(found[name]) for name in found.columns})
    for name in typed.select_dtypes("number").columns:
        if np.isinf(typed[name].to_numpy(dtype=np.float64, na_value=np.nan)).any():
            raise DataError(f"{path}: column {name!r} holds an infinite number; correct it, or leave the cell empty.")
    return typed


def write_table(records: pd.DataFrame, path: Path) -> None:
    """Write the records by the file's suffix, without their index."""
    if path.name.lower().endswith(".parquet"):
        records.to_parquet(path, index=False)
    else:
        records.to_csv(path, index=False)


def _typed(values: pd.Series) -> pd.Series:
    if is_bool_dtype(values) or is_numeric_dtype(values):
        return values
    if is_datetime64_any_dtype(values):
        return values.dt.strftime("%Y-%m-%d").astype(object).where(values.notna(), None)
    text = values.map(lambda cell: str(cell).strip(), na_action="ignore").astype(object)
    known = text.dropna()
    numbers = pd.to_numeric(known, errors="coerce")
    if (
        len(known) == 0 or _CODE.search(str(values.name)) or numbers.isna().any() or numbers.abs().eq(float("inf")).any()
        or known.str.match(_LEADING_ZERO).any()
    ):  # fmt: skip
        return text.where(values.notna(), None)
    found = pd.to_numeric(text)
    return found.astype("Int64") if numbers.dtype.kind == "i" and values.isna().any() else found
