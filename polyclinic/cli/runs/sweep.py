"""``polyclinic sweep``: a run for each combination of keys' values, repeated over seeds, and the tables of all."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyclinic.cli.options import Config, Sets, with_options
from polyclinic.cli.runs.run import Flags
from polyclinic.cli.terminal import Json, console, loading, number, pairs, print_json, table
from polyclinic.config import SECTIONS, RunConfig, parse_value
from polyclinic.config.keys import flat_keys
from polyclinic.errors import PolyclinicError, several
from polyclinic.toml import read_toml

if TYPE_CHECKING:
    from rich.table import Table

    from polyclinic.sweeps.tables import Sweep


_MOST_METRICS = 3


@with_options(Flags)
def sweep(
    config: Config = None,
    sets: Sets = None,
    *,
    options: Flags,
    seeds: Annotated[int, typer.Option(help="Repetitions of each combination; seeds count up from --seed.")] = 1,
    folds: Annotated[
        int,
        typer.Option(help="Folds of cross-validation: each repetition becomes a run for each fold. 0 is none."),
    ] = 0,
    same_split: Annotated[
        bool,
        typer.Option(
            "--same-split", help="Hold out the same patients for all seeds. Default: each seed draws its own."
        ),
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Runs at once, each in its own process. Default: one for each eight runs, at most the number of cores.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run every combination of the values that -c lists: -c privacy.epsilon=0.5,1,3 -c strategy=fedavg,fedprox --seeds 20.

    Runs and tables go to --out. The same command goes on after Ctrl-C: a finished run is not repeated. A value with commas of its
    own, as of `hidden` or `strategy-options`, stands in a list: -c 'hidden=["32", "64,32"]'.
    """
    values = {key: _values(key, text.strip()) for key, text in pairs("-c", sets).items()}
    given: dict[str, Any] = {}
    for layer in (
        read_toml(config, "configuration file") if config else {},
        {key: value for key, value in values.items() if not isinstance(value, list)},
        options.given_keys(),
    ):
        given |= flat_keys(layer, SECTIONS)
    axes = [[{key: value} for value in listed] for key, listed in values.items() if isinstance(listed, list)]
    screen = console(as_json)
    with screen.status("Starting", spinner="line"), loading():
        from polyclinic.sim.forkserver import begin
        from polyclinic.sweeps import IMPORTED_ONCE
        from polyclinic.sweeps.plan import plan, usual_jobs

        runs = plan(given, axes, seeds, folds, same_split)
        jobs = jobs or usual_jobs(runs)
        if jobs > 1:  # while this process loads what it needs to check the runs, another loads what they need
            begin(IMPORTED_ONCE)
        from polyclinic.cli.runs.live import SweepProgress
        from polyclinic.federation import run_sweep
    # With --json, what plug-ins print must not get between a reader and the JSON.
    with redirect_stdout(sys.stderr if as_json else sys.stdout), SweepProgress(screen) as watch:
        result = run_sweep(runs, jobs, watch)
    if as_json:
        print_json(_json(result))
    else:
        screen.print(_table(result))
        screen.print(f"Tables: {result.folder / 'sweep.csv'} and sweep-summary.csv beside it", soft_wrap=True)
        screen.print(f"Page: {result.folder / 'sweep.html'}", soft_wrap=True)
    if result.failed:
        names = several((str(outcome.planned) for outcome in result.failed), between="; ")
        raise PolyclinicError(
            f"{len(result.failed)} of {len(result.outcomes)} runs failed, of {names}; the same command tries them again."
        )


def _values(key: str, text: str) -> Any:
    """The value of a key, or a list of its values: those of a TOML array, or between commas that are no part of a value."""
    value = parse_value(text)
    if value == text and "," in text and not RunConfig.holds_commas(key):
        return [parse_value(part.strip()) for part in text.split(",")]
    return value


def _json(result: Sweep) -> dict[str, Any]:
    """Every table as a list of rows; an undefined number is null."""
    runs, summary = (frame.astype(object).where(frame.notna(), None) for frame in (result.table, result.summary))
    return {
        "out": str(result.folder),
        "failed": len(result.failed),
        "runs": runs.to_dict("records"),
        "summary": summary.to_dict("records"),
    }


def _table(result: Sweep) -> Table:
    """A row for each combination: its runs, the mean epsilon, and the means of the first pooled metrics with intervals."""
    keys, pooled = list(result.combinations[0].values), [each.pooled for each in result.combinations]
    metrics = [name for name in dict.fromkeys(name for each in pooled for name in each) if name != "seconds"]
    in_large = [name for name in metrics[_MOST_METRICS:] if name == "calibration_in_the_large"]
    shown = metrics[:_MOST_METRICS] + in_large
    rows = [
        [*map(str, each.values.values()), str(each.runs), *(_estimate(estimates.get(metric)) for metric in shown)]
        for each, estimates in zip(result.combinations, pooled, strict=True)
    ]
    made = table((*keys, "runs", *shown), rows)
    made.caption, made.caption_justify = "± half of the mean's 95 % interval", "left"
    return made


def _estimate(row: Mapping[str, float | None] | None) -> str:
    if row is None:
        return "undefined"
    half = (row["high"] - row["mean"]) if row["high"] is not None and row["mean"] is not None else 0.0
    return number(row["mean"]) + (f" ± {half:.3f}" if half >= 0.0005 else "")
