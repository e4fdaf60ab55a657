"""A posterior as a picture: each parameter's interval, with privacy and as it would be without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from polyclinic.evaluation.plots import GRID, INK, LABEL_POINTS, MUTED, PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COVERED = 1.959964


def plot_posterior(parameters: Mapping[str, Mapping[str, float]]) -> Figure:
    """95 % intervals by parameter, from the top in their order.

    parameters: ``mean``, ``sd``, ``low``, ``high`` and perhaps ``inflation`` of each; the thick part is what the interval would
    be without privacy.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 1.1 + 0.28 * len(parameters)), layout="constrained")
    axes = figure.add_subplot()
    known = all("inflation" in row for row in parameters.values())
    for place, row in enumerate(parameters.values()):
        axes.plot([row["low"], row["high"]], [place, place], color=PALETTE[0], linewidth=1.2)
        if known:
            narrow = _COVERED * row["sd"] / row["inflation"]
            axes.plot([row["mean"] - narrow, row["mean"] + narrow], [place, place], color=PALETTE[0], linewidth=4.0)
        axes.plot(row["mean"], place, "o", color=INK, markersize=4)
    axes.axvline(0.0, color=MUTED, linewidth=0.8, linestyle="--")
    axes.set_yticks(range(len(parameters)), [name.replace("$", r"\$") for name in parameters], fontsize=LABEL_POINTS)
    axes.set_ylim(len(parameters) - 0.5, -0.5)
    axes.grid(axis="x", color=GRID)
    axes.spines[["top", "right", "left"]].set_visible(False)
    thick = "; thick: the interval without privacy" if known else ""
    axes.set_xlabel(f"Parameter, by feature as scaled{thick}", fontsize=LABEL_POINTS, color=MUTED)
    axes.set_title("Posterior, 95 % intervals", loc="left", fontsize=LABEL_POINTS + 2, color=INK)
    return figure
