"""``polyclinic query``: one statistic with noise, of a simulated federation, one real hospital or all of a coordinator's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.table import Table

from polyclinic.cli.options import with_options
from polyclinic.cli.records.target import TargetOptions, print_dropouts
from polyclinic.cli.terminal import Json, console, loading, print_json, significant
from polyclinic.errors import ConfigError

if TYPE_CHECKING:
    from polyclinic.ehr.schema import Schema
    from polyclinic.releases.statistics import Statistic


@with_options(TargetOptions)
def query(
    statistic: Annotated[str, typer.Argument(help="Statistic: count, mean, histogram or quantile.")],
    epsilon: Annotated[float, typer.Option(help="Epsilon that the answer may cost each hospital.")],
    column: Annotated[str, typer.Argument(metavar="[COLUMN]", help="Column of the schema.", show_default=False)] = "",
    named: Annotated[
        str,
        typer.Option("--column", help="Column of the schema, as an option instead of an argument.", show_default=False),
    ] = "",
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="Condition on the rows, such as 'age >= 60 and sex == 1'; repeatable, all must hold.",
        ),
    ] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(
            help="laplace, gaussian, discrete-gaussian, randomised-response or exponential; by default laplace, and "
            "exponential for a quantile.",
            show_default=False,
        ),
    ] = None,
    bins: Annotated[
        int | None,
        typer.Option(help="Equal parts of the public bounds: 10, or 100 for a quantile.", show_default=False),
    ] = None,
    quantile: Annotated[
        float | None, typer.Option(help="Which quantile. Default: 0.5, the median.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Simulation: folder of a new ledger, if --ledger names none. Default: runs.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
    *,
    options: TargetOptions,
) -> None:
    """Ask hospitals for one statistic, with noise; each charges its ledger first."""
    if column and named:
        raise ConfigError(f"Give the column once: it is {column!r} by its place and {named!r} by --column.")
    with loading():
        from polyclinic.asking import Target, ask, new_ledger
        from polyclinic.releases.statistics import Statistic

    if options.dataset is not None and options.ledger is not None and out is not None:
        raise ConfigError("--out is for a new ledger, and --ledger names one; give one of them.")
    target = options.target(lambda: new_ledger(out or Path("runs")), {"out": out}, as_json)
    default_bins = 100 if statistic == "quantile" else 10
    question = Statistic(
        statistic,
        column or named,
        tuple(where or ()),
        default_bins if bins is None else bins,
        0.5 if quantile is None else quantile,
        mechanism=mechanism or "",
        epsilon=epsilon,
    )
    if isinstance(target, Target):  # a coordinator's hospitals check it by their schema before they answer
        question.check(target.schema)
    _check_given(question, target.schema if isinstance(target, Target) else None, bins, quantile)
    result = ask(target, question)
    if as_json:
        print_json(result)
    else:
        _print(result)


def _check_given(question: Statistic, schema: Schema | None, bins: int | None, quantile: float | None) -> None:
    """Raises ConfigError for an option that the question has no use for."""
    if quantile is not None and question.statistic != "quantile":
        raise ConfigError(f"--quantile is {quantile:g}, but a {question.statistic} has none; leave it out.")
    if bins is not None and schema is not None and not question.has_bins(schema):
        column = f" of column {question.column!r}" if question.column else ""
        raise ConfigError(
            f"--bins is {bins}, but a {question.statistic}{column} has none: they are of a quantile, or of a histogram of a "
            "numeric column; leave it out."
        )


def _print(result: dict[str, Any]) -> None:
    screen, privacy = console(), result["privacy"]
    sites = {**result["sites"], "all": result} if len(result["sites"]) > 1 else result["sites"]
    cells = list(result["value"]) if isinstance(result["value"], dict) else [result["statistic"]]
    grid = [["hospital" if len(cells) == 1 else result["column"], *cells, "ε spent"]]
    for name, site in sites.items():
        spent = _cost_text(site) if name in result["sites"] else ""
        grid.append([name, *(_figure(site, cell) for cell in cells), spent])
    if len(cells) > len(sites):  # the fewer go across, or a terminal cannot hold them
        grid = [list(row) for row in zip(*grid, strict=True)]
    table = Table(box=None)
    for number, head in enumerate(grid[0]):
        table.add_column(head, justify="right" if number else "left", overflow="fold")
    for row in grid[1:]:
        table.add_row(*row)
    screen.print(table)
    screen.print(
        f"This answer costs each {privacy['unit']} at most ε = {significant(privacy['epsilon'])} at δ = {privacy['delta']:g} "
        f"({privacy['relation']}, {result['mechanism']}); "
        + (f"the ledger is {result['ledger']}" if "ledger" in result else "each hospital has charged its own ledger"),
        soft_wrap=True,
    )
    print_dropouts(screen, result)


def _figure(site: dict[str, Any], cell: str) -> str:
    value, error = (
        site[key][cell] if isinstance(site[key], dict) else site[key] for key in ("value", "standard_error")
    )
    return significant(value) + (f" ± {cast(float, error):.2g}" if error is not None else "")


def _cost_text(site: dict[str, Any]) -> str:
    spent = "unbounded" if site["epsilon"] is None else significant(site["epsilon"])
    return spent if site["budget"] is None else f"{spent} of {site['budget']:g}"
