"""Records in files: CSV (also gzipped) and Parquet, one file, a folder of them or a glob pattern, read in chunks."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pandas as pd

from polyclinic.ehr.checks import require_names
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.sources.chunks import ROWS, Chunk, Place, numbered
from polyclinic.errors import DataError

SUFFIXES = (".csv", ".csv.gz", ".parquet")
_Part = TypeVar("_Part")
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "?")


def files(place: Place, schema: Schema) -> Iterator[Chunk]:
    """The records of the file, folder or pattern that ``place`` names; it has no options."""
    place.allow()
    return file_chunks(place.folder / place.text, schema)


def file_chunks(path: str | Path, schema: Schema, rows: int = ROWS) -> Iterator[Chunk]:
    """The schema's columns of the files at ``path``, at most ``rows`` rows at a time; rows are numbered file by file.

    path: a .csv, .csv.gz or .parquet file, a folder of such files, or a glob pattern; files are read in order of name.
    Empty cells, NA, NaN, null and ? of a CSV are missing. Raises DataError naming the file.
    """
    columns = [column for column in schema.columns if column.is_read]
    names = [name for column in columns for name in column.record_names]
    missing = {
        name: [mark for mark in MISSING if mark not in column.categories]
        for column in columns
        for name in column.record_names
    }
    for file in found_files(path):
        yield from numbered(read_table(file, names, rows, missing), str(file))


def found_files(path: str | Path) -> list[Path]:
    """The files at a path, a folder or a pattern, in order of name. Raises DataError where there are none."""
    place = Path(path)
    if place.is_file():
        check_suffix(place)
        return [place]
    found = place.iterdir() if place.is_dir() else Path(place.anchor).glob(str(place.relative_to(place.anchor)))
    files = sorted(file for file in found if file.is_file() and file.name.lower().endswith(SUFFIXES))
    if not files:
        raise DataError(f"{path}: no records found; give a {', '.join(SUFFIXES)} file, a folder of them or a pattern.")
    return files


def check_suffix(file: Path) -> None:
    """Raise DataError unless the file's name says what it holds."""
    if not file.name.lower().endswith(SUFFIXES):
        raise DataError(f"{file}: the file's type is not known; allowed are {', '.join(SUFFIXES)}.")


def read_table(
    file: Path, names: Sequence[str], rows: int = ROWS, missing: Mapping[str, Sequence[str]] | None = None
) -> Iterator[pd.DataFrame]:
    """The named columns of one file, at most ``rows`` rows at a time; a CSV's cells are text or missing.

    missing: what stands for a missing cell in a CSV's column, if not the usual marks. Raises DataError for a file that
    is damaged or lacks a column, never quoting its content.
    """
    parts = _parquet(file, names, rows) if file.name.lower().endswith(".parquet") else _csv(file, names, rows, missing)
    while (part := _next(parts, file)) is not None:
        yield part


def column_names(file: Path) -> list[str]:
    """The names in the file's header. Raises DataError for a file that cannot be read."""

    def header() -> Iterator[list[str]]:
        if file.name.lower().endswith(".parquet"):
            from pyarrow import parquet

            yield list(parquet.read_schema(file).names)
        else:
            yield _header(file)

    return _next(header(), file) or []


def _next(parts: Iterator[_Part], file: Path) -> _Part | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return next(parts, None)
    except DataError:
        raise
    # `from None`: the readers' own messages can quote a line of the file.
    except pd.errors.EmptyDataError:
        raise DataError(f"{file}: the file is empty; its first line must be a header.") from None
    except (pd.errors.ParserError, pd.errors.ParserWarning):
        raise DataError(f"{file}: a line has more cells than the header; quote cells that hold commas.") from None
    except Exception:  # damaged bytes make the readers raise anything
        raise DataError(f"{file}: the file cannot be read; it must be UTF-8 CSV or Parquet, not damaged.") from None


def _header(file: Path) -> list[str]:
    line = pd.read_csv(file, header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0].tolist()
    return [str(name).strip() for name in line]


def _csv(
    file: Path, names: Sequence[str], rows: int, missing: Mapping[str, Sequence[str]] | None
) -> Iterator[pd.DataFrame]:
    header = _header(file)
    require_names(header, names, str(file))
    positions = {name: header.index(name) for name in names}
    marks = {positions[name]: list(MISSING if missing is None else missing[name]) for name in names}
    with pd.read_csv(
        file, header=0, names=list(range(len(header))), index_col=False, dtype=str, keep_default_na=False,
        na_values=marks, chunksize=rows,
    ) as reader:  # fmt: skip
        for part in reader:
            yield pd.DataFrame({name: part[positions[name]] for name in names}).reset_index(drop=True)


def _parquet(file: Path, names: Sequence[str], rows: int) -> Iterator[pd.DataFrame]:
    import pyarrow
    from pyarrow import parquet

    whole = {
        getattr(pyarrow, f"{sign}int{bits}")(): pd.array([], dtype=f"{sign.upper()}Int{bits}").dtype
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    }
    # The same type in every chunk, whether or not it has missing cells.
    types = {**whole, pyarrow.bool_(): pd.BooleanDtype()}
    with parquet.ParquetFile(file) as opened:
        require_names(opened.schema_arrow.names, names, str(file))
        for batch in opened.iter_batches(batch_size=rows, columns=list(names)):
            batch.validate(full=True)  # text that is not UTF-8 would raise only where it is used, and quote it
            yield batch.to_pandas(types_mapper=types.get, ignore_metadata=True)[list(names)]
