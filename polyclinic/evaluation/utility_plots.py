"""Figures of an evaluation (docs/evaluation.md): calibration, decision curve, and a metric at each hospital."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polyclinic.evaluation.plots import FAINT, GRID, INK, MUTED, PALETTE, _short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NAMED = 40  # hospitals with a line and a name of their own
Told = Mapping[str, Any]


def plot_calibration(bins: Sequence[Told]) -> Figure:
    """Share that came about by predicted probability, with intervals; a dot's area is the bin's share of rows."""
    figure, axes = _axes(
        "Calibration", "On the diagonal a probability means what it says. A dot's area: share of rows.", 4.2
    )
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1.1, linestyle=(0, (5, 4)))
    x, y, low, high, share = (
        np.array([bin[key] for bin in bins]) for key in ("predicted", "observed", "low", "high", "share")
    )
    axes.vlines(x, low, high, color=PALETTE[0], linewidth=1.6)
    axes.plot(x, y, color=PALETTE[0], linewidth=1.2)
    axes.scatter(x, y, s=16 + 500 * share, color=PALETTE[0], alpha=0.85, linewidths=0, clip_on=False, zorder=3)
    axes.set(xlim=(0, 1), ylim=(-0.02, 1.02))
    axes.set_xlabel("predicted probability", color=MUTED, fontsize=9)
    axes.set_ylabel("share that came about", color=MUTED, fontsize=9)
    return figure


def plot_decision(curve: Told) -> Figure:
    """Net benefit over thresholds, with its band, beside treating everybody and nobody."""
    figure, axes = _axes("Decision curve", "Higher is better: of use where the model is above both others.", 3.9, 0.76)
    x = np.array(curve["thresholds"])
    model, low, high, everybody = (np.array(curve[key]) for key in ("model", "low", "high", "all"))
    top = max(float(high.max()), float(everybody.max()), 0.02) * 1.06
    bottom = -0.25 * top
    axes.fill_between(x, low.clip(bottom), high.clip(bottom), color=PALETTE[0], alpha=0.16, linewidth=0)
    axes.plot(x, np.where(everybody < bottom, np.nan, everybody), color=PALETTE[1], linewidth=1.6)
    axes.axhline(0, color=MUTED, linewidth=1.1, linestyle=(0, (5, 4)))
    axes.plot(x, model.clip(bottom), color=PALETTE[0], linewidth=2.4)
    axes.set(xlim=(0, 1), ylim=(bottom, top))
    axes.set_xlabel("threshold probability of treating", color=MUTED, fontsize=9)
    axes.set_ylabel("net benefit per patient", color=MUTED, fontsize=9)
    for place, (name, colour) in enumerate(
        (("the model", PALETTE[0]), ("treat everybody", PALETTE[1]), ("treat nobody", MUTED))
    ):
        axes.annotate("—", (1.03, 0.95 - 0.1 * place), xycoords="axes fraction", color=colour, fontsize=11,
                      fontweight="bold", annotation_clip=False, va="center")  # fmt: skip
        axes.annotate(name, (1.08, 0.95 - 0.1 * place), xycoords="axes fraction", color=INK, fontsize=9,
                      annotation_clip=False, va="center")  # fmt: skip
    return figure


def plot_hospitals(sites: Mapping[str, Told], pooled: float | None, name: str) -> Figure | None:
    """A metric at each hospital with its interval, sorted; the pooled value as a dashed line. None where none defines it.

    sites: by hospital ``value``, ``low``, ``high``.  A hollow dot has no interval. Of more than 40 none is named.
    """
    known = {site: one for site, one in sites.items() if one["value"] is not None}
    if not known:
        return None
    order = sorted(known, key=lambda site: float(known[site]["value"]))
    many = len(order) > MOST_NAMED
    height = 3.9 if many else 1.15 + 0.26 * len(order)
    words = "95 % intervals; hollow dots have none. Dashed: all hospitals pooled."
    figure, axes = _axes(f"{name} at each hospital", words, height, 0.9, 0.075 if many else 0.24)
    place = np.arange(len(order))
    value = np.array([known[site]["value"] for site in order])
    sure = np.array([known[site]["low"] is not None for site in order])
    low, high = (
        np.array([known[s][key] if known[s][key] is not None else np.nan for s in order]) for key in ("low", "high")
    )
    draw, mark = (axes.vlines, axes.axhline) if many else (axes.hlines, axes.axvline)
    draw(place[sure], low[sure], high[sure], color=PALETTE[0], linewidth=1 if many else 1.8)
    for chosen, face in ((sure, PALETTE[0]), (~sure, "white")):
        xy = (place[chosen], value[chosen]) if many else (value[chosen], place[chosen])
        axes.scatter(
            *xy, s=9 if many else 26, facecolor=face, edgecolor=PALETTE[0], linewidth=1.1, zorder=3, clip_on=False
        )
    if pooled is not None:
        mark(pooled, color=MUTED, linewidth=1.1, linestyle=(0, (5, 4)), zorder=1)
    if many:
        axes.set_xlabel("hospitals, from the lowest", color=MUTED, fontsize=9)
    else:
        axes.set_yticks(place, [_short(site) for site in order])
        for label in axes.get_yticklabels():
            label.set_parse_math(False)
        axes.set_ylim(-0.6, len(order) - 0.4)
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", color=GRID, linewidth=0.8)
    return figure


def _axes(title: str, caption: str, height: float, width: float = 0.9, left: float = 0.075) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure  # a third of a second, which no run waits for before its end

    figure = Figure(figsize=(7.6, height), facecolor="white")
    top, bottom = 0.66 / height, 0.5 / height
    axes = figure.add_axes((left, bottom, width - left, 1 - top - bottom))
    figure.text(
        0.012, 1 - 0.17 / height, title, fontsize=12, fontweight="bold", color=INK, va="center", parse_math=False
    )
    figure.text(0.012, 1 - 0.43 / height, caption, fontsize=9, color=MUTED, va="center")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(colors=MUTED, labelsize=9, length=3, color=FAINT)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes
