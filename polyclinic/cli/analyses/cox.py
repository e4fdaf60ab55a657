"""``polyclinic cox``: hazard ratios over all hospitals' patients."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from polyclinic.cli.analyses.analyse import Options, analyse
from polyclinic.cli.analyses.survival import Edges, Event, Intervals, Time, numbers, with_time
from polyclinic.cli.options import with_options


@with_options(Options)
def cox(
    terms: Annotated[str, typer.Argument(help="Terms as of `polyclinic regress`: 'age + sex + C(region)'.")],
    *,
    options: Options,
    time: Time = None,
    event: Event = None,
    ties: Annotated[str | None, typer.Option(help="Without privacy: how ties are treated, efron or breslow.")] = None,
    edges: Edges = None,
    intervals: Intervals = None,
) -> None:
    """Hazard ratios of all hospitals' patients: Cox's regression within hospitals, or with privacy by constant hazards."""
    given = {
        "terms": terms,
        "time": time,
        "event": event,
        "ties": ties,
        "edges": numbers(edges),
        "intervals": intervals,
    }
    if time and event:
        options = replace(options, sets=[f"data.label={time},{event}", *(options.sets or [])])
    analyse("cox", given, with_time(options, time))
