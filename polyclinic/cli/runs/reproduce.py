"""``polyclinic reproduce``: an experiment of an installed package, run again; without a name, the list of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.terminal import Json, answer, console, json_alone, loading, table
from polyclinic.errors import ConfigError, DataError


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of an experiment, or all for the table of all targets. Default: list the experiments."
        ),
    ] = None,
    hospitals: Annotated[int, typer.Option(help="Number of hospitals; 0 takes the experiment's own.")] = 0,
    preset: Annotated[
        str, typer.Option(help="sound: with a true epsilon. paper: as published, with whatever epsilon that has.")
    ] = "sound",
    quick: Annotated[
        bool, typer.Option("--quick", help="A small form of under a minute, whose numbers mean nothing.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="With all: first run every experiment that has no results in --out.")
    ] = False,
    seeds: Annotated[int, typer.Option(help="How many seeds; 0 takes the experiment's own number.")] = 0,
    method: Annotated[
        list[str] | None, typer.Option(help="Only this method, by its name in the table; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of results. Default: reproduced/NAME.")] = None,
    as_json: Json = False,
) -> None:
    """Run an experiment of an installed package: results.json, table.md, config.toml and figures in --out.

    Stopped, it goes on where it was: finished parts stay in --out. With all, targets.json and targets.md in --out (reproduced by
    default) have every target of the results there; with --full or --quick, experiments without results are run first.
    """
    if name == "all":
        if hospitals or seeds or method or preset != "sound" or (full and quick):
            raise ConfigError("polyclinic reproduce all takes --out, --json, and --full or --quick, and nothing else.")
        _all(out or Path("reproduced-quick" if quick else "reproduced"), full or quick, quick, as_json)
        return
    if full:
        raise ConfigError("--full is for polyclinic reproduce all; one experiment is run in full without it.")
    with loading():
        from polyclinic.experiments import TABLE, Asked, experiments
        from polyclinic.experiments import reproduce as run

    if name is None:
        by_name, headings = experiments().items(), ("name", "what", "presets")
        rows = ((name, experiment.title, ", ".join(experiment.presets)) for name, experiment in by_name)
        none = "No installed package brings an experiment; install polyclinic-studies, which is in experiments/."
        answer(
            as_json,
            [
                {"name": name, "title": experiment.title, "presets": list(experiment.presets)}
                for name, experiment in by_name
            ],
            table(headings, rows, words=headings) if by_name else none,
        )
        return
    folder = out or Path("reproduced") / (f"{name}-quick" if quick else name)
    asked = Asked(folder, preset, quick, hospitals, seeds, tuple(method or ()))
    progress = console(as_json=True)
    with json_alone(as_json):
        result = run(name, asked, lambda line: progress.print(line, style="dim", soft_wrap=True))
    answer(as_json, result, (folder / TABLE).read_text(encoding="utf-8"), f"Results: {folder}")


def _all(out: Path, run: bool, quick: bool, as_json: bool) -> None:
    with loading():
        from polyclinic.experiments import experiments
        from polyclinic.experiments.together import TARGETS_TABLE, gather, results, run_all

    by_name, progress = experiments(), console(as_json=True)
    failed: dict[str, str] = {}
    with json_alone(as_json):
        if run:
            failed = run_all(by_name, out, quick, lambda line: progress.print(line, style="dim", soft_wrap=True))
        elif not results(out):
            raise DataError(f"{out} has no results; polyclinic reproduce all --full runs every experiment into it.")
        gathered = gather(by_name, out)
    headings = ("goal", "verdict", "met", "missed", "no verdict")
    lines = [(line.get("id") or f"own, {line['experiment']}", line["verdict"], *(str(line[n]) for n in ("met", "missed", "open")))
             for line in (*gathered["goals"], *gathered["own"])]  # fmt: skip
    answer(
        as_json,
        {**gathered, "failed": failed},
        table(headings, lines, words=headings[:2]),
        f"Results: {out / TARGETS_TABLE}",
    )
    for name, why in failed.items():
        progress.print(f"{name} failed: {why}", style="yellow", soft_wrap=True)
    if failed:
        raise typer.Exit(1)
