"""Figures of components and clusters: eigenvalues over the noise level, loadings, and centres by column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from polyclinic.evaluation.figures.canvas import DASHES, MUTED, PALETTE, label_axes, legend, name_rows, panel, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LONGEST, _MARKS = 26, "os^DvPX*"


def plot_scree(numbers: Mapping[str, Any], ax: Axes | None = None) -> Figure:
    """Eigenvalues by component, and the noise level below which they may be noise alone."""
    values, floor = numbers["eigenvalues"], numbers["floor"]
    caption = "Below the dashed line a component may be noise alone." if floor else "Exact, without privacy."
    figure, axes = panel("Eigenvalues", caption, ax)
    colors = [PALETTE[0] if value > floor else PALETTE[7] for value in values]
    axes.bar(np.arange(1, len(values) + 1), values, color=colors, width=0.7)
    if floor:
        axes.axhline(floor, color=MUTED, linestyle=DASHES, linewidth=1.2)
    axes.locator_params(axis="x", integer=True)
    label_axes(axes, "component", "eigenvalue")
    return figure


def plot_loadings(numbers: Mapping[str, Any], ax: Axes | None = None) -> Figure:
    """Loadings of the first two components, a row for each number, with how far redrawn noise moves them."""
    values, spread = np.array(numbers["values"]), np.array(numbers["spread"])
    caption = "Bars: how far 95 % of redrawn noise moves a loading." if spread.any() else "Exact, without privacy."
    names = [f"PC{k + 1} ({100 * part:.0f} %)" for k, part in enumerate(numbers["explained"])]
    return _rows("Loadings", caption, "loading", numbers["names"], (names[:2], values.T, spread.T), ax)


def plot_centres(numbers: Mapping[str, Any], ax: Axes | None = None) -> Figure:
    """Where each cluster's centre lies, a row for each number."""
    names = [
        f"{name} ({100 * share:.0f} %)" for name, share in zip(numbers["clusters"], numbers["shares"], strict=True)
    ]
    values, words = np.array(numbers["values"]), "standard deviations from the middle"
    return _rows(
        "Centres", "The largest clusters.", words, numbers["names"], (names[: len(_MARKS)], values, 0 * values), ax
    )


def _rows(
    title: str, caption: str, words: str, rows: list[str], series: tuple[list[str], np.ndarray, np.ndarray], ax: Axes | None
) -> Figure:  # fmt: skip
    """A row for each number; of each series its name, values and half bars."""
    figure, axes = panel(title, caption, ax, 1.6 + 0.26 * len(rows))
    for k, (name, values, halves) in enumerate(zip(*series, strict=False)):
        place = np.arange(len(rows)) + 0.12 * (k - len(series[0]) / 2 + 0.5)
        axes.errorbar(
            values, place, xerr=halves if halves.any() else None, fmt=_MARKS[k], color=PALETTE[k], label=short(name)
        )
    axes.axvline(0.0, color=MUTED, linewidth=0.8)
    name_rows(axes, rows, _LONGEST)
    label_axes(axes, words)
    legend(axes)
    return figure
