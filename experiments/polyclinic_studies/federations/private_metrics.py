"""How far private metrics at epsilon = 1 are from the exact ones: heart disease and IST, pooled and at each hospital.

The default private model is trained once for each seed; the same model is evaluated exactly and privately.
"""

from __future__ import annotations

from statistics import fmean, stdev
from typing import Any

from polyclinic.experiments import Asked, Findings, Say, markdown
from polyclinic_studies.parts import Parts

SEEDS = 12
DELTAS = {"heart-disease": 1e-3, "ist": 1e-5}
OPTIONS = {"training.optimizer": "sgd"}
METRICS = ("auroc", "accuracy", "brier")
Row = dict[str, Any]


def run(asked: Asked, say: Say) -> Findings:
    """The experiment; its short form trains three rounds with two seeds."""
    seeds, short = asked.seeds or (2 if asked.quick else SEEDS), {"rounds": 3} if asked.quick else {}
    parts = Parts(asked.out, say)
    runs = {
        dataset: [
            row for seed in range(seeds)
            for row in _rows(parts, seed, {**OPTIONS, "dataset": dataset, "privacy.delta": delta, "seed": seed, **short})
        ]
        for dataset, delta in DELTAS.items()
    }  # fmt: skip
    return Findings(
        {"seeds": seeds, "deltas": DELTAS, **short}, (), {"rows": runs}, "\n".join(map(table, runs.items()))
    )


def _rows(parts: Parts, seed: int, options: dict[str, Any]) -> list[Row]:
    """The exact and the private figures of one model, pooled and of each hospital."""
    exact, private = (
        parts.run(f"{options['dataset']}-{metrics}-{seed}", options | {"evaluation.metrics": metrics}).summary
        for metrics in ("exact", "private")
    )
    if exact["model_sha256"] != private["model_sha256"]:
        raise RuntimeError("the two runs trained different models")
    released = private["private_metrics"]
    held_out = {name: site["patients"] for name, site in exact["metrics"]["sites"].items()}
    places = {"pooled": (exact["metrics"]["pooled"], released["pooled"], sum(held_out.values()))}
    for name, site in exact["metrics"]["sites"].items():
        places[name] = (site, released["sites"][name], held_out[name])
    return [
        {
            "seed": seed, "place": place, "patients": patients, "epsilon": released["epsilon"],
            **{name: [known[name], *(noised["metrics"][name][part] for part in ("value", "error"))] for name in METRICS},
        }
        for place, (known, noised, patients) in places.items()
    ]  # fmt: skip


def table(result: tuple[str, list[Row]]) -> str:
    """Per place: patients, and of each metric the exact mean and the mean distance of the private one with its standard error."""
    dataset, rows = result
    places = sorted({row["place"] for row in rows}, key=lambda place: -_of(rows, place)[0]["patients"])
    head = [
        dataset, "patients, a quarter held out", "exact AUROC", "AUROC is off by", "told error", "exact accuracy",
        "accuracy is off by", "exact Brier", "Brier is off by", "without an AUROC",
    ]  # fmt: skip
    lines = []
    for place in places:
        some = _of(rows, place)
        cells = [place, f"{some[0]['patients']:,}"]
        for name in METRICS:
            cells += [_mean([row[name][0] for row in some]), _off(some, name)]
            if name == "auroc":
                cells.append(_mean([row[name][2] for row in some]))
        cells.append(f"{sum(row['auroc'][1] is None for row in some)} of {len(some)}")
        lines.append(cells)
    return markdown(head, lines)


def _of(rows: list[Row], place: str) -> list[Row]:
    return [row for row in rows if row["place"] == place]


def _mean(values: list[float | None]) -> str:
    defined = [value for value in values if value is not None]
    return f"{fmean(defined):.3f}" if defined else "undefined"


def _off(rows: list[Row], name: str) -> str:
    """Mean absolute difference over the seeds that define both figures, ± its standard error."""
    off = [abs(row[name][1] - row[name][0]) for row in rows if None not in row[name][:2]]
    if len(off) < 2:
        return "undefined"
    return f"{fmean(off):.3f} ± {stdev(off) / len(off) ** 0.5:.3f}"
