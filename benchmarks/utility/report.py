"""The tables, the goals and the plot of a result; all are functions of its JSON alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from benchmarks.utility.splits import TITLES

BEGIN, END = "<!-- benchmarks.utility: begin -->", "<!-- benchmarks.utility: end -->"
Row = Mapping[str, Any]


def goals(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The issue's goals on IST, as gaps to the pooled model, for its AUROCs are of another split and other features.

    The default is within noise of the best where it is behind by at most two standard errors of their paired difference; it
    is compared with methods that ask no more trust than it does, so not with noise that hospitals share.
    """
    found = {(row["method"], row["epsilon"]): row for row in rows if row["dataset"] == "ist"}
    told = []
    for epsilon, most in ((1.0, 0.022), (3.0, 0.004), (10.0, 0.001)):
        for name, where in (("default", ""), ("further", ", further splits")):
            if row := found.get((name, epsilon)):
                what = f"the default to the pooled model, ε = {epsilon:g}{where}"
                told.append(_goal(what, row["gap"], row["gap_error"], most))
    for epsilon in (1.0, 3.0):
        patients = [row for row in found.values() if row["epsilon"] == epsilon and row["unit"] == "patient"]
        private = [row for row in patients if row["method"] != "further"]
        if (default := found.get(("default", epsilon))) is None:
            continue
        best = min(private, key=lambda row: row["gap"])
        if epsilon == 1.0:
            told.append(
                _goal(f"the best ({best['title']}) to the pooled model, ε = 1", best["gap"], best["gap_error"], 0.014)
            )
        best = min((row for row in private if row["method"] != "shared-noise"), key=lambda row: row["gap"])
        behind = [a - b for a, b in zip(best["aurocs"], default["aurocs"], strict=True)]
        error = standard_error(behind)
        told.append(
            _goal(
                f"the default to the best with noise of its own ({best['title']}), ε = {epsilon:g}",
                fmean(behind),
                error,
                2 * (error or 0),
            )
        )
    return told


def _goal(name: str, gap: float, error: float | None, most: float) -> dict[str, Any]:
    return {"goal": name, "gap": gap, "gap_error": error, "most": most, "met": gap <= most}


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean; none of a single value."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def tables(result: Mapping[str, Any]) -> str:
    """GitHub markdown: a table for each dataset, the goals, those on Opacus and on noise, and a sentence on the machine."""
    rows = result["rows"]
    parts = [methods_table(rows, dataset) for dataset in dict.fromkeys(row["dataset"] for row in rows)]
    if result["goals"]:
        parts.append(goals_table(result["goals"]))
    parts += [opacus_table(result["opacus"]), noise_table(result["noise"]), _sentence(result["machine"])]
    return "\n\n".join(parts)


def methods_table(rows: Sequence[Row], dataset: str) -> str:
    """One line a method: AUROC pooled and macro, and the gap to the pooled model, at each epsilon."""
    own = [row for row in rows if row["dataset"] == dataset]
    epsilons = sorted({row["epsilon"] for row in own if row["epsilon"] is not None})
    heads = [f"{what}, ε = {epsilon:g}" for epsilon in epsilons for what in ("AUROC", "gap")]
    lines = [_line([TITLES[dataset], *heads]), _line(["---", *["---:"] * len(heads)])]
    for name in dict.fromkeys(row["method"] for row in own):
        of_method = {row["epsilon"]: row for row in own if row["method"] == name}
        title = next(iter(of_method.values()))["title"]
        shown = [of_method.get(epsilon, of_method.get(None)) for epsilon in epsilons]
        lines.append(_line([title, *(cell for row in shown for cell in _cells(row))]))
    return "\n".join(lines)


def _cells(row: Row | None) -> tuple[str, str]:
    if row is None:
        return "", ""
    return f"{row['auroc']:.3f} / {row['macro']:.3f}", _with_error(row["gap"], row["gap_error"])


def goals_table(found: Iterable[Row]) -> str:
    """What was to be reached, and whether it was."""
    lines = [_line(["gap in AUROC of", "wanted", "measured", "met"]), _line(["---", "---:", "---:", "---"])]
    lines += [
        _line([goal["goal"], f"≤ {goal['most']:.3f}", _with_error(goal["gap"], goal["gap_error"]),
               "yes" if goal["met"] else "no"])
        for goal in found
    ]  # fmt: skip
    return "\n".join(lines)


def opacus_table(found: Iterable[Row]) -> str:
    """Opacus as a user writes it, and our default at its true epsilon."""
    heads = ["noise multiplier", "batches", "ε it tells", "true ε", "its AUROC", "our AUROC", "difference"]
    lines = [_line(heads), _line(["---:", "---", *["---:"] * 5])]
    lines += [
        _line([f"{row['noise_multiplier']:g}", "Poisson" if row["poisson"] else "shuffled",
               f"{row['claimed_epsilon']:.2f}", f"{row['true_epsilon']:.2f}", f"{row['theirs_auroc']:.3f}",
               f"{row['ours_auroc']:.3f}", _with_error(row["won"], row["won_error"])])
        for row in found
    ]  # fmt: skip
    return "\n".join(lines)


def noise_table(found: Sequence[Row]) -> str:
    """Noise of a run's mean gradient in multiples of full batches' noise."""
    heads = [name for name in found[0] if name not in ("batches", "passes")]
    named = [
        f"Poisson, ε = {head.removeprefix('poisson ')}" if head.startswith("poisson") else f"`{head}`" for head in heads
    ]
    lines = [_line(["batches", "passes", *named]), _line(["---:"] * (2 + len(heads)))]
    lines += [
        _line([str(row["batches"]), str(row["passes"]), *(f"{row[head]:.2f}" for head in heads)]) for row in found
    ]
    return "\n".join(lines)


def write_section(path: Path, result: Mapping[str, Any]) -> None:
    """Put the tables between the two marks of ``path``, which must hold them."""
    before, rest = path.read_text(encoding="utf-8").split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    path.write_text(f"{before}{BEGIN}\n{tables(result)}\n{END}{after}", encoding="utf-8")


def write_plot(path: Path, result: Mapping[str, Any], dataset: str = "ist") -> None:
    """A dot a method and epsilon with its standard error, the best method on top, and the pooled model as a line."""
    from matplotlib.figure import Figure

    from polyclinic.evaluation.figures.canvas import FAINT, GRID, INK, MUTED, PALETTE, to_svg

    own = [row for row in result["rows"] if row["dataset"] == dataset]
    private = [row for row in own if row["epsilon"] is not None]
    least = min(row["epsilon"] for row in private)
    order = sorted((row for row in private if row["epsilon"] == least), key=lambda row: -row["gap"])
    places = {row["method"]: place for place, row in enumerate(order)}
    figure = Figure(figsize=(7.6, 0.3 * len(order) + 1.5), facecolor="white")
    axes = figure.add_axes((0.34, 0.11, 0.63, 0.74))
    figure.text(
        0.012, 0.955, f"What privacy costs: {TITLES[dataset]}", fontsize=12, fontweight="bold", color=INK, va="center"
    )
    caption = (
        "AUROC missing to a model of all patients without privacy; bars are standard errors over splits and noise."
    )
    figure.text(0.012, 0.9, caption, fontsize=9, color=MUTED, va="center")
    for colour, epsilon in zip(PALETTE, sorted({row["epsilon"] for row in private}), strict=False):
        shown = [row for row in private if row["epsilon"] == epsilon]
        axes.errorbar(
            [row["gap"] for row in shown], [places[row["method"]] for row in shown],
            xerr=[row["gap_error"] or 0.0 for row in shown], fmt="o", color=colour, markersize=5, linewidth=1.2,
            label=f"ε = {epsilon:g}",
        )  # fmt: skip
    axes.axvline(0.0, color=MUTED, linewidth=1.1, linestyle=(0, (5, 4)))
    axes.set_yticks(range(len(order)), [row["title"].replace("`", "") for row in order], fontsize=9, color=INK)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(colors=MUTED, labelsize=9, length=0)
    axes.legend(frameon=False, fontsize=9, loc="upper right", labelcolor=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_svg(figure), encoding="utf-8")


def _with_error(value: float, error: float | None) -> str:
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _sentence(machine: Mapping[str, Any]) -> str:
    return (
        f"Measured {machine['date']} at commit {machine['commit']} by `python -m benchmarks.utility` on {machine['cpu']}, "
        f"{machine['cores']} cores, Python {machine['python']}, torch {machine['torch']}, opacus {machine['opacus']}."
    )
