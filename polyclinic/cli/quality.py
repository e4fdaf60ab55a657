"""``polyclinic quality``: how like held-out patients the synthetic ones of a finished run are."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from polyclinic.cli.terminal import Json, console, loading, print_json
from polyclinic.errors import ConfigError


def quality(
    run: Annotated[
        Path, typer.Argument(help="Folder of a finished run of task synthesis, or one with it.", show_default=False)
    ],
    hospital: Annotated[
        Path | None,
        typer.Option(
            help="Instead of a simulation's patients those of this hospital.toml; nothing is sent.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="With --hospital: the page to write; quality.json comes beside it.", show_default=False),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what takes classifiers.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed draws and judges the same patients.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    as_json: Json = False,
) -> None:
    """Judge a run's synthetic patients beside held-out real ones: columns, correlations, courses, codes, rules, what they teach.

    The figures are exact and NOT private. Of a simulation they go into the run's report; a hospital keeps its page.
    """
    if (hospital is None) != (out is None):
        raise ConfigError("--hospital and --out belong together: the hospital whose patients, and the page to write.")
    if out is not None and out.suffix.lower() != ".html":
        raise ConfigError(f"--out is {str(out)!r}; its ending must be .html.")
    if seed < 0:
        raise ConfigError(f"--seed is {seed}; allowed are whole numbers of at least 0.")
    screen = console(as_json)
    with screen.status("Starting", spinner="line"), loading():
        from polyclinic.quality import judge_at_home, judge_run
    with redirect_stdout(sys.stderr if as_json else sys.stdout), screen.status("Judging", spinner="line") as status:

        def doing(what: str) -> None:
            status.update(f"Judging: {what}")

        if hospital is None or out is None:
            found = judge_run(run, full=not quick, seed=seed, doing=doing)
        else:
            found = judge_at_home(run, hospital, out, full=not quick, seed=seed, force=force, doing=doing)
    if as_json:
        print_json(found)
        return
    show(screen, found)
    place = f"{out}" if out is not None else f"the report of {found['run']}"
    screen.print(f"All figures: {place}. They are exact, not private.", soft_wrap=True)


def show(screen: Console, found: dict[str, Any]) -> None:
    """A table for people, as the report has it."""
    if found["undefined"]:
        screen.print(f"Undefined: {found['undefined']}.")
        return
    from polyclinic.evaluation.report.quality import quality_rows

    rows = found["rows"]
    screen.print(
        f"{rows['synthetic']:,} synthetic patients beside {rows['held_out']:,} held-out ones; for comparison "
        f"{rows['training']:,} real training patients beside the same.",
        soft_wrap=True,
    )
    table = Table(box=None)
    table.add_column("measure", overflow="fold")
    for heading in ("synthetic", "real", "best"):
        table.add_column(heading, justify="right")
    for row in quality_rows(found):
        table.add_row(row["name"], row["synthetic"][0], row["training"][0], row["best"])
    for one in found["rules"]:
        shares = (
            "undefined" if one[key]["share"] is None else f"{one[key]['share']:.3%}"
            for key in ("synthetic", "training")
        )
        table.add_row(f"rule broken: {one['rule']}", *shares, "0")
    screen.print(table)
