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

from polyclinic.evaluation.figures.canvas import DASHES, FAINT, INK, MUTED, PALETTE, label_axes, legend, panels, short
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


def plot_auroc(rounds: pd.DataFrame, floor: float | None = None) -> Figure:
    """AUROC on held-out patients by round: one line a site (or bands), the pooled line bold, ``floor`` as a dashed line.

    rounds: columns round, site, auroc; rows without a value are left out.
    """
    series = read_series(rounds, "auroc")
    figure, (axes,) = panels("AUROC on held-out patients", _caption(series, "Higher is better; 0.5 is a coin toss."))
    _draw_sites(axes, series)
    return _finish(figure, {} if floor is None else {"no-skill floor": floor}, top=1.01)


def plot_loss(rounds: pd.DataFrame) -> Figure:
    """Mean cross-entropy on held-out patients by round: one line a site (or bands), the pooled line bold.

    rounds: columns round, site, loss, and optionally train_loss, drawn dashed for the pooled row where present.
    """
    series = read_series(rounds, "loss")
    figure, (axes,) = panels("Loss on held-out patients", _caption(series, "Lower is better."))
    _draw_sites(axes, series)
    training = read_series(rounds, "train_loss").get(POOLED)
    if series and training is not None:
        draw_line(axes, training, "pooled, training", MUTED, linestyle="--")
    return _finish(figure)


def plot_epsilon(rounds: pd.DataFrame, budget: float | Mapping[str, float | None] | None = None) -> Figure:
    """Epsilon spent by each site up to each round, with the budget as a dashed line.

    rounds: columns round, site, epsilon (cumulative).  budget: one for all sites, or one for each site by name.
    Sites with the same course share a line. A budget over four times the largest epsilon is named, not drawn,
    so that the course stays readable.
    """
    series = {name: xy for name, xy in read_series(rounds, "epsilon").items() if name != POOLED}
    same: dict[tuple[bytes, bytes], list[str]] = {}
    for name, (x, y) in series.items():
        same.setdefault((x.tobytes(), y.tobytes()), []).append(name)
    groups = list(same.values())
    largest = max(groups, key=lambda names: series[names[0]][1][-1], default=[])
    top = max((xy[1].max() for xy in series.values()), default=0.0)
    budgets = _budget_lines(budget, list(series))
    near = {name: value for name, value in budgets.items() if value / 4 <= top}
    beyond = [f"{name} of {value:g} is above the chart" for name, value in budgets.items() if name not in near]
    shaded, crowded = len(groups) > MOST_LINES, len(groups) > len(PALETTE)
    words = (
        f"grey: {SHADING} {len(series):,} hospitals" if shaded else "the hospital refuses what would pass its budget"
    )
    figure, (axes,) = panels("Privacy spent (epsilon)", "; ".join([f"Adds up over rounds; {words}", *beyond]) + ".")
    if shaded:
        _draw_bands(axes, list(series.values()))
    for number, names in enumerate([largest] if shaded else groups):
        named = names is largest or not crowded
        label, colour = (_group_name(names, len(series)), PALETTE[number % len(PALETTE)]) if named else ("", FAINT)
        draw_line(axes, series[names[0]], label, colour, linewidth=2.0)
    return _finish(figure, near, bottom=0.0)


def plot_accountants(curves: Mapping[str, Course], settings: str) -> Figure:
    """Epsilon over the steps of training by each way to account it, on a logarithmic scale.

    curves: steps and epsilon, both (m,) and finite, by the accountant's name; "pld", which reports, is bold, and "gdp",
    an approximation, dashed.  settings: what the curves are of, in a few words.
    """
    caption = f"{settings}. gdp (dashed) is an approximation, the others are bounds."
    styles: dict[str, dict[str, Any]] = {"pld": {"color": INK, "linewidth": 3.0}, "gdp": {"linestyle": "--"}}
    return plot_lines(curves, "Privacy spent (epsilon) by accountant", caption, styles, across="step", logarithmic=True)


def plot_lines(
    courses: Mapping[str, Course], title: str, caption: str, styles: Mapping[str, Mapping[str, Any]] | None = None,
    references: Mapping[str, float] | None = None, across: str = "round", logarithmic: bool = False, bottom: float | None = None,
) -> Figure:  # fmt: skip
    """Named lines, each of x and y, both (m,) and finite; on a logarithmic scale without what is not above zero.

    styles: options of matplotlib's lines, by name.  references: dashed lines at one height.
    """
    figure, (axes,) = panels(title, caption)
    for number, (name, (x, y)) in enumerate(courses.items()):
        drawn = y > 0 if logarithmic else np.isfinite(y)
        style = {"color": PALETTE[number % len(PALETTE)], "linestyle": "-" if number < len(PALETTE) else "--"}
        if drawn.any():
            draw_line(axes, (x[drawn], y[drawn]), name, **(style | dict((styles or {}).get(name, {}))))
    if logarithmic:
        axes.set_yscale("log")
    return _finish(figure, references, bottom=bottom, across=across)


@dataclass(frozen=True)
class Point:
    """One run: its epsilon (None without privacy), the metric with its interval, and the kind of run it is of."""

    kind: str
    epsilon: float | None
    value: float
    low: float | None = None
    high: float | None = None


def plot_privacy_utility(points: Sequence[Point], name: str) -> Figure:
    """A metric over epsilon (logarithmic) with intervals, a colour a kind of run; without privacy at the right end.

    Runs of one kind are joined through their mean at each epsilon.  points: at least one.
    """
    figure, (axes,) = panels(
        f"{name} over privacy spent", "Bars: 95 % intervals of each run's held-out patients.", height=4.2
    )
    spent = [point.epsilon for point in points if point.epsilon]
    low, high = min(spent, default=1.0), max(spent, default=1.0)
    far = high * max((high / low) ** 0.25, 1.6)
    kinds = list(dict.fromkeys(point.kind for point in points))
    for number, kind in enumerate(kinds):
        colour, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
        own = sorted((p for p in points if p.kind == kind), key=lambda p: p.epsilon or np.inf)
        shift = (far / low) ** (0.008 * (number - (len(kinds) - 1) / 2))
        x = np.array([(point.epsilon or far) * shift for point in own])
        y = np.array([point.value for point in own])
        for at, point in zip(x, own, strict=True):
            if point.low is not None and point.high is not None:
                axes.vlines(at, point.low, point.high, color=colour, linewidth=1.2, alpha=0.7)
        axes.plot(x, y, marker, markersize=5, color=colour, zorder=3, label=short(kind))
        places = np.unique(x)
        means = [y[x == place].mean() for place in places]
        axes.plot(places, means, color=colour, linewidth=1.4)
    axes.set_xscale("log")
    ticks = sorted(set(spent)) if len(set(spent)) <= 8 else list(np.geomspace(low, high, 6))
    labels = [f"{tick:.3g}" for tick in ticks]
    without = any(point.epsilon is None for point in points)
    if without:
        axes.axvline(far / max((high / low) ** 0.125, 1.25), color=MUTED, linewidth=0.8, linestyle=(0, (1, 3)))
        ticks, labels = [*ticks, far], [*labels, "no privacy"]
    axes.set_xticks(ticks, labels)
    axes.minorticks_off()
    axes.set_xlim(low / 1.25, (far if without else high) * 1.25)
    label_axes(axes, "epsilon")
    _legend_by_height(axes)
    return figure


def read_series(rounds: pd.DataFrame, metric: str) -> dict[str, Course]:
    """Finite values of ``metric`` by round for each site that has any, sites sorted, the pooled row last."""
    if metric not in rounds.columns:
        return {}
    x, y = (
        pd.to_numeric(rounds[name], errors="coerce").to_numpy(np.float64, na_value=np.nan) for name in ("round", metric)
    )
    site, names = pd.factorize(rounds["site"].astype(str), sort=True)
    finite = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    order = finite[np.lexsort((x[finite], site[finite]))]
    parts = np.split(order, np.flatnonzero(np.diff(site[order])) + 1) if len(order) else []
    series = {str(names[site[part[0]]]): (x[part], y[part]) for part in parts}
    return {name: series[name] for name in sorted(series, key=lambda name: (name == POOLED, name)) if name != MACRO}


def draw_line(axes: Axes, course: Course, name: str, color: str, linewidth: float = 1.5, linestyle: str = "-") -> None:
    """One line, in the legend unless its name is empty, with dots where there are few rounds, else at its end."""
    x, y = course
    label = f"{short(name)}  {_number(y[-1])}" if name else None
    marked = None if name and len(x) <= MARKED_ROUNDS else [-1]
    axes.plot(
        x, y, linestyle, color=color, linewidth=linewidth, marker="o", markersize=2.2 + linewidth, markevery=marked, label=label,
        solid_capstyle="round", clip_on=False, zorder=3,
    )  # fmt: skip


def quantile_bands(sites: Sequence[Course]) -> tuple[Floats, Floats]:
    """Rounds (m,), and at each the quantiles (m, 4) of sites that ``SHADES`` names, in rising order."""
    x, y = (np.concatenate([xy[part] for xy in sites]) for part in (0, 1))
    order = np.argsort(x, kind="stable")
    rounds, first = np.unique(x[order], return_index=True)
    shares = sorted(share for pair, _ in SHADES for share in pair)
    return rounds, np.array([np.quantile(part, shares) for part in np.split(y[order], first[1:])])


def _draw_bands(axes: Axes, sites: Sequence[Course]) -> None:
    rounds, quantiles = quantile_bands(sites)
    for place, (_, colour) in enumerate(SHADES):
        low, high = quantiles[:, place], quantiles[:, -1 - place]
        if len(rounds) == 1:
            axes.vlines(rounds, low, high, color=colour, linewidth=12, zorder=1)
        axes.fill_between(rounds, low, high, color=colour, linewidth=0, zorder=1)


def _draw_sites(axes: Axes, series: Mapping[str, Course]) -> None:
    sites = {name: xy for name, xy in series.items() if name != POOLED}
    colours = dict(zip(sites, PALETTE, strict=False))
    if len(sites) > len(PALETTE):
        last = {name: float(y[-1]) for name, (_, y) in sites.items()}
        colours = {max(last, key=last.__getitem__): PALETTE[0], min(last, key=last.__getitem__): PALETTE[1]}
    if len(sites) > MOST_LINES:
        _draw_bands(axes, list(sites.values()))
    else:
        for name in sites.keys() - colours.keys():
            draw_line(axes, sites[name], "", FAINT, linewidth=0.9)
    for name, colour in colours.items():
        draw_line(axes, sites[name], name, colour)
    if POOLED in series:
        draw_line(axes, series[POOLED], POOLED, INK, linewidth=3.0)


def _caption(series: Mapping[str, Course], words: str) -> str:
    sites = len(series.keys() - {POOLED})
    if sites <= len(PALETTE):
        return words
    if sites <= MOST_LINES:
        return f"{words} {sites} hospitals; the highest and the lowest at the end are named."
    return f"{words} Grey: {SHADING} {sites:,} hospitals; highest and lowest named."


def _group_name(names: Sequence[str], sites: int) -> str:
    if len(names) == 1:
        return names[0]
    return f"all {sites} hospitals" if len(names) == sites else f"{len(names)} hospitals"


def _budget_lines(budget: float | Mapping[str, float | None] | None, sites: Sequence[str]) -> dict[str, float]:
    if not isinstance(budget, Mapping):
        return {} if budget is None else {"budget": float(budget)}
    owners: dict[float, list[str]] = {}
    for name in sites:
        value = budget.get(name)
        if value is not None:
            owners.setdefault(float(value), []).append(name)
    if len(owners) == 1 and len(next(iter(owners.values()))) == len(sites):
        return {"budget": next(iter(owners))}
    if len(owners) > 3:
        return {"lowest budget": min(owners), "highest budget": max(owners)}
    return {f"budget, {_group_name(names, len(sites))}": value for value, names in owners.items()}


def _finish(
    figure: Figure, references: Mapping[str, float] | None = None, bottom: float | None = None, top: float | None = None,
    across: str = "round",
) -> Figure:  # fmt: skip
    """The figure of lines with its references, limits and legend; an empty one says so."""
    from matplotlib.ticker import MaxNLocator

    (axes,) = figure.axes
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
