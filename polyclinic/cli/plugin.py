"""``polyclinic plugins``: what names there are, and who brings them."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from polyclinic.cli.terminal import Json, answer, json_alone, loading, table


def plugins(
    group: Annotated[str | None, typer.Argument(help="Group whose entries are listed.")] = None,
    as_json: Json = False,
) -> None:
    """List every name that the configuration knows, the package that brings it, and why one cannot be used.

    Other packages' objects are imported to find out, which runs those packages' code.
    """
    with loading():
        from polyclinic.errors import ConfigError, nearest
        from polyclinic.plugins import GROUPS, with_problem
        from polyclinic.plugins import plugins as known

    if group not in (None, *GROUPS):
        raise ConfigError(f"There is no group {group!r}; groups are {', '.join(GROUPS)}.{nearest(str(group), GROUPS)}")
    with json_alone(True):
        listed = [with_problem(plugin) for plugin in known() if group in (None, plugin.group)]
    value = [
        {"group": p.group, "name": p.name, "package": p.package, "version": p.version, "object": p.object or None,
         "problem": p.problem or None}
        for p in listed
    ]  # fmt: skip
    headings = ("group", "name", "package", "object")
    usable = ((p.group, p.name, p.whose, p.object) for p in listed if not p.problem)
    problems = (
        Text.assemble(("Not usable:", "yellow"), f"{f' {p.group} {p.name}'.rstrip()} of {p.whose}: {p.problem}.")
        for p in listed
        if p.problem
    )
    answer(as_json, value, table(headings, usable, words=headings), *problems)
