"""Panels in a row under one title, and names at the ends of their lines: what figures of synthetic patients are drawn on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from polyclinic.evaluation.plots import FAINT, GRID, INK, MUTED, _short, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE_SPACE, NARROWEST = 0.62, 4.9  # inches: above the panels for title and caption; of a figure


def panels(
    title: str,
    caption: str,
    names: Sequence[str],
    width: float,
    height: float,
    left: float = 0.55,
    right: float = 0.15,
    bottom: float = 0.5,
    count: int | None = None,
) -> tuple[Figure, list[Axes]]:
    """A figure (inches) with panels of equal width in a row on one vertical scale, under its title and caption."""
    from matplotlib.figure import Figure

    width = max(width, NARROWEST)
    figure = Figure(figsize=(width, height), facecolor="white")
    figure.text(0.012, 1 - 0.17 / height, title, fontsize=12, fontweight="bold", color=INK, va="center")
    figure.text(0.012, 1 - 0.42 / height, caption, fontsize=9, color=MUTED, va="center")
    number = len(names) if count is None else count
    row: list[Axes] = []
    top = height - TITLE_SPACE - (0.25 if any(names) else 0.34 if count else 0.05)
    room, gap = width - left - right, 0.22
    each = (room - gap * (number - 1)) / max(number, 1)
    for i in range(number):
        place = ((left + i * (each + gap)) / width, bottom / height, each / width, (top - bottom) / height)
        axes = figure.add_axes(place)
        if names and names[i]:
            axes.set_title(_short(names[i]), fontsize=10, color=INK, loc="left", parse_math=False)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(FAINT)
        axes.tick_params(colors=MUTED, labelsize=9, length=3, color=FAINT, labelleft=i == 0)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        row.append(axes)
    return figure, row


def name_ends(axes: Axes, ends: Sequence[tuple[str, float, str]]) -> None:
    """Names beside the panel at the heights (name, y, colour), moved apart where they would touch."""
    low, high = axes.get_ylim()
    points = axes.get_position().height * axes.figure.get_figheight() * 72  # type: ignore[union-attr]
    wanted = [(y - low) / (high - low) for _, y, _ in ends]
    for (name, _, colour), place in zip(ends, spread(wanted, 12 / points, 0.0, 1.0), strict=True):
        axes.annotate(
            _short(name),
            (1.04, place),
            xycoords="axes fraction",
            va="center",
            fontsize=9,
            color=colour,
            fontweight="bold",
            annotation_clip=False,
            parse_math=False,
        )
