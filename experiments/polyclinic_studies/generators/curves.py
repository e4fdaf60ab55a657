"""Whether a game converges: what its rows teach over the rounds at each epsilon (PPGAN's Figures 3 and 4), which rounds hospitals
choose, and what noise and clip norm do (AC-GAN's Figure 1B to D).

PPGAN's own curves are of losses, which under privacy no hospital sends; what the generator of a round teaches is post-processing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from math import sqrt
from statistics import fmean, stdev
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from polyclinic.evaluation.figures.rounds import plot_lines
from polyclinic.evaluation.synthetic.classifiers import transfer
from polyclinic.evaluation.synthetic.columns import correlations
from polyclinic.experiments import markdown
from polyclinic.inspection.result import RunResult
from polyclinic_studies.generators.patients import hospitals_of, real_patients, synthetic
from polyclinic_studies.generators.transfer_study import Options
from polyclinic_studies.parts import Parts, outcome_of

GAMES = ("dpgan", "ppgan")
EPSILONS, CLIPS = (1.0, 2.5, 10.0), (0.1, 0.5, 2.5)
#: A third of the rounds, each with three times the generator's steps, and noise of each hospital's own, which is quickly drawn.
SHORT: Options = {
    "rounds": 10, "synthesis.options": "steps=60", "synthesis.candidates": 0,
    "secure.aggregation": False, "secure.shared-noise": False,
}  # fmt: skip
_JUDGES = ("lr", "rf")
#: (round, accuracy) of a logistic regression that was fitted to rows of the round's generator.
Course = Sequence[tuple[int, float]]


def at_epsilon(game: str, epsilon: float) -> str:
    """The name of a game's runs at another epsilon than the experiment's."""
    return f"{game} at epsilon {epsilon:g}"


def course(result: RunResult) -> list[tuple[int, float]]:
    """Mean accuracy over hospitals on held-out patients after each round that was evaluated."""
    rounds = result.rounds[["round", "accuracy"]].dropna().groupby("round")["accuracy"].mean()
    return [(int(str(number)), float(value)) for number, value in rounds.items()]


def figures(courses: Mapping[str, Sequence[Course]]) -> dict[str, Figure]:
    """One figure of all games' mean courses over seeds; none without a course."""
    lines = {}
    for name, seeds in courses.items():
        numbers = sorted({number for one in seeds for number, _ in one})
        means = [fmean(value for one in seeds for at, value in one if at == number) for number in numbers]
        if numbers:
            lines[name] = (np.array(numbers, dtype=float), np.array(means))
    title, caption = "Accuracy on real pictures", "Of a logistic regression of generated ones, mean over seeds."
    return {"convergence": plot_lines(lines, title, caption)} if lines else {}


def above_nothing(values: Sequence[float]) -> bool | None:
    """Whether the mean is above 0 by more than two standard errors; None of fewer than two."""
    return fmean(values) > 2 * stdev(values) / sqrt(len(values)) if len(values) > 1 else None


def grid(parts: Parts, options: Options) -> list[dict[str, Any]]:
    """Each cell of ``EPSILONS`` x ``CLIPS``: noise multiplier, accuracy less that of real participants, and Spearman of the
    correlations; ``options``: the configuration of a game's run, which is made shorter."""
    cells = []
    for epsilon in EPSILONS:
        for clip in CLIPS:
            cell = {**options, **SHORT, "privacy.epsilon": epsilon, "privacy.max-grad-norm": clip}
            found = parts.answer(f"grid-{epsilon:g}-{clip:g}", cell, partial(_measured, cell))
            parts.say(f"epsilon {epsilon:g}, clip norm {clip:g}: {found}")
            cells.append({"epsilon": epsilon, "clip": clip, **found})
    return cells


def _measured(cell: Options) -> dict[str, Any]:
    outcome = outcome_of(cell)
    assert outcome.synthesizer is not None and outcome.privacy is not None
    real, seed = real_patients(hospitals_of(cell)), int(cell["seed"])
    table = synthetic(outcome.synthesizer, len(real.train.y), seed)[1]
    judged = transfer(
        (real.train.x, real.train.y), {"game": (table.x, table.y)}, (real.test.x, real.test.y), seed=seed, classifiers=_JUDGES
    )["game"]  # fmt: skip
    return {kind: judged[kind].minus_real["accuracy"].value for kind in _JUDGES} | {
        "spearman": correlations(real.train.x, table.x).spearman, "noise multiplier": outcome.privacy.noise_multiplier,
    }  # fmt: skip


def grid_table(cells: Sequence[Mapping[str, Any]]) -> str:
    """A row for each epsilon, a column for each clip norm."""
    rows = []
    for epsilon in EPSILONS:
        own = [cell for cell in cells if cell["epsilon"] == epsilon]
        rows.append([
            f"{epsilon:g}", f"{own[0]['noise multiplier']:.2f}",
            *(f"{cell['lr']:+.3f}, {cell['rf']:+.3f}, {cell['spearman']:.3f}" for cell in own),
        ])  # fmt: skip
    return markdown(["ε", "noise multiplier", *(f"clip norm {clip:g}" for clip in CLIPS)], rows)


def chosen_rounds(result: RunResult) -> list[int]:
    """The rounds whose generators hospitals chose; a run's summary has them in words alone."""
    words = re.search(r"generators of rounds ([\d, ]+), which", " ".join(result.summary["notes"]))
    return sorted(int(number) for number in words[1].split(",")) if words else []


def course_figure(runs: Mapping[str, RunResult]) -> Figure:
    """Accuracy by round of what each run's generator teaches, a diamond at each chosen round."""
    courses = {name: dict(course(result)) for name, result in runs.items()}
    lines = {name: (np.array([*one], dtype=float), np.array([*one.values()])) for name, one in courses.items()}
    caption = "Of a logistic regression of the round's generated participants; diamonds: chosen rounds."
    figure = plot_lines(lines, "Accuracy on held-out participants", caption)
    for name, result in runs.items():
        chosen = [number for number in chosen_rounds(result) if number in courses[name]]
        figure.axes[0].plot(chosen, [courses[name][number] for number in chosen], "kD", zorder=5)
    return figure
