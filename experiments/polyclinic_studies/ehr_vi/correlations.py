"""The dissimilarity experiment: which correlation each loss prefers where privacy's noise has inflated the spread.

Su, Wang, Schiavazzi and Liu 2023, Figure 4 (target R9): closed forms beside gradient descent on the loss itself.
"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from polyclinic.experiments import Asked, Findings, Say, Target, markdown
from polyclinic_studies.ehr_vi.dissimilarities import DISSIMILARITIES, best_correlation, descend
from polyclinic_studies.tables import BLUE, GREEN, GREY, ORANGE

RATIOS, CORRELATIONS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0), (0.0, 0.25, 0.5, 0.75)
SHOWN = (1.5, 2.0, 3.0)
#: The best correlations at ``SHOWN``, worked out by hand from the losses, to three digits.
LISTED = {
    ("kl", 0.5): (0.721, 0.830, 0.920), ("reverse-kl", 0.5): (0.757, 0.867, 0.943), ("l1", 0.5): (0.755, 0.862, 0.940),
    ("wasserstein", 0.5): (0.5, 0.5, 0.5), ("reverse-kl", 0.0): (0.333, 0.707, 0.882), ("l1", 0.0): (0.402, 0.683, 0.869),
}  # fmt: skip
WITHIN = 2e-3
COLOURS = {"kl": BLUE, "reverse-kl": ORANGE, "l1": GREY, "wasserstein": GREEN}


def run(asked: Asked, say: Say) -> Findings:
    """The experiment; its short form takes three ratios and two correlations."""
    ratios = SHOWN if asked.quick else RATIOS
    correlations = (0.0, 0.5) if asked.quick else CORRELATIONS
    pairs = [(ratio, rho0) for rho0 in correlations for ratio in ratios]
    columns = torch.tensor(pairs, dtype=torch.float64)
    rows: list[dict[str, Any]] = []
    for name in DISSIMILARITIES:
        found = descend(name, columns[:, 0], columns[:, 1]).tolist()
        closed = [best_correlation(name, *pair) for pair in pairs]
        rows += [
            {"dissimilarity": name, "ratio": ratio, "rho0": rho0, "closed form": exact, "descent": descended}
            for (ratio, rho0), exact, descended in zip(pairs, closed, found, strict=True)
        ]
        say(f"{name}: descent and closed form differ by at most {_difference(rows, name):.1e}")
    differences = {name: _difference(rows, name) for name in DISSIMILARITIES}
    return Findings(
        {"ratios": list(ratios), "correlations": list(correlations)}, _targets(rows, differences),
        {"largest difference": differences, "rows": rows},
        _table(rows, correlations, ratios), {"correlations": _figure(rows, correlations)},
    )  # fmt: skip


def _targets(rows: list[dict[str, Any]], differences: dict[str, float]) -> tuple[Target, ...]:
    """R9: descent ends where the closed form is, and both where the paper's figure has them (its numbers are the loss's own)."""
    found = {(row["dissimilarity"], row["rho0"], row["ratio"]): row for row in rows}

    def target(what: str, paper: str, away: float) -> Target:
        met = away <= WITHIN
        return Target("R9", what, paper, f"{away:.1e}", f"within {WITHIN:g}", met, exact="closed form and its descent")

    made = [
        target(f"{name}: gradient descent from the closed form, largest", "", away)
        for name, away in differences.items()
    ]
    for (name, rho0), listed in LISTED.items():
        away = max(
            abs(found[name, rho0, ratio][kind] - value)
            for ratio, value in zip(SHOWN, listed, strict=True) for kind in ("closed form", "descent")
        )  # fmt: skip
        numbers = ", ".join(f"{value:g}" for value in listed)
        made.append(
            target(f"{name}, target's correlation {rho0:g}, σ/σ0 = 1.5, 2, 3: largest difference", numbers, away)
        )
    return tuple(made)


def _difference(rows: list[dict[str, Any]], name: str) -> float:
    return float(max(abs(row["closed form"] - row["descent"]) for row in rows if row["dissimilarity"] == name))


def _table(rows: list[dict[str, Any]], correlations: tuple[float, ...], ratios: tuple[float, ...]) -> str:
    found = {(row["dissimilarity"], row["rho0"], row["ratio"]): row for row in rows}
    lines = []
    for rho0 in correlations:
        for name in DISSIMILARITIES:
            cells = [found[name, rho0, ratio] for ratio in ratios]
            lines.append([f"{rho0:g}", name, *(f"{c['closed form']:.3f} ({_near(c['descent'])})" for c in cells)])
    header = ["target's correlation", "dissimilarity", *(f"σ/σ0 = {ratio:g}" for ratio in ratios)]
    return (
        markdown(header, lines)
        + "\nThe best correlation in closed form, and in brackets where gradient descent ends.\n"
    )


def _near(value: float) -> str:
    return f"{round(value, 3) + 0.0:.3f}"  # without the sign of a zero


def _figure(rows: list[dict[str, Any]], correlations: tuple[float, ...]) -> Figure:
    figure = Figure(figsize=(2.8 * len(correlations), 3.1), layout="constrained")
    panels = figure.subplots(1, len(correlations), sharey=True, squeeze=False)[0]
    for axis, rho0 in zip(panels, correlations, strict=True):
        ratios = sorted({row["ratio"] for row in rows})
        line = torch.linspace(ratios[0], ratios[-1], 13 if len(ratios) < len(RATIOS) else 41).tolist()
        for name, colour in COLOURS.items():
            axis.plot(line, [best_correlation(name, ratio, rho0) for ratio in line], color=colour, label=name)
            dots = [row for row in rows if row["dissimilarity"] == name and row["rho0"] == rho0]
            axis.plot([d["ratio"] for d in dots], [d["descent"] for d in dots], "o", color=colour, markersize=3.5)
        axis.axhline(rho0, color="#bbbbbb", linestyle=":", zorder=0)
        axis.set(xlabel="σ/σ0", title=f"correlation of the target {rho0:g}", ylim=(-0.05, 1.0))
    panels[0].set_ylabel("best correlation")
    panels[0].legend(frameon=False, fontsize=8, loc="upper left")
    return figure
