"""Records from files: CSV (also gzipped) and Parquet, one file, a folder of them or a glob pattern.

Only the schema's columns are read, and every cell is checked as it is read, so that an error names the file and row.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import pandas as pd

from polyclinic.ehr.checks import class_numbers, code_sets, codes, identifiers, numbers, require_columns, texts
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import DataError

SUFFIXES = (".csv", ".csv.gz", ".parquet")
_MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "?")


def read_records(path: str | Path, schema: Schema) -> pd.DataFrame:
    """The records at ``path`` with exactly the schema's columns (role "ignore" left out), typed by their kinds.

    path: a .csv, .csv.gz or .parquet file, a folder of such files, or a glob pattern; files are read in order of name.
    Empty cells, NA, NaN, null and ? are missing. Raises DataError naming file, column and data row, never a cell.
    """
    frames = [_typed(_read_file(file, schema), schema, str(file)) for file in _files(path)]
    return pd.concat(frames, ignore_index=True)


def _files(path: str | Path) -> list[Path]:
    place = Path(path)
    if place.is_file():
        if not place.name.lower().endswith(SUFFIXES):
            raise DataError(f"{path}: the file's type is not known; allowed are {', '.join(SUFFIXES)}.")
        return [place]
    found = place.iterdir() if place.is_dir() else Path(place.anchor).glob(str(place.relative_to(place.anchor)))
    files = sorted(file for file in found if file.is_file() and file.name.lower().endswith(SUFFIXES))
    if not files:
        raise DataError(f"{path}: no records found; give a {', '.join(SUFFIXES)} file, a folder of them or a pattern.")
    return files


def _read_file(file: Path, schema: Schema) -> pd.DataFrame:
    columns = [column for column in schema.columns if column.is_read]
    names = [name for column in columns for name in column.record_names]
    try:
        if file.name.lower().endswith(".parquet"):
            # The file's schema is read first: a column that is missing must be named by us, not by the reader.
            from pyarrow import parquet

            present = parquet.read_schema(file).names
            require_columns(pd.DataFrame(columns=present), tuple(columns), str(file))
            return pd.read_parquet(file, columns=names)
        header = pd.read_csv(file, header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0].tolist()
        require_columns(pd.DataFrame(columns=[str(name).strip() for name in header]), tuple(columns), str(file))
        positions = {str(name).strip(): index for index, name in enumerate(header)}
        missing = {
            positions[name]: [mark for mark in _MISSING if mark not in column.categories]
            for column in columns
            for name in column.record_names
        }
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            read = pd.read_csv(
                file,
                header=0,
                names=list(range(len(header))),
                index_col=False,
                dtype=str,
                keep_default_na=False,
                na_values=missing,
            )
        return pd.DataFrame({name: read[positions[name]] for name in names})
    # `from None`: the readers' own messages can quote a line of the file.
    except pd.errors.EmptyDataError:
        raise DataError(f"{file}: the file is empty; its first line must be a header.") from None
    except (pd.errors.ParserError, pd.errors.ParserWarning):
        raise DataError(f"{file}: a line has more cells than the header; quote cells that hold commas.") from None
    except (OSError, UnicodeDecodeError, ValueError, EOFError):
        raise DataError(f"{file}: the file cannot be read; it must be UTF-8 CSV or Parquet, not damaged.") from None


def _typed(records: pd.DataFrame, schema: Schema, source: str) -> pd.DataFrame:
    columns = [column for column in schema.columns if column.is_read]
    require_columns(records, tuple(columns), source)
    cells = {n: _typed_cells(records[n], column, source) for column in columns for n in column.record_names}
    return pd.DataFrame(cells)


def _typed_cells(values: pd.Series, column: Column, source: str) -> pd.Series:
    if column.role in ("patient_id", "site"):
        return pd.Series(identifiers(values, source), dtype=object)
    if column.role == "time":
        return pd.Series([cell or None for cell in texts(values)], dtype=object)
    if column.role == "label":
        class_numbers(pd.DataFrame({column.name: values}), column, source)
    if column.kind == "code_set":
        code_sets(values, column, source)
        return pd.Series(texts(values), dtype=object)
    if column.categories:
        indices = codes(values, column, source)
        return pd.Series([column.categories[i] if i >= 0 else None for i in indices.tolist()], dtype=object)
    parsed = pd.Series(numbers(values, column, source))
    if column.kind in ("integer", "binary"):
        return parsed.astype("Int64" if column.nullable else "int64")
    return parsed
