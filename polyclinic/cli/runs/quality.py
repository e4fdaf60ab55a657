"""``polyclinic quality``: how like held-out patients the synthetic ones of a finished run are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from polyclinic.cli.options import Force
from polyclinic.cli.terminal import Json, answer, loading, table, working
from polyclinic.errors import ConfigError


def quality(
    run: Annotated[
        Path, typer.Argument(help="Folder of a finished run of task synthesis, or a folder that holds one.")
    ],
    hospital: Annotated[
        Path | None,
        typer.Option(help="Judge by the patients of this hospital.toml instead of the simulation's; nothing is sent."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="With --hospital: the page to write; quality.json comes beside it.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the measures that train classifiers.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed draws and judges the same patients.")] = 0,
    force: Force = False,
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
    with working(as_json, "Starting"), loading():
        from polyclinic.inspection.quality import judge_at_home, judge_run
    with working(as_json, "Judging") as on_step:
        if hospital is None or out is None:
            result = judge_run(run, full=not quick, seed=seed, on_step=on_step)
        else:
            result = judge_at_home(run, hospital, out, full=not quick, seed=seed, force=force, on_step=on_step)
    place = f"{out}" if out is not None else f"the report of {result['run']}"
    answer(as_json, result, *describe_quality(result), f"All figures: {place}. They are exact, not private.")


def describe_quality(comparison: dict[str, Any]) -> Iterator[str | Table]:
    """A sentence and a table for people, as the report has it."""
    if comparison["undefined"]:
        yield f"Undefined: {comparison['undefined']}."
        return
    from polyclinic.evaluation.report.quality import quality_rows

    number = comparison["rows"]
    yield (
        f"{number['synthetic']:,} synthetic patients beside {number['held_out']:,} held-out ones; for comparison "
        f"{number['training']:,} real training patients beside the same."
    )
    rows = [(row["name"], row["synthetic"][0], row["training"][0], row["best"]) for row in quality_rows(comparison)]
    rows += [(f"rule broken: {rule['rule']}", _share(rule["synthetic"]), _share(rule["training"]), "0")
             for rule in comparison["rules"]]  # fmt: skip
    yield table(("measure", "synthetic", "real", "best"), rows)


def _share(broken: dict[str, Any]) -> str:
    return "undefined" if broken["share"] is None else f"{broken['share']:.3%}"
