"""Records in a database: a SQLAlchemy URL and a query, read through a server-side cursor in a read-only transaction.

The password comes from an environment variable or a file, and never stands in a URL, a message or a log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

import pandas as pd

from polyclinic.ehr.checks import require_columns
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.sources.chunks import ROWS, Chunk, Place, as_chunks
from polyclinic.errors import ConfigError, DataError

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Select

CREDENTIALS = ("password-env", "password-file")
# The classes of SQLSTATE (SQL:2016, PostgreSQL 15 appendix A) that a hospital can do something about.
_STATES = {
    "08": "the connection failed",
    "22": "the query meets a value that it cannot convert",
    "25": "the query would change something, and only reading is allowed",
    "28": "user or password were refused",
    "3D": "there is no such database",
    "42": "the query is wrong, names what is not there, or may not read it",
    "53": "the server has no room or connection left",
    "57": "the server ended the query",
}
_SQLITE = {
    "SQLITE_ERROR": _STATES["42"],
    "SQLITE_READONLY": _STATES["25"],
    "SQLITE_BUSY": "another program holds the database",
    "SQLITE_CANTOPEN": "the file cannot be opened",
    "SQLITE_CORRUPT": "the file is damaged",
    "SQLITE_NOTADB": "the file is no SQLite database",
}


def sql(place: Place, schema: Schema) -> Iterator[Chunk]:
    """The rows of one query; option ``query`` or ``query-file``, and ``password-env`` or ``password-file``."""
    place.allow("query", "query-file", *CREDENTIALS)
    if ("query" in place.options) == ("query-file" in place.options):
        raise ConfigError("A database needs exactly one of the keys 'query' and 'query-file' of [source].")
    query = place.options.get("query") or _text(place.path("query-file"))
    database = Database.at(place)
    columns = tuple(column for column in schema.columns if column.is_read)
    for chunk in as_chunks(database.results(query), database.name):
        require_columns(chunk.records, columns, database.name)
        yield chunk


# Seconds, and milliseconds in the last: how long PostgreSQL's driver waits for a connection, and for a server that went silent,
# where it would wait for minutes, or for ever, by itself.
_PATIENCE = {
    "connect_timeout": "30", "keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}  # fmt: skip


@dataclass(frozen=True)
class Database:
    """A database that is only read. ``name`` is how messages call it: no host, user or password.

    It is one of the ``Tables`` of ``sources.mapped``.
    """

    event: ClassVar[str] = ""
    url: URL
    name: str

    @classmethod
    def at(cls, place: Place) -> Database:
        """The database of a SQLAlchemy URL; relative SQLite files are relative to the place's folder.

        Raises ConfigError for a URL that is none or that holds a password, DataError for credentials that are not there.
        """
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError

        try:
            url = make_url(place.text)
        except (ArgumentError, ValueError):
            raise ConfigError("The database's URL cannot be read; it is DIALECT://USER@HOST/DATABASE.") from None
        if url.password is not None or any("pass" in key.lower() for key in url.query):
            raise ConfigError("The database's URL holds a password; name it by 'password-env' or 'password-file'.")
        name = f"{url.get_backend_name()} database {url.database or ''!r}"
        if url.get_backend_name() == "sqlite":
            return cls(_read_only_file(url, place.folder), name)
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        if url.get_backend_name() == "postgresql":
            url = url.update_query_dict({key: value for key, value in _PATIENCE.items() if key not in url.query})
        return cls(url if (secret := _password(place)) is None else url.set(password=secret), name)

    def frames(self, table: str, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
        """The named columns of one table, in chunks. Raises DataError."""
        import sqlalchemy

        chosen: Any = sqlalchemy.select(*[sqlalchemy.column(name) for name in columns])
        return self.results(chosen.select_from(sqlalchemy.table(table)))

    def results(self, query: str | Select[Any], rows: int = ROWS) -> Iterator[pd.DataFrame]:
        """The result of a query, at most ``rows`` rows at a time (an empty one as one frame without rows).

        Raises DataError, without the database's own words: they can quote a cell.
        """
        from sqlalchemy import create_engine
        from sqlalchemy.exc import DBAPIError, NoSuchModuleError, SQLAlchemyError
        from sqlalchemy.pool import NullPool

        try:
            engine = create_engine(self.url, poolclass=NullPool, hide_parameters=True)
            connection = engine.connect()
            try:
                yield from _rows(connection, query, rows)
            finally:
                with suppress(Exception):  # an error that matters has been raised before
                    connection.close()
        except DBAPIError as error:
            raise DataError(f"{self.name}: {_reason(error)}.") from None
        except (ImportError, NoSuchModuleError):
            raise DataError(
                f"{self.name}: its driver is not installed; PostgreSQL's comes with polyclinic[postgresql]."
            ) from None
        except DataError:
            raise
        except Exception as error:  # drivers raise of their own what a damaged file or a strange type makes them
            what = "the database cannot be read" if isinstance(error, SQLAlchemyError) else "its driver failed"
            raise DataError(f"{self.name}: {what} ({type(error).__name__}).") from None


def _rows(connection: Connection, query: str | Select[Any], rows: int) -> Iterator[pd.DataFrame]:
    options: dict[str, Any] = {"stream_results": True, "no_parameters": isinstance(query, str), "yield_per": rows}
    if connection.dialect.name == "postgresql":
        options["postgresql_readonly"] = True
    reading = connection.execution_options(**options)
    result = reading.exec_driver_sql(query) if isinstance(query, str) else reading.execute(query)
    names = list(result.keys())
    empty = True
    for part in result.partitions(rows):
        empty = False
        columns = [_cells(list(values)) for values in zip(*part, strict=True)]
        frame = pd.concat(columns, axis=1)
        frame.columns = pd.Index(names)
        yield frame
    if empty:
        yield pd.DataFrame(columns=names)


def _cells(values: list[Any]) -> pd.Series:
    """A column whose cells read the same whatever else is in its chunk."""
    kinds = {type(value) for value in values} - {type(None)}
    if kinds == {int} and all(-(2**63) <= value < 2**63 for value in values if value is not None):
        return pd.Series(values, dtype="Int64")
    if kinds == {float}:
        return pd.Series(values, dtype="float64")
    return pd.Series([_plain(value) for value in values], dtype=object)


def _plain(value: Any) -> Any:
    """A whole number as an int, so that it reads as text without ``.0``; bytes as text."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if (
        isinstance(value, Decimal)
        and value.is_finite()
        and value.adjusted() < 400
        and value == value.to_integral_value()
    ):
        return int(value)
    return value


def _reason(error: Any) -> str:
    state = str(getattr(error.orig, "sqlstate", None) or "")
    if name := getattr(error.orig, "sqlite_errorname", None):
        return f"{_SQLITE.get(name, 'the query fails')} ({name})"
    explanation = _STATES.get(state[:2]) or (
        "the database cannot be reached or the query fails" if not state else "it failed"
    )
    return f"{explanation} ({type(error.orig).__name__}{f', SQLSTATE {state}' if state else ''})"


def _read_only_file(url: URL, folder: Path) -> URL:
    file = folder / (url.database or "")
    if not file.is_file():
        raise DataError(f"{file}: there is no such SQLite database.")
    query = {"mode": "ro", "uri": "true"}
    return url.set(database=f"file:{quote(str(file.resolve()))}", query=query)


def _password(place: Place) -> str | None:
    if "password-file" in place.options:
        return _text(place.path("password-file")).rstrip("\r\n")
    name = place.options.get("password-env")
    if name is not None and name not in os.environ:
        raise DataError(f"The environment variable {name!r}, which 'password-env' names, is not set.")
    return None if name is None else os.environ[name]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: the file cannot be read ({type(error).__name__}).") from None
