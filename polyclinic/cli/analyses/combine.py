"""``polyclinic combine``: a regression table of several synthetic sets, with intervals by their certificate's rule."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyclinic.cli.terminal import Json, answer, loading, style_lines, table


def combine(
    run: Annotated[Path, typer.Argument(help="Folder of the run that the sets were drawn from.")],
    certificate: Annotated[
        Path, typer.Argument(help="The sets' certificate, as `polyclinic synthesize --sets` wrote it.")
    ],
    formula: Annotated[str, typer.Option(help="Outcome, ~ and terms: 'died ~ age + sex + C(region) + age:sex'.")],
    family: Annotated[str, typer.Option(help="Family: linear, logistic, poisson or negative-binomial.")] = "linear",
    patients: Annotated[
        int | None, typer.Option(min=1, help="Number of patients of the run, if the certificate does not say it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit a regression to each of several synthetic sets and combine them into one table, which costs no privacy."""
    with loading():
        from polyclinic.runs.combined import as_json as printed
        from polyclinic.runs.combined import combined_regression
    regression = combined_regression(run, certificate, formula, family, patients)
    shown, combined = regression.table, regression.inference.combined
    answer(
        as_json, printed(regression), shown.title, table(shown.columns, shown.texts()), shown.note,
        f"Combined from {combined.sets} sets by rule '{combined.rule}'.", *style_lines("yellow", *regression.notes),
    )  # fmt: skip
