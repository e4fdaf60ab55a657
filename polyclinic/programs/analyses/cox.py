"""Cox's regression over hospitals' patients: stratified by hospital without privacy, by constant hazards with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from polyclinic.ehr.schema import Schema
from polyclinic.errors import ConfigError
from polyclinic.inference.bounded_newton import PRIOR
from polyclinic.inference.families import FAMILIES
from polyclinic.programs.analyses import Analysis, Result
from polyclinic.programs.analyses.regression import coefficients, fit_table, forest_line, no_estimates, term_table
from polyclinic.programs.program import State
from polyclinic.training.regression.formula import design_of
from polyclinic.training.survival.counts import Outcome, grid_of
from polyclinic.training.survival.cox import CoxTask, ExactCox, PrivateCox, Timed
from polyclinic.training.synthesis import LEAST

_TIES = ("efron", "breslow")
_MOST_INTERVALS = 50


@dataclass(frozen=True)
class Cox(Analysis):
    """Proportional hazards of ``terms``, as ``age + C(region)``.

    time, event: Columns; empty: those of the roles ``duration`` and ``event``. ties: efron or breslow, without privacy.
    edges, intervals: With privacy, the grid of constant hazards, as of task survival. least: As of task regression.
    """

    terms: str = ""
    time: str = ""
    event: str = ""
    ties: str = "efron"
    edges: Sequence[float] = ()
    intervals: int = 5
    least: int = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", tuple(self.edges))
        if self.least < LEAST:
            raise ValueError(f"least is {self.least}; allowed are whole numbers from {LEAST} on")
        if self.ties not in _TIES:
            raise ValueError(f"ties is {self.ties!r}; allowed are {', '.join(_TIES)}")
        if not isinstance(self.terms, str) or not self.terms.strip() or "~" in self.terms:
            raise ValueError(f"terms is {self.terms!r}; give some, as terms='age + C(region)'")

    def method(self, schema: Schema) -> ExactCox | PrivateCox:
        return _method(self, schema)

    def plain_task(self, schema: Schema, question: Mapping[str, np.ndarray] | None = None) -> CoxTask:
        task = CoxTask(self.method(schema), name=self.config.task)
        return task if question is None else task.with_question(question)

    def check_noise(self, schema: Schema, noise_multiplier: float, noise: float, fewest: float) -> None:
        """Check that the noise leaves the patients' information, and that a secure sum would not cut sums short.

        Args:
            schema: Of the run.
            noise_multiplier: Standard deviation of the noise in a sum, over a patient's clip norm.
            noise: Standard deviation of the noise in each entry of the mean.
            fewest: The patients of the smallest hospital.

        Raises:
            ConfigError: where the noise would hide the information, or a secure sum would cut sums short.
        """
        method = self.method(schema)
        if isinstance(method, PrivateCox):
            method.newton.check_noise(noise)
            super().check_noise(schema, noise_multiplier, noise, fewest)

    def result(self, method: Any, state: State) -> Result:
        fit = method.fit(state["arrays"])
        rows = coefficients("cox", fit, False)
        shown = [forest_line(name, row) for name, row in rows.items() if row["Estimate"] is not None]
        ratios: dict[Any, Any] = {
            bar["label"]: {
                "Hazard ratio": np.exp(bar["estimate"]),
                "Low": np.exp(bar["low"]),
                "High": np.exp(bar["high"]),
            }
            for bar in shown
        }
        private = (
            "Intervals count the noise of privacy; Noise says how many times it made a standard error larger. Hazards are "
            "constant in each interval of the grid, the same at all hospitals. Coefficients of columns in public standard "
            f"deviations have a normal prior of mean 0 and deviation {PRIOR:g}."
        )
        exact = (
            "Sums are exact, of each hospital's own partial likelihood: patients are compared within hospitals. A hospital "
            f"takes no part where a term rests on some of its patients, fewer than {self.least}."
        )
        tables = (
            term_table("coefficients", "Coefficients", rows), term_table("ratios", "Hazard ratios", ratios),
            fit_table("cox", fit),
        )  # fmt: skip
        numbers = {"forest": {"rows": shown, "ratio": "Hazard ratio"}}
        notes = (private if isinstance(method, PrivateCox) else exact, *no_estimates(rows, self.config.privacy.dp))
        return Result(f"Cox regression: {self.terms}", tables, numbers, notes)


@lru_cache(maxsize=16)
def _method(program: Cox, schema: Schema) -> ExactCox | PrivateCox:
    config, outcome = program.config, Outcome.of(schema, program.time, program.event)
    layout = Timed.of_outcome(schema, outcome)
    whole = design_of(f"{outcome.event.name} ~ {program.terms}", layout)
    terms = ~whole.intercept
    if terms.all() or not terms.any():
        raise ConfigError(f"The terms {program.terms!r} must have an intercept beside them, which the hazards are.")
    products = tuple(product for product in whole.products if product)
    design = replace(whole, names=tuple(np.array(whole.names)[terms].tolist()), products=products)
    if not config.privacy.dp:
        return ExactCox(
            design, FAMILIES["poisson"], layout, config.rounds, program.least, config.secure.aggregation, name="cox",
            ties=program.ties,
        )  # fmt: skip
    grid, scale = (
        grid_of(outcome.time, program.edges, program.intervals, 0.0),
        (whole.centre[terms], whole.spread[terms]),
    )
    if len(grid.edges) > _MOST_INTERVALS:  # a hospital's work grows with their cube
        raise ConfigError(
            f"The grid of constant hazards has {len(grid.edges):,} intervals; with privacy it may have {_MOST_INTERVALS}."
        )
    edges = ((outcome.time.bounds or (0.0, 1.0))[0], *grid.edges.tolist())
    return PrivateCox.of_grid(design, scale, layout, edges, config.rounds)
