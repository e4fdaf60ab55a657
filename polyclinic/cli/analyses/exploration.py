"""``polyclinic components`` and ``polyclinic clusters``: what the numbers of all hospitals' patients look like."""

from __future__ import annotations

from typing import Annotated

import typer

from polyclinic.cli.analyses.analyse import Options, analyse
from polyclinic.cli.options import with_options

Columns = Annotated[list[str] | None, typer.Argument(metavar="[COLUMN]...", help="Features. Default: all numbers.")]
Scaling = Annotated[
    str | None,
    typer.Option(
        help="Scale of the numbers: measured (default) by their own deviation, public by the schema's.",
        show_default=False,
    ),
]


@with_options(Options)
def components(column: Columns = None, scaling: Scaling = None, *, options: Options) -> None:
    """Principal components: eigenvalues, explained variance and loadings, and what noise does to them."""
    analyse("components", {"columns": ", ".join(column) if column else None, "scaling": scaling}, options)


@with_options(Options)
def clusters(
    column: Columns = None,
    k: Annotated[int, typer.Option(help="Number of clusters.")] = 4,
    scaling: Scaling = None,
    *,
    options: Options,
) -> None:
    """k-means: centres in the columns' units, how many patients are nearest to each, and how far they lie from it."""
    analyse("clusters", {"k": k, "columns": ", ".join(column) if column else None, "scaling": scaling}, options)
