"""`polyclinic report`: the page of a finished run, or of several beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.terminal import Json, answer, loading
from polyclinic.errors import ConfigError


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs, or folders that hold them.")],
    out: Annotated[
        Path | None,
        typer.Option(help="File to write. Default: RUN/report.html, or ./comparison.html for several runs."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the report of a run, or one page of several runs side by side: a file that needs no network."""
    with loading():
        from polyclinic.evaluation.report import render_comparison, render_report

    if out is not None and not out.parent.is_dir():
        raise ConfigError(f"--out has the value {str(out)!r}, whose folder does not exist.")
    finished = [run for folder in runs for run in _finished_runs(folder)]
    page = (
        render_report(finished[0], out)
        if len(finished) == 1
        else render_comparison(finished, out or Path("comparison.html"))
    )
    answer(as_json, {"report": str(page), "runs": [str(run) for run in finished]}, f"Report: {page}")


def _finished_runs(folder: Path) -> list[Path]:
    """The folder itself where it is a run's, else the finished runs in it, by name."""
    from polyclinic.runs.folder import Run

    here = Run(folder)
    if here.config_file.is_file() or here.summary_file.is_file():
        return [folder]
    paths = [run.path for run in Run.all_in(folder) if run.summary_file.is_file()]
    if not paths:
        raise ConfigError(f"{folder} is neither the folder of a finished run nor does it hold one.")
    return paths
