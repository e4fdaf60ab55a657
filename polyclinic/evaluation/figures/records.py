"""Figures of tables of records: the flow of a cohort, and how many patients look alike in an anonymised table."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from polyclinic.ehr.cohorts import Flow
from polyclinic.evaluation.figures.canvas import DASHES, FAINT, INK, MUTED, PALETTE, SMALL, label_axes, legend, panels
from polyclinic.types import Ints

if TYPE_CHECKING:
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
            words = f"left out: {_counted(stage['rows_left_out'], stage['patients_left_out'], flow)}"
            frame = {"boxstyle": "round,pad=0.4", "facecolor": "white", "linewidth": 1.1, "edgecolor": FAINT}
            axes.text(right, between, words, fontsize=SMALL - 1, color=MUTED, bbox=frame, **text)
        words = f"{textwrap.shorten(stage['name'], _LETTERS)}\n{_counted(stage['rows'], stage['patients'], flow)}"
        frame = {"boxstyle": "round,pad=0.5", "facecolor": "white", "linewidth": 1.1, "edgecolor": INK}
        axes.text(left, middle, words, fontsize=SMALL, color=INK, linespacing=1.4, bbox=frame, **text)
    return figure


def _counted(rows: int, patients: int, flow: Flow) -> str:
    people = f"{patients:,} {'patient' if patients == 1 else 'patients'}"
    if all(stage.rows == stage.patients for stage in flow.stages):
        return people
    return f"{rows:,} {'row' if rows == 1 else 'rows'}, {people}"


def plot_class_sizes(before: Ints, after: Ints, k: int) -> Figure:
    """Share of patients who share their quasi-identifiers with at most so many, before and after; k as a dashed line.

    before, after: patients in each class, not empty.
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
