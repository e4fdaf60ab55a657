"""Two parameters of CVSim-6 from SIMULATED patients: given private synthetic patients, given private gradients and sums over
hospitals, and losses that keep correlations.

Su, Wang, Schiavazzi and Liu 2023: Table 5's protocol on the resistance that the paper names (r_ro) and on the one that its code
varies (r_ri); their Algorithm 2 on the same two parameters; and the loss that they ask for.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from polyclinic.experiments import Asked, Findings, Say, Target
from polyclinic_studies.ehr_vi import losses, population, table5
from polyclinic_studies.parts import Parts
from polyclinic_studies.tables import BLUE, GREEN, GREY, ORANGE

PAPER, CODE, KNOWN = "r_ro (the paper's)", "r_ri (its code's)", "r_ri, others known"
Found = dict[str, Any]


def run(asked: Asked, say: Say) -> Findings:
    """``seeds``: of Gauss-Newton in the second part, 5 by default. ``quick``: few steps, releases and sets."""
    begun, seeds = time.monotonic(), asked.seeds or 5
    parts = Parts(asked.out, say)
    found = {
        "table 5": table5.study(parts, asked.quick, say),
        "population": population.study(parts, asked.quick, seeds, say),
        "losses": losses.study(parts, asked.quick, say),
    }
    say(f"all parts: {time.monotonic() - begun:.0f} s")
    config = {"table-5": table5.settings(asked.quick), "population": population.settings(asked.quick, seeds),
              "losses": losses.settings(asked.quick)}  # fmt: skip
    text = "\n".join([
        "## Given synthetic patients (Table 5)\n", table5.tables(found["table 5"]),
        "## Given 3,000 patients of three hospitals\n", population.tables(found["population"]),
        "## Losses at a spread that is too wide\n", losses.tables(found["losses"]),
    ])  # fmt: skip
    figures = {"table-5": _synthetic(found["table 5"]), "population": _population(found["population"]),
               "losses": _losses(found["losses"])}  # fmt: skip
    return Findings(config, _targets(found), found, text, figures)


def _targets(found: Found) -> tuple[Target, ...]:
    def target(what: str, paper: str, measured: str, goal: str, met: bool | None, seeds: int = 1) -> Target:
        return Target("own", what, paper, measured, goal, None if met is None else bool(met), seeds)

    cases = found["table 5"]["cases"]
    worst = max(max(case["errors"]) for case in (*cases.values(), *found["population"].values()))
    made = [target("surrogates: largest error at 200 new points, of the range", "", f"{worst:.2%}", "at most 1 %",
                   worst <= 0.01)]  # fmt: skip
    for name, case in cases.items():
        row = _original(case, "its own")
        away = abs(np.subtract(row["flow"]["mean"], row["exact"]["mean"]) / row["exact"]["deviations"]).max()
        made.append(target(f"{name}: flow given the patients, from the exact mean, in SDs", "", f"{away:.3f}", "at most .1",
                           away <= 0.1))  # fmt: skip
    paper = _original(cases[PAPER], "its own")["exact"]["deviations"][0] / cases[PAPER]["prior"]["deviations"][0]
    made.append(target(f"{PAPER}: posterior SD of R over the prior's", "", f"{paper:.2f}", "", None))
    for name in (CODE, KNOWN):
        exact, truth = _original(cases[name], "its own")["exact"], cases[name]["truth"]
        away = abs(np.subtract(exact["mean"], truth) / exact["deviations"])
        goal, met = ("at most 2", away.max() <= 2) if name == KNOWN else ("", None)
        made.append(target(f"{name}: given the patients, distance from the truth, in SDs: R, C_a", "",
                           ", ".join(f"{value:.1f}" for value in away), goal, met))  # fmt: skip
    for row in table5.summaries(cases[CODE]):
        if row["mu"] and row["mean"]:
            shares = row["covers patients"]
            made.append(target(
                f"{CODE}, {row['generator']}, μ = {row['mu']:g}, SD {row['spread']}: releases whose interval of 2 SD holds the "
                "patients' mean: R, C_a", "", ", ".join(f"{share:.0%}" for share in shares),
                "at least 95 %", min(shares) >= 0.95, row["releases"],
            ))  # fmt: skip
    return (*made, *_of_population(found["population"], target), *_of_losses(found["losses"], target))


def _of_population(found: Found, target: Any) -> list[Target]:
    made = []
    for name, case in found.items():
        exact = case["rows"][0]["correlation"]
        for method, epsilon in dict.fromkeys((row["method"], row["epsilon"]) for row in case["rows"]):
            if epsilon is None or method not in ("Gauss-Newton", "Algorithm 2"):
                continue
            rows, ours = population.of(case["rows"], method, epsilon), method == "Gauss-Newton"
            inflation = np.mean([row["inflation"] for row in rows], 0)
            change = float(np.mean([abs(row["correlation"] - exact) for row in rows]))
            for what, paper, measured, goal, met in (
                ("SD over the exact one: R, C_a", "5 to 10", ", ".join(f"{value:.2f}" for value in inflation), ".9 to 2",
                 0.9 <= inflation.min() <= inflation.max() <= 2),
                ("difference of the correlation, mean over seeds", "up to .6", f"{change:.3f}", "at most .1", change <= 0.1),
            ):  # fmt: skip
                words = f"{name}: {method}, ε = {epsilon:g}: {what}"
                made.append(target(words, paper, measured, goal if ours else "", met if ours else None, len(rows)))
        for one in case["coverage"]:
            if one["epsilon"] is not None:
                shares = one["coverage"] or [0.0, 0.0]
                sets = f"{one['results']} of {one['sets']} sets"
                words = f"{name}: Gauss-Newton, ε = {one['epsilon']:g}: coverage of 95 %, {sets}: R, C_a"
                measured = ", ".join(f"{share:.1%}" for share in shares)
                made.append(target(words, "", measured, "at least 90 % each", min(shares) >= 0.9, one["sets"]))
    return made


def _of_losses(found: Found, target: Any) -> list[Target]:
    rows = {row["method"]: row for row in found["regression"]}
    exact = rows["maximum likelihood"]["correlations"][losses.PAIR]
    made = []
    for method, row in list(rows.items())[2:]:
        keeps = "asserstein" in method
        made.append(target(
            f"regression at ε = {losses.EPSILON:g}, {method}: β0 with β3 (exact {exact:.3f}), largest difference of any",
            "-.86 to -.91" if method == "Algorithm 2" else "",
            f"{row['correlations'][losses.PAIR]:.3f}, {row['correlation difference']:.3f}", "within .03" if keeps else "",
            row["correlation difference"] <= 0.03 if keeps else None,
        ))  # fmt: skip
    for row in found["gaussian"]:
        away = abs(row["flow"] - row["closed form"])
        made.append(target(f"flow at {row['ratio']:g} times the spread, {row['loss']}: correlation (target {losses.RHO0:g})",
                           f"{row['closed form']:.3f}", f"{row['flow']:.3f}", "within .03", away <= 0.03))  # fmt: skip
    return made


def _original(case: Found, spread: str) -> Found:
    found: Found = next(row for row in case["rows"] if not row["generator"] and row["spread"] == spread)
    return found


def _synthetic(found: Found) -> Figure:
    """R and C_a of every release, by mu."""
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    case = found["cases"][CODE]
    mus = list(dict.fromkeys(row["mu"] for row in case["rows"] if row["generator"]))
    for row, axes in zip(table5.SPREADS, figure.subplots(2, 2), strict=True):
        original = _original(case, row)["exact"]
        for place, (axis, name) in enumerate(zip(axes, ("R, dyn s/cm⁵", "C_a, 1e-4 cm⁵/dyn"), strict=True)):
            mean, deviation = original["mean"][place], original["deviations"][place]
            axis.axhspan(mean - 2 * deviation, mean + 2 * deviation, color=GREY, alpha=0.3, label="the patients")
            axis.axhline(case["truth"][place], color=GREEN, linestyle=":", label="truth")
            for generator, colour, shift in (("moments", BLUE, -0.2), ("maf", ORANGE, 0.2)):
                for one in (
                    r for r in case["rows"] if r["generator"] == generator and r["spread"] == row and r["exact"]
                ):
                    at = mus.index(one["mu"]) + shift + 0.012 * (one["release"] - 5)
                    exact = one["exact"]
                    axis.errorbar(
                        at, exact["mean"][place], 2 * exact["deviations"][place], fmt="o", markersize=2, linewidth=0.7,
                        color=colour, label=generator if (one["mu"], one["release"]) == (mus[0], 0) else None,
                    )  # fmt: skip
            axis.set(title=f"{name}; SD: {row}", xlabel="μ")
            axis.set_xticks(range(len(mus)), [f"{mu:g}" if mu else "∞" for mu in mus])
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def _population(found: Found) -> Figure:
    """One, two standard deviations of each posterior as an ellipse, first seed."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    angle = np.linspace(0, 2 * np.pi, 100)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    colours = {"exact, by CVSim-6": GREY, "Gauss-Newton": BLUE, "Algorithm 2": ORANGE}
    for axis, (name, case) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        for row in case["rows"]:
            if row["method"] not in colours or row["seed"]:
                continue
            spread, rho = np.array(row["deviations"]), row["correlation"]
            root = np.array([[1, 0], [rho, np.sqrt(1 - rho**2)]])
            x, y = np.array(row["mean"])[:, None] + 2 * spread[:, None] * (root @ circle)
            label = row["method"] if row["epsilon"] in (None, 5.0) else None
            axis.plot(x, y, color=colours[row["method"]], linewidth=0.9, label=label)
        axis.plot(*case["truth"], "+", color=GREEN, label="truth")
        axis.set(title=name, xlabel="R, dyn s/cm⁵", ylabel="C_a, 1e-4 cm⁵/dyn")
    axis.legend(frameon=False, fontsize=7)
    return figure


def _losses(found: Found) -> Figure:
    """The correlations of the regression by loss."""
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axis = figure.subplots()
    names = ["01", "02", "03", "04", "12", "13", "14", "23", "24", "34"]
    marks = "osD^v<>*"
    for mark, row in zip(marks, found["regression"], strict=False):
        axis.plot(names, row["correlations"], mark, markersize=5, alpha=0.8, label=row["method"])
    axis.axhline(0, color=GREY, linewidth=0.5)
    axis.set(xlabel="pair of β", ylabel="correlation")
    axis.legend(frameon=False, fontsize=6, loc="upper left", bbox_to_anchor=(1, 1))
    return figure
