"""Figures that studies draw beside those of a run: trajectories of tables, epsilon that is stated, pictures of digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import DataError
from polyclinic.evaluation.figures.canvas import panels
from polyclinic.evaluation.figures.rounds import Course, plot_lines
from polyclinic.evaluation.figures.synthetic import plot_courses, plot_transfer
from polyclinic.evaluation.synthetic.classifiers import CLASSIFIERS, Judged

METRIC_NAMES = {"accuracy": "Accuracy", "auroc": "AUROC", "f1": "F1"}


def plot_trajectories(tables: Mapping[str, Mapping[str, ArrayLike]], visits: Sequence[float], measure: str) -> Figure:
    """Median and middle half of a measure over visits, a panel a table ("real" and synthetic), a line an arm.

    tables: by name, values (n, V) by arm, NaN where missing.  visits: V times.  measure: with its unit.
    Raises DataError if a table has no arm or another number of visits, or if there is no value.
    """
    courses = {
        name: {arm: _course(values, len(visits)) for arm, values in arms.items()} for name, arms in tables.items()
    }
    return plot_courses(courses, visits, measure)


def plot_judged(found: Mapping[str, Mapping[str, Judged]], metric: str = "accuracy", chance: float = 0.5) -> Figure:
    """``plot_transfer`` of what ``transfer`` gives, the real table first."""
    scores = {
        table: {CLASSIFIERS[kind]: judged.scores[metric] for kind, judged in by_kind.items()}
        for table, by_kind in found.items()
    }
    return plot_transfer(scores, METRIC_NAMES.get(metric, metric), chance)


def plot_spent(courses: Mapping[str, Course], budget: float | None = None, logarithmic: bool = False) -> Figure:
    """Epsilon over rounds of several syntheses, say of what a paper states and of what is true.

    courses: rounds and epsilon, both (m,) and finite, by name.  budget: a dashed line.  logarithmic: where they are
    orders of magnitude apart; what is not above zero is then left out.
    """
    references = {} if budget is None else {"budget": budget}
    title, caption = "Privacy spent (epsilon)", "Adds up over rounds."
    figure = plot_lines(courses, title, caption, {}, references, logarithmic=logarithmic)
    if not logarithmic:
        figure.axes[0].set_ylim(bottom=0.0)
    return figure


def plot_pictures(sources: Mapping[str, tuple[ArrayLike, ArrayLike]], each: int = 8) -> Figure:
    """Pictures in grids side by side, a grid a source ("real" and generators), a row a class, the first ``each`` of it.

    sources: pictures (n, H, W) in 0..1 (what lies beyond is cut) and their labels (n,), all of one size.
    Raises DataError if there are no pictures, or not of one size.
    """
    arrays = {name: (np.asarray(x, dtype=np.float64), np.asarray(y)) for name, (x, y) in sources.items()}
    sizes = {x.shape[1:] for x, _ in arrays.values()}
    if len(sizes) != 1 or len(next(iter(sizes))) != 2 or not all(len(x) == len(y) > 0 for x, y in arrays.values()):
        raise DataError("pictures must be (n, H, W) of one size, n > 0, each with a label.")
    classes = np.unique(np.concatenate([y for _, y in arrays.values()]))
    side = 2.9
    words = "One row a class, the first of each; nothing is picked."
    height = 1.0 + side * 0.94 * len(classes) / each
    figure, row = panels("Pictures", words, list(arrays), 0.5 + side * len(arrays), height, share=False)
    for axes, (x, y) in zip(row, arrays.values(), strict=True):
        axes.imshow(_mosaic(x, y, classes, each), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
        axes.set_axis_off()
    return figure


def _mosaic(
    pictures: NDArray[np.float64], labels: NDArray[np.generic], classes: NDArray[np.generic], each: int
) -> NDArray[np.float64]:
    """One picture of the first ``each`` of every class, a pixel apart; where there are too few it stays empty."""
    height, width = pictures.shape[1:]
    sheet = np.full((len(classes) * (height + 1), each * (width + 1)), 0.0)
    for row, one in enumerate(classes):
        for column, picture in enumerate(pictures[labels == one][:each]):
            top, left = row * (height + 1), column * (width + 1)
            sheet[top : top + height, left : left + width] = picture
    return sheet[:-1, :-1]


def _course(values: ArrayLike, visits: int) -> NDArray[np.float64]:
    """(3, V) lower quarter, median and upper quarter of (n, V) over patients, NaN at a visit without values."""
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] != visits or not len(table):
        raise DataError(f"trajectories must be (n, {visits}), n > 0, to match the visits, not {table.shape}.")
    seen = np.isfinite(table).any(axis=0)
    quartiles = np.full((3, visits), np.nan)
    quartiles[:, seen] = np.nanquantile(table[:, seen], (0.25, 0.5, 0.75), axis=0)
    return quartiles
