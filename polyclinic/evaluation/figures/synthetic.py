"""Figures of synthetic patients beside real ones: columns, correlations, courses over visits, codes, and transfer.

``quality_figures`` and ``transfer_figures`` draw them from ``quality.json``; each takes arrays by name as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from polyclinic.errors import DataError
from polyclinic.evaluation.figures.canvas import FAINT, INK, MUTED, PALETTE, SMALL, label_axes, legend, panels, short
from polyclinic.evaluation.intervals import Interval
from polyclinic.evaluation.synthetic.codes import Probabilities
from polyclinic.types import Floats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HELD_OUT, SYNTHETIC, TRAINING = "held-out patients", "synthetic patients", "training patients"
REAL = "real"
DIVERGING = "RdBu_r"  # distinct under the common colour-vision deficiencies
IN_A_ROW, MOST_NAMED, MOST_COLUMNS = 4, 6, 18  # panels; categories and columns with a name on an axis
Values = Mapping[str, Any]


def quality_figures(comparison: Values) -> dict[str, Figure]:
    """By name what is drawn of ``quality.json``: ``columns``, ``correlations``, ``trajectory-1`` and ``codes-1``."""
    if not comparison or comparison["undefined"]:
        return {}
    drawn = comparison["pictures"]
    figures = {}
    if drawn["columns"]:
        figures["columns"] = plot_columns(drawn["columns"])
    if matrices := drawn["correlations"]:
        real, synthetic = _numbers(matrices["held_out"]), _numbers(matrices["synthetic"])
        shown = {HELD_OUT: real, SYNTHETIC: synthetic, "difference": synthetic - real}
        figures["correlations"] = plot_correlations(shown, matrices["columns"])
    trajectories = drawn["trajectories"] or {"measures": (), "by": ""}
    for number, measure in enumerate(trajectories["measures"], start=1):
        courses = {
            {"held-out": HELD_OUT, "synthetic": SYNTHETIC}[table]: {
                f"{trajectories['by']} {arm}": _numbers(course) for arm, course in arms.items()
            }
            for table, arms in measure["tables"].items()
        }
        visits = [course for arms in courses.values() for course in arms.values()]
        if any(np.isfinite(course).any() for course in visits):
            unit = f", {measure['unit']}" if measure["unit"] else ""
            title = f"{measure['name']}{unit}"
            figures[f"trajectory-{number}"] = plot_courses(courses, range(1, visits[0].shape[1] + 1), title, panel=3.9)
    for number, name in enumerate(comparison["tables"]["synthetic"]["codes"], start=1):
        shares = {
            title: _shares(comparison["tables"][key]["codes"][name])
            for key, title in (("synthetic", SYNTHETIC), ("training", TRAINING))
        }
        title = f"{short(name)}: held-out patients (real) against others"
        figures[f"codes-{number}"] = plot_probabilities(shares, comparison["rows"]["held_out"], title)
    return figures


def transfer_figures(comparison: Values) -> dict[str, Figure]:
    """``transfer``, where classifiers were asked."""
    if not comparison or comparison["undefined"] or not comparison["transfer"]:
        return {}
    scores = {
        table: {name: Interval(**judged["scores"]["auroc"]) for name, judged in by_name.items()}
        for table, by_name in comparison["transfer"].items()
    }
    return {"transfer": plot_transfer(scores, "AUROC")}


def plot_columns(drawn: Sequence[Values]) -> Figure:
    """Shares by value of a few columns, held-out patients filled and synthetic ones as a line or beside them."""
    figure, row = panels(
        "Columns that are least alike",
        "Share of patients by value. Grey: held-out patients; coloured: synthetic ones. 1 is alike.",
        [f"{short(column['column'])}  {column['likeness']:.2f}" for column in drawn],
        9.2, 0.7 + 1.75 * -(-len(drawn) // IN_A_ROW), columns=IN_A_ROW, share=False,
    )  # fmt: skip
    for axes, column in zip(row, drawn, strict=True):
        axes.tick_params(labelsize=7.5, length=2, labelleft=False, left=False)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="y", visible=False)
        if "edges" in column:
            axes.stairs(column["held_out"], column["edges"], fill=True, color=FAINT)
            axes.stairs(column["synthetic"], column["edges"], color=PALETTE[0], linewidth=1.6)
            continue
        places = np.arange(len(column["categories"]))
        axes.bar(places - 0.2, column["held_out"], 0.38, color=FAINT)
        axes.bar(places + 0.2, column["synthetic"], 0.38, color=PALETTE[0])
        every, longest = -(-len(places) // MOST_NAMED), max(3, 20 // min(len(places), MOST_NAMED))
        names = [short(name, longest) for name in column["categories"]]
        axes.set_xticks(places[::every], names[::every], parse_math=False)
    return figure


def plot_courses(
    courses: Mapping[str, Mapping[str, Floats]], visits: Sequence[float], measure: str, panel: float = 2.9
) -> Figure:
    """Plot the median and middle half of a measure over visits, a panel a table, a line an arm.

    Args:
        courses: Quartiles over patients, (3, V) by table and arm: lower, median, upper, NaN at a visit without values.
        visits: Their V times.
        measure: Its name with its unit.
        panel: The width of each panel, in inches.

    Raises:
        DataError: Without a table or an arm, and where no course has a value.
    """
    if not courses or not all(courses.values()):
        raise DataError("trajectories need at least one table, and each table an arm.")
    if not any(np.isfinite(course).any() for arms in courses.values() for course in arms.values()):
        raise DataError(f"trajectories of {measure!r} have no value.")
    caption = "Median by arm; shaded: the middle half of patients."
    figure, row = panels(measure, caption, list(courses), 1.8 + panel * len(courses), 3.6)
    arms = list(dict.fromkeys(arm for table in courses.values() for arm in table))
    for axes, table in zip(row, courses.values(), strict=True):
        for arm, (below, median, above) in table.items():
            number = arms.index(arm)
            colour = PALETTE[number % len(PALETTE)]
            axes.fill_between(visits, below, above, color=colour, alpha=0.16, linewidth=0)
            dashes = "-" if number % 2 == 0 else (0, (5, 2))
            axes.plot(
                visits, median, linestyle=dashes, color=colour, linewidth=2, marker="o", markersize=3, label=short(arm)
            )
        label_axes(axes, "visit")
    legend(row[-1])
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
    caption = "Pearson, all on one scale; a synthetic table should show the same picture. Grey: undefined."
    figure, row = panels("Correlations of columns", caption, list(matrices), 2.05 + 2.9 * len(matrices), 4.7)
    colours = colormaps[DIVERGING].with_extremes(bad=FAINT)
    ticks = range(0, len(names), -(-len(names) // MOST_COLUMNS))
    for axes, matrix in zip(row, matrices.values(), strict=True):
        cells = np.asarray(matrix, dtype=np.float64)
        image = axes.imshow(cells, cmap=colours, vmin=-1, vmax=1, interpolation="nearest")
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.set_xticks(ticks, [short(names[i]) for i in ticks], rotation=90, fontsize=8, parse_math=False)
        if axes is row[0]:
            axes.set_yticks(ticks, [short(names[i]) for i in ticks], fontsize=8, parse_math=False)
        axes.tick_params(length=0)
    bar = figure.colorbar(image, ax=row, fraction=0.03, pad=0.02, shrink=0.8)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=MUTED, labelsize=8, length=0)
    return figure


def plot_transfer(scores: Mapping[str, Mapping[str, Interval]], metric: str, chance: float = 0.5) -> Figure:
    """Plot bars by classifier, one for each table that trained it, with 95 % intervals, on real test rows.

    Args:
        scores: By table, the real one first, and by classifier. An undefined score has no bar.
        metric: Its name.
        chance: The height at which bars begin, what no skill reaches, so that their lengths compare.

    Raises:
        DataError: If nothing was trained.
    """
    tables = list(scores)
    if not tables or not all(scores.values()):
        raise DataError("the transfer figure needs at least one table and one classifier.")
    kinds = list(scores[tables[0]])
    words = f"On real test rows, with 95 % intervals. Bars begin at {chance:g}, what no skill reaches."
    width = max(6.4, 1.2 + len(kinds) * (0.5 + 0.34 * len(tables)))
    figure, (axes,) = panels(f"{metric} of classifiers by what trained them", words, width=width, height=4.0)
    share = 0.8 / len(tables)
    for place, table in enumerate(tables):
        colour = MUTED if table == REAL else PALETTE[(place - (REAL in tables)) % len(PALETTE)]
        axes.bar(0, 0, bottom=chance, color=colour, label=short(table))
        for group, kind in enumerate(kinds):
            score = scores[table][kind]
            if score.value is None:
                continue
            x = group - 0.4 + share * (place + 0.5)
            axes.bar(x, score.value - chance, share * 0.9, bottom=chance, color=colour, linewidth=0)
            ends = [end for end in (score.low, score.high) if end is not None]
            if ends:
                axes.vlines(x, min(ends), max(ends), color=INK, linewidth=1.3)
            if len(tables) * len(kinds) <= 24:
                text, top = f"{score.value:.2f}".removeprefix("0"), max([score.value, chance, *ends])
                axes.annotate(text, (x, top), (0, 2), textcoords="offset points", ha="center", fontsize=7.5, color=INK)
    axes.margins(y=0.1)
    axes.axhline(chance, color=MUTED, linewidth=1)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks(range(len(kinds)), kinds, fontsize=SMALL)
    axes.tick_params(axis="x", length=0)
    legend(figure, loc="outside lower center", ncols=min(len(tables), 6), handlelength=1, handleheight=1)
    return figure


def plot_probabilities(
    by_synthesizer: Mapping[str, Probabilities], patients: int, title: str = "Codes: real against synthetic"
) -> Figure:
    """Plot the share of patients with each code, real against synthetic, a panel a synthesizer; on the diagonal they agree.

    Both axes are logarithmic; a code that a table lacks lies on the axis' first line, at half a patient.

    Args:
        by_synthesizer: The shares of codes, by synthesizer.
        patients: Real rows, which say what half a patient is.
        title: The figure's title.

    Raises:
        DataError: If nothing is given.
    """
    if not by_synthesizer or patients < 1:
        raise DataError("the probability figure needs at least one synthesizer and one patient.")
    words = "Share of patients with each code; first line: codes a table lacks."
    figure, row = panels(title, words, list(by_synthesizer), 0.9 + 2.9 * len(by_synthesizer), 4.2)
    floor = 0.5 / patients
    for number, (axes, (name, shares)) in enumerate(zip(row, by_synthesizer.items(), strict=True)):
        fit = "" if shares.r2 is None else f", R² {shares.r2:.3f}"
        heading = f"{short(name)}\nRMSE {shares.rmse:.2g}{fit}"
        axes.set_title(heading, fontsize=SMALL, color=INK, loc="left", parse_math=False)
        axes.plot([floor, 1], [floor, 1], color=MUTED, linewidth=1, zorder=1)
        x, y = np.maximum(shares.real, floor), np.maximum(shares.synthetic, floor)
        colour = PALETTE[number % len(PALETTE)]
        axes.scatter(x, y, s=9, color=colour, alpha=0.55, linewidths=0, zorder=2, clip_on=False)
        axes.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1), aspect="equal")
        axes.minorticks_off()
        label_axes(axes, "real", "synthetic" if number == 0 else "")
    return figure


def _shares(codes: Values) -> Probabilities:
    return Probabilities(
        np.array(codes["real"]), np.array(codes["other"]), codes["rmse"], codes["largest"], codes["r2"]
    )


def _numbers(table: Sequence[Sequence[float | None]]) -> Floats:
    return np.array(table, dtype=np.float64)  # None becomes NaN
