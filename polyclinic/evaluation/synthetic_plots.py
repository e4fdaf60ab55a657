"""Figures of synthetic patients beside real ones, as in the papers: trajectories, correlations, transfer, codes, pictures.

Each function takes arrays by name, the real table's under the name "real" where one is compared with, and returns a
``matplotlib.figure.Figure`` for ``plots.to_svg`` or ``plots.to_png``; nothing here touches pyplot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import DataError
from polyclinic.evaluation.plots import FAINT, INK, MUTED, PALETTE, Line, _draw, _short
from polyclinic.evaluation.synthetic.codes import Probabilities
from polyclinic.evaluation.synthetic.panels import name_ends, panels
from polyclinic.evaluation.synthetic.transfer import CLASSIFIERS, REAL, Judged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRIC_NAMES = {"accuracy": "Accuracy", "auroc": "AUROC", "f1": "F1"}
DIVERGING = "RdBu_r"  # told apart under the common colour-vision deficiencies
MOST_VISITS, MOST_COLUMNS = 8, 18  # named on an axis
BAND = (0.25, 0.75)


def plot_trajectories(
    tables: Mapping[str, Mapping[str, ArrayLike]], visits: Sequence[str | float], measure: str
) -> Figure:
    """Median and middle half of a measure over visits, a panel a table ("real" and synthetic), a line an arm.

    tables: by name, values (n, V) by arm, NaN where missing.  visits: V names or times.  measure: with its unit.
    Raises DataError if a table has no arm or another number of visits, or if there is no value.
    """
    return plot_courses(
        {name: {arm: _course(values, len(visits)) for arm, values in arms.items()} for name, arms in tables.items()},
        visits, measure,
    )  # fmt: skip


def plot_courses(
    courses: Mapping[str, Mapping[str, NDArray[np.float64]]],
    visits: Sequence[str | float],
    measure: str,
    panel: float = 2.9,
) -> Figure:
    """The same of quartiles over patients, (3, V) by table and arm: lower, median, upper, NaN at a visit without values.

    panel: the width of each, inches.
    """
    if not courses or not all(courses.values()):
        raise DataError("trajectories need at least one table, and each table an arm.")
    arms = list(dict.fromkeys(arm for table in courses.values() for arm in table))
    figure, row = panels(
        measure, "Median by arm; shaded: the middle half of patients.", list(courses), 0.9 + panel * len(courses), 3.6, right=1.15
    )  # fmt: skip
    numeric = all(isinstance(visit, int | float) for visit in visits)
    x = np.array(visits, dtype=np.float64) if numeric else np.arange(len(visits), dtype=np.float64)
    bounds = np.concatenate([part.ravel() for table in courses.values() for part in table.values()])
    if not np.isfinite(bounds).any():
        raise DataError(f"trajectories of {measure!r} have no value.")
    low, high = float(np.nanmin(bounds)), float(np.nanmax(bounds))
    room = 0.06 * (high - low) or 0.5
    ends: dict[str, tuple[str, float, str]] = {}
    for axes, table in zip(row, courses.values(), strict=True):
        for arm, (below, median, above) in table.items():
            colour = PALETTE[arms.index(arm) % len(PALETTE)]
            axes.fill_between(x, below, above, color=colour, alpha=0.16, linewidth=0)
            dashes = "-" if arms.index(arm) % 2 == 0 else (0, (5, 2))
            axes.plot(x, median, linestyle=dashes, color=colour, linewidth=2, marker="o", markersize=3)
        axes.set_ylim(low - room, high + room)
        margin = 0.02 * np.ptp(x) or 0.5
        axes.set_xlim(x.min() - margin, x.max() + margin)
        axes.set_xlabel("visit", color=MUTED, fontsize=9)
        if not numeric:
            every = -(-len(visits) // MOST_VISITS)
            axes.set_xticks(x[::every], [str(visit) for visit in visits[::every]])
        ends |= {
            arm: (arm, float(course[1][-1]), PALETTE[arms.index(arm) % len(PALETTE)]) for arm, course in table.items()
        }
    name_ends(row[-1], [end for end in ends.values() if np.isfinite(end[1])])
    return figure


def plot_correlations(matrices: Mapping[str, ArrayLike], columns: Sequence[str]) -> Figure:
    """Heat maps of correlation matrices (F, F) side by side on one scale; undefined entries are grey.

    Of many columns every so many are named.  Raises DataError if a matrix has another size than the names, or nothing is given.
    """
    from matplotlib import colormaps

    names = list(columns)
    if not names or not matrices:
        raise DataError("the correlation figure needs at least one matrix and one column.")
    for name, matrix in matrices.items():
        if np.shape(matrix) != (len(names), len(names)):
            raise DataError(f"correlations of {name!r} are {np.shape(matrix)}, not {(len(names), len(names))}.")
    figure, row = panels(
        "Correlations of columns",
        "Pearson, all on one scale; a synthetic table should show the same picture. Grey: undefined.",
        list(matrices),
        2.05 + 2.9 * len(matrices),
        4.7,
        left=1.5,
        bottom=1.45,
        right=0.75,
    )
    colours = colormaps[DIVERGING].with_extremes(bad=FAINT)
    every = -(-len(names) // MOST_COLUMNS)
    image = None
    for axes, matrix in zip(row, matrices.values(), strict=True):
        image = axes.imshow(
            np.asarray(matrix, dtype=np.float64), cmap=colours, vmin=-1, vmax=1, interpolation="nearest"
        )
        axes.grid(False)
        axes.spines[:].set_visible(False)
        ticks = range(0, len(names), every)
        shown = [_short(names[i]) for i in ticks]
        axes.set_xticks(ticks, shown, rotation=90, fontsize=8)
        axes.set_yticks(ticks, shown if axes is row[0] else [], fontsize=8)
        axes.tick_params(length=0)
    if image is not None:
        place = row[-1].get_position()
        width = figure.get_figwidth()
        bar = figure.colorbar(
            image, cax=figure.add_axes((place.x1 + 0.15 / width, place.y0, 0.12 / width, place.height))
        )
        bar.outline.set_visible(False)
        bar.ax.tick_params(colors=MUTED, labelsize=8, length=0)
    return figure


def plot_transfer(found: Mapping[str, Mapping[str, Judged]], metric: str = "accuracy", chance: float = 0.5) -> Figure:
    """Bars by classifier, one for each table that trained it, with 95 % intervals, on real test rows.

    found: as ``transfer`` gives it, the real table first.  Bars begin at ``chance``, what no skill reaches, so that
    their lengths compare; an undefined score has no bar.  Raises DataError if nothing was trained.
    """
    tables = list(found)
    if not tables or not all(found.values()):
        raise DataError("the transfer figure needs at least one table and one classifier.")
    kinds = list(found[tables[0]])
    words = f"On real test rows, with 95 % intervals. Bars begin at {chance:g}, what no skill reaches."
    width = max(6.4, 1.2 + len(kinds) * (0.5 + 0.34 * len(tables)))
    figure, (axes,) = panels(
        f"{METRIC_NAMES.get(metric, metric)} of classifiers by what trained them", words, [""], width, 4.0, bottom=0.8
    )
    share = 0.8 / len(tables)
    extremes = [chance]
    for place, table in enumerate(tables):
        colour = MUTED if table == REAL else PALETTE[(place - (REAL in tables)) % len(PALETTE)]
        for group, kind in enumerate(kinds):
            score = found[table][kind].scores[metric]
            if score.value is None:
                continue
            x = group - 0.4 + share * (place + 0.5)
            axes.bar(x, score.value - chance, share * 0.9, bottom=chance, color=colour, linewidth=0)
            ends = [end for end in (score.low, score.high) if end is not None]
            if ends:
                axes.vlines(x, min(ends), max(ends), color=INK, linewidth=1.3)
            top = max([score.value, chance, *ends])
            if len(tables) * len(kinds) <= 24:
                text = f"{score.value:.2f}".removeprefix("0")
                axes.annotate(text, (x, top), (0, 2), textcoords="offset points", ha="center", fontsize=7.5, color=INK)
            extremes += [score.value, *ends]
        axes.bar(0, 0, color=colour, label=_short(table))
    room = 0.1 * (max(extremes) - min(extremes)) or 0.1
    axes.set_ylim(min(extremes) - (room if min(extremes) < chance else 0), max(extremes) + room)
    axes.axhline(chance, color=MUTED, linewidth=1)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks(range(len(kinds)), [CLASSIFIERS.get(kind, kind) for kind in kinds], fontsize=9)
    axes.tick_params(axis="x", length=0)
    figure.legend(
        loc="lower center", ncol=min(len(tables), 6), frameon=False, fontsize=9, handlelength=1, handleheight=1
    )
    return figure


def plot_spent(
    courses: Mapping[str, tuple[NDArray[np.floating], NDArray[np.floating]]],
    budget: float | None = None,
    logarithmic: bool = False,
) -> Figure:
    """Epsilon over rounds of several syntheses, say of what a paper states and of what is true.

    courses: rounds and epsilon, both (m,) and finite, by name.  budget: a dashed line.  logarithmic: where they are
    orders of magnitude apart; what is not above zero is then left out.
    """
    from matplotlib.ticker import LogFormatterMathtext

    drawn = {name: (x[y > 0], y[y > 0]) if logarithmic else (x, y) for name, (x, y) in courses.items()}
    lines = [
        Line(name, x, y, PALETTE[i % len(PALETTE)], width=2.0) for i, (name, (x, y)) in enumerate(drawn.items()) if len(x)
    ]  # fmt: skip
    references = {} if budget is None else {"budget": budget}
    ground = None if logarithmic else 0.0
    figure = _draw(
        lines, "Privacy spent (epsilon)", "Adds up over rounds.", references, ground=ground, logarithmic=logarithmic
    )
    if logarithmic and lines:
        figure.axes[0].yaxis.set_major_formatter(LogFormatterMathtext())
        figure.axes[0].minorticks_off()
    return figure


def plot_probabilities(
    found: Mapping[str, Probabilities], patients: int, title: str = "Codes: real against synthetic"
) -> Figure:
    """Share of patients with each code, real against synthetic, a panel a synthesizer; on the diagonal they agree.

    Both axes are logarithmic; a code that a table lacks lies on the axis' first line, at half a patient.
    patients: real rows, which say what half a patient is.  Raises DataError if nothing is given.
    """
    if not found or patients < 1:
        raise DataError("the probability figure needs at least one synthesizer and one patient.")
    words = "Share of patients with each code; first line: codes a table lacks."
    figure, row = panels(title, words, [], 0.9 + 2.9 * len(found), 4.2, bottom=0.6, count=len(found))
    floor = 0.5 / patients
    for axes, (name, one), i in zip(row, found.items(), range(len(found)), strict=True):
        fit = "" if one.r2 is None else f", R² {one.r2:.3f}"
        axes.set_title(f"{_short(name)}\nRMSE {one.rmse:.2g}{fit}", fontsize=9, color=INK, loc="left", parse_math=False)
        axes.plot([floor, 1], [floor, 1], color=MUTED, linewidth=1, zorder=1)
        colour = PALETTE[i % len(PALETTE)]
        x, y = np.maximum(one.real, floor), np.maximum(one.synthetic, floor)
        axes.scatter(x, y, s=9, color=colour, alpha=0.55, linewidths=0, zorder=2, clip_on=False)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(floor, 1)
        axes.set_ylim(floor, 1)
        axes.set_aspect("equal")
        axes.minorticks_off()
        axes.set_xlabel("real", color=MUTED, fontsize=9)
    row[0].set_ylabel("synthetic", color=MUTED, fontsize=9)
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
    figure, row = panels(
        "Pictures", words, list(arrays), 0.5 + side * len(arrays), 1.0 + side * 0.94 * len(classes) / each, left=0.3, bottom=0.1
    )  # fmt: skip
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
    found = np.full((3, visits), np.nan)
    found[:, seen] = np.nanquantile(table[:, seen], (BAND[0], 0.5, BAND[1]), axis=0)
    return found
