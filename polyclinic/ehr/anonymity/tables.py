"""Tables without a schema, for looks at risk inside a hospital."""

from __future__ import annotations

import re
import warnings
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_datetime64_any_dtype, is_numeric_dtype

from polyclinic.errors import DataError

SUFFIXES = (".csv", ".csv.gz", ".parquet")
_MISSING = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "?"]
_CODE = re.compile(r"zip|postal|postcode", re.IGNORECASE)
_LEADING_ZERO = re.compile(r"-?0\d")


def read_table(path: str | Path) -> pd.DataFrame:
    """The table in a CSV or Parquet file as it is: numbers where every known cell of a column is one, else text.

    Cells such as 02139 and columns named after ZIP or postal codes stay text; dates become ISO text; empty cells, NA, NaN,
    null and ? are missing. Raises DataError, with the file and never a cell, for what cannot be read or has no rows.
    """
    file = Path(path)
    check_suffix(file)
    if not file.is_file():
        raise DataError(f"{path}: there is no such file.")
    try:
        found = _read_parquet(file) if file.name.lower().endswith(".parquet") else _read_csv(file)
    # `from None`: the readers' own messages can quote a line of the file.
    except pd.errors.EmptyDataError:
        raise DataError(f"{path}: the file is empty; its first line must be a header.") from None
    except (pd.errors.ParserError, pd.errors.ParserWarning):
        raise DataError(f"{path}: a line has more cells than the header; quote cells that hold commas.") from None
    except (OSError, ValueError, EOFError, NotImplementedError, MemoryError, zlib.error):
        raise DataError(f"{path}: the file cannot be read; it must be UTF-8 CSV or Parquet, not damaged.") from None
    found.columns = pd.Index([str(name).strip() for name in found.columns])
    if not found.columns.is_unique:
        raise DataError(f"{path}: two columns of the header have the same name.")
    if found.empty:
        raise DataError(f"{path}: there are no records; give a file with at least one row under its header.")
    typed = pd.DataFrame({name: _typed(found[name]) for name in found.columns})
    for name in typed.select_dtypes("number").columns:
        if np.isinf(typed[name].to_numpy(dtype=np.float64, na_value=np.nan)).any():
            raise DataError(f"{path}: column {name!r} holds an infinite number; correct it, or leave the cell empty.")
    return typed


def check_suffix(path: Path) -> None:
    """Raise DataError unless the file's name says what it holds."""
    if not path.name.lower().endswith(SUFFIXES):
        raise DataError(f"{path}: the file's type is not known; allowed are {', '.join(SUFFIXES)}.")


def write_table(records: pd.DataFrame, path: Path) -> None:
    """Write the records by the file's suffix, without their index."""
    if path.name.lower().endswith(".parquet"):
        records.to_parquet(path, index=False)
    else:
        records.to_csv(path, index=False)


def _read_parquet(file: Path) -> pd.DataFrame:
    from pyarrow import ArrowException, parquet

    try:
        found = parquet.ParquetFile(file).read()
        found.validate(full=True)
        return found.to_pandas(ignore_metadata=True)
    except ArrowException as error:
        raise ValueError from error


def _read_csv(file: Path) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        cells = pd.read_csv(file, header=None, index_col=False, dtype=str, keep_default_na=False, na_values=_MISSING)
    header = cells.iloc[0]
    if header.isna().any():
        raise DataError(f"{file}: a name of the header is empty.")
    return cells.iloc[1:].set_axis(header.tolist(), axis=1).reset_index(drop=True)


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
