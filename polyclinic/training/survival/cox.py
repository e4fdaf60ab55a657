"""Cox's regression at a hospital: by its own partial likelihood, or with privacy by bounded scores of each patient."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError, DataError
from polyclinic.inference.bounded_newton import PRIOR, Regressed, is_hidden
from polyclinic.inference.cox import BoundedHazards, partial_likelihood
from polyclinic.inference.families import Poisson
from polyclinic.objectives.objective import made_up_labels
from polyclinic.privacy.sums import mean_of_rows
from polyclinic.synthesis.layout import Layout
from polyclinic.training.regression.exact import ExactRegression, Fit, own_row
from polyclinic.training.regression.formula import Design
from polyclinic.training.regression.private import PrivateRegression
from polyclinic.training.survival.counts import Outcome
from polyclinic.training.synthesis import SUM, ExactSumsTask
from polyclinic.training.task import SiteUpdate, SiteWork, TrainSettings
from polyclinic.types import Arrays, Bools, Builder, Floats, Ints, Labels

# A step changes no logarithm of a hazard by more, of a patient at the public bound of a column.
_LONGEST = 3.0


@dataclass(frozen=True, eq=False)
class Timed(Layout):
    """Rows of features and the event, with the time behind them. both: The schema's label columns, the time and the event."""

    both: tuple[Column, ...] = ()

    @classmethod
    def of_outcome(cls, schema: Schema, outcome: Outcome) -> Timed:
        """Raises ConfigError unless time and event are the labels of the schema."""
        time, event = outcome.time.name, outcome.event.name
        if {time, event} != {column.name for column in schema.labels}:
            raise ConfigError(
                f"The labels of schema {schema.name!r} must be {time!r} and {event!r}: give them the roles duration and "
                f"event, or in a simulation name them by data.label='{time}, {event}'."
            )
        roles = {time: "ignore", event: "label"}
        columns = [column.model_copy(update={"role": roles.get(column.name, column.role)}) for column in schema.columns]
        base = Layout.of(schema.model_copy(update={"columns": tuple(columns)}))
        return cls(base.schema, base.mean, base.std, base.nullable, both=schema.labels)

    @property
    def numeric(self) -> Bools:
        """(D + 1,) True for numbers; the others are 0 or 1."""
        return np.append(np.arange(self.width) < self.features, True)

    def rows(self, x: Floats, y: Labels, hospital: int = 0) -> Floats:
        """(n, D + 1) of a shard's x and y.

        Args:
            x: (n, F) encoded features, NaN where missing.
            y: (n, 2) the time and the event, in the schema's order.
            hospital: Of no weight here.
        """
        event = [column.kind for column in self.both].index("binary")
        return np.column_stack([super().rows(x, y[:, event].astype(np.int64)), y[:, 1 - event]])

    def some_labels(self, count: int) -> Labels:
        """(count, 2) made-up times and events."""
        return made_up_labels(self.both, count)


@dataclass(frozen=True, eq=False)
class ExactCox(ExactRegression):
    """Newton's method on the product of hospitals' partial likelihoods, which is Cox's regression stratified by hospital.

    A row is a patient of its own. ties: efron or breslow.
    """

    ties: str = "efron"

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        """The next state, whose estimate is not so far from the best that all its information is lost.

        Args:
            round: The round, from 1 on.
            state: What was made of the sums so far.
            mean: (size,) sum by the number of patients.
            noise: As in ``ExactRegression.absorb``.
        """
        after = super().absorb(round, state, mean, noise)
        step = after["estimate"] - after["best"]
        return after | {
            "estimate": after["best"] + step * min(1.0, _LONGEST / max(float(np.abs(step).max()), _LONGEST))
        }

    def of_hospital(self, question: Arrays, z: Floats) -> Floats:
        """(size,) rows, rows left out, and the log partial likelihood with its derivatives, as ``absorb`` takes them."""
        own = own_row(question, {"estimate": (len(self.names),), "size": (1,)}, self.number)
        x, event, complete = self.design.rows(z[:, :-1])
        value, score, information = partial_likelihood(
            z[complete, -1], event[complete] > 0.5, (x / self.design.bound)[complete], own["estimate"], self.ties
        )
        return (
            np.concatenate([[complete.sum(), (~complete).sum(), value], score, information[self._upper]]) / own["size"]
        )


class CoxTask(ExactSumsTask):
    """``ExactSumsTask`` of one of the two methods; a partial likelihood is of a hospital's patients together."""

    def check(self, build: Builder, arrays: Arrays, features: int, engine: str = "auto", private: bool = True) -> None:
        """As of every sum; a partial likelihood takes no noise, for no clipping bounds its sum.

        Args:
            build: Of no weight here.
            arrays: Must be empty: a sum is asked for without a model.
            features: Of no weight here.
            engine: Of no weight here.
            private: Whether noise is added.

        Raises:
            ConfigError: Noise is asked of a partial likelihood, or there are arrays.
        """
        super().check(build, arrays, features, engine, private)
        self._check_exact(private)

    def _check_exact(self, private: bool) -> None:
        if private and isinstance(self.method, ExactCox):
            raise ConfigError(
                "A partial likelihood cannot be private: the run says privacy.dp false, but noise is asked of it."
            )

    def _probe(self) -> None:
        if isinstance(self.method, ExactCox):
            self.method.of_hospital(self._given, np.zeros((0, self.method.layout.width + 1)))
        else:
            super()._probe()

    def _update(self, site: SiteWork, settings: TrainSettings) -> SiteUpdate:
        method, rows = self.method, site.rows
        if not isinstance(method, ExactCox):
            return super()._update(site, settings)
        self._check_exact(settings.noise_multiplier is not None)
        z = method.layout.rows(rows.x, rows.y)
        if refusal := method.refusal(self._round, self._given, z, rows.patient, rows.patients):
            raise DataError(refusal)
        return SiteUpdate({SUM: method.of_hospital(self._given, z) / rows.patients}, 1, float("nan"), {})


@dataclass(frozen=True, eq=False)
class PrivateCox(PrivateRegression):
    """Constant hazards by interval instead, the same at all hospitals. The intervals' parameters stand before the terms'.

    scale: (p,) public centres and spreads of the terms' columns.
    """

    scale: tuple[Floats, Floats] = (np.zeros(1), np.ones(1))

    @classmethod
    def of_grid(
        cls, design: Design, scale: tuple[Floats, Floats], layout: Timed, edges: tuple[float, ...], rounds: int
    ) -> PrivateCox:
        """The method of a design and a grid of time.

        Args:
            design: The terms.
            scale: (p,) public centres and spreads of the terms' columns.
            layout: The layout of the rows, with the time.
            edges: (J + 1) the begin of the first interval and the ends of all.
            rounds: The number of rounds.
        """
        names = (*(f"until {edge:g}" for edge in edges[1:]), *design.names)
        # Half of the patients have the event, as far as anybody knows before.
        start = np.where(np.arange(len(names)) < len(edges) - 1, np.log(0.5 / (len(edges) - 1)), 0.0)
        newton = BoundedHazards(Regressed(Poisson(), names), start, np.full(len(names), PRIOR), rounds, edges)
        return cls(design, newton, layout, scale=scale)

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size) means of the rows' vectors.

        Args:
            round: The round, from 1 on.
            question: What ``question`` gave for the round.
            z: (n, D + 1) rows of the layout, the time last.
            patient: (n,) the patient of each row.
            patients: The number of patients.
        """
        own, (x, event, complete) = own_row(question, self.newton.shapes, self.number), self.design.rows(z[:, :-1])
        outcome = np.column_stack([z[:, -1], np.where(complete, event, np.nan)])
        records = np.column_stack([(x - self.scale[0]) / self.scale[1], outcome])
        return mean_of_rows(self.newton.contributions(own, records), patient, patients)

    def fit(self, state: Arrays) -> Fit:
        """The terms' part of the fit, in the design's own units."""
        whole, terms = self.newton.posterior(self._full_state(state)), slice(-len(self.design.names), None)
        scale = 1 / self.scale[1]
        both = [part.covariance[terms, terms] * np.outer(scale, scale) for part in (whole.posterior, whole.likelihood)]
        estimates, hidden = whole.posterior.mean[terms] * scale, is_hidden(whole)[terms]
        estimates[hidden], both[0][hidden] = np.nan, np.nan
        patients = round(float(state["patients"][0]))
        rows = round(patients * min(max(float(state["complete"][0]), 0.0), 1.0))
        return Fit(
            self.design.names, estimates, both[0], rows, patients - rows, patients,
            noise=np.sqrt(np.diag(both[0]) / np.diag(both[1])),
        )  # fmt: skip
