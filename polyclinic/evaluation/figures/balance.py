"""How alike the arms of a treatment are, before and after weighting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polyclinic.evaluation.figures.canvas import (
    DASHES,
    FAINT,
    LONGEST_NAME,
    MUTED,
    PALETTE,
    label_axes,
    legend,
    name_rows,
    panel,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Covariates that a figure shows, the least balanced ones.
_MOST_ROWS = 40


def plot_balance(rows: Sequence[Mapping[str, Any]], ax: Axes | None = None) -> Figure:
    """Standardised differences of covariates before and after weighting, the largest on top (Love plot).

    rows: ``name``, ``before``, ``after`` and the standard deviation of the ``noise`` in each, of which two are drawn either side.
    """
    shown = sorted(rows, key=lambda row: -abs(row["before"]))[:_MOST_ROWS]
    caption = "Difference of the arms in standard deviations; dashed: 0.1. Lines: twice the noise either side."
    figure, axes = panel("Balance of covariates", caption, ax, height=1.6 + 0.24 * len(shown))
    for colour, name, label in ((FAINT, "before", "before weighting"), (PALETTE[0], "after", "after weighting")):
        values, noise = ([row[key] for row in shown] for key in (name, "noise"))
        axes.errorbar(
            values, range(len(shown)), xerr=[2 * each for each in noise], fmt="o", color=colour, markersize=5, linewidth=1.2,
            label=label,
        )  # fmt: skip
    axes.axvline(0, color=MUTED, linewidth=0.8)
    for limit in (-0.1, 0.1):
        axes.axvline(limit, color=MUTED, linewidth=1.0, linestyle=DASHES)
    name_rows(axes, [row["name"] for row in shown], LONGEST_NAME)
    label_axes(axes, "standardised difference")
    legend(axes)
    return figure
