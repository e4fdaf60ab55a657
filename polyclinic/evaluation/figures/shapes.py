"""The figure of an additive model: the shape functions of the columns that matter most, with what noise does to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from polyclinic.evaluation.figures.canvas import GRID, INK, PALETTE, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: So many columns have a panel, and so many outputs of a model of several classes a line.
MOST, MOST_OUTPUTS = 12, 6
_SURE = 1.96
_LONGEST = 14  # letters of a category


def plot_shapes(shapes: pd.DataFrame, order: Sequence[str]) -> Figure:
    """A panel for each of the first columns in ``order``. shapes: As ``runs.shapes.shape_functions`` gives them."""
    shown = list(order)[:MOST]
    outputs = list(dict.fromkeys(shapes["output"]))[:MOST_OUTPUTS]
    rows = -(-len(shown) // 4)
    caption = "What a column adds to the output, by its value; shaded: two deviations of what noise and few patients leave open."
    figure, axes = panels("Shape functions", caption, shown, width=10.4, height=0.7 + 2.3 * rows, columns=4)
    for panel, name in zip(axes, shown, strict=True):
        own = shapes[shapes["column"] == name]
        panel.axhline(0.0, color=GRID, zorder=0)
        for number, output in enumerate(outputs):
            _draw(panel, own[own["output"] == output], PALETTE[number] if outputs[1:] else INK)
            if outputs[1:] and panel is axes[0]:
                panel.plot([], [], color=PALETTE[number], label=output)
    if outputs[1:]:
        axes[0].legend(fontsize=7, frameon=False)
    return figure


def _draw(panel: Axes, own: pd.DataFrame, colour: str) -> None:
    numbers = own[own["low"].notna()]
    if len(numbers):
        edges = np.array([*numbers["low"], numbers["high"].iloc[-1]])
        value, noise = (np.array([*numbers[name], numbers[name].iloc[-1]]) for name in ("value", "noise"))
        panel.step(edges, value, where="post", color=colour, linewidth=1.4)
        panel.fill_between(
            edges, value - _SURE * noise, value + _SURE * noise, step="post", color=colour, alpha=0.18, lw=0
        )
        return
    places = np.arange(len(own))
    panel.errorbar(
        places, own["value"], yerr=_SURE * own["noise"], fmt="o", color=colour, markersize=4, elinewidth=3, alpha=0.7
    )
    names = [name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…" for name in own["category"]]
    panel.set_xticks(
        places, names, rotation=60 if len(names) > 2 else 0, ha="right" if len(names) > 2 else "center", fontsize=7
    )
