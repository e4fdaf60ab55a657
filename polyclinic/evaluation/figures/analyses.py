"""Figures of analyses, each drawn from what its program left in ``numbers`` under the figure's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from polyclinic.evaluation.figures.survival import plot_survival

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: By name, a function of the numbers and of axes, which are None for a figure of its own (``canvas.panel``).
ANALYSES: Mapping[str, Callable[[Any, Axes | None], Figure]] = {
    "survival": plot_survival,
    "survival-hospitals": plot_survival,
}
