"""Figures of attacks: what each gains over its baseline, and how far records made of gradients are from the real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polyclinic.evaluation.figures.canvas import DASHES, MUTED, PALETTE, SMALL, label_axes, legend, panels
from polyclinic.evaluation.figures.utility import plot_intervals

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Found = Mapping[str, Any]
_LEAST_ERROR = 1e-4


def gains(attacks: Found) -> dict[str, Found]:
    """What each attack gains over its baseline, by name, as intervals: 0 is nothing, 1 all. Undefined ones are left out."""
    rows = {f"who took part: {row['attack']}": row["advantage"] for row in attacks["membership"]}
    rows |= {f"secret column: {row['column']}": row["excess"] for row in attacks["attributes"]}
    for row in attacks["identification"]:
        rows[f"{row['name']}: {row['column']}" if row["column"] else row["name"]] = row["risk"]
    return {name: value for name, value in rows.items() if value["value"] is not None}


def plot_gains(attacks: Found) -> Figure:
    """One row an attack, its gain with the 95 % interval; dashed the most that epsilon allows a guess of membership."""
    caption = "Over patients who did not take part: 0 learns nothing, 1 all. With 95 % intervals."
    figure = plot_intervals(gains(attacks), "What attacks gain", caption, 0.0)
    allowed = (attacks.get("allowed") or {}).get("advantage")
    if allowed is not None:
        (axes,), who = figure.axes, len(attacks["membership"])
        axes.plot([allowed, allowed], [-0.5, who - 0.5], color=PALETTE[3], linewidth=1.4, linestyle="--")
        axes.annotate(
            f"epsilon allows {allowed:.2f}", (allowed, -0.5), xytext=(0, 3), textcoords="offset points",
            ha="right", fontsize=SMALL, color=PALETTE[3], annotation_clip=False,
        )  # fmt: skip
    return figure


def plot_gradients(trials: Sequence[Found]) -> Figure:
    """A dot a record, by how many patients were in the step: its reconstruction's error over that of the best constant guess.

    Errors of 1e-4 and less are drawn there: the record itself.
    """
    caption = "Error over that of the best constant guess (dashed), by how many patients were in the step."
    figure, (axes,) = panels("Records made of one step's gradient", caption)
    batches = sorted({trial["batch"] for trial in trials})
    for trial in trials:
        errors = np.sort(np.maximum(trial["error"], _LEAST_ERROR))
        aside = np.linspace(-0.13, 0.13, len(errors)) if len(errors) > 1 else np.zeros(1)
        private = trial["private"]
        axes.plot(
            batches.index(trial["batch"]) + (0.2 if private else -0.2) + aside, errors, "s" if private else "o", markersize=4,
            alpha=0.8, color=PALETTE[0 if private else 1],
            label=f"{'with' if private else 'without'} privacy" if trial["batch"] == batches[0] else None,
        )  # fmt: skip
    axes.axhline(1.0, color=MUTED, linewidth=1.1, linestyle=DASHES)
    axes.set_yscale("log")
    axes.set_ylim(_LEAST_ERROR / 2, None)
    axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
    axes.minorticks_off()
    label_axes(axes, "patients in the step", "error over a constant guess's")
    legend(axes)
    return figure
