"""Figures of several runs beside each other: what privacy costs in utility, and how each run went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polyclinic.evaluation.plots import INK, MUTED, PALETTE, Line, _draw, _short, spread
from polyclinic.evaluation.utility_plots import _axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.floating]
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


@dataclass(frozen=True)
class Point:
    """One run: its epsilon (None without privacy), the metric with its interval, and the kind of run it is of."""

    kind: str
    epsilon: float | None
    value: float
    low: float | None = None
    high: float | None = None


def plot_privacy_utility(points: Sequence[Point], name: str) -> Figure:
    """A metric over epsilon (logarithmic) with intervals, a colour a kind of run; without privacy at the right end.

    Runs of one kind are joined through their mean at each epsilon.  points: at least one.
    """
    figure, axes = _axes(
        f"{name} over privacy spent", "Bars: 95 % intervals of each run's held-out patients.", 4.2, 0.74
    )
    spent = [point.epsilon for point in points if point.epsilon]
    low, high = min(spent, default=1.0), max(spent, default=1.0)
    far = high * max((high / low) ** 0.25, 1.6)
    kinds = list(dict.fromkeys(point.kind for point in points))
    ends: list[tuple[str, float, str]] = []
    for number, kind in enumerate(kinds):
        colour, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
        own = sorted((p for p in points if p.kind == kind), key=lambda p: p.epsilon or np.inf)
        shift = (far / low) ** (0.008 * (number - (len(kinds) - 1) / 2))
        x = np.array([(point.epsilon or far) * shift for point in own])
        y = np.array([point.value for point in own])
        for at, point in zip(x, own, strict=True):
            if point.low is not None and point.high is not None:
                axes.vlines(at, point.low, point.high, color=colour, linewidth=1.2, alpha=0.7)
        axes.scatter(x, y, s=26, color=colour, marker=marker, linewidths=0, zorder=3)
        places = np.unique(x)
        axes.plot(places, [y[x == place].mean() for place in places], color=colour, linewidth=1.4)
        ends.append((kind, float(y[x == x.max()].mean()), colour))
    axes.set_xscale("log")
    ticks = sorted(set(spent))
    ticks = ticks if len(ticks) <= 8 else list(np.geomspace(low, high, 6))
    labels = [f"{tick:.3g}" for tick in ticks]
    if any(point.epsilon is None for point in points):
        axes.axvline(far / max((high / low) ** 0.125, 1.25), color=MUTED, linewidth=0.8, linestyle=(0, (1, 3)))
        ticks, labels = [*ticks, far], [*labels, "no privacy"]
    axes.set_xticks(ticks, labels)
    axes.minorticks_off()
    axes.set_xlim(low / 1.25, (far if len(labels) > len(set(spent)) or len(spent) < len(points) else high) * 1.25)
    axes.set_xlabel("epsilon", color=MUTED, fontsize=9)
    bottom, top = axes.get_ylim()
    heights = [(value - bottom) / (top - bottom) for _, value, _ in ends]
    for (kind, _, colour), place in zip(ends, spread(heights, 0.07, 0.0, 1.0), strict=True):
        axes.annotate("—", (1.03, place), xycoords="axes fraction", color=colour, fontsize=11, fontweight="bold",
                      annotation_clip=False, va="center")  # fmt: skip
        axes.annotate(_short(kind), (1.08, place), xycoords="axes fraction", color=INK, fontsize=9,
                      annotation_clip=False, va="center", parse_math=False)  # fmt: skip
    return figure


def plot_courses(courses: Mapping[str, tuple[Floats, Floats]], name: str) -> Figure:
    """A metric, pooled, over the rounds of each run: rounds and values, both (m,) and finite."""
    lines = [
        Line(run, x, y, PALETTE[i % len(PALETTE)], width=1.8, dashed=i >= len(PALETTE))
        for i, (run, (x, y)) in enumerate(courses.items())
    ]
    return _draw(lines, f"{name} on held-out patients", "Pooled over hospitals, by round.")
