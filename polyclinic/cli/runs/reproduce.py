"""``polyclinic reproduce``: an experiment of an installed package, run again; without a name, the list of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.terminal import Json, answer, console, json_alone, loading, table


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which; without it, they are listed.")] = None,
    hospitals: Annotated[int, typer.Option(help="Number of hospitals; 0 is the experiment's own.")] = 0,
    preset: Annotated[
        str, typer.Option(help="sound: with a true epsilon. paper: as published, whatever that keeps.")
    ] = "sound",
    quick: Annotated[
        bool, typer.Option("--quick", help="A small form of under a minute, whose numbers mean nothing.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="How many seeds; 0 is the experiment's own number.")] = 0,
    method: Annotated[
        list[str] | None, typer.Option(help="Only this method, by its name in the table; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of results; reproduced/NAME by default.")] = None,
    as_json: Json = False,
) -> None:
    """Run an experiment of an installed package: results.json, table.md, config.toml and figures in --out.

    Stopped, it goes on where it was: finished parts stay in --out.
    """
    with loading():
        from polyclinic.experiments import TABLE, Asked, experiments
        from polyclinic.experiments import reproduce as run

    if name is None:
        known, headings = experiments().items(), ("name", "what", "presets")
        rows = ((name, experiment.title, ", ".join(experiment.presets)) for name, experiment in known)
        none = "No installed package brings an experiment; install polyclinic-studies, which is in experiments/."
        answer(
            as_json,
            [
                {"name": name, "title": experiment.title, "presets": list(experiment.presets)}
                for name, experiment in known
            ],
            table(headings, rows, words=headings) if known else none,
        )
        return
    folder = out or Path("reproduced") / (f"{name}-quick" if quick else name)
    asked = Asked(folder, preset, quick, hospitals, seeds, tuple(method or ()))
    progress = console(as_json=True)
    with json_alone(as_json):
        result = run(name, asked, lambda line: progress.print(line, style="dim", soft_wrap=True))
    answer(as_json, result, (folder / TABLE).read_text(encoding="utf-8"), f"Results: {folder}")
