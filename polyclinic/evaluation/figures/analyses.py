"""Figures of analyses, each drawn from what its program left in ``numbers`` under the figure's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from polyclinic.evaluation.figures.balance import plot_balance
from polyclinic.evaluation.figures.canvas import FAINT, PALETTE, label_axes, name_rows, panel
from polyclinic.evaluation.figures.exploration import plot_centres, plot_loadings, plot_scree
from polyclinic.evaluation.figures.survival import plot_survival
from polyclinic.evaluation.figures.utility import plot_intervals

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_forest(numbers: Mapping[str, Any], ax: Axes | None = None) -> Figure:
    """A forest plot: estimates with 95 % intervals, ratios on a logarithmic axis; a diamond is pooled of hospitals above it."""
    from numpy import exp

    rows, ratio = numbers["rows"], numbers["ratio"]
    scale: Callable[[float], float] = (lambda value: float(exp(value))) if ratio else float
    what = ratio or "Coefficient"
    figure, axes = panel(f"{what}s", "With intervals of 95 %", ax, height=1.2 + 0.26 * len(rows))
    name_rows(axes, [row["label"] for row in rows], 40)
    axes.axvline(scale(0.0), color=FAINT, linewidth=1.0)
    for place, row in enumerate(rows):
        if row["kind"] == "heading":
            axes.get_yticklabels()[place].set_fontweight("bold")
        else:
            low, middle, high = (scale(row[key]) for key in ("low", "estimate", "high"))
            colour, mark = (PALETTE[1], "D") if row["kind"] == "pooled" else (PALETTE[0], "s")
            axes.plot([low, high], [place, place], color=colour, linewidth=1.4)
            axes.plot([middle], [place], mark, color=colour, markersize=5)
    if ratio:
        from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    label_axes(axes, what)
    return figure


def plot_posterior(numbers: Mapping[str, Any], ax: Axes | None = None) -> Figure:
    """Intervals of a posterior by parameter; the thick part: what it would be without privacy, where that is known."""
    rows = {name: {"value": row["mean"], **row} for name, row in numbers["parameters"].items()}
    counted = "not_counted" not in numbers
    for row in rows.values() if counted else ():
        row["inner"] = (row["high"] - row["low"]) / 2 / row["inflation"]
    caption = "By feature as scaled" + ("; thick: the interval without privacy." if counted else ".")
    return plot_intervals(rows, "Posterior, 95 % intervals", caption, 0.0, ax)


#: By name, a function of the numbers and of axes, which are None for a figure of its own (``canvas.panel``).
ANALYSES: Mapping[str, Callable[[Any, Axes | None], Figure]] = {
    "forest": plot_forest,
    "posterior": plot_posterior,
    "scree": plot_scree,
    "loadings": plot_loadings,
    "centres": plot_centres,
    "balance": plot_balance,
    "survival": plot_survival,
    "survival-hospitals": plot_survival,
}
