"""A regression table of several synthetic sets: fitted to each, and combined by the rule that their certificate names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from polyclinic.config import RunConfig
from polyclinic.ehr.encoding import encode
from polyclinic.ehr.schema import Schema
from polyclinic.errors import DataError
from polyclinic.programs import program_of
from polyclinic.programs.analyses import Table
from polyclinic.programs.analyses.regression import Regression
from polyclinic.runs.folder import Run
from polyclinic.synthesis.inference import Inference, analyse_sets
from polyclinic.training.regression.exact import ExactRegression, Fit
from polyclinic.types import Floats

# The negative binomial's dispersion takes more steps than coefficients do.
_ROUNDS = {"negative-binomial": 25}


@dataclass(frozen=True, eq=False)
class CombinedRegression:
    """What the sets say of each of ``names``, a term of ``formula``, which is in ``inference`` under the same number.

    interactions: those of ``names`` that are products of two columns or more.
    """

    formula: str
    family: str
    names: tuple[str, ...]
    inference: Inference
    interactions: tuple[str, ...] = ()

    @property
    def trusted(self) -> bool:
        """Whether every two columns were measured together, and no term asks for three at once."""
        return self.inference.trusted and not self.interactions

    @property
    def terms(self) -> dict[str, dict[str, Any]]:
        """By term, its estimate with an interval of 95 %."""
        combined = self.inference.combined
        low, high = combined.interval()
        p = 2 * stats.t.sf(np.abs(combined.estimate / combined.standard_error), combined.degrees_of_freedom)
        columns = {
            "estimate": combined.estimate, "standard_error": combined.standard_error, "low": low, "high": high, "p": p,
            "adjusted": combined.adjusted,
        }  # fmt: skip
        return {name: {key: values[at].item() for key, values in columns.items()} for at, name in enumerate(self.names)}

    @property
    def table(self) -> Table:
        """The terms as a table of coefficients."""
        headings = "Term", "Estimate", "Std. error", "Low", "High", "p"
        rows = tuple((name, *list(row.values())[:5]) for name, row in self.terms.items())
        return Table(
            "combined", f"{self.family.title()} regression: {self.formula}", headings, rows,
            {"p": "p"} | dict.fromkeys(headings[1:5], "#.4g"), "Low and High are the ends of intervals of 95 %.",
        )  # fmt: skip

    @property
    def notes(self) -> list[str]:
        """What a reader must know beside the table, as sentences."""
        # Of one model for all sets a certificate does not say what was measured.
        anew = self.inference.combined.rule == "full"
        pairs, products = (self.inference.apart, ", ".join(self.interactions)) if anew else ((), "")
        apart = ", ".join(f"{first} and {other}" for first, other in pairs)
        unsteady = ", ".join(name for name, row in self.terms.items() if row["adjusted"])
        return [
            *([f"Not measured together, so that the model made up how they depend on each other: {apart}."] if apart else []),
            *([f"Of {products} trust neither estimate nor interval: with the outcome that is three columns or more at once, and "
               "patients were counted by pairs of columns."] if products else []),
            *([f"The sets differ too little for the rule's variance of {unsteady}, which has a safe one: draw more sets or rows."]
              if unsteady else []),
        ]  # fmt: skip


def combined_regression(
    run: str | Path, certificate: str | Path, formula: str, family: str = "linear", patients: float | None = None
) -> CombinedRegression:
    """The regression of ``formula`` fitted to each set of a certificate and combined by its rule.

    Only synthetic rows are read, so it costs no privacy.

    Args:
        run: The one that the sets were drawn from, whose schema says what columns are.
        certificate: Of the sets.
        formula: As of ``polyclinic regress``, as "died ~ age + C(region)".
        family: As of ``polyclinic regress``.
        patients: As of ``analyse_sets``.

    Raises:
        ConfigError: for a formula or a family as ``polyclinic regress`` does, and as ``analyse_sets``.
        DataError: where a set leaves a term without an estimate, and for sets of another run.
    """
    of = Run.open(run)
    whole = of.schema()
    config = RunConfig.build({
        "task": "regression", "task-options": {"formula": formula, "family": family}, "privacy.dp": False,
        "rounds": _ROUNDS.get(family, 15),
    })  # fmt: skip
    program = program_of(config)
    assert isinstance(program, Regression)
    asked = program.method(whole)
    factors = [asked.design.outcome, *asked.design.factors]
    columns = list(dict.fromkeys(factor.source.name for factor in factors))
    schema = _of_columns(whole, {factor.source.column.name for factor in factors})
    method = program.method(schema)
    assert isinstance(method, ExactRegression)  # without privacy

    def fit_rows(rows: pd.DataFrame) -> tuple[Floats, Floats]:
        fit = _fit(method, schema, rows)
        if missing := [
            name for name, estimate in zip(fit.names, fit.estimates, strict=True) if not np.isfinite(estimate)
        ]:
            raise DataError(f"A set has no row with {missing[0]!r}; leave the term out, or draw more rows.")
        return fit.estimates, np.diag(fit.covariance)

    products = zip(method.design.names, method.design.products, strict=True)
    interactions = tuple(name for name, product in products if len({factor for factor, _ in product}) > 1)
    inference = analyse_sets(certificate, columns, fit_rows, patients, of.certified)
    return CombinedRegression(formula, family, method.names, inference, interactions)


def _of_columns(schema: Schema, names: set[str]) -> Schema:
    """The schema with columns ``names`` and the label alone."""
    columns = tuple(column for column in schema.columns if column.name in names or column.role == "label")
    return schema.model_copy(update={"columns": columns, "rules": ()})


def _fit(method: ExactRegression, schema: Schema, rows: pd.DataFrame) -> Fit:
    """The regression of the rows of one table, each a patient of its own."""
    # What the formula does not ask for is not looked at: the label, and other steps of a trajectory.
    others: dict[str, Any] = {label.name: label.categories[0] if label.categories else 0 for label in schema.labels}
    for column in schema.columns:
        if column.kind == "trajectory":
            others |= dict.fromkeys(
                column.record_names, rows[next(name for name in column.record_names if name in rows)]
            )
    encoded = encode(rows.assign(**{name: value for name, value in others.items() if name not in rows}), schema)
    assert encoded.y is not None
    z, state = method.layout.rows(encoded.x, encoded.y), {"patients": np.array([float(len(rows))])}
    for round in range(1, method.rounds + 1):
        question = method.question(round, state)
        sums = method.contributions(round, question, z, np.arange(len(z)), len(z)).sum(axis=0)
        state = method.absorb(round, state, sums / len(z), 0.0)
    return method.fit(state)


def as_json(regression: CombinedRegression) -> Mapping[str, Any]:
    """What ``polyclinic combine`` prints."""
    combined = regression.inference.combined
    return {
        "formula": regression.formula, "family": regression.family, "rule": combined.rule, "sets": combined.sets,
        "trusted": regression.trusted, "apart": [list(pair) for pair in regression.inference.apart],
        "terms": regression.terms, "notes": regression.notes,
    }  # fmt: skip
