"""A regression under privacy: bounded scores of standardised columns, and intervals that count the noise.

A patient with several rows counts once, by the mean of the rows' vectors; a row with something missing adds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.inference.bounded_newton import PRIOR, BoundedNewton, Regressed, is_hidden
from polyclinic.inference.families import Family, PrivateFamily
from polyclinic.privacy.sums import mean_of_rows
from polyclinic.synthesis.layout import Layout
from polyclinic.training.regression.exact import Fit, own_row
from polyclinic.training.regression.formula import Design
from polyclinic.types import Arrays, Floats, Ints


@dataclass(frozen=True, eq=False)
class PrivateRegression:
    """``synthesis.sums.SumsMethod`` of a regression with noise. Columns of the design, and an outcome that is a number, are
    standardised by public scales. number: Of the hospital, from 0.
    """

    design: Design
    newton: BoundedNewton
    layout: Layout
    separate: bool = False
    number: int = 0
    name: str = "regression"

    @classmethod
    def of(
        cls, design: Design, family: Family, layout: Layout, rounds: int, separate: bool = False
    ) -> PrivateRegression:
        """The method of a design and a family.

        Args:
            design: The terms and the outcome.
            family: The family, which must have bounded scores.
            layout: The layout of the rows.
            rounds: The number of rounds.
            separate: Whether each hospital's sum is told apart.

        Raises:
            ConfigError: The family has no bounded scores.
        """
        if not isinstance(family, PrivateFamily):
            raise ConfigError(
                f"The family {family.name!r} has no private fit; take poisson, or leave privacy out where hospitals allow that."
            )
        model = Regressed(family, design.names)
        k = len(model.names)
        return cls(design, BoundedNewton(model, np.zeros(k), np.full(k, PRIOR), rounds), layout, separate)

    @property
    def rounds(self) -> int:
        return self.newton.rounds

    @property
    def outcome(self) -> tuple[float, float]:
        """Centre and scale of the outcome."""
        outcome, by_number = self.design.outcome, bool(self.newton.likelihood.family.spread)
        return (
            (float(outcome.centre[-1]) * self.design.intercept.any(), float(outcome.spread[-1]))
            if by_number
            else (0.0, 1.0)
        )

    def question(self, round: int, state: Arrays) -> Arrays:
        return {name: value[None] for name, value in self.newton.question(self._full_state(state)).items()}

    def size(self, round: int, question: Arrays) -> int:
        return self.newton.width

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size) means of the rows' vectors.

        Args:
            round: The round, from 1 on.
            question: What ``question`` gave for the round.
            z: (n, D) rows of the layout.
            patient: (n,) the patient of each row.
            patients: The number of patients.

        Raises:
            ConfigError: The question is of another form.
        """
        own, (x, y, complete) = own_row(question, self.newton.shapes, self.number), self.design.rows(z)
        centre, scale = self.outcome
        outcome = np.where(complete, (y - centre) / scale, np.nan)
        records = np.column_stack([(x - self.design.centre) / self.design.spread, outcome])
        return mean_of_rows(self.newton.contributions(own, records), patient, patients)

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        return self.newton.absorb(round, self._full_state(state), mean, noise)

    def fit(self, state: Arrays) -> Fit:
        """The fit in the design's own units. Raises DataError where noise hides the information, or rounds did not agree."""
        released = self.newton.posterior(self._full_state(state))
        p, (centre, scale), intercept = len(self.design.names), self.outcome, self.design.intercept
        change = np.diag(scale / self.design.spread)
        change[intercept] -= scale * self.design.centre / self.design.spread
        both = [change @ part.covariance[:p, :p] @ change.T for part in (released.posterior, released.likelihood)]
        estimates = change @ released.posterior.mean[:p] + centre * intercept
        deviation = scale * float(np.exp(released.posterior.mean[-1])) if self.newton.likelihood.family.spread else 1.0
        hidden = is_hidden(released)[:p] & ~intercept
        estimates[hidden], both[0][hidden] = np.nan, np.nan
        patients = float(state["patients"][0])
        rows = round(patients * min(max(float(state["complete"][0]), 0.0), 1.0))
        return Fit(
            self.design.names, estimates, both[0], rows, round(patients) - rows, round(patients), deviation=deviation,
            noise=np.sqrt(np.diag(both[0]) / np.diag(both[1])),
        )  # fmt: skip

    def _full_state(self, state: Arrays) -> Arrays:
        return {**self.newton.begin(1.0), **state}
