"""Figures of how good a result is, and of what is learned from it: intervals by row, ROC, calibration, decision curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polyclinic.evaluation.figures.canvas import DASHES, INK, MUTED, PALETTE, label_axes, legend, name_rows, panel
from polyclinic.evaluation.formats import span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NAMED = 40  # hospitals with a line and a name of their own
LONGEST = 38
_AXES = {"false_positives": "1 - specificity", "sensitivity": "sensitivity (recall)", "precision": "precision"}
Estimate = Mapping[str, Any]


def plot_intervals(
    rows: Mapping[str, Estimate], title: str, caption: str, at: float | None, ax: Axes | None = None
) -> Figure:
    """Plot a row a name, from the top: ``value``, and a line from ``low`` to ``high``; hollow where there is none.

    Args:
        rows: By name. A row's ``inner`` is the half width of a thicker part.
        title: The figure's title.
        caption: One line under it.
        at: The place of a dashed line, or None.
        ax: Axes to draw on; None makes a new figure.
    """
    figure, axes = panel(title, caption, ax, height=1.3 + 0.26 * len(rows))
    for place, row in enumerate(rows.values()):
        value, half = row["value"], row.get("inner")
        if row["low"] is not None:
            axes.hlines(place, row["low"], row["high"], color=PALETTE[0], linewidth=1.8)
        if half:
            axes.hlines(place, value - half, value + half, color=PALETTE[0], linewidth=4.5)
        colour = INK if half else PALETTE[0]
        face = "white" if row["low"] is None else colour
        axes.plot(value, place, "o", markersize=5, color=colour, markerfacecolor=face, zorder=3)
    if at is not None:
        axes.axvline(at, color=MUTED, linewidth=1.1, linestyle=DASHES, zorder=1)
    name_rows(axes, list(rows), LONGEST)
    return figure


def plot_hospitals(
    sites: Mapping[str, Estimate], pooled: float | None, name: str, ax: Axes | None = None
) -> Figure | None:
    """Plot a metric at each hospital with its interval, sorted. None where no hospital defines it.

    Args:
        sites: By hospital ``value``, ``low``, ``high``. A hollow dot has no interval. Of more than 40 none is named.
        pooled: The pooled value, a dashed line, or None.
        name: The metric's name.
        ax: Axes to draw on; None makes a new figure.
    """
    rows = {site: row for site, row in sites.items() if row["value"] is not None}
    rows = dict(sorted(rows.items(), key=lambda item: float(item[1]["value"])))
    if not rows:
        return None
    title, caption = f"{name} at each hospital", "95 % intervals; hollow dots have none. Dashed: all hospitals pooled."
    if len(rows) <= MOST_NAMED:
        return plot_intervals(dict(reversed(rows.items())), title, caption, pooled, ax)
    figure, axes = panel(title, caption, ax, height=3.9)
    value, low, high = (
        np.array([row[key] for row in rows.values()], dtype=np.float64) for key in ("value", "low", "high")
    )
    place = np.arange(len(rows))
    axes.vlines(place, low, high, color=PALETTE[0], linewidth=1)
    face = np.where(np.isnan(low), "white", PALETTE[0])
    axes.scatter(place, value, s=9, facecolor=face, edgecolor=PALETTE[0], linewidth=1.1, zorder=3, clip_on=False)
    if pooled is not None:
        axes.axhline(pooled, color=MUTED, linewidth=1.1, linestyle=DASHES, zorder=1)
    label_axes(axes, "hospitals, from the lowest")
    return figure


def plot_roc(curves: Sequence[Estimate], auroc: Estimate, ax: Axes | None = None) -> Figure:
    """Plot sensitivity over one less specificity at every threshold.

    Args:
        curves: A line each, with its ``class`` and ``operating_points``.
        auroc: With its interval, for the caption.
        ax: Axes to draw on; None makes a new figure.
    """
    caption = f"AUROC {span(auroc)}. The diagonal is a coin toss."
    return _plot_curves(curves, "ROC curve", caption, ("false_positives", "sensitivity"), ax, diagonal=True)


def plot_pr(curves: Sequence[Estimate], auprc: Estimate, ax: Axes | None = None) -> Figure:
    """Plot precision over sensitivity (recall) at every threshold.

    Args:
        curves: A line each, with its ``class`` and ``operating_points``.
        auprc: Average precision with its interval, for the caption.
        ax: Axes to draw on; None makes a new figure.
    """
    caption = f"Average precision {span(auprc)}. It ends at the share of patients who have the class."
    return _plot_curves(curves, "Precision and recall", caption, ("sensitivity", "precision"), ax)


def _plot_curves(
    curves: Sequence[Estimate], title: str, caption: str, keys: tuple[str, str], ax: Axes | None, diagonal: bool = False
) -> Figure:
    figure, axes = panel(title, caption, ax, height=4.2)
    if diagonal:
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1.1, linestyle=DASHES)
    for number, curve in enumerate(curves):
        colour, name = PALETTE[number % len(PALETTE)], f"class {curve['class']} and the rest"
        axes.plot(curve[keys[0]], curve[keys[1]], color=colour, linewidth=2.0, label=name)
    axes.set(xlim=(0, 1), ylim=(-0.02, 1.02))
    label_axes(axes, *(_AXES[key] for key in keys))
    if len(curves) > 1:
        legend(axes)
    return figure


def plot_calibration(bins: Sequence[Estimate], label: str | None = None, ax: Axes | None = None) -> Figure:
    """Plot the share that came about by predicted probability, with intervals; a dot's area is the bin's share of rows.

    Args:
        bins: Each with ``predicted``, ``observed``, ``low``, ``high`` and ``share``.
        label: Of numbers, in place of probabilities: what was predicted, with its unit.
        ax: Axes to draw on; None makes a new figure.
    """
    caption = "On the diagonal a prediction means what it says. A dot's area: share of rows."
    figure, axes = panel("Calibration", caption, ax, height=4.2)
    ends = [0.0, 1.0] if label is None else [end(bin["predicted"] for bin in bins) for end in (min, max)]
    axes.plot(ends, ends, color=MUTED, linewidth=1.1, linestyle=DASHES)
    x, y, low, high, share = (
        np.array([bin[key] for bin in bins]) for key in ("predicted", "observed", "low", "high", "share")
    )
    axes.vlines(x, low, high, color=PALETTE[0], linewidth=1.6)
    axes.plot(x, y, color=PALETTE[0], linewidth=1.2)
    axes.scatter(x, y, s=16 + 500 * share, color=PALETTE[0], alpha=0.85, linewidths=0, clip_on=False, zorder=3)
    if label is None:
        axes.set(xlim=(0, 1), ylim=(-0.02, 1.02))
        label_axes(axes, "predicted probability", "share that came about")
    else:
        label_axes(axes, f"predicted {label}", "mean that came about")
    return figure


def plot_decision(curve: Estimate, ax: Axes | None = None) -> Figure:
    """Net benefit over thresholds, with its band, beside treating everybody and nobody."""
    caption = "Higher is better: of use where the model is above both others."
    figure, axes = panel("Decision curve", caption, ax, height=3.9)
    x = np.array(curve["thresholds"])
    model, low, high, everybody = (np.array(curve[key]) for key in ("model", "low", "high", "all"))
    top = max(float(high.max()), float(everybody.max()), 0.02) * 1.06
    bottom = -0.25 * top
    axes.fill_between(x, low.clip(bottom), high.clip(bottom), color=PALETTE[0], alpha=0.16, linewidth=0)
    axes.plot(x, model.clip(bottom), color=PALETTE[0], linewidth=2.4, label="the model")
    shown = np.where(everybody < bottom, np.nan, everybody)
    axes.plot(x, shown, color=PALETTE[1], linewidth=1.6, label="treat everybody")
    axes.axhline(0, color=MUTED, linewidth=1.1, linestyle=DASHES, label="treat nobody")
    axes.set(xlim=(0, 1), ylim=(bottom, top))
    label_axes(axes, "threshold probability of treating", "net benefit per patient")
    legend(axes)
    return figure
