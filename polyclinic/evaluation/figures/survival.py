"""Survival curves as steps with bands, and the number at risk under them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from polyclinic.evaluation.figures.canvas import PALETTE, SMALL, label_axes, legend, panel, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Where no band reaches below it, the axis does not begin at 0.
_HIGH = 0.6
_MOST_CURVES = len(PALETTE)
_TICKS, _LONGEST = 6, 14


def plot_survival(numbers: Mapping[str, Any], ax: Axes | None = None) -> Figure:
    """Each of ``curves`` over time, with its 95 % band, and under the axis how many patients are at risk."""
    curves = [curve for curve in numbers["curves"] if curve["edges"]][:_MOST_CURVES]
    least = min(min(curve["low"]) for curve in curves)
    cut = " The axis does not begin at 0." if least > _HIGH else ""
    figure, axes = panel(
        "Survival",
        f"Share of patients without the event, with 95 % bands, and patients at risk.{cut}",
        ax,
        height=4.2 + 0.2 * len(curves),
    )
    start = float(numbers["start"])
    last = max(curve["edges"][-1] for curve in curves)
    ticks = [tick for tick in axes.xaxis.get_major_locator().tick_values(start, last) if start <= tick <= last]
    ticks = ticks[:: -(-len(ticks) // _TICKS)]
    labels = [f"{tick:g}" for tick in ticks]
    for number, curve in enumerate(curves):
        x = np.append(start, curve["edges"])
        middle, low, high = (np.append(1.0, curve[name]) for name in ("survival", "low", "high"))
        axes.step(x, middle, where="post", color=PALETTE[number], linewidth=2.0, label=short(curve["name"], _LONGEST))
        axes.fill_between(x, low, high, step="post", color=PALETTE[number], alpha=0.15, linewidth=0)
        for place, tick in enumerate(ticks):
            # At risk at the beginning of the interval in which the tick is.
            at = int(np.searchsorted(curve["edges"], tick, "right"))
            labels[place] += f"\n{curve['at_risk'][at]:.0f}" if at < len(curve["edges"]) else "\n"
        axes.annotate(
            short(curve["name"], _LONGEST), (0, 0), (-44, -1.2 * (number + 2) * SMALL), "axes fraction", "offset points",
            ha="right", va="center", fontsize=SMALL, color=PALETTE[number], parse_math=False,
        )  # fmt: skip
    axes.set_xticks(ticks, labels)
    axes.set(xlim=(start, last), ylim=(least - 0.02, 1.002) if cut else (0, 1.02))
    unit = numbers.get("unit")
    label_axes(axes, f"time ({unit})" if unit else "time", "without the event")
    if len(curves) > 1:
        legend(axes)
    return figure
