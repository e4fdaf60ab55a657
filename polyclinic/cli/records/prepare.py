"""``polyclinic prepare``: a better public schema from a draft, by noisy counts of simulated hospitals or of a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from polyclinic.cli.options import with_options
from polyclinic.cli.records.target import TargetOptions, print_dropouts
from polyclinic.cli.terminal import Json, console, loading, print_json, significant


@with_options(TargetOptions)
def prepare(
    out: Annotated[Path, typer.Option(help="Folder for prepared.toml and preparation.json.")] = Path("prepared"),
    epsilon: Annotated[
        float | None, typer.Option(help="Epsilon that preparing may cost each hospital.", show_default=False)
    ] = None,
    share: Annotated[
        float | None, typer.Option(help="Instead of --epsilon: the share of its budget that it may cost.", show_default=False)
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Instead of --epsilon: exact counts. NOT private; for public or simulated records.")
    ] = False,
    imputer: Annotated[
        bool, typer.Option("--imputer", help="Write imputer.json for -c data.imputation=chained instead of a schema.")
    ] = False,
    column: Annotated[
        list[str] | None, typer.Option(help="Column to prepare; repeatable. Default: all features.")
    ] = None,
    low: Annotated[float, typer.Option(help="Quantile that becomes a numeric column's lower bound.")] = 0.01,
    high: Annotated[float, typer.Option(help="Quantile that becomes a numeric column's upper bound.")] = 0.99,
    bins: Annotated[int, typer.Option(help="Equal parts of the draft's bounds, in which patients are counted.")] = 256,
    codes: Annotated[int, typer.Option(help="Largest number of codes that a patient counts for in a code set.")] = 10,
    fewest: Annotated[float, typer.Option(help="Categories with fewer patients become part of 'other'.")] = 0.0,
    most_categories: Annotated[int, typer.Option(help="How many of the commonest categories or codes to keep.")] = 100,
    most_missing: Annotated[float, typer.Option(help="Leave out columns with a larger share of missing cells.")] = 1.0,
    as_json: Json = False,
    *,
    options: TargetOptions,
) -> None:  # fmt: skip
    """Make a draft schema better: quantiles as bounds, vocabularies, centres and spreads; paid for in each ledger first."""
    target = options.target(lambda: out / "ledger.sqlite", {}, as_json)
    with loading():
        from polyclinic import asking
        from polyclinic.ehr.prepared import Rules
        from polyclinic.releases.relations import Relations
        from polyclinic.releases.survey import Survey

    cost = asking.cost(epsilon, share, exact, target.budget if isinstance(target, asking.Target) else None)
    rules = Rules(low, high, fewest, most_categories, most_missing)
    survey = Survey(tuple(column or ()), cost, bins, codes, rules)
    result = asking.prepare(out, target, Relations(cost) if imputer else survey)
    if as_json:
        print_json(result)
    else:
        _print(result)


def _print(result: dict[str, Any]) -> None:
    screen, privacy = console(), result["privacy"]
    table = Table(box=None)
    for number, head in enumerate(("column", "prepared", "missing", "ε alone")):
        table.add_column(head, justify="right" if number > 1 else "left", overflow="fold")
    for name, column in result.get("columns", {}).items():
        alone = "not private" if column["epsilon"] is None else significant(column["epsilon"])
        table.add_row(name, _describe_column(column), f"{100 * column['missing']:.1f} %", alone)
    if "columns" in result:
        screen.print(table)
    what = "schema" if "schema" in result else "imputer"
    if result["exact"]:
        screen.print(f"These numbers are exact: this {what} is NOT private.", style="yellow")
    else:
        screen.print(
            f"Preparing costs each {privacy['unit']} at most ε = {significant(privacy['epsilon'])} at δ = "
            f"{privacy['delta']:g} ({privacy['relation']}).",
            soft_wrap=True,
        )
    ledger = f"\nLedger: {result['ledger']}" if "ledger" in result else ""
    screen.print(f"{what.capitalize()}: {result[what]}{ledger}", soft_wrap=True)
    print_dropouts(screen, result)


def _describe_column(column: dict[str, Any]) -> str:
    if column["dropped"]:
        return "left out: too much is missing"
    if "bounds" in column:
        low, high = (significant(bound) for bound in column["bounds"])
        return f"{low} to {high}, centre {significant(column['centre'])}, spread {significant(column['spread'])}"
    if "categories" in column:
        return f"{len(column['categories'])} categories" + (
            f", the rest is {column['other']!r}" if column["other"] else ""
        )
    return f"fill {column['fill']}"
