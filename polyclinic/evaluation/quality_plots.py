"""Figures of ``quality.json``: columns, correlations with their difference, trajectories by arm, codes, and transfer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from polyclinic.evaluation.plots import FAINT, GRID, INK, MUTED, PALETTE, _short
from polyclinic.evaluation.synthetic.codes import Probabilities
from polyclinic.evaluation.synthetic.resampling import Interval
from polyclinic.evaluation.synthetic.transfer import CLASSIFIERS, Judged
from polyclinic.evaluation.synthetic_plots import plot_correlations, plot_courses, plot_probabilities, plot_transfer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HELD_OUT = "held-out patients"
SYNTHETIC = "synthetic patients"
TRAINING = "training patients"
IN_A_ROW, MOST_NAMED = 4, 6
Found = Mapping[str, Any]


def quality_figures(found: Found) -> dict[str, Figure]:
    """By name what is drawn of ``quality.json``: ``columns``, ``correlations``, ``trajectory-1`` and ``codes-1``."""
    if not found or found["undefined"]:
        return {}
    drawn = found["pictures"]
    figures = {}
    if drawn["columns"]:
        figures["columns"] = plot_columns(drawn["columns"])
    if matrices := drawn["correlations"]:
        real, synthetic = _numbers(matrices["held_out"]), _numbers(matrices["synthetic"])
        shown = {HELD_OUT: real, SYNTHETIC: synthetic, "difference": synthetic - real}
        figures["correlations"] = plot_correlations(shown, matrices["columns"])
    for number, measure in enumerate((drawn["trajectories"] or {"measures": ()})["measures"], start=1):
        if (figure := _trajectory(measure, drawn["trajectories"]["by"])) is not None:
            figures[f"trajectory-{number}"] = figure
    for number, name in enumerate(found["tables"]["synthetic"]["codes"], start=1):
        shares = {title: _shares(found["tables"][key]["codes"][name]) for key, title in
                  (("synthetic", SYNTHETIC), ("training", TRAINING))}  # fmt: skip
        figures[f"codes-{number}"] = plot_probabilities(
            shares, found["rows"]["held_out"], f"{_short(name)}: held-out patients (real) against others"
        )
    return figures


def transfer_figures(found: Found) -> dict[str, Figure]:
    """``transfer``, where classifiers were asked."""
    if not found or found["undefined"] or not found["transfer"]:
        return {}
    return {"transfer": plot_transfer(judged_of(found["transfer"]), "auroc")}


def plot_columns(drawn: Sequence[Found]) -> Figure:
    """Shares by value of a few columns, held-out patients filled and synthetic ones as a line or beside them."""
    from matplotlib.figure import Figure

    rows = -(-len(drawn) // IN_A_ROW)
    height = 0.95 + 1.85 * rows
    figure = Figure(figsize=(9.2, height), facecolor="white")
    figure.text(
        0.012, 1 - 0.17 / height, "Columns that are least alike", fontsize=12, fontweight="bold", color=INK, va="center"
    )
    caption = "Share of patients by value. Grey: held-out patients; coloured: synthetic ones. 1 is alike."
    figure.text(0.012, 1 - 0.42 / height, caption, fontsize=9, color=MUTED, va="center")
    for place, one in enumerate(drawn):
        left, top = 0.15 + (place % IN_A_ROW) * 2.27, 0.95 + (place // IN_A_ROW) * 1.85
        axes = figure.add_axes((left / 9.2, 1 - (top + 1.15) / height, 1.98 / 9.2, 1.15 / height))
        axes.set_title(
            f"{_short(one['column'])}  {one['likeness']:.2f}", fontsize=9, color=INK, loc="left", parse_math=False
        )
        _histogram(axes, one)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(FAINT)
        axes.tick_params(colors=MUTED, labelsize=7.5, length=2, color=FAINT, labelleft=False, left=False)
        axes.grid(axis="x", color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
    return figure


def _histogram(axes: Axes, one: Found) -> None:
    if "edges" in one:
        axes.stairs(one["held_out"], one["edges"], fill=True, color=FAINT)
        axes.stairs(one["synthetic"], one["edges"], color=PALETTE[0], linewidth=1.6)
        return
    places = np.arange(len(one["categories"]))
    axes.bar(places - 0.2, one["held_out"], 0.38, color=FAINT)
    axes.bar(places + 0.2, one["synthetic"], 0.38, color=PALETTE[0])
    every = -(-len(places) // MOST_NAMED)
    longest = max(3, 20 // min(len(places), MOST_NAMED))
    names = [name if len(name) <= longest else f"{name[: longest - 1]}…" for name in one["categories"]]
    axes.set_xticks(places[::every], [name.replace("$", r"\$") for name in names[::every]])


def judged_of(told: Found) -> dict[str, dict[str, Judged]]:
    """What ``transfer`` gave, from its JSON."""
    short = {name: kind for kind, name in CLASSIFIERS.items()}
    return {
        table: {
            short[name]: Judged(
                {metric: Interval(**one) for metric, one in judged["scores"].items()},
                {metric: Interval(**one) for metric, one in judged["minus_real"].items()},
                judged["importance"],
            )
            for name, judged in by_name.items()
        }
        for table, by_name in told.items()
    }


def _trajectory(measure: Found, by: str) -> Figure | None:
    titles = {"held-out": HELD_OUT, "synthetic": SYNTHETIC}
    courses = {
        titles[table]: {f"{by} {arm}": _numbers(course) for arm, course in arms.items()}
        for table, arms in measure["tables"].items()
    }
    parts = [course for arms in courses.values() for course in arms.values()]
    if not np.isfinite(np.concatenate([part.ravel() for part in parts])).any():
        return None
    unit = f", {measure['unit']}" if measure["unit"] else ""
    return plot_courses(courses, list(range(1, parts[0].shape[1] + 1)), f"{measure['name']}{unit}", panel=3.9)


def _shares(one: Found) -> Probabilities:
    return Probabilities(np.array(one["real"]), np.array(one["other"]), one["rmse"], one["largest"], one["r2"])


def _numbers(table: Sequence[Sequence[float | None]]) -> NDArray[np.float64]:
    return np.array([[np.nan if cell is None else cell for cell in row] for row in table], dtype=np.float64)
