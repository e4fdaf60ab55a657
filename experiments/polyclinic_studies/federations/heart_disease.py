"""Heart disease at four hospitals, FLamby's 740 rows: what a measured scale gains and what epsilon costs.

Trained without privacy (with features on a public scale and on a measured one) and at epsilon 1, 3 and 10 per hospital.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from polyclinic.ehr.datasets import load_shards
from polyclinic.experiments import Asked, Findings, Say, Target, markdown
from polyclinic.inspection.result import RunResult
from polyclinic.plugins import dataset_named
from polyclinic_studies.parts import Parts
from polyclinic_studies.tables import estimate, margin, spread

SEEDS = 12
EPSILONS = (1.0, 3.0, 10.0)
GOALS = {"auroc": 0.87, "accuracy": 0.79}
# Pooled logistic regression and FLamby's FedAvg, as the design's measurements and FLamby's paper give them.
REFERENCES = {"pooled logistic regression": {"auroc": 0.881, "accuracy": 0.795}, "FLamby FedAvg": {"accuracy": 0.748}}


def run(asked: Asked, say: Say) -> Findings:
    """The experiment; its short form trains three rounds with one seed."""
    seeds = range(asked.seeds or (1 if asked.quick else SEEDS))
    common: dict[str, Any] = {"dataset": "heart-disease", "privacy.delta": 1e-3} | (
        {"rounds": 3} if asked.quick else {}
    )
    ways: dict[str, dict[str, Any]] = {"no DP": {"privacy.dp": False}}
    ways |= {f"ε = {epsilon:g}": {"privacy.epsilon": epsilon} for epsilon in EPSILONS}
    parts = Parts(asked.out, say)
    rows = {
        name: [_row(seed, parts.run(f"{name}-{seed}", common | way | {"seed": seed})) for seed in seeds]
        for name, way in ways.items()
    }
    tables = f"{table(rows)}\n{site_table(rows, site_floors())}"
    config = {**common, "seeds": len(seeds), "ways": ways}
    return Findings(config, targets(rows), {"references": REFERENCES, "rows": rows}, tables, {"curve": curve(rows)})


def targets(rows: dict[str, list[dict[str, Any]]]) -> tuple[Target, ...]:
    """The goal that was set without privacy, and whether it is reached with privacy too."""
    made = []
    for name, runs in rows.items():
        for measure, published in GOALS.items():
            values = [run[measure] for run in runs]
            made.append(Target(
                "own", f"{name}: pooled {measure}", f"{REFERENCES['pooled logistic regression'][measure]}", estimate(values),
                f">= {published}", fmean(values) >= published, len(values), margin=margin(values, published), by=name,
            ))  # fmt: skip
    return tuple(made)


def _row(seed: int, result: RunResult) -> dict[str, Any]:
    summary = result.summary
    pooled = summary["metrics"]["pooled"]
    found = {"seed": seed, "auroc": pooled["auroc"], "accuracy": pooled["accuracy"], "floor": summary["floor"]["accuracy"],
             "epsilon": summary["privacy"]["epsilon"]}  # fmt: skip
    return found | {"sites": {name: site["accuracy"] for name, site in summary["metrics"]["sites"].items()}}


def table(rows: dict[str, list[dict[str, Any]]]) -> str:
    """Mean and standard deviation over the seeds, in Markdown."""
    lines = []
    for name, runs in rows.items():
        under = sum(run["accuracy"] < run["floor"] for run in runs)
        lines.append([
            name,
            spread([run["auroc"] for run in runs]),
            spread([run["accuracy"] for run in runs]),
            f"{runs[0]['floor']:.3f}",
            f"{under} of {len(runs)}",
        ])  # fmt: skip
    return markdown(["training", "pooled AUROC", "pooled accuracy", "majority floor", "seeds under the floor"], lines)


def site_floors() -> dict[str, float]:
    """Accuracy at each hospital of always giving the commoner answer of its held-out patients."""
    shards = load_shards(dataset_named("heart-disease"), 0, "natural", 0, 1.0)
    return {shard.site: float(np.bincount(shard.test.y).max() / len(shard.test.y)) for shard in shards}


def site_table(rows: dict[str, list[dict[str, Any]]], floors: dict[str, float]) -> str:
    """Each hospital's mean accuracy against its own majority class; what lies under it is marked."""
    lines = []
    for site, floor in floors.items():
        means = [fmean(run["sites"][site] for run in runs) for runs in rows.values()]
        lines.append([site, f"{floor:.3f}", *(f"{mean:.3f}" + (" (under)" if mean < floor else "") for mean in means)])
    return markdown(["hospital", "majority floor", *rows], lines)


def curve(rows: dict[str, list[dict[str, Any]]]) -> Figure:
    """AUROC and accuracy over epsilon, each seed a dot, with the floor and the level without privacy drawn in."""
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    for axis, name, floor in zip(
        figure.subplots(1, 2), ("auroc", "accuracy"), (0.5, rows["no DP"][0]["floor"]), strict=True
    ):
        for epsilon in EPSILONS:
            values = [run[name] for run in rows[f"ε = {epsilon:g}"]]
            axis.plot([epsilon] * len(values), values, "o", color="#0072B2", alpha=0.45)
        axis.plot(
            EPSILONS,
            [fmean(run[name] for run in rows[f"ε = {e:g}"]) for e in EPSILONS],
            color="#0072B2",
            label=f"mean of {len(rows['no DP'])} seeds",
        )
        axis.axhline(fmean(run[name] for run in rows["no DP"]), color="#009E73", linestyle="--", label="no DP")
        axis.axhline(floor, color="#555555", linestyle=":", label="chance" if name == "auroc" else "majority class")
        axis.set(
            xscale="log",
            xlabel="ε per hospital (δ = 0.001)",
            ylabel=f"pooled {name.replace('auroc', 'AUROC')}",
            ylim=(0.45, 0.95),
        )
        axis.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
        axis.legend(frameon=False, loc="center right", bbox_to_anchor=(1.0, 0.35), fontsize=8)
    return figure
