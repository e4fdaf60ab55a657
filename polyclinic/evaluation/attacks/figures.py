"""Figures of attacks: what each gains over its baseline, and how far records made of gradients are from the real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from polyclinic.evaluation.plots import GRID, INK, LABEL_POINTS, MUTED, PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Found = Mapping[str, Any]
_LEAST_ERROR, _LONGEST = 1e-4, 38
_WITH, _WITHOUT = PALETTE[0], PALETTE[1]


def gains(found: Found) -> list[tuple[str, Found]]:
    """What each attack gains over its baseline, by name, as intervals: 0 is nothing, 1 all. Undefined ones are left out."""
    rows = [(f"who took part: {one['attack']}", one["advantage"]) for one in found["membership"]]
    rows += [(f"secret column: {one['column']}", one["excess"]) for one in found["attributes"]]
    for one in found["identification"]:
        rows.append((f"{one['name']}: {one['column']}" if one["column"] else one["name"], one["risk"]))
    return [(name, value) for name, value in rows if value["value"] is not None]


def plot_gains(found: Found) -> Figure:
    """One row an attack, its gain with the 95 % interval; dashed the most that epsilon allows a guess of membership."""
    from matplotlib.figure import Figure

    rows = gains(found)
    figure = Figure(figsize=(7.5, 1.25 + 0.24 * len(rows)), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    for place, (_, value) in enumerate(rows):
        axes.plot([value["low"], value["high"]], [place, place], color=PALETTE[0], linewidth=1.6)
        axes.plot(value["value"], place, "o", color=INK, markersize=4.5)
    axes.axvline(0.0, color=MUTED, linewidth=0.9)
    allowed = (found.get("allowed") or {}).get("advantage")
    if allowed is not None:
        who = len(found["membership"])
        axes.plot([allowed, allowed], [-0.5, who - 0.5], color=PALETTE[3], linewidth=1.4, linestyle="--")
        axes.annotate(
            f"epsilon allows {allowed:.2f}", (allowed, -0.5), xytext=(0, 3), textcoords="offset points",
            ha="right" if allowed > 0.5 else "left", fontsize=LABEL_POINTS, color=PALETTE[3], annotation_clip=False,
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [_label(name) for name, _ in rows], fontsize=LABEL_POINTS)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(
        "Gain over patients who did not take part: 0 learns nothing, 1 all", fontsize=LABEL_POINTS, color=MUTED
    )
    _plain(axes)
    axes.set_title("Attacks, 95 % intervals", loc="left", fontsize=LABEL_POINTS + 2, color=INK, pad=16)
    return figure


def plot_gradients(found: Sequence[Found]) -> Figure:
    """A dot a record, by how many patients were in the step: its reconstruction's error over that of the best constant guess.

    Errors of 1e-4 and less are drawn there: the record itself.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.4), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    batches = sorted({one["batch"] for one in found})
    for one in found:
        errors = np.sort(np.maximum(one["error"], _LEAST_ERROR))
        spread = np.linspace(-0.13, 0.13, len(errors)) if len(errors) > 1 else np.zeros(1)
        at = batches.index(one["batch"]) + (0.2 if one["private"] else -0.2)
        axes.plot(
            at + spread, errors, "s" if one["private"] else "o", markersize=4, alpha=0.8, linewidth=0,
            color=_WITH if one["private"] else _WITHOUT,
            label=("with privacy" if one["private"] else "without privacy") if one["batch"] == batches[0] else None,
        )  # fmt: skip
    axes.axhline(1.0, color=MUTED, linewidth=0.9, linestyle="--")
    axes.annotate(
        "best constant guess", (1.0, 1.0), xycoords=("axes fraction", "data"), xytext=(0, -4), textcoords="offset points",
        ha="right", va="top", fontsize=LABEL_POINTS, color=MUTED,
    )  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylim(_LEAST_ERROR / 2, None)
    axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
    axes.set_xlabel("Patients in the step", fontsize=LABEL_POINTS, color=MUTED)
    axes.set_ylabel("Error over a constant guess's", fontsize=LABEL_POINTS, color=MUTED)
    axes.legend(frameon=False, fontsize=LABEL_POINTS, loc="lower right", ncols=2, bbox_to_anchor=(1.0, 1.0))
    _plain(axes, "y")
    axes.minorticks_off()
    axes.set_title("Records made of one step's gradient", loc="left", fontsize=LABEL_POINTS + 2, color=INK)
    return figure


def _label(name: str) -> str:
    plain = name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"
    return plain.replace("$", r"\$")


def _plain(axes: Axes, grid: str = "x") -> None:
    axes.grid(axis="x" if grid == "x" else "y", color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(labelsize=LABEL_POINTS, colors=INK, length=0)
