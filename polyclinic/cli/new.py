"""``polyclinic new``: a small package of one's own that works, to begin with."""

from __future__ import annotations

import keyword
import re
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated

import tomli_w
import typer

from polyclinic.cli.new_templates import KINDS
from polyclinic.cli.terminal import Json, console, loading, print_json
from polyclinic.config import RunConfig
from polyclinic.config.keys import nested_keys
from polyclinic.errors import ConfigError, nearest

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def new(
    kind: Annotated[str, typer.Argument(help=f"{', '.join(KINDS)}.", show_default=False)],
    name: Annotated[
        str, typer.Argument(help="The name to give it, as half-way; also the folder's.", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Write a package of one strategy, task, program, dataset or model into the folder NAME: code, entry point, test, README.

    An app is a Flower app on top of Polyclinic, with a strategy of its own.
    """
    with loading():
        from polyclinic.plugins import plugins

    folder = Path(name)
    files = package(kind, name)
    group = KINDS[kind].group
    taken = [plugin for plugin in plugins() if (plugin.group, plugin.name) == (group, name)]
    if taken:
        raise ConfigError(f"The name {name!r} is taken in {group}, by {taken[0].whose}; choose another.")
    if folder.exists() or folder.is_symlink():
        raise ConfigError(
            f"{folder} is there already, and nothing is written over; choose another name or move it away."
        )
    if find_spec(_module(name)) is not None:
        raise ConfigError(f"The name {name!r} is that of a Python module that is installed here; choose another.")
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    if as_json:
        print_json({"folder": str(folder.resolve()), "kind": kind, "name": name, "files": sorted(files)})
        return
    screen = console()
    screen.print(f"Wrote {', '.join(files)} into {folder}.", soft_wrap=True)
    shown = f"polyclinic plugins {group}" if group else f"polyclinic flower run --app {name}"
    screen.print(f"Next: pip install -e {name}, then python -m pytest {name}, then {shown}.", soft_wrap=True)


def package(kind: str, name: str) -> dict[str, str]:
    """The package's files, texts by their paths in its folder. Raises ConfigError for an unknown kind or an impossible name."""
    if kind not in KINDS:
        raise ConfigError(f"There is no kind {kind!r}; kinds are {', '.join(KINDS)}.{nearest(kind, KINDS)}")
    if not _NAME.fullmatch(name) or keyword.iskeyword(_module(name)):
        raise ConfigError(
            f"The name {name!r} cannot be; use small letters, digits and dashes between them, as half-way."
        )
    found, module = KINDS[kind], _module(name)
    words = {
        "name": name,
        "module": module,
        "Name": "".join(part.capitalize() for part in name.split("-")),
        "kind": kind,
    }

    def filled(text: str) -> str:
        return Template(text).substitute(words)

    config = RunConfig.packaged() | {"strategy": f"{module}:{words['Name']}"}
    words["config"] = tomli_w.dumps({"tool": {"flwr": {"app": {"config": nested_keys(config)}}}})
    words |= {"group": found.group, "object": filled(found.object), "run": filled(found.run), "about": found.about,
              "beware": filled(found.beware)}  # fmt: skip
    return {
        "pyproject.toml": filled(found.pyproject), "README.md": filled(found.readme), f"{module}/__init__.py": filled(found.code),
        f"tests/test_{module}.py": filled(found.test),
    }  # fmt: skip


def _module(name: str) -> str:
    return name.replace("-", "_")
