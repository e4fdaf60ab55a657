"""Figures of tables of records: the flow of a cohort, pairs of columns before and after coarsening, and how many patients look
alike in an anonymised table."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from polyclinic.ehr.anonymity.labels import midpoint
from polyclinic.ehr.cohorts import Flow
from polyclinic.evaluation.figures.canvas import (
    DASHES,
    FAINT,
    INK,
    MUTED,
    PALETTE,
    SMALL,
    label_axes,
    legend,
    panels,
    short,
)
from polyclinic.types import Floats, Ints

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _STEP = 7.0, 1.05  # inches
_LETTERS = 34


def plot_flow(flow: Flow) -> Figure:
    """A box for what is left after each step of a cohort, and beside each arrow what the step left out.

    Rows and patients are counted, or patients alone where each has one row.
    """
    from matplotlib.figure import Figure

    stages, height = flow.as_list(), _STEP * len(flow.stages)
    figure = Figure(figsize=(_WIDTH, height))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, _WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    left, right = 0.32 * _WIDTH, 0.78 * _WIDTH
    text: dict[str, Any] = {"ha": "center", "va": "center", "parse_math": False}
    arrow = {"arrowstyle": "-|>", "color": MUTED, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
    for number, stage in enumerate(stages):
        middle = (number + 0.5) * _STEP
        if number:
            axes.annotate("", xy=(left, middle - 0.31), xytext=(left, middle - _STEP + 0.31), arrowprops=arrow)
            between = middle - _STEP / 2
            axes.annotate("", xy=(right - 0.95, between), xytext=(left, between), arrowprops=arrow)
            words = f"left out: {_count_text(stage['rows_left_out'], stage['patients_left_out'], flow)}"
            frame = {"boxstyle": "round,pad=0.4", "facecolor": "white", "linewidth": 1.1, "edgecolor": FAINT}
            axes.text(right, between, words, fontsize=SMALL - 1, color=MUTED, bbox=frame, **text)
        words = f"{textwrap.shorten(stage['name'], _LETTERS)}\n{_count_text(stage['rows'], stage['patients'], flow)}"
        frame = {"boxstyle": "round,pad=0.5", "facecolor": "white", "linewidth": 1.1, "edgecolor": INK}
        axes.text(left, middle, words, fontsize=SMALL, color=INK, linespacing=1.4, bbox=frame, **text)
    return figure


def _count_text(rows: int, patients: int, flow: Flow) -> str:
    people = f"{patients:,} {'patient' if patients == 1 else 'patients'}"
    if all(stage.rows == stage.patients for stage in flow.stages):
        return people
    return f"{rows:,} {'row' if rows == 1 else 'rows'}, {people}"


def plot_pairs(before: pd.DataFrame, after: pd.DataFrame) -> Figure:
    """Every pair of columns as a scatter of rows: below the diagonal as they were, above it as they are after coarsening.

    before, after: tables with the same columns, two at least. An interval is drawn at its middle, a text at its place in
    alphabetical order. On the diagonal is the share of rows whose value no other row has, before and after.
    """
    names = list(before.columns)
    caption = (
        "Rows before coarsening (below the diagonal) and after it (above). Between: rows whose value no other row has."
    )
    size = 1.75 * len(names)
    figure, grid = panels(
        "Pairs of columns", caption, [""] * len(names) ** 2, size + 0.6, size, len(names), share=False
    )
    cells = {
        when: {name: _places(table[name]) for name in names} for when, table in (("before", before), ("after", after))
    }
    for number, axes in enumerate(grid):
        row, column = divmod(number, len(names))
        axes.grid(visible=False)
        axes.tick_params(labelbottom=row == len(names) - 1, labelleft=column == 0)
        if row == column:
            _name_middle(axes, names[row], [_alone(table[names[row]]) for table in (before, after)])
            continue
        when, colour = ("before", PALETTE[1]) if row > column else ("after", PALETTE[0])
        x, y = cells[when][names[column]], cells[when][names[row]]
        axes.scatter(x, y, s=5, alpha=0.35, linewidths=0, color=colour)
        axes.set_xlim(*_span(cells["before"][names[column]]))
        axes.set_ylim(*_span(cells["before"][names[row]]))
    return figure


def _name_middle(axes: Axes, name: str, alone: list[float]) -> None:
    axes.tick_params(length=0, labelleft=False, labelbottom=False)
    words = f"{short(name)}\nalone: {alone[0]:.0%}, then {alone[1]:.0%}"
    axes.text(
        0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", fontsize=SMALL, color=INK, linespacing=1.6,
        parse_math=False,
    )  # fmt: skip


def _places(column: pd.Series) -> Floats:
    """Where each cell is drawn; missing ones nowhere."""
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce")
    if numbers.notna().sum() == column.notna().sum():
        return np.asarray(numbers, dtype=np.float64)
    middles = column.map(lambda cell: midpoint(cell) if isinstance(cell, str) else np.nan)
    if middles.notna().sum() == column.notna().sum():
        return np.asarray(middles, dtype=np.float64)
    order = {cell: place for place, cell in enumerate(sorted(map(str, column.dropna().unique())))}
    return np.asarray(column.map(lambda cell: order.get(str(cell), np.nan)), dtype=np.float64)


def _span(places: Floats) -> tuple[float, float]:
    low, high = (np.nanmin(places), np.nanmax(places)) if np.isfinite(places).any() else (0.0, 0.0)
    room = 0.05 * (high - low) or 0.5
    return float(low - room), float(high + room)


def _alone(column: pd.Series) -> float:
    counts = column.value_counts()
    return float((counts == 1).sum() / max(counts.sum(), 1))


def plot_class_sizes(before: Ints, after: Ints, k: int) -> Figure:
    """Plot the share of patients who share their quasi-identifiers with at most so many, before and after; k is a dashed line.

    Args:
        before, after: Patients in each class, not empty.
        k: The least number of patients in a class.
    """
    caption = f"Lower is better: the share of patients in classes of at most so many. None below k = {k} after."
    figure, (axes,) = panels("Patients who look alike", caption)
    for name, sizes, colour in (("before", before, PALETTE[1]), ("after", after, PALETTE[0])):
        axes.ecdf(sizes, weights=sizes, color=colour, linewidth=2, label=name)
    axes.axvline(k, color=MUTED, linewidth=1.1, linestyle=DASHES, label=f"k = {k}")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    axes.set_ylim(0, 1.02)
    label_axes(axes, "patients in the class")
    legend(axes)
    return figure
