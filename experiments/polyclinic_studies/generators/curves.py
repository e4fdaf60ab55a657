"""Whether a game converges: what its rows teach over the rounds at each epsilon (PPGAN's Figures 3 and 4).

PPGAN's own curves are of losses, which under privacy no hospital sends; what the generator of a round teaches is post-processing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev

import numpy as np
from matplotlib.figure import Figure

from polyclinic.evaluation.figures.rounds import plot_lines
from polyclinic.inspection.result import RunResult

GAMES = ("dpgan", "ppgan")
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
