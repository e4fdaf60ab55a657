"""``polyclinic plugins``: what names there are, and who brings them."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from polyclinic.cli.terminal import Json, console, loading, print_json


def plugins(
    group: Annotated[str | None, typer.Argument(help="Only this group.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """List every name that the configuration knows, the package that brings it, and why one cannot be used.

    Other packages' objects are imported to find out, which runs those packages' code.
    """
    with loading():
        from polyclinic.errors import ConfigError, nearest
        from polyclinic.plugins import GROUPS, checked
        from polyclinic.plugins import plugins as known

    if group not in (None, *GROUPS):
        raise ConfigError(f"There is no group {group!r}; groups are {', '.join(GROUPS)}.{nearest(str(group), GROUPS)}")
    with redirect_stdout(sys.stderr):
        found = [checked(plugin) for plugin in known() if group in (None, plugin.group)]
    if as_json:
        print_json([{"group": p.group, "name": p.name, "package": p.package, "version": p.version,
                     "object": p.object or None, "problem": p.problem or None} for p in found])  # fmt: skip
        return
    screen, table = console(), Table(box=None)
    for heading in ("group", "name", "package", "object"):
        table.add_column(heading)
    for plugin in found:
        if not plugin.problem:
            table.add_row(plugin.group, plugin.name, plugin.whose, plugin.object)
    screen.print(table)
    for plugin in found:
        if plugin.problem:
            what = f" {plugin.group} {plugin.name}".rstrip()
            screen.print(
                Text.assemble(("Not usable:", "yellow"), f"{what} of {plugin.whose}: {plugin.problem}."), soft_wrap=True
            )
