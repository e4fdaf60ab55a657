"""Regression tables over hospitals' patients: pooled, robust by hospital, or each hospital's own and their meta-analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import stats

from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError, DataError
from polyclinic.inference.bounded_newton import PRIOR
from polyclinic.inference.families import FAMILIES
from polyclinic.inference.meta import MetaAnalysis, meta_analysis
from polyclinic.programs.analyses import Analysis, Cell, Result, Table
from polyclinic.programs.program import Collected, State
from polyclinic.programs.sums import SumsHalf
from polyclinic.synthesis.layout import Layout
from polyclinic.training.regression.exact import ExactRegression, Fit, RegressionTask
from polyclinic.training.regression.formula import design_of
from polyclinic.training.regression.private import PrivateRegression
from polyclinic.training.synthesis import LEAST, ROUND, SUM
from polyclinic.types import Arrays

Method = ExactRegression | PrivateRegression
Row = dict[str, Cell]
_NO_EFFECTS = ("Intercept", "dispersion")
_ERRORS, _META = ("classic", "robust"), ("none", "reml", "dl")
_NEXT = " Next low and Next high are those of the interval in which the effect at one more hospital is expected."
# Below it errors that are robust by cluster are known to be too small (Cameron and Miller 2015, section VI).
_FEW_CLUSTERS = 30
_LEVEL, _FORMATS = 0.95, {"p": "p", "Noise": ".2f", "I²": ".1%", "Q p": "p", "Hospitals": "d"}


@dataclass(frozen=True)
class Regression(Analysis):
    """A regression of ``formula``, as ``died ~ age + C(region)``.

    family: linear, logistic, poisson or negative-binomial.
    errors: classic, or robust by hospital.
    meta: none fits all hospitals' records together; reml and dl fit each hospital by itself and combine the coefficients.
    least: without privacy, a hospital takes no part where a column of the design rests on fewer of its patients, and on some.
    """

    formula: str = ""
    family: str = "linear"
    errors: str = "classic"
    meta: str = "none"
    least: int = 5

    def __post_init__(self) -> None:
        for name, allowed in (("family", tuple(FAMILIES)), ("errors", _ERRORS), ("meta", _META)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed are {', '.join(allowed)}")
        if self.least < LEAST:
            raise ValueError(f"least is {self.least}; allowed are whole numbers from {LEAST} on")
        if not isinstance(self.formula, str) or not self.formula.strip():
            raise ValueError(f"formula is {self.formula!r}; give one, as formula='died ~ age + C(region)'")
        if self.errors == "robust" and (self.config.privacy.dp or self.meta != "none"):
            raise ValueError("errors robust goes with exact sums of all hospitals; take classic with privacy or meta")
        if (self.errors == "robust" or self.meta != "none") and self.config.secure.aggregation:
            raise ValueError(
                "errors robust and meta need each hospital's sum, but secure.aggregation opens their total alone; set "
                "secure.aggregation to false, or take errors classic and meta none"
            )

    def method(self, schema: Schema) -> Method:
        return _method(self, schema)

    def plain_task(self, schema: Schema, question: Mapping[str, np.ndarray] | None = None) -> RegressionTask:
        task = RegressionTask(self.method(schema), name=self.config.task)
        return task if question is None else task.asked(question)

    def half(self, schema: Schema, classes: Sequence[float], learning_rate: float) -> RegressionHalf:
        return RegressionHalf(self.method(schema), self.classes(schema, classes), self.meta != "none")

    def check_noise(self, schema: Schema, noise_multiplier: float, noise: float, fewest: float) -> None:
        """Check that the noise leaves the patients' information, and that a secure sum would not cut sums short.

        Args:
            schema: Of the run.
            noise_multiplier: Standard deviation of the noise in a sum, over a patient's clip norm.
            noise: Standard deviation of the noise in each entry of the mean.
            fewest: The patients of the smallest hospital, whose own noise counts in a meta-analysis.

        Raises:
            ConfigError: where the noise would hide the information, or a secure sum would cut sums short.
        """
        method = self.method(schema)
        if isinstance(method, PrivateRegression):
            method.newton.check_noise(noise_multiplier / fewest if self.meta != "none" else noise)
            super().check_noise(schema, noise_multiplier, noise, fewest)

    def result(self, method: Method, state: State) -> Result:
        title, ratio, notes = (
            f"{self.family.title()} regression: {self.formula}",
            FAMILIES[self.family].ratio,
            list[str](),
        )
        if self.meta != "none":
            title = f"Meta-analysis of each hospital's {title[0].lower()}{title[1:]}"
            tables, forest = self._combine(method, state, notes)
        else:
            scores = np.array([part["score"] for part in state["each"].values()])
            if self.errors == "robust" and len(scores) < 2:
                raise DataError("standard errors that are robust by hospital need two hospitals or more.")
            is_robust, arrays = self.errors == "robust", state["arrays"]
            fit = (
                method.fit(arrays, scores) if isinstance(method, ExactRegression) and is_robust else method.fit(arrays)
            )
            rows = coefficients(self.family, fit, is_robust)
            if is_robust and len(scores) < _FEW_CLUSTERS:
                notes.append(
                    f"Errors that are robust by hospital are too small where there are few: here {len(scores)}."
                )
            shown = {name: row for name, row in rows.items() if name not in _NO_EFFECTS and row["Estimate"] is not None}
            forest = [forest_line(name, row) for name, row in shown.items()]
            ratios: dict[Any, Row] = {
                bar["label"]: {ratio: np.exp(bar["estimate"]), "Low": np.exp(bar["low"]), "High": np.exp(bar["high"])}
                for bar in forest if ratio
            }  # fmt: skip
            tables = [term_table("coefficients", "Coefficients", rows), fit_table(self.family, fit)]
            tables[1:1] = [term_table("ratios", f"{ratio}s", ratios)] if ratios else []
            notes += no_estimates(rows, self.config.privacy.dp)
        if isinstance(method, PrivateRegression):
            notes += [
                "Intervals count the noise of privacy; Noise says how many times it made a standard error larger. Coefficients "
                f"of columns in public standard deviations have a normal prior of mean 0 and deviation {PRIOR:g}.",
                "A patient's rows count as one, by their mean, so that intervals of several rows are rather too wide.",
            ]
        else:
            notes.append(
                f"Sums are exact. A hospital takes no part where a term rests on 1 to {self.least - 1} of its patients."
            )
        numbers = {"forest": {"rows": forest, "ratio": ratio}} if forest else {}
        return Result(title, tuple(tables), numbers, tuple(notes))

    def _combine(self, method: Method, state: State, notes: list[str]) -> tuple[list[Table], list[dict[str, Any]]]:
        """Tables of the meta-analysis of hospitals' own fits, and the forest plot's lines. ``notes`` say who is left out."""
        fits: dict[str, dict[str, Row]] = {}
        for node in sorted(state["each"], key=int):
            try:
                fits[node] = coefficients(self.family, method.fit(state["each"][node]), False)
            except DataError as error:
                notes.append(f"Hospital {node} is left out: {error}")
        pooled, spread, each, forest = dict[Any, Row](), dict[Any, Row](), dict[Any, Row](), list[dict[str, Any]]()
        for term in next(iter(fits.values()), {}):
            own = {name: rows[term] for name, rows in fits.items() if rows[term]["Estimate"] is not None}
            each |= {(term, name): Row(Hospital=name) | row for name, row in own.items()}
            if len(own) < 2:
                notes.append(f"Fewer than two hospitals have an estimate of {term}, which is not combined.")
                continue
            estimates, errors = np.array([(row["Estimate"], row["Std. error"]) for row in own.values()], float).T
            combined = meta_analysis(estimates, errors, self.meta, level=_LEVEL)
            pooled[term], spread[term] = _of_meta(combined)
            if term not in _NO_EFFECTS:
                forest.append({"label": term, "kind": "heading"})
                forest += [forest_line(f"Hospital {name}", row, "hospital") for name, row in own.items()]
                forest.append(
                    forest_line("Random effects", {"Estimate": combined.random.estimate} | pooled[term], "pooled")
                )
        if not pooled:
            raise DataError(" ".join(["nothing can be combined.", *notes]))
        notes.append("Hospitals are numbered as in the run's table of hospitals.")
        by = {"reml": "REML", "dl": "DerSimonian and Laird"}[self.meta]
        return [
            term_table("pooled", f"Random effects, by {by} and Hartung and Knapp", pooled, _NEXT),
            term_table("heterogeneity", "One effect, and how hospitals differ", spread),
            term_table("hospitals", "Each hospital", each),
        ], forest  # fmt: skip


@lru_cache(maxsize=16)
def _method(program: Regression, schema: Schema) -> Method:
    config, family, layout = program.config, FAMILIES[program.family], Layout.of(schema, label_may_be_number=True)
    design = design_of(program.formula, layout)
    outcome, two = design.outcome, len(design.outcome.parts) == 2 and design.outcome.categories
    if len(outcome.parts) > 1 and not two:
        raise ConfigError(f"The outcome {outcome.text!r} must be a number, or have two categories.")
    if program.family == "logistic" and not (two or outcome.source.column.kind == "binary"):
        raise ConfigError(f"The outcome {outcome.text!r} is a number; the family logistic takes one that is 0 or 1.")
    if family.counts and outcome.values(outcome.source.grid).min() < 0:
        raise ConfigError(
            f"The outcome {outcome.text!r} may be below 0; the family {program.family} takes none that is."
        )
    apart = program.meta != "none"
    if config.privacy.dp:
        return PrivateRegression.of(design, family, layout, config.rounds, apart)
    separate = apart or program.errors == "robust"
    return ExactRegression(design, family, layout, config.rounds, program.least, config.secure.aggregation, separate)


@dataclass(frozen=True, eq=False)
class RegressionHalf(SumsHalf):
    """Also adds up sums of hospitals that are told apart, or of ``alone`` asks each hospital at its own estimate.

    The state has in ``each`` by node a hospital's ``score``, or of ``alone`` what the method made of its sums.
    """

    alone: bool = False

    def question(self, number: int, state: State) -> Arrays:
        if not (self.alone and state["each"]):
            return super().question(number, state)
        nodes = range(1, max(map(int, state["each"])) + 1)
        asked = [self.method.question(number, state["each"].get(str(node), state["arrays"])) for node in nodes]
        return {ROUND: np.array([number])} | {
            name: np.concatenate([arrays[name] for arrays in asked]) for name in asked[0]
        }

    def absorb(self, number: int, state: State, sent: Arrays, collected: Collected) -> tuple[State, Arrays]:
        if not self.separate:
            return super().absorb(number, state, sent, collected)
        sums = {node: (reply.arrays[SUM].astype(np.float64), reply) for node, reply in collected.replies.items()}
        after = {**state, "rounds": number, "patients": collected.patients}
        if self.alone:
            begun = {node: state["each"].get(node, state["arrays"]) for node in sums}
            return after | {"each": state["each"] | {
                node: self.method.absorb(number, begun[node] | {"patients": np.array([reply.weight])}, own, reply.noise)
                for node, (own, reply) in sums.items()
            }}, {}  # fmt: skip
        totals = {node: own * reply.weight for node, (own, reply) in sums.items()}
        people = sum(reply.weight for _, reply in sums.values())
        arrays = state["arrays"] | {"patients": np.array([people])}
        arrays = self.method.absorb(number, arrays, np.sum(list(totals.values()), axis=0) / people, 0.0)
        k = len(arrays["estimate"])
        scores = {node: {"score": total[3 : 3 + k]} for node, total in totals.items()}
        return after | {"arrays": arrays, "each": scores}, {}


def coefficients(family: str, fit: Fit, robust: bool) -> dict[str, Row]:
    """By term, a row of the table: the estimate, its standard error, the ends of its 95 % interval, and p.

    Args:
        family: As the option of that name.
        fit: What is tabulated. The rows of a private fit have ``Noise`` too.
        robust: Standard errors are robust, so that even a linear family's intervals are by the normal distribution.
    """
    by_t = family == "linear" and fit.noise is None and not robust
    law = stats.t(fit.rows - int(np.isfinite(fit.estimates).sum())) if by_t else stats.norm()
    rows: dict[str, Row] = {}
    for at, name in enumerate(fit.names):
        estimate, error = float(fit.estimates[at]), float(np.sqrt(fit.covariance[at, at]))
        half = float(law.ppf((1 + _LEVEL) / 2)) * error
        row = {"Estimate": estimate, "Std. error": error, "Low": estimate - half, "High": estimate + half}
        row["p"] = float(2 * law.sf(abs(estimate / error)))
        row |= {} if fit.noise is None else {"Noise": float(fit.noise[at])}
        rows[name] = {key: value if np.isfinite(value) else None for key, value in row.items()}
    return rows


def no_estimates(rows: Mapping[str, Row], private: bool) -> list[str]:
    """A sentence of the terms that have no estimate, if there are any."""
    names = ", ".join(name for name, row in rows.items() if row["Estimate"] is None)
    hidden = f"The noise hides {names}: spend more, or leave out or merge what few patients have."
    return ([hidden] if private else [f"No record has {names}: there is no estimate."]) if names else []


def term_table(name: str, title: str, rows: Mapping[Any, Row], note: str = "") -> Table:
    """The table of terms.

    Args:
        name: Of its files.
        title: Above it.
        rows: By term, or by term and hospital; at least one, all with the same columns.
        note: Follows the sentence on intervals.
    """
    columns = tuple(next(iter(rows.values())))
    formats = {column: _FORMATS.get(column, "#.4g") for column in columns if column != "Hospital"}
    cells = tuple((key if isinstance(key, str) else key[0], *row.values()) for key, row in rows.items())
    return Table(
        name, title, ("Term", *columns), cells, formats, f"Low and High are the ends of intervals of 95 %.{note}"
    )


def fit_table(family: str, fit: Fit) -> Table:
    noisy = "" if fit.noise is None else ", noisy"
    counts = {"Rows": fit.rows, "Rows left out, with something missing": fit.left_out, "Patients": fit.patients}
    rows: list[tuple[Cell, ...]] = [(name + noisy, str(count)) for name, count in counts.items()]
    if family == "linear":
        rows.append(("Residual standard deviation", fit.deviation))
    if np.isfinite(fit.loglik):
        aic = 2.0 * np.isfinite(fit.estimates).sum() - 2 * fit.loglik
        rows += [("Log likelihood", fit.loglik), ("AIC", float(aic))]
    return Table("fit", "The fit", ("Of the fit", "Value"), tuple(rows), {"Value": ".6g"})


def _of_meta(combined: MetaAnalysis) -> tuple[Row, Row]:
    (low, high), fixed, random = combined.prediction or (None, None), combined.fixed, combined.random
    return {
        "Hospitals": combined.hospitals, "Random": random.estimate, "Low": random.low, "High": random.high, "p": random.p,
        "Next low": low, "Next high": high,
    }, {
        "Fixed": fixed.estimate, "Low": fixed.low, "High": fixed.high, "Q": combined.q, "Q p": combined.q_p, "τ²": combined.tau2,
        "I²": combined.i2,
    }  # fmt: skip


def forest_line(label: str, row: Mapping[str, Any], kind: str = "term") -> dict[str, Any]:
    """A line of the forest plot.

    Args:
        label: Beside it.
        row: With ``Estimate``, ``Low`` and ``High``.
        kind: What the line stands for.
    """
    return {"label": label, "kind": kind, "estimate": row["Estimate"], "low": row["Low"], "high": row["High"]}
