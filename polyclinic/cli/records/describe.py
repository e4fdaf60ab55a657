"""``polyclinic describe``: Table 1 of a simulated federation, one real hospital or all of a coordinator's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.options import with_options
from polyclinic.cli.records.target import TargetOptions, print_dropouts
from polyclinic.cli.terminal import Json, console, fitting, loading, print_json, say, style_lines, table

# A cell of figures with their noise is folded to so many letters.
_FOLDED = 10


@with_options(TargetOptions)
def describe(
    column: Annotated[
        list[str] | None, typer.Argument(metavar="[COLUMN]...", help="Columns of the schema. Default: all.")
    ] = None,
    by: Annotated[str, typer.Option(help="Column of categories whose groups are compared.", show_default=False)] = "",
    epsilon: Annotated[
        float | None, typer.Option(help="Epsilon that the answer may cost each hospital.", show_default=False)
    ] = None,
    share: Annotated[
        float | None, typer.Option(help="Instead of --epsilon: the share of its budget that it may cost.", show_default=False)
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Instead of --epsilon: exact numbers. NOT private; for public or simulated records.")
    ] = False,
    bins: Annotated[int, typer.Option(help="Equal parts of a numeric column's public bounds.")] = 64,
    fewest: Annotated[int, typer.Option(help="Smaller counts are not shown.")] = 5,
    out: Annotated[
        Path, typer.Option(help="Folder for description.json, tables/table1 as CSV, LaTeX and HTML, and a new ledger.")
    ] = Path("described"),
    as_json: Json = False,
    *,
    options: TargetOptions,
) -> None:  # fmt: skip
    """Describe patients in one table, by hospital or group: counts, missing, means, quartiles, standardised differences."""
    with loading():
        from polyclinic import asking
        from polyclinic.inspection.described import Described
        from polyclinic.releases.description import Description

    target = options.target(lambda: out / "ledger.sqlite", {}, as_json)
    cost = asking.cost(epsilon, share, exact, target.budget if isinstance(target, asking.Target) else None)
    question = Description(tuple(column or ()), by, bins, fewest, epsilon=cost)
    if isinstance(target, asking.Target):
        question.plan(target.schema, target.pricing)
    asking.reserve(out, "description.json")
    described = Described(asking.ask(target, question))
    if as_json:
        print_json(described.answer)
    else:
        shown = described.tables[0]
        style, screen, columns = "yellow" if described.answer["exact"] else "dim", console(), len(shown["columns"])
        fit = fitting(shown["columns"], shown["shown"], screen, _FOLDED)
        rest = f"{columns - fit} more columns are in {out / 'tables' / shown['name']}.csv."
        say(
            table(shown["columns"][:fit], [row[:fit] for row in shown["shown"]], ("Level",)),
            *style_lines(style, shown["note"]),
            *[rest] * (fit < columns),
            f"Tables: {out / 'tables'}",
        )
        print_dropouts(console(), described.answer)
    described.write(out)
