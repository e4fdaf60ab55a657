"""Records in files: CSV (also gzipped) and Parquet, one file, a folder of them or a glob pattern, read in chunks.

A CSV may be separated by commas, semicolons, tabs or bars, and be UTF-8, UTF-16 or Windows-1252.
"""

from __future__ import annotations

import codecs
import gzip
import io
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from polyclinic.ehr.checks import require_names
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.sources.cells import MISSING
from polyclinic.ehr.sources.chunks import ROWS, Chunk, Place, as_chunks
from polyclinic.ehr.sources.quotes import stray_quotes
from polyclinic.errors import DataError

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
#: What makes a CSV of other programs' files.
_OTHERS = {
    (".xlsx", ".xlsm", ".xls", ".ods"): "in Excel by Save as, CSV UTF-8, one sheet a file; in Python by "
    "pandas.read_excel(FILE).to_csv('table.csv', index=False)",
    (".sav", ".por", ".dta", ".sas7bdat", ".xpt"): "in Python by pandas.read_spss, read_stata or read_sas and "
    ".to_csv('table.csv', index=False)",
    (".rds", ".rdata", ".rda"): "in R by write.csv(table, 'table.csv', row.names = FALSE)",
}
_Part = TypeVar("_Part")


def _windows_letters(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("cp1252"), error.end


# What bytes are that are not UTF-8, by the name under which Python's codecs find it.
_MIXED = "polyclinic.windows-1252"
codecs.register_error(_MIXED, _windows_letters)


def files(place: Place, schema: Schema) -> Iterator[Chunk]:
    """The records of the file, folder or pattern that ``place`` names; it has no options."""
    place.allow()
    return file_chunks(place.folder / place.text, schema)


def file_chunks(path: str | Path, schema: Schema, rows: int = ROWS) -> Iterator[Chunk]:
    """Yield the schema's columns of the files at ``path``, with rows numbered file by file.

    Empty cells, NA, null, ?, "." and their like (``cells.MISSING``) of a CSV are missing.

    Args:
        path: A .csv, .csv.gz or .parquet file, a folder of such files, or a glob pattern; files are read in order of
            name.
        schema: The schema whose columns are read.
        rows: The most rows of a chunk.

    Raises:
        DataError: Naming the file, where none is there, it is damaged or it lacks a column.
    """
    columns = [column for column in schema.columns if column.is_read]
    names = [name for column in columns for name in column.record_names]
    missing = {
        name: [mark for mark in MISSING if mark not in column.categories]
        for column in columns
        for name in column.record_names
    }
    for file in found_files(path):
        yield from as_chunks(read_table(file, names, rows, missing), str(file))


def found_files(path: str | Path) -> list[Path]:
    """The files at a path, a folder or a pattern, in order of name. Raises DataError where there are none."""
    place = Path(path)
    if place.is_file():
        check_suffix(place)
        return [place]
    candidates = place.iterdir() if place.is_dir() else Path(place.anchor).glob(str(place.relative_to(place.anchor)))
    there = sorted(file for file in candidates if file.is_file())
    files = [file for file in there if file.name.lower().endswith(SUFFIXES)]
    if not files:
        if others := [file for file in there if _remedy(file)]:
            check_suffix(others[0])
        absent = "" if place.exists() or set("*?[") & set(str(path)) else ", for there is no such file"
        raise DataError(
            f"{path}: no records found{absent}; give a {', '.join(SUFFIXES)} file, a folder of them or a pattern."
        )
    return files


def unread_files(path: str | Path) -> list[Path]:
    """Tables in the folder at ``path`` in formats that are not read, such as Excel's."""
    return sorted(file for file in Path(path).iterdir() if _remedy(file)) if Path(path).is_dir() else []


def check_suffix(file: Path) -> None:
    """Raise DataError, which says what to do, unless the file's name ends as one that is read."""
    if not file.name.lower().endswith(SUFFIXES):
        sentence = f"the file's type is not known; allowed are {', '.join(SUFFIXES)}."
        raise DataError(f"{file}: {_remedy(file) or sentence}")


def _remedy(file: Path) -> str:
    how = next((how for suffixes, how in _OTHERS.items() if file.name.lower().endswith(suffixes)), "")
    return how and f"{file.suffix} files are not read; make a CSV of it, {how}."


def read_table(
    file: Path, names: Sequence[str], rows: int = ROWS, missing: Mapping[str, Sequence[str]] | None = None
) -> Iterator[pd.DataFrame]:
    """Yield the named columns of one file in parts; a CSV's cells are text or missing.

    Args:
        file: A .csv, .csv.gz or .parquet file.
        names: The columns to read.
        rows: The most rows of a part.
        missing: By column the texts that stand for a missing cell in a CSV, if not the usual marks.

    Raises:
        DataError: For a file that is damaged or lacks a column, never quoting its content.
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
            yield Dialect.of(file).header(file)

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
        raise DataError(
            f"{file}: a line has more cells than the header; quote cells that hold the separator, and let the first line name "
            "the columns, without a title above."
        ) from None
    except FileNotFoundError:
        raise DataError(f"{file}: there is no such file.") from None
    except Exception:  # damaged bytes make the readers raise anything
        raise DataError(
            f"{file}: the file cannot be read; it must be CSV (UTF-8, UTF-16 or Windows-1252) or Parquet, not damaged."
        ) from None


def whole_table(file: Path, rows: int | None = None) -> pd.DataFrame:
    """A file's whole table, or its first ``rows`` rows, under the names of its header; a CSV's cells are text, "" where empty.

    Raises DataError as ``read_table`` does.
    """

    def table() -> Iterator[pd.DataFrame]:
        if file.name.lower().endswith(".parquet"):
            yield pd.read_parquet(file).head(rows or sys.maxsize)
        else:
            dialect = Dialect.of(file)
            header, options = dialect.header(file), dialect.options
            names = [number for number, _ in enumerate(header)]
            read = pd.read_csv(
                file, header=0, names=names, index_col=False, dtype=str, keep_default_na=False, **options
            )
            # The first line is not quoted: where it is none of names, it is a patient's row.
            numbers = pd.to_numeric(pd.Series(header), errors="coerce").notna()
            if sum(numbers[at] or (header[at] != "" and (read[at] == header[at]).any()) for at in names) * 3 >= len(
                names
            ):
                raise DataError(f"{file}: the first line holds cells; it must name the columns.")
            yield read.set_axis(header, axis=1)

    check_suffix(file)
    read = _next(table(), file)
    return pd.DataFrame() if read is None else read


@dataclass(frozen=True)
class Dialect:
    """How a CSV is written: the encoding of its text, and what separates its cells."""

    encoding: str
    separator: str

    @classmethod
    def of(cls, file: Path) -> Dialect:
        """The dialect of a file, from its first line. Raises ValueError for bytes that are no text, DataError for
        stray quotation marks that swallow lines.

        What is not UTF-8 is read as Windows-1252, letter by letter: how a patient's cell is read does not depend on others'.
        """
        with gzip.open(file) if file.name.lower().endswith(".gz") else file.open("rb") as opened:
            wide = opened.read(4).startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            opened.seek(0)
            lines = io.TextIOWrapper(
                opened, encoding := "utf-16" if wide else "utf-8-sig", "strict" if wide else _MIXED
            )
            text = _without_nul(lines)
            first = next((line for line in text if line.strip()), "")
            separator = max(",;\t|", key=re.sub('"[^"]*"', "", first).count)
            if stray := stray_quotes(chain([first], text), separator):
                raise DataError(
                    f"{file}: stray quotation marks ({stray.marks}) would swallow lines of the file ({stray.lines}); delete such "
                    "a mark, or quote its cell and write it twice there."
                )
            return cls(encoding, separator)

    @property
    def options(self) -> dict[str, Any]:
        """The dialect as arguments of ``pandas.read_csv``."""
        return {"encoding": self.encoding, "sep": self.separator, "encoding_errors": _MIXED}

    def header(self, file: Path) -> list[str]:
        """The names in the first line that is not blank."""
        line = pd.read_csv(file, header=None, nrows=1, dtype=str, keep_default_na=False, **self.options).iloc[0]
        return [str(name).strip() for name in line.tolist()]


def _without_nul(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if "\0" in line:
            raise ValueError("no text")
        yield line


def _csv(
    file: Path, names: Sequence[str], rows: int, missing: Mapping[str, Sequence[str]] | None
) -> Iterator[pd.DataFrame]:
    dialect = Dialect.of(file)
    header = dialect.header(file)
    require_names(header, names, str(file))
    positions = {name: header.index(name) for name in names}
    marks = {positions[name]: list(MISSING if missing is None else missing[name]) for name in names}
    with pd.read_csv(
        file, header=0, names=list(range(len(header))), index_col=False, dtype=str, keep_default_na=False,
        na_values=marks, chunksize=rows, **dialect.options,
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
