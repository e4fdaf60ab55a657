"""Folders that are written whole or not at all, and never over what is there; and the TOML files that people read in them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import ConfigDict

from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.files import SECRET, NewFile, write_files
from polyclinic.toml import Declared, build_model


class FolderFile(Declared):
    """A TOML file of a coordinator's or a hospital's folder; its keys have dashes."""

    model_config = ConfigDict(alias_generator=lambda n: n.replace("_", "-"), populate_by_name=True)

    @classmethod
    def build(cls, values: Mapping[str, Any], source: str) -> Self:
        """Raises ConfigError naming the key of ``source`` that is missing, unknown or impossible."""
        return build_model(cls, values, source)


def write_new(folder: Path, files: Mapping[str, NewFile]) -> None:
    """Write the files, by their names relative to ``folder``; on failure nothing of them is left behind.

    A folder within it that begins with a secret file is its owner's alone.

    Raises ConfigError naming the first file that is there already, PolyclinicError when the disk refuses.
    """
    for name in files:
        if os.path.lexists(folder / name):
            raise ConfigError(f"{folder / name} is there already, and nothing is overwritten; name another folder.")
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, file in files.items():
            parent = (folder / name).parent
            made += [path for path in (parent, *parent.parents) if not path.exists()]
            parent.mkdir(mode=0o700 if file.mode == SECRET else 0o777, parents=True, exist_ok=True)
        write_files({folder / name: file for name, file in files.items()}, exclusive=True)
    except BaseException as error:  # Ctrl-C too
        for path in sorted(made, key=lambda path: -len(path.parts)):
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        if isinstance(error, OSError):
            raise PolyclinicError(f"{folder} cannot be written: {error.strerror or error}.") from None
        raise


def replace(files: Mapping[Path, NewFile]) -> None:
    """Write each file in one step over one that is there. Raises PolyclinicError when the disk refuses."""
    try:
        write_files(files)
    except OSError as error:
        raise PolyclinicError(f"{error.filename} cannot be written: {error.strerror or error}.") from None


def commented_toml(values: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    """TOML with a line for each value, below its comment where it has one. Raises ConfigError as ``quote``."""
    lines = (
        (f"# {comments[name]}\n" if name in comments else "") + f"{name.replace('_', '-')} = {_toml(value)}\n"
        for name, value in values.items()
    )
    return "".join(lines)


def unless_refused(check: Callable[[str], object], value: str) -> None:
    """Check a value in a model. Raises ValueError, which pydantic expects, in place of the check's ConfigError."""
    try:
        check(value)
    except ConfigError as error:
        raise ValueError(str(error).rstrip(".")) from None


def quote(text: str) -> str:
    """A basic string of TOML. Raises ConfigError for control characters, which no name or path here needs."""
    if not text.isprintable():
        raise ConfigError(f"{text!r} has a character that cannot be printed; names and paths may not.")
    return json.dumps(text, ensure_ascii=False)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(quote, value))}]"
    return quote(value) if isinstance(value, str) else repr(value)
