"""Where a hospital's records are, as hospital.toml will say it, and whether they can be read under the schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyclinic.deployment.hospital import Records
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import count_records
from polyclinic.ehr.sources import named_place
from polyclinic.errors import ConfigError
from polyclinic.plugins import open_source, plugins

_FILES = ("query-file", "password-file")


def records_of(data: str, options: Mapping[str, str], schema: Path) -> Records:
    """The records with every path absolute, since hospital.toml lies elsewhere; reads the schema, and no record.

    Args:
        data: A file, folder or glob, a database's URL, or ``SOURCE:PLACE``.
        options: The source's options.
        schema: The file of the public schema, in TOML.

    Raises:
        ConfigError: A URL holds a password or cannot be read.
        DataError: The schema is missing or wrong.
    """
    Schema.from_toml(schema)
    source = {key: str(Path(value).resolve()) if key in _FILES else value for key, value in options.items()}
    place, variable = _place(data)
    return Records(place, source | ({"password-env": variable} if variable else {}), schema.read_bytes())


def count_cells(records: Records, schema: Path) -> dict[str, Any]:
    """Exact counts of rows, patients and missing cells, for the hospital alone. Raises ConfigError or DataError."""
    parsed = Schema.from_toml(schema)
    return count_records(open_source(records.data, Path(), records.source, parsed), parsed, _display_name(records.data))


def _place(data: str) -> tuple[str, str]:
    """``data`` with absolute paths and without a password, and the environment variable that holds the password, if any."""
    name, place = named_place(data, [plugin.name for plugin in plugins() if plugin.group == "sources"])
    if "://" not in place:
        absolute = str(Path(place).expanduser().absolute())
        return (absolute if place == data else f"{name}:{absolute}"), ""
    from sqlalchemy import URL, make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(place)
    except (ArgumentError, ValueError):
        raise ConfigError("The database's URL cannot be read; it is DIALECT://USER@HOST/DATABASE.") from None
    variable = re.fullmatch(r"\$\{(\w+)\}", str(url.password)) if url.password is not None else None
    if variable:
        url = URL.create(url.drivername, url.username, None, url.host, url.port, url.database, url.query)
    if url.password is not None or any("pass" in key.lower() for key in url.query):
        raise ConfigError(
            "The database's URL holds a password; write ${NAME} of an environment variable in its place, or leave it out "
            "and give --source password-file=FILE."
        )
    if url.get_backend_name() == "sqlite" and url.database:
        url = url.set(database=str(Path(url.database).absolute()))
    text = url.render_as_string()
    return (text if place == data else f"{name}:{text}"), variable[1] if variable else ""


def _display_name(data: str) -> str:
    return "the database" if "://" in data else data
