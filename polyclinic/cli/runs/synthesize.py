"""``polyclinic synthesize``: synthetic records from a finished run, with their certificate; or a look at one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from polyclinic.cli.options import Force
from polyclinic.cli.terminal import Json, answer, console, loading, style_lines, table
from polyclinic.errors import ConfigError


def synthesize(
    run: Annotated[
        Path | None, typer.Argument(help="Folder of a finished run of task synthesis, or a folder that holds one.")
    ] = None,
    rows: Annotated[int | None, typer.Option(help="How many rows in each set.", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write: .parquet or .csv. The certificate comes beside it.")
    ] = None,
    sets: Annotated[
        int,
        typer.Option(
            help="How many independent tables: FILE-01, FILE-02, ...; with marginals each has a model drawn anew."
        ),
    ] = 1,
    seed: Annotated[int, typer.Option(help="The same seed draws the same rows.")] = 0,
    condition: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE:ROWS,...",
            help="Instead of --rows: exactly so many of each value of the label or of a binary, categorical or ordinal column; "
            "repeatable.",
        ),
    ] = None,
    force: Force = False,
    verify: Annotated[
        Path | None,
        typer.Option(help="Instead of drawing: check a file, or all files of a certificate; with RUN its origin too."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw synthetic records from a finished run, which costs no further privacy, and certify what they are."""
    given = {"rows": rows, "out": out, "condition": condition, "force": force or None}
    if verify is not None:
        if extra := [name for name, value in given.items() if value is not None]:
            raise ConfigError(f"--verify checks a file and writes none; leave --{extra[0]} out.")
        _verify(verify, run, as_json)
        return
    if run is None or out is None:
        raise ConfigError(
            f"{'RUN' if run is None else '--out'} is not given; a run's folder and --out FILE are needed."
        )
    if (rows is None) == (not condition):
        raise ConfigError("Give exactly one of --rows and --condition, which says how many rows of each value.")
    with loading():
        from polyclinic.runs.synthesize import synthesize as draw

    screen = console(as_json)
    shown = Progress(
        TextColumn("Drawing rows"), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(), console=screen, transient=True,
        disable=not screen.is_terminal,
    )  # fmt: skip
    with shown:
        task = shown.add_task("", total=None if rows is None else rows * sets)
        path = draw(
            run, ",".join(condition or ()) if rows is None else rows, out, sets=sets, seed=seed, force=force,
            progress=lambda more: shown.advance(task, more),
        )  # fmt: skip
    certificate = {"certificate": str(path), **json.loads(path.read_text(encoding="utf-8"))}
    answer(
        as_json, certificate,
        *(f"{path.with_name(file['file'])}: {file['rows']:,} rows" for file in certificate["files"]),
        f"Certificate: {path}", *certificate["statement"],
        *(f"Rule {rule['rule']}: broken in {rule['broken']:,} of {rule['asked']:,} cases."
          for rule in certificate["rules"]),
        *style_lines("yellow", *(f"Warning: {warning}" for warning in certificate["warnings"])),
    )  # fmt: skip


def _verify(file: Path, run: Path | None, as_json: bool) -> None:
    with loading():
        from polyclinic.runs.folder import Run
        from polyclinic.synthesis.certificate import verify

    result: dict[str, Any] = verify(file, None if run is None else Run.open(run).certified)
    states = (
        [Text(file[key], "" if file["state"] == "intact" else "red") for key in ("file", "state")]
        for file in result["checked"]
    )
    answer(as_json, result, table(("file", "state"), states, words=("state",)), f"Certificate: {result['certificate']}")
    if not result["intact"]:
        raise typer.Exit(1)
