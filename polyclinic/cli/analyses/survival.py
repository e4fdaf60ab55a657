"""``polyclinic survival``: curves, medians and a log-rank test, by one round of counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from polyclinic.cli.analyses.analyse import Options, analyse
from polyclinic.cli.options import with_options
from polyclinic.errors import ConfigError

Time = Annotated[
    str | None, typer.Option(help="Column of how long each patient was observed. Default: the column of role duration.")
]
Event = Annotated[
    str | None, typer.Option(help="Column that says whether the event came. Default: the column of role event.")
]
Edges = Annotated[str | None, typer.Option(help="Ends of the time intervals, such as 30,60,90.")]
Intervals = Annotated[int | None, typer.Option(help="Without --edges: number of equal intervals.")]


@with_options(Options)
def survival(
    *,
    options: Options,
    time: Time = None,
    event: Event = None,
    by: Annotated[str | None, typer.Option(help="Column whose groups are compared.")] = None,
    edges: Edges = None,
    intervals: Intervals = None,
    within: Annotated[
        str | None,
        typer.Option(help="Risk time of patients censored in an interval: half of it (half) or none (before)."),
    ] = None,
    hospitals: Annotated[
        bool, typer.Option("--hospitals", help="Show curves by hospital too, and compare groups within hospitals.")
    ] = False,
) -> None:
    """Survival curves with intervals, medians and a log-rank test of groups, by counts on a public grid of time."""
    given = {
        "time": time, "event": event, "by": by, "edges": numbers(edges), "intervals": intervals, "within": within,
        "hospitals": hospitals or None,
    }  # fmt: skip
    analyse("survival", given, with_time(options, time))


def with_time(options: Options, time: str | None) -> Options:
    """The options with the time as the label of drafted tables, where a feature's largest values would be moved.

    A schema says itself what is moved.
    """
    described = options.schema is not None or any(place.endswith(".toml") for place in options.data or ())
    drafted = bool(options.data) and not described
    return replace(options, label=time) if time and drafted and not options.label else options


def numbers(text: str | None) -> list[float] | None:
    """Numbers with commas between them. Raises ConfigError for a text that is none of that."""
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--edges is {text!r}; write numbers with commas between them, as 30,60,90.") from None
