"""``polyclinic regress``: a table of coefficients over all hospitals' patients."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from polyclinic.cli.analyses.analyse import Options, analyse
from polyclinic.cli.options import with_options

# The negative binomial's dispersion takes more steps than coefficients do.
_ROUNDS = {"negative-binomial": 25}


@with_options(Options)
def regress(
    formula: Annotated[str, typer.Argument(help="Outcome, ~ and terms: 'died ~ age + sex + C(region) + age:sex'.")],
    *,
    options: Options,
    family: Annotated[str, typer.Option(help="Family: linear, logistic, poisson or negative-binomial.")] = "linear",
    errors: Annotated[str | None, typer.Option(help="Standard errors: classic, or robust by hospital.")] = None,
    meta: Annotated[
        str | None, typer.Option(help="Fit each hospital by itself and combine the coefficients: reml or dl.")
    ] = None,
    least: Annotated[
        int | None,
        typer.Option(help="Without privacy: smallest number of a hospital's patients for a term, 3 or more."),
    ] = None,
) -> None:
    """A regression table of all hospitals' patients, under privacy or exact; or each hospital's own, and their meta-analysis."""
    if options.rounds is None and options.no_dp:
        options = replace(options, rounds=_ROUNDS.get(family))
    analyse(
        "regression", {"formula": formula, "family": family, "errors": errors, "meta": meta, "least": least}, options
    )
