"""Figures over rounds: AUROC, loss and epsilon at every hospital of a run, epsilon by accountant, runs beside each other.

The legend stands in the order in which lines end, each with its last value. Of very many hospitals the distribution is
drawn instead of each line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from polyclinic.evaluation.figures.canvas import DASHES, FAINT, INK, MUTED, PALETTE, label_axes, legend, panel, short
from polyclinic.types import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POOLED, MACRO = "pooled", "macro"
MOST_LINES = 60  # of more hospitals the distribution is drawn
MARKED_ROUNDS = 20
SHADES = (((0.05, 0.95), "#ededed"), ((0.25, 0.75), "#d3d3d3"))
SHADING = "half, and 90 %, of"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
Course = tuple[Floats, Floats]


def plot_metric(
    rounds: pd.DataFrame, metric: str, title: str, words: str = "", floors: Mapping[str, float] | None = None,
    ax: Axes | None = None,
) -> Figure:  # fmt: skip
    """Plot a metric on held-out patients by round: one line a site (or bands), the pooled line bold.

    Args:
        rounds: Columns round, site and the metric's; rows without a value are left out.
        metric: The metric's column.
        title: The metric's name for readers.
        words: Of the caption.
        floors: Dashed lines, by name.
        ax: Axes to draw on; None makes a new figure.
    """
    series = read_series(rounds, metric)
    figure, axes = panel(f"{title} on held-out patients", _caption(series, words), ax)
    _draw_sites(axes, series)
    return _finish(figure, axes, floors or {}, top=1.01 if metric == "auroc" else None)


def plot_loss(rounds: pd.DataFrame, ax: Axes | None = None) -> Figure:
    """Mean loss on held-out patients by round: one line a site (or bands), the pooled line bold.

    rounds: columns round, site, loss, and optionally train_loss, drawn dashed for the pooled row where present.
    """
    series = read_series(rounds, "loss")
    figure, axes = panel("Loss on held-out patients", _caption(series, "Lower is better."), ax)
    _draw_sites(axes, series)
    training = read_series(rounds, "train_loss")
    if len(series) and POOLED in training:
        draw_line(axes, course_of(training[POOLED]), "pooled, training", MUTED, linestyle="--")
    return _finish(figure, axes)


def plot_epsilon(
    rounds: pd.DataFrame, budgets: Mapping[str, float | None] | None = None, ax: Axes | None = None
) -> Figure:
    """Plot the epsilon spent by each site up to each round, with the budgets as dashed lines.

    Sites with the same course share a line. A budget over four times the largest epsilon is named, not drawn, so that
    the course stays readable.

    Args:
        rounds: Columns round, site, epsilon (cumulative).
        budgets: Of sites by name; None for a site without one.
        ax: Axes to draw on; None makes a new figure.
    """
    series = read_series(rounds, "epsilon").drop(columns=POOLED, errors="ignore")
    same: dict[bytes, list[str]] = {}
    for name, values in series.items():
        same.setdefault(values.to_numpy().tobytes(), []).append(str(name))
    groups, last = list(same.values()), _last(series)
    largest = max(groups, key=lambda names: float(last[names[0]]), default=[])
    lines = _budget_lines(budgets or {}, list(series))
    near = {name: value for name, value in lines.items() if value / 4 <= np.nanmax(series, initial=0.0)}
    beyond = [f"{name} of {value:g} is above the chart" for name, value in lines.items() if name not in near]
    shaded, crowded = len(groups) > MOST_LINES, len(groups) > len(PALETTE)
    sites = series.shape[1]
    words = f"grey: {SHADING} {sites:,} hospitals" if shaded else "the hospital refuses what would pass its budget"
    caption = "; ".join([f"Adds up over rounds; {words}", *beyond]) + "."
    figure, axes = panel("Privacy spent (epsilon)", caption, ax)
    if shaded:
        _draw_bands(axes, series)
    for number, names in enumerate([largest] if shaded else groups):
        named = names is largest or not crowded
        label, colour = (_group_name(names, sites), PALETTE[number % len(PALETTE)]) if named else ("", FAINT)
        draw_line(axes, course_of(series[names[0]]), label, colour, linewidth=2.0)
    return _finish(figure, axes, near, bottom=0.0)


def plot_accountants(curves: Mapping[str, Course], settings: str) -> Figure:
    """Plot epsilon over the steps of training by each way to account it, on a logarithmic scale.

    Args:
        curves: Steps and epsilon, both (m,) and finite, by the accountant's name. "pld", which reports, is bold, and
            "gdp", an approximation, dashed.
        settings: What the curves are of, in a few words.
    """
    caption = f"{settings}. gdp (dashed) is an approximation, the others are bounds."
    styles: dict[str, dict[str, Any]] = {"pld": {"color": INK, "linewidth": 3.0}, "gdp": {"linestyle": "--"}}
    return plot_lines(curves, "Privacy spent (epsilon) by accountant", caption, styles, across="step", logarithmic=True)


def plot_lines(
    courses: Mapping[str, Course], title: str, caption: str, styles: Mapping[str, Mapping[str, Any]] | None = None,
    references: Mapping[str, float] | None = None, across: str = "round", logarithmic: bool = False,
) -> Figure:  # fmt: skip
    """Plot named lines.

    Args:
        courses: Of each line x and y, both (m,) and finite.
        title: The figure's title.
        caption: One line under it.
        styles: Options of matplotlib's lines, by name.
        references: Dashed lines at one height, by name.
        across: The name of the horizontal axis.
        logarithmic: The vertical scale is logarithmic, without what is not above zero.
    """
    figure, axes = panel(title, caption)
    for number, (name, (x, y)) in enumerate(courses.items()):
        drawn = y > 0 if logarithmic else np.isfinite(y)
        style = {"color": PALETTE[number % len(PALETTE)], "linestyle": "-" if number < len(PALETTE) else "--"}
        if drawn.any():
            draw_line(axes, (x[drawn], y[drawn]), name, **(style | dict((styles or {}).get(name, {}))))
    if logarithmic:
        axes.set_yscale("log")
    return _finish(figure, axes, references, across=across)


@dataclass(frozen=True)
class Point:
    """A metric with its interval at ``x``, and the kind of run that it is of; x is None of a run without privacy."""

    kind: str
    x: float | None
    value: float
    low: float | None = None
    high: float | None = None


def plot_privacy_utility(points: Sequence[Point], name: str) -> Figure:
    """A metric over epsilon with intervals (``plot_over``). points: one for each run, with its epsilon; at least one."""
    caption = "Bars: 95 % intervals of each run's held-out patients."
    return plot_over(points, f"{name} over privacy spent", caption, "epsilon", logarithmic=True)


def plot_over(
    points: Sequence[Point], title: str, caption: str, across: str, logarithmic: bool | None = None
) -> Figure:
    """Plot a metric over a number with intervals, a colour a kind; without privacy at the right end.

    Points of one kind are joined through their mean at each x.

    Args:
        points: At least one.
        title: The figure's title.
        caption: One line under it.
        across: The name of the horizontal axis.
        logarithmic: None takes a logarithmic scale where the numbers are positive and the largest is at least ten times
            the smallest.
    """
    figure, axes = panel(title, caption, height=4.2)
    given = [point.x for point in points if point.x is not None]
    if logarithmic is None:
        logarithmic = min(given, default=0.0) > 0 and max(given) >= 10 * min(given)
    scale, unscale = (np.log, np.exp) if logarithmic else (np.asarray, np.asarray)
    low, high = (float(scale(end(given, default=1.0))) for end in (min, max))
    gap = np.log(1.25) if logarithmic else 0.06 * (high - low or 1.0)
    far = high + max((high - low) / 4, 2 * gap)
    kinds = list(dict.fromkeys(point.kind for point in points))
    for number, kind in enumerate(kinds):
        colour, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
        own = sorted((p for p in points if p.kind == kind), key=lambda p: np.inf if p.x is None else p.x)
        shift = 0.008 * (far - low) * (number - (len(kinds) - 1) / 2)
        x = [float(unscale((far if point.x is None else scale(point.x)) + shift)) for point in own]
        y, low_end, high_end = np.array([[p.value, p.low, p.high] for p in own], dtype=np.float64).T
        axes.vlines(x, low_end, high_end, color=colour, linewidth=1.2, alpha=0.7)
        axes.plot(x, y, marker, markersize=5, color=colour, zorder=3, label=short(kind))
        means = pd.Series(y).groupby(x).mean()
        axes.plot(means.index, means, color=colour, linewidth=1.4)
    if logarithmic:
        axes.set_xscale("log")
    ticks = sorted(set(given)) if len(set(given)) <= 8 else list(unscale(np.linspace(low, high, 6)))
    labels = [f"{tick:.3g}" for tick in ticks]
    without = any(point.x is None for point in points)
    if without:
        line = far - max((high - low) / 8, gap)
        axes.axvline(float(unscale(line)), color=MUTED, linewidth=0.8, linestyle=(0, (1, 3)))
        ticks, labels = [*ticks, float(unscale(far))], [*labels, "no privacy"]
    axes.set_xticks(ticks, labels)
    axes.minorticks_off()
    axes.set_xlim(*(float(unscale(end)) for end in (low - gap, (far if without else high) + gap)))
    label_axes(axes, across)
    if kinds != [""]:
        _legend_by_height(axes)
    return figure


def read_series(rounds: pd.DataFrame, metric: str) -> pd.DataFrame:
    """(rounds, sites) finite values of ``metric``, else NaN, of each site that has any, sites sorted, the pooled one last."""
    if metric not in rounds.columns:
        return pd.DataFrame()
    numbers = rounds[["round", metric]].apply(pd.to_numeric, errors="coerce").replace([np.inf, -np.inf], np.nan)
    long = numbers.assign(site=rounds["site"].astype(str)).dropna()
    wide = long.astype({metric: np.float64}).pivot_table(index="round", columns="site", values=metric, aggfunc="last")
    return wide[sorted(set(wide) - {MACRO}, key=lambda name: (name == POOLED, name))]


def course_of(values: pd.Series) -> Course:
    """The rounds at which a site has a value, and the values."""
    present = values.dropna()
    return present.index.to_numpy(np.float64), present.to_numpy()


def _last(series: pd.DataFrame) -> pd.Series:
    """By site the value at its last round."""
    return series.ffill().iloc[-1] if len(series) else pd.Series(dtype=np.float64)


def draw_line(axes: Axes, course: Course, name: str, color: str, linewidth: float = 1.5, linestyle: str = "-") -> None:
    """Draw one line, with dots where it is named and has few rounds, else with a dot at its end.

    Args:
        axes: The panel.
        course: x and y of the line, both (m,).
        name: In the legend; empty leaves it out.
        color: Of matplotlib.
        linewidth: In points.
        linestyle: Of matplotlib.
    """
    x, y = course
    label = f"{short(name)}  {_number(y[-1])}" if name else None
    marked = None if name and len(x) <= MARKED_ROUNDS else [-1]
    axes.plot(
        x, y, linestyle, color=color, linewidth=linewidth, marker="o", markersize=2.2 + linewidth, markevery=marked, label=label,
        solid_capstyle="round", clip_on=False, zorder=3,
    )  # fmt: skip


def quantile_bands(sites: pd.DataFrame) -> pd.DataFrame:
    """(rounds, 4) the quantiles over sites that ``SHADES`` names, in rising order."""
    return sites.quantile(sorted(share for pair, _ in SHADES for share in pair), axis=1).T


def _draw_bands(axes: Axes, sites: pd.DataFrame) -> None:
    quantiles = quantile_bands(sites)
    for place, (_, colour) in enumerate(SHADES):
        low, high = quantiles.iloc[:, place], quantiles.iloc[:, -1 - place]
        if len(quantiles) == 1:
            axes.vlines(quantiles.index, low, high, color=colour, linewidth=12, zorder=1)
        axes.fill_between(quantiles.index, low, high, color=colour, linewidth=0, zorder=1)


def _draw_sites(axes: Axes, series: pd.DataFrame) -> None:
    sites = series.drop(columns=POOLED, errors="ignore")
    colours = dict(zip(sites, PALETTE, strict=False))
    if sites.shape[1] > len(PALETTE):
        last = _last(sites)
        colours = {last.idxmax(): PALETTE[0], last.idxmin(): PALETTE[1]}
    if sites.shape[1] > MOST_LINES:
        _draw_bands(axes, sites)
    else:
        for name in sites.columns.difference(list(colours)):
            draw_line(axes, course_of(sites[name]), "", FAINT, linewidth=0.9)
    for name, colour in colours.items():
        draw_line(axes, course_of(sites[name]), name, colour)
    if POOLED in series:
        draw_line(axes, course_of(series[POOLED]), POOLED, INK, linewidth=3.0)


def _caption(series: pd.DataFrame, words: str) -> str:
    sites = series.shape[1] - (POOLED in series)
    if sites <= len(PALETTE):
        return words
    if sites <= MOST_LINES:
        return f"{words} {sites} hospitals; the highest and the lowest at the end are named."
    return f"{words} Grey: {SHADING} {sites:,} hospitals; highest and lowest named."


def _group_name(names: Sequence[str], sites: int) -> str:
    if len(names) == 1:
        return names[0]
    return f"all {sites} hospitals" if len(names) == sites else f"{len(names)} hospitals"


def _budget_lines(budgets: Mapping[str, float | None], sites: Sequence[str]) -> dict[str, float]:
    owners: dict[float, list[str]] = {}
    for name in sites:
        if (value := budgets.get(name)) is not None:
            owners.setdefault(float(value), []).append(name)
    if len(owners) > 3:
        return {"lowest budget": min(owners), "highest budget": max(owners)}
    return {
        "budget" if len(names) == len(sites) else f"budget, {_group_name(names, len(sites))}": value
        for value, names in owners.items()
    }


def _finish(
    figure: Figure, axes: Axes, references: Mapping[str, float] | None = None, bottom: float | None = None,
    top: float | None = None, across: str = "round",
) -> Figure:  # fmt: skip
    """The figure of lines with its references, limits and legend; an empty one says so."""
    from matplotlib.ticker import MaxNLocator

    if not axes.lines:
        axes.text(0.5, 0.5, "nothing recorded", transform=axes.transAxes, ha="center", color=MUTED, fontsize=10)
        axes.set(xticks=[], yticks=[])
        return figure
    for name, value in (references or {}).items():
        axes.axhline(
            value, color=MUTED, linewidth=1.1, linestyle=DASHES, zorder=2, label=f"{short(name)}  {_number(value)}"
        )
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
    axes.margins(x=0.01, y=0.06)
    axes.set_ylim(bottom, None if top is None else min(top, axes.get_ylim()[1]))
    if axes.get_yscale() == "log":
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    label_axes(axes, across)
    _legend_by_height(axes)
    return figure


def _legend_by_height(axes: Axes) -> None:
    """The legend in the order in which lines end, from the top; a bold line has a bold name."""
    named = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
    lines = sorted(named, key=lambda line: -float(np.asarray(line.get_ydata())[-1]))
    made = legend(axes, handles=lines)
    for line, text in zip(lines, made.get_texts(), strict=True):
        text.set_fontweight("bold" if line.get_linewidth() >= 3 else "normal")


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.3g}"
