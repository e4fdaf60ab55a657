"""``polyclinic cohort``: how many rows and patients each step of a hospital's cohort leaves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from polyclinic.cli.terminal import Json, answer, loading, style_lines, table
from polyclinic.errors import ConfigError

if TYPE_CHECKING:
    from polyclinic.ehr.cohorts import Flow


def cohort(
    hospital: Annotated[Path, typer.Argument(help="The hospital's hospital.toml.")],
    plot: Annotated[Path | None, typer.Option(help="Also draw the flow diagram: a .svg or .png file.")] = None,
    as_json: Json = False,
) -> None:
    """Count the rows and patients that each step of a hospital's cohort leaves.

    The steps are those of its mapping file, or of the file that its key 'cohort' names. The counts are exact and NOT
    private: they are for the hospital alone, and nothing is sent.
    """
    if plot is not None and plot.suffix not in (".svg", ".png"):
        raise ConfigError(f"--plot is {plot}; it must end in .svg or .png.")
    with loading():
        from polyclinic.client.home.records import own_flow

    flow = own_flow(hospital)
    if plot is not None:
        draw(flow, plot)
    place = None if plot is None else str(plot)
    answer(
        as_json, {"hospital": str(hospital), "private": False, "stages": flow.as_list(), "plot": place},
        flow_table(flow), *([f"Flow diagram: {plot}"] if plot else []),
        *style_lines("yellow", "These counts are exact, not private: keep them inside the hospital."),
    )  # fmt: skip


def flow_table(flow: Flow) -> Table:
    """The stages of a cohort as a table."""
    stages = (tuple(stage.values()) for stage in flow.as_list())
    rows = ((name, *(f"{count:,}" for count in counts)) for name, *counts in stages)
    return table(("step", "rows", "patients", "rows left out", "patients left out"), rows)


def draw(flow: Flow, plot: Path) -> None:
    """Writes the flow diagram. Raises ConfigError where it cannot be written."""
    from polyclinic.evaluation.figures.canvas import to_bytes
    from polyclinic.evaluation.figures.records import plot_flow

    figure = plot_flow(flow)
    try:
        plot.write_bytes(to_bytes(figure, plot.suffix))
    except OSError as error:
        raise ConfigError(f"--plot {plot} cannot be written: {error.strerror}.") from None
