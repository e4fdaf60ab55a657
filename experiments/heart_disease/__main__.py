"""Heart disease at four hospitals, FLamby's 740 rows: what a measured scale gains and what epsilon costs.

``python -m experiments.heart_disease`` trains without privacy (with features on a public scale and on a measured one) and at
epsilon 1, 3 and 10 per hospital, over five seeds, and writes results.json, table.md and curve.svg beside this file.
"""

from __future__ import annotations

import json
import platform
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from polyclinic import Federation
from polyclinic.ehr.datasets import load_shards
from polyclinic.plugins import dataset_named
from polyclinic.versions import recorded_versions

HERE = Path(__file__).parent
SEEDS = range(5)
EPSILONS = (1.0, 3.0, 10.0)
# Pooled logistic regression and FLamby's FedAvg, as the design's measurements and FLamby's paper give them.
REFERENCES = {"pooled logistic regression": {"auroc": 0.881, "accuracy": 0.795}, "FLamby FedAvg": {"accuracy": 0.748}}


def main() -> None:
    with tempfile.TemporaryDirectory() as out:
        hospitals = Federation.from_dataset("heart-disease", out=out, delta=1e-3)
        rows = {"no DP": [_one(hospitals, seed, dp=False) for seed in SEEDS]}
        rows["no DP, measured scale"] = [_one(hospitals, seed, dp=False, standardise="measured") for seed in SEEDS]
        for epsilon in EPSILONS:
            rows[f"ε = {epsilon:g}"] = [_one(hospitals, seed, epsilon=epsilon) for seed in SEEDS]
    results = {"machine": platform.platform(), "versions": recorded_versions(), "settings": hospitals.config.flat() | {"out": ""},
               "references": REFERENCES, "rows": rows}  # fmt: skip
    (HERE / "results.json").write_text(json.dumps(results, indent=2, ensure_ascii=False), encoding="utf-8")
    (HERE / "table.md").write_text(table(rows) + "\n" + site_table(rows, site_floors()), encoding="utf-8")
    curve(rows).savefig(HERE / "curve.svg", metadata={"Date": None})


def _one(hospitals: Federation, seed: int, **options: Any) -> dict[str, Any]:
    summary = hospitals.run(seed=seed, **options).summary
    pooled = summary["metrics"]["pooled"]
    found = {"seed": seed, "auroc": pooled["auroc"], "accuracy": pooled["accuracy"], "floor": summary["floor"]["accuracy"],
             "epsilon": summary["privacy"]["epsilon"]}  # fmt: skip
    return found | {"sites": {name: site["accuracy"] for name, site in summary["metrics"]["sites"].items()}}


def table(rows: dict[str, list[dict[str, Any]]]) -> str:
    """Mean and standard deviation over the seeds, in Markdown."""
    lines = [
        "| training | pooled AUROC | pooled accuracy | majority floor | seeds under the floor |",
        "|---|---|---|---|---|",
    ]
    for name, runs in rows.items():
        under = sum(run["accuracy"] < run["floor"] for run in runs)
        figures = [
            _spread(runs, "auroc"),
            _spread(runs, "accuracy"),
            f"{runs[0]['floor']:.3f}",
            f"{under} of {len(runs)}",
        ]
        lines.append(f"| {name} | " + " | ".join(figures) + " |")
    return "\n".join(lines) + "\n"


def site_floors() -> dict[str, float]:
    """Accuracy at each hospital of always giving the commoner answer of its held-out patients."""
    shards = load_shards(dataset_named("heart-disease"), 0, "natural", 0, 1.0)
    return {shard.site: float(np.bincount(shard.test.y).max() / len(shard.test.y)) for shard in shards}


def site_table(rows: dict[str, list[dict[str, Any]]], floors: dict[str, float]) -> str:
    """Each hospital's mean accuracy against its own majority class; what lies under it is marked."""
    lines = ["| hospital | majority floor | " + " | ".join(rows) + " |", "|---" * (len(rows) + 2) + "|"]
    for site, floor in floors.items():
        means = [fmean(run["sites"][site] for run in runs) for runs in rows.values()]
        cells = [f"{mean:.3f}" + (" (under)" if mean < floor else "") for mean in means]
        lines.append(f"| {site} | {floor:.3f} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _spread(runs: list[dict[str, Any]], name: str) -> str:
    values = [run[name] for run in runs]
    return f"{fmean(values):.3f} ± {stdev(values):.3f}"


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
            label="mean of 5 seeds",
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


if __name__ == "__main__":
    main()
