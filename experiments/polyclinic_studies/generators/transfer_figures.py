"""Figures of a study of the first of its seeds: transfer, correlations, and courses over visits by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from polyclinic.evaluation.figures.synthetic import plot_correlations
from polyclinic.evaluation.synthetic.columns import pearson
from polyclinic.inspection.result import RunResult
from polyclinic.types import Floats
from polyclinic_studies.generators.figures import plot_judged, plot_spent, plot_trajectories
from polyclinic_studies.generators.patients import hospitals_of, real_patients, synthesizer_of, synthetic
from polyclinic_studies.generators.transfer_study import Found, Study
from polyclinic_studies.parts import Parts


def figures(
    parts: Parts, plan: Study, found: Sequence[Found], shown: Sequence[str], classes: Mapping[int, str],
    visits: Sequence[float], measures: Mapping[str, str], metric: str = "accuracy",
) -> dict[str, Figure]:  # fmt: skip
    """By file name. shown: methods beside the real table.  classes: the label's words.  measures: trajectories with unit."""
    seed = plan.seeds[0]
    methods = [method for method in shown if method in plan.methods] or list(plan.methods)[:3]
    runs = {method: parts.run(f"{method}-{seed}", plan.options(method, seed)) for method in methods}
    real = real_patients(hospitals_of(plan.options(methods[0], seed)))
    rows = plan.rows or len(real.train.y)
    tables = {"real": real.train} | {
        method: synthetic(synthesizer_of(result, real.layout), rows, seed)[1] for method, result in runs.items()
    }
    first = [one for one in found if one.seed == seed]
    bars = {"real": first[0].real} | {one.method: one.judged for one in first if one.method in methods}
    names = list(real.layout.names[: real.layout.features])
    drawn = {
        "transfer": plot_judged(bars, metric),
        "correlations": plot_correlations({name: pearson(one.x) for name, one in tables.items()}, names),
    }
    for column, at in real.layout.columns:
        if column.name in measures:
            low, high = column.bounds or (-1.0, 1.0)
            values = {
                name: {word: (one.x[one.y == y, at] + 1) / 2 * (high - low) + low for y, word in classes.items()}
                for name, one in tables.items()
                if set(classes) <= set(np.unique(one.y).tolist())
            }
            drawn[f"trajectories-{column.name}"] = plot_trajectories(values, visits, measures[column.name])
    spent = {method: course for method, result in runs.items() if len((course := _spent(result))[0]) > 1}
    if spent:
        drawn["spent"] = plot_spent(spent, budget=float(plan.options(methods[0], seed).get("epsilon", 0.0)) or None)
    return drawn


def _spent(result: RunResult) -> tuple[Floats, Floats]:
    """Rounds and the largest epsilon at a hospital after each; none of a run without privacy, whose epsilon is infinite."""
    largest = result.folder.rounds().groupby("round", as_index=False)["epsilon"].max()
    own = largest[np.isfinite(largest["epsilon"].astype(float))]
    return own["round"].to_numpy(dtype=np.float64), own["epsilon"].to_numpy(dtype=np.float64)
