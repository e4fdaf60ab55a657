"""Folders that are written whole or not at all, and never over what is there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from polyclinic.errors import ConfigError, PolyclinicError

SECRET, PUBLIC = 0o600, 0o644


@dataclass(frozen=True)
class NewFile:
    """``mode``: permission bits; a key's are SECRET."""

    content: bytes
    mode: int = PUBLIC


def write_new(folder: Path, files: Mapping[str, NewFile]) -> None:
    """Write the files, by their names relative to ``folder``; on failure nothing of them is left behind.

    A folder within it that begins with a secret file is its owner's alone.

    Raises ConfigError naming the first file that is there already, PolyclinicError when the disk refuses.
    """
    for name in files:
        if os.path.lexists(folder / name):
            raise ConfigError(f"{folder / name} is there already, and nothing is overwritten; name another folder.")
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Beside their final place, so that a link, which never replaces a file, can bring them there.
        staging = Path(mkdtemp(prefix=".new-", dir=folder))
        try:
            for name, file in files.items():
                _write(staging / name.replace("/", "-"), file)
            for name in files:
                target = folder / name
                made += [path for path in target.parents if not path.exists()]
                target.parent.mkdir(mode=0o700 if files[name].mode == SECRET else 0o777, parents=True, exist_ok=True)
                os.link(staging / name.replace("/", "-"), target)
                written.append(target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except BaseException as error:  # Ctrl-C too
        for path in written:
            path.unlink(missing_ok=True)
        for path in sorted(made, key=lambda path: -len(path.parts)):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        if isinstance(error, OSError):
            raise PolyclinicError(f"{folder} cannot be written: {error.strerror or error}.") from None
        raise


def replace(path: Path, file: NewFile) -> None:
    """Write the file in one step over one that is there. Raises PolyclinicError when the disk refuses."""
    new = path.with_name(f".{path.name}.new")
    try:
        new.unlink(missing_ok=True)
        _write(new, file)
        new.replace(path)
    except OSError as error:
        raise PolyclinicError(f"{path} cannot be written: {error.strerror or error}.") from None


def quoted(text: str) -> str:
    """A basic string of TOML. Raises ConfigError for control characters, which no name or path here needs."""
    if not text.isprintable():
        raise ConfigError(f"{text!r} has a character that cannot be printed; names and paths may not.")
    return json.dumps(text, ensure_ascii=False)


def _write(path: Path, file: NewFile) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.mode)
    with os.fdopen(descriptor, "wb") as sink:
        os.fchmod(descriptor, file.mode)  # whatever the umask is
        sink.write(file.content)
        sink.flush()
        os.fsync(descriptor)
