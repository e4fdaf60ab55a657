"""``polyclinic effect``: the average effect of a treatment, by inverse-probability weights over all hospitals."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from polyclinic.cli.analyses.analyse import Options, analyse
from polyclinic.cli.options import with_options


@with_options(Options)
def effect(
    treatment: Annotated[str, typer.Option(metavar="COLUMN", help="Column of two values, or COLUMN=CATEGORY.")],
    options: Options,
    outcome: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of two values or of numbers. Default: the label.")
    ] = None,
    control: Annotated[
        str | None, typer.Option(metavar="COLUMN=CATEGORY", help="Group to compare with. Default: all others.")
    ] = None,
    covariates: Annotated[
        str | None,
        typer.Option(metavar="COLUMNS", help="Covariates of the propensity, such as age+sex. Default: all features."),
    ] = None,
    propensity: Annotated[
        float | None,
        typer.Option(help="Propensity by design, such as 0.5 in a trial of two equal arms. Default: estimated."),
    ] = None,
    most_weight: Annotated[float | None, typer.Option(help="Largest weight of a patient. Default: 10.")] = None,
) -> None:
    """Estimate the average effect of a treatment on an outcome, with its balance and an interval that counts the noise."""
    if outcome is not None and options.data:
        options = replace(options, label=outcome)
    elif outcome is not None:
        options = replace(options, sets=[*(options.sets or []), f"data.label={outcome}"])
    given = {"treatment": treatment, "control": control, "covariates": covariates}
    analyse("effect", given | {"propensity": propensity, "most_weight": most_weight}, options)
