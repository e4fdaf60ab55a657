"""A regression without privacy: Newton's method on sums over all hospitals' records, equal to a fit of pooled ones.

A patient's rows count each, as they do in a table of pooled records. A hospital keeps its sums where a column of the design, or
the outcome, rests on few of its patients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from polyclinic.errors import ConfigError, DataError
from polyclinic.inference.families import Family
from polyclinic.privacy.sums import mean_of_rows
from polyclinic.synthesis.layout import Layout
from polyclinic.training.regression.formula import Design
from polyclinic.training.synthesis import ExactSumsTask
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays, Floats, Ints

# A hospital has so many patients for each term that varies there, as in DataSHIELD (nfilter.glm of 0.33).
_PATIENTS_A_TERM = 3
# A column rests on those who make up this share of the squares of its distances from its commonest value.
_NEARLY_ALL = 0.99
# A fit has converged where steps are shorter in standard errors; the step after squares it.
_CLOSE = 1e-3
# A step changes the logarithm of a further parameter by so much at the most.
_LONGEST = 2.0


def own_row(question: Arrays, shapes: Mapping[str, tuple[int, ...]], number: int) -> Arrays:
    """The row of a hospital in each array of a question, the last where there are fewer: each has an estimate of its own.

    Args:
        question: The arrays by name.
        shapes: The shape of a row of each array that is needed.
        number: The number of the hospital, from 0.

    Raises:
        ConfigError: An array is missing, or is of another shape.
    """
    for name, shape in shapes.items():
        value = question.get(name)
        if value is None or value.dtype != np.float64 or value.shape[1:] != shape or not value.shape[:1] > (0,):
            raise ConfigError(f"The question's {name!r} must be float64 rows of shape {shape}.")
    return {name: question[name][min(number, len(question[name]) - 1)] for name in shapes}


@dataclass(frozen=True, eq=False)
class Fit:
    """A fit in the design's own units.

    estimates, covariance: (k,) and (k, k), NaN of columns that no record has; a further parameter of the family last.
    loglik: Of ``rows`` rows; ``left_out`` more have something missing.
    deviation: Of residuals.
    noise: (k,) how many times noise made standard errors larger.
    """

    names: tuple[str, ...]
    estimates: Floats
    covariance: Floats
    rows: int
    left_out: int
    patients: int
    loglik: float = float("nan")
    deviation: float = 1.0
    noise: Floats | None = None


@dataclass(frozen=True, eq=False)
class ExactRegression:
    """``synthesis.sums.SumsMethod`` of a regression; each round is a step of Newton's method.

    least: Fewer patients than that, and more than none, may not carry a column of the design.
    divided: Whether sums are divided by a public size, for secure sums, which round them to a grid.
    separate: Whether each hospital's sum is told apart.
    number: Of the hospital, from 0.
    """

    design: Design
    family: Family
    layout: Layout
    rounds: int
    least: int
    divided: bool = False
    separate: bool = False
    number: int = 0
    name: str = "regression"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of all k parameters, a further one last."""
        return (*self.design.names, *([self.family.further] if self.family.further else []))

    @cached_property
    def _upper(self) -> tuple[Ints, Ints]:
        return np.triu_indices(len(self.names))

    def question(self, round: int, state: Arrays) -> Arrays:
        """The estimate, of columns that are divided by their bounds, and the size by which sums are divided."""
        k, largest = len(self.names), 1.0 + float(self.design.outcome.bound[-1])
        first = np.array([largest**2 * (1 + k) if self.divided else 1.0])
        return {"estimate": state.get("estimate", np.zeros(k))[None], "size": state.get("size", first)[None]}

    def size(self, round: int, question: Arrays) -> int:
        """Rows, rows left out, log likelihood, score, and the upper triangle of the information."""
        return 3 + len(self.names) + len(self._upper[0])

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size) sums over each patient's rows.

        Args:
            round: The round, from 1 on.
            question: What ``question`` gave for the round.
            z: (n, D) rows of the layout.
            patient: (n,) the patient of each row.
            patients: The number of patients.

        Raises:
            ConfigError: The question is of another form.
        """
        own = own_row(question, {"estimate": (len(self.names),), "size": (1,)}, self.number)
        x, y, complete = self.design.rows(z)
        p, x, further = len(self.design.names), x / self.design.bound, bool(self.family.further)
        eta = self.family.start(y) if round == 1 else x @ own["estimate"][:p]
        pieces = self.family.pieces(y, eta, float(own["estimate"][-1]) if further else 0.0)
        # The first step is the whole estimate: by the working outcome, whose predictor is eta.
        score = x * (pieces.score + (pieces.weight * eta if round == 1 else 0.0))[:, None]
        (first, second), weights = self._upper, np.repeat(pieces.weight[:, None], len(self._upper[0]), axis=1)
        if further:
            score, x = np.column_stack([score, pieces.further[0]]), np.column_stack([x, np.ones(len(x))])
            weights[:, second == p], weights[:, first == p] = pieces.further[2][:, None], pieces.further[1][:, None]
        vectors = np.column_stack([complete, ~complete, pieces.loglik, score, x[:, first] * x[:, second] * weights])
        vectors[~complete, 2:] = 0.0
        counts = np.bincount(patient, minlength=patients)
        return mean_of_rows(vectors / own["size"], patient, patients) * counts[:, None]

    def refusal(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> str:
        """Why the hospital keeps its sums, as the term that too few of its patients carry; empty where it gives them.

        Args:
            round: The round, from 1 on.
            question: What ``question`` gave for the round.
            z: (n, D) rows of the layout.
            patient: (n,) the patient of each row.
            patients: The number of patients.
        """
        x, y, complete = self.design.rows(z)
        p, x, y, patient = len(self.design.names), x[complete], y[complete], patient[complete]
        if round > 1:  # a coordinator may send any estimate, as one by which the patients of one age alone weigh
            own = own_row(question, {"estimate": (len(self.names),)}, self.number)["estimate"]
            further = float(own[-1]) if self.family.further else 0.0
            weight = self.family.pieces(y, x / self.design.bound @ own[:p], further).weight
            if _carriers(np.sqrt(np.abs(weight)), patient) < self.least:
                return f"At this estimate nearly all weight is on fewer than {self.least} of the hospital's patients."
        counts = [_carriers(_from_commonest(column), patient) for column in np.column_stack([x, y]).T]
        for name, count in zip((*self.design.names, self.design.outcome.text), counts, strict=True):
            if 0 < count < self.least:
                return f"{name!r} rests on fewer than {self.least} of the hospital's patients."
        terms, there = sum(count > 0 for count in counts), len(np.unique(patient))
        if there < max(self.least, _PATIENTS_A_TERM * terms):
            return f"The hospital has too few patients with complete records for the {terms} terms that vary there."
        return ""

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        """The next state: a step on, or half of the last step back where the likelihood fell.

        Args:
            round: The round, from 1 on.
            state: What was made of the sums so far.
            mean: (size,) sum by the number of patients.
            noise: Standard deviation of a secure sum's rounding in each entry of ``mean``; 0 without.
        """
        k, asked = len(self.names), {name: value[0] for name, value in self.question(round, state).items()}
        total = mean * state["patients"] * asked["size"]
        information = np.zeros((k, k))
        information[self._upper] = total[3 + k :]
        information += np.triu(information, 1).T
        size = np.maximum(np.linalg.norm(mean) * asked["size"], 1e-300) if self.divided else np.ones(1)
        patients, before = state["patients"][0], state.get("answered", state["patients"])
        answered = np.array([min(patients, before[0]), max(patients, before[-1])])
        after = {**state, "size": size, "close": np.array([np.inf]), "answered": answered}
        seen = 10 * noise * state["patients"][0] * asked["size"][0]  # beyond a secure sum's rounding
        rounded = 1e-9 * abs(total[2]) + seen
        if round > 2 and "loglik" in state and total[2] < state["loglik"][0] - rounded:
            return {**after, "estimate": (asked["estimate"] + state["best"]) / 2}
        further = bool(self.family.further)
        # A hospital that is combined by itself may answer later than in round 1.
        there = state["there"].astype(bool) if "there" in state else np.diag(information) > seen
        moves, step = there.copy(), np.zeros(k)
        if further:  # its first information may be negative, and says nothing before there are predictors
            there[-1], moves[-1] = True, round > 1
        step[moves] = _newton(information[np.ix_(moves, moves)], total[3 : 3 + k][moves])
        if further:
            step *= min(1.0, _LONGEST / max(abs(float(step[-1])), 1e-300))
        if round > 1:
            # By the estimate, too: steps do not become shorter where terms alone tell the outcome.
            relative = np.abs(step) / (1 + np.abs(asked["estimate"]))
            after["close"] = np.array([max(np.sqrt(abs(float(total[3 : 3 + k] @ step))), relative.max())])
        return {
            **after, "best": asked["estimate"], "estimate": asked["estimate"] + step, "loglik": total[2:3],
            "information": information, "there": there, "counts": total[:2],
        }  # fmt: skip

    def fit(self, state: Arrays, scores: Floats | None = None) -> Fit:
        """What the last state says. scores: (hospitals, k) of each hospital, for standard errors that are robust by hospital.

        Raises DataError where the rounds did not converge, terms cannot be told apart, or are no fewer than rows.
        """
        if "close" not in state or not state["close"][0] < _CLOSE:
            fewest, most = state.get("answered", np.zeros(2)).tolist()
            why = "more rounds, or a formula without a term that alone tells the outcome, may do."
            if fewest < most:
                why = (
                    f"hospitals were lost, so that some rounds are of {fewest:,.0f} patients and others of {most:,.0f}."
                )
            raise DataError(f"The fit did not converge in {self.rounds} rounds: {why}")
        k, there = len(self.names), state["there"].astype(bool)
        information = state["information"][np.ix_(there, there)]
        root = np.sqrt(np.maximum(np.diag(information), 1e-300))
        if np.linalg.eigvalsh(information / np.outer(root, root))[0] < 1e-9:
            raise DataError("Terms of the formula cannot be told apart: one of them follows from the others.")
        covariance, (rows, left_out) = np.linalg.inv(information), (round(count) for count in state["counts"].tolist())
        deviation, loglik, p = 1.0, float(state["loglik"][0]), int(there.sum())
        if self.family.name == "linear":
            if rows <= p:
                raise DataError(
                    "The formula has no fewer terms than there are rows, so that no error can be estimated."
                )
            squares = -2 * loglik
            deviation = float(np.sqrt(squares / (rows - p)))
            loglik = -rows / 2 * (np.log(2 * np.pi * squares / rows) + 1)
        if scores is None:
            covariance *= deviation**2
        else:
            side, hospitals = covariance @ scores[:, there].T, len(scores)
            covariance = side @ side.T * (hospitals / (hospitals - 1) * (rows - 1) / (rows - p))
        estimates, whole = np.full(k, np.nan), np.full((k, k), np.nan)
        estimates[there], whole[np.ix_(there, there)] = state["estimate"][there], covariance
        scale = np.ones(k)
        scale[: len(self.design.names)] = 1 / self.design.bound
        if self.family.further:
            scale[-1], estimates[-1] = np.exp(estimates[-1]), 1.0
        estimates, whole, patients = (
            estimates * scale,
            whole * np.outer(scale, scale),
            round(float(state["patients"][0])),
        )
        return Fit(self.names, estimates, whole, rows, left_out, patients, loglik, deviation)


def _carriers(away: Floats, patient: Ints) -> int:
    """The fewest patients who make up nearly all squares of ``away``: those of a rare category, or of a far number."""
    squares = np.sort(np.bincount(patient, (away / np.abs(away).max(initial=1e-300)) ** 2))[::-1]
    return int((np.cumsum(squares) < _NEARLY_ALL * squares.sum()).sum()) + 1 if squares.any() else 0


def _from_commonest(values: Floats) -> Floats:
    numbers, counts = np.unique(values, return_counts=True)
    return values - numbers[counts.argmax()] if len(values) else values


def _newton(information: Floats, score: Floats) -> Floats:
    """Newton's step; where the information is negative it goes the other way, uphill."""
    root = np.sqrt(np.maximum(np.abs(np.diag(information)), 1e-300))
    values, vectors = np.linalg.eigh(information / np.outer(root, root))
    return np.asarray(vectors @ ((vectors.T @ (score / root)) / np.maximum(np.abs(values), 1e-12)) / root)


class RegressionTask(ExactSumsTask):
    """``ExactSumsTask`` of a method that knows the ``number`` of its hospital."""

    def _update(self, site: SiteWork, settings: TrainSettings) -> SiteUpdate:
        method: Any = self.method
        own = replace(self, method=replace(method, number=site.number))
        return super(RegressionTask, own)._update(site, settings)
