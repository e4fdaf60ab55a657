"""A copy of a coordinator's or a hospital's folder, made while its program runs."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polyclinic
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.files import SECRET, new_folder, sha256, write_file

#: The file of a backup that lists all others with their digests, so that a restore can check them.
MANIFEST = "backup.json"

_DATABASE = b"SQLite format 3\0"
# SQLite's own beside a database, files that are being written, a lock, and secrets of secure sums: restored, they would mask a
# second update as they did the first.
_LEFT_OUT = ("*-wal", "*-shm", "*-journal", "*.partial", ".*", MANIFEST, "alone.sqlite", "secure-*.safetensors")


def back_up(folder: Path, destination: Path, parts: Mapping[str, Path]) -> dict[str, Any]:
    """Copies the files of ``folder`` itself, and each of ``parts`` whole, into the new folder ``destination``.

    SQLite itself copies each SQLite database as of one moment, after all other files. So a ledger in a backup is at
    least as new as the files beside it. The copy appears whole or not at all, readable by its owner alone; links are
    left out.

    Args:
        folder: The folder whose own files are copied, without its subfolders.
        destination: The folder to be made.
        parts: Folders that are copied whole, by their names in the backup.

    Returns:
        ``{"folder", "backup", "files", "bytes"}``.

    Raises:
        ConfigError: ``destination`` exists or lies in what is copied.
        PolyclinicError: A file cannot be read or written.
    """
    if os.path.lexists(destination):
        raise ConfigError(f"{destination} is there already, and nothing is overwritten; name a new folder.")
    destination = destination.resolve()
    within = next(
        (source for source in (folder, *parts.values()) if destination.is_relative_to(source.resolve())), None
    )
    if within is not None:
        raise ConfigError(
            f"The backup {destination} would lie in {within}, which it is to save; name a folder elsewhere."
        )
    files = [(path, Path(path.name)) for path in folder.iterdir()]
    files += [(path, name / path.relative_to(root)) for name, root in parts.items() for path in root.rglob("*")]
    copied = [
        (path, name) for path, name in files
        if path.is_file() and not path.is_symlink() and not any(name.match(pattern) for pattern in _LEFT_OUT)
    ]  # fmt: skip
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(destination) as staging:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            sizes = dict(_copy_all(sorted(copied, key=lambda pair: _is_database(pair[0])), staging))
            listed = {"polyclinic": polyclinic.__version__, "time": now,
                      "files": {str(name): sha256(staging / name) for name in sizes}}  # fmt: skip
            write_file(staging / MANIFEST, json.dumps(listed, indent=1), mode=SECRET)
    except (OSError, sqlite3.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise PolyclinicError(f"{folder} cannot be copied to {destination}: {why}.") from None
    return {"folder": str(folder), "backup": str(destination), "files": len(sizes), "bytes": sum(sizes.values())}


def _copy_all(files: list[tuple[Path, Path]], staging: Path) -> Iterator[tuple[Path, int]]:
    """Copy each file; yields name and size of each that was still there."""
    for source, name in files:
        target = staging / name
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        target.touch(mode=SECRET, exist_ok=False)
        try:
            if _is_database(source):
                _copy_database(source, target)
            else:
                target.write_bytes(source.read_bytes())
        except FileNotFoundError:  # replaced by a newer one meanwhile
            target.unlink()
            continue
        yield name, target.stat().st_size


def _copy_database(source: Path, target: Path) -> None:
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True, timeout=60.0)) as live,
        closing(sqlite3.connect(target)) as copy,
    ):
        live.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, whatever the live one has beside it


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_DATABASE)) == _DATABASE
    except FileNotFoundError:
        return False
