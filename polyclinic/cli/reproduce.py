"""``polyclinic reproduce``: an experiment of an installed package, run again; without a name, the list of them."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from polyclinic.cli.terminal import Json, console, loading, print_json


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
    """Run an experiment of an installed package: results.json, table.md, config.toml and figures in --out.

    Stopped, it goes on where it was: finished parts stay in --out.
    """
    with loading():
        from polyclinic.experiments import TABLE, Asked, experiments
        from polyclinic.experiments import reproduce as run

    if name is None:
        rows = [
            {"name": known, "title": experiment.title, "presets": list(experiment.presets)}
            for known, experiment in experiments().items()
        ]
        if as_json:
            print_json(rows)
            return
        if not rows:
            console().print(
                "No installed package brings an experiment; install polyclinic-studies, which is in experiments/."
            )
            return
        table = Table(box=None)
        for heading in ("name", "what", "presets"):
            table.add_column(heading)
        for row in rows:
            table.add_row(str(row["name"]), str(row["title"]), ", ".join(row["presets"]))
        console().print(table)
        return
    folder = out or Path("reproduced") / (f"{name}-quick" if quick else name)
    asked = Asked(folder, preset, quick, hospitals, seeds, federation, tuple(method or ()))
    progress = console(as_json=True)
    # What libraries print must not get between a reader and the JSON.
    with redirect_stdout(sys.stderr if as_json else sys.stdout):
        result = run(name, asked, lambda line: progress.print(line, style="dim", soft_wrap=True))
    if as_json:
        print_json(result)
        return
    screen = console()
    screen.print((folder / TABLE).read_text(encoding="utf-8"), soft_wrap=True)
    screen.print(f"Results: {folder}", soft_wrap=True)
