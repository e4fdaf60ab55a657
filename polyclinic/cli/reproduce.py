"""``polyclinic reproduce``: a published experiment, run again; without a name, the list of them."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer
from rich.table import Table

from polyclinic.cli.terminal import Json, console, loading, print_json
from polyclinic.errors import ConfigError


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which; without it, they are listed.", show_default=False)] = None,
    hospitals: Annotated[int, typer.Option(help="Number of hospitals; 0 is the experiment's own.")] = 0,
    preset: Annotated[
        str, typer.Option(help="sound: with a true epsilon. paper: as published, whatever that keeps.")
    ] = "sound",
    quick: Annotated[
        bool, typer.Option("--quick", help="A small form of under a minute, whose numbers mean nothing.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="How many seeds; 0 is the experiment's own number.")] = 0,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Only this method, by its name in the table; repeatable.", show_default=False),
    ] = None,
    federation: Annotated[
        bool, typer.Option("--federation", help="sprint: also several hospitals against one, and alone.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of results; reproduced/NAME by default.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a published experiment again, beside what beats it: results.json, table.md, config.toml and figures in --out.

    Stopped, it goes on where it was: finished parts are kept in --out.
    """
    with loading():
        from polyclinic.reproduce.experiment import EXPERIMENTS, TABLE, Asked, experiment_named
        from polyclinic.reproduce.experiment import reproduce as run

    if name is None:
        rows = [{"name": one.name, "title": one.title, "presets": list(one.presets)} for one in EXPERIMENTS.values()]
        if as_json:
            print_json(rows)
            return
        table = Table(box=None)
        for heading in ("name", "what", "presets"):
            table.add_column(heading)
        for row in rows:
            table.add_row(str(row["name"]), str(row["title"]), ", ".join(row["presets"]))
        console().print(table)
        return
    if preset not in ("sound", "paper"):
        raise ConfigError(f"--preset is {preset!r}; it must be sound or paper.")
    experiment = experiment_named(name)
    folder = out or Path("reproduced") / (f"{name}-quick" if quick else name)
    chosen = cast(Literal["sound", "paper"], preset)
    asked = Asked(folder, chosen, quick, hospitals, seeds, federation, tuple(method or ()))
    told = console(as_json=True)
    # What libraries print must not get between a reader and the JSON.
    with redirect_stdout(sys.stderr if as_json else sys.stdout):
        found: dict[str, Any] = run(experiment, asked, lambda line: told.print(line, style="dim", soft_wrap=True))
    if as_json:
        print_json(found)
        return
    screen = console()
    table_file = folder / TABLE
    if table_file.is_file():
        screen.print(table_file.read_text(encoding="utf-8"), soft_wrap=True)
    screen.print(f"Results: {folder}", soft_wrap=True)
