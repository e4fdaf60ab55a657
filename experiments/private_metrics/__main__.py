"""How far private metrics at epsilon = 1 are from the exact ones: heart disease and IST, pooled and at each hospital.

``python -m experiments.private_metrics`` trains the default private model once for each seed, evaluates the same model exactly
and privately, and writes results.json and table.md beside this file.
"""

from __future__ import annotations

import json
import platform
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from polyclinic import Federation
from polyclinic.versions import versions

HERE = Path(__file__).parent
SEEDS = range(12)
DELTAS = {"heart-disease": 1e-3, "ist": 1e-5}
METRICS = ("auroc", "accuracy", "brier")
Row = dict[str, Any]


def main() -> None:
    runs: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory() as out:
        for dataset, delta in DELTAS.items():
            hospitals = Federation.from_dataset(dataset, out=out, delta=delta)
            runs[dataset] = [row for seed in SEEDS for row in _rows(hospitals, seed)]
    results = {"machine": platform.platform(), "versions": versions(), "deltas": DELTAS, "rows": runs}
    (HERE / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (HERE / "table.md").write_text("\n".join(map(table, runs.items())), encoding="utf-8")


def _rows(hospitals: Federation, seed: int) -> list[Row]:
    """The exact and the private figures of one model, pooled and of each hospital."""
    exact, private = (hospitals.run(seed=seed, metrics=metrics).summary for metrics in ("exact", "private"))
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
    lines = [
        f"| {dataset} | patients, a quarter held out | exact AUROC | AUROC is off by | told error | exact accuracy | "
        "accuracy is off by | exact Brier | Brier is off by | without an AUROC |",
        "|---" * 10 + "|",
    ]
    for place in places:
        some = _of(rows, place)
        cells = [place, f"{some[0]['patients']:,}"]
        for name in METRICS:
            cells += [_mean([row[name][0] for row in some]), _off(some, name)]
            if name == "auroc":
                cells.append(_mean([row[name][2] for row in some]))
        cells.append(f"{sum(row['auroc'][1] is None for row in some)} of {len(some)}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


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


if __name__ == "__main__":
    main()
