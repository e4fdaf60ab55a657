"""``marginals`` beside its authors' MST and AIM: ``python -m benchmarks.utility.marginals --reference PYTHON --source FOLDER``.

All patients are in one place, cells and epsilon are the same. PYTHON is an interpreter with what
github.com/ryan112358/private-pgm asks for, FOLDER a checkout of it; without them ours alone run, and a sentence says so. Writes
benchmarks/results/marginals.json and the table of docs/synthesis/marginals.md; runs that are known are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.common.machine import machine
from benchmarks.common.probes import ROOT
from benchmarks.critics import write_between
from benchmarks.utility.report import standard_error
from polyclinic.ehr.datasets import builtin
from polyclinic.ehr.encoding import encode
from polyclinic.ehr.schema import Column, Schema
from polyclinic.privacy.accounting import calibrate_noise_multiplier
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.marginals import make
from polyclinic.synthesis.marginals.cells import Table
from polyclinic.synthesis.marginals.selection import all_pairs
from polyclinic.synthesis.methods.independent import Independent
from polyclinic.synthesis.sums import SynthesisMethod, fit_centrally
from polyclinic.types import Floats, Ints

RESULT = ROOT / "benchmarks" / "results" / "marginals.json"
PARTS = RESULT.with_suffix(".partial.json")
PAGE = ROOT / "docs" / "synthesis" / "marginals.md"
BEGIN, END = "<!-- benchmarks.utility.marginals: begin -->", "<!-- benchmarks.utility.marginals: end -->"
PEER = ROOT / "benchmarks" / "peers" / "private_pgm.py"
COHORTS, EPSILONS, SEEDS, DELTA, BINS = ("rare", "heart-disease"), (1.0, 3.0, 10.0), (0, 1, 2, 3, 4), 1e-5, 16
#: Of the authors' AIM: megabytes of its model, as many numbers as ours may have, and rounds for each column (theirs is 16).
MEGABYTES, ROUNDS = 1.0, 2
TITLES = {"real": "real patients", "independent": "`independent`", "mst": "`marginals`, MST", "aim": "`marginals`, AIM",
          "their mst": "the authors' MST", "their aim": "the authors' AIM"}  # fmt: skip
Job = tuple[str, str, float, int]


def rare_layout() -> Layout:
    """Eight numbers with bounds of 8 and 16 deviations, five flags, three categories and an outcome of some 6 %."""
    numbers = (
        Column(name=f"n{i}", kind="continuous", bounds=((-6.0, 6.0) if i % 2 else (-12.0, 12.0))) for i in range(8)
    )
    flags = (Column(name=f"b{i}", kind="binary") for i in range(5))
    choices = (Column(name=f"c{i}", kind="categorical", categories=tuple("abcde")) for i in range(3))
    label = Column(name="died", kind="binary", role="label")
    return Layout.of(Schema(name="rare", unit="record", columns=(*numbers, *flags, *choices, label)))


def rare(rows: int, seed: int) -> Floats:
    """(rows, D) made-up patients: three factors behind all columns, of which ten tell the outcome."""
    rng, layout = np.random.default_rng(seed), rare_layout()
    factors, numbers = rng.normal(size=(rows, 3)), np.empty((rows, 8))
    for i in range(8):
        numbers[:, i] = 0.75 * factors[:, i % 3] + 0.66 * rng.normal(size=rows)
    flags = rng.random((rows, 5)) < 1 / (1 + np.exp(1 - 0.9 * factors[:, [0, 1, 2, 0, 1]]))
    places = [np.clip((2 + factors[:, j] + rng.normal(size=rows)).round(), 0, 4).astype(int) for j in range(3)]
    height = numbers[:, [0, 1, 2, 5]] @ [0.6, -0.5, 0.4, 0.35] + flags[:, :3] @ [0.5, 0.7, -0.4] - 3.6
    height += 0.3 * (places[0] - 2) - 0.2 * (places[1] - 2)
    y = (rng.random(rows) < 1 / (1 + np.exp(-height))).astype(np.int64)
    scaled = np.clip(numbers / np.array([12.0, 6.0] * 4), -1, 1)
    return layout.rows(np.column_stack([scaled, flags, *(np.eye(5)[place] for place in places)]), y)


@lru_cache(maxsize=1)
def cohort(name: str) -> tuple[Layout, Floats, Floats]:
    """The layout, (n, D) patients to learn from and (m, D) to test by."""
    if name == "rare":
        z = rare(80_000, 7)
        return rare_layout(), z[:40_000], z[40_000:]
    dataset = builtin()[name]
    layout, encoded = Layout.of(dataset.schema), encode(dataset.load(), dataset.schema)
    z = layout.rows(encoded.x, encoded.y)
    order = np.random.default_rng(0).permutation(len(z))
    return layout, z[order[: int(0.7 * len(z))]], z[order[int(0.7 * len(z)) :]]


def taught(layout: Layout, drawn: Floats, test: Floats) -> float:
    """AUROC on ``test`` of a logistic regression of ``drawn`` rows; 0.5 where they have one class alone."""
    y = layout.labels(drawn)
    if len(np.unique(y)) < 2:
        return 0.5
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(drawn[:, : layout.label.start], y)
    return float(roc_auc_score(layout.labels(test), model.predict_proba(test[:, : layout.label.start])[:, 1]))


def workload(table: Table, first: Ints, second: Ints) -> float:
    """The mean total variation of all pairs of columns of (n, A) and (m, A) cells."""
    found = []
    for a, b in all_pairs(len(table.sizes)):
        cells = table.sizes[a] * table.sizes[b]
        one, other = (
            np.bincount(rows[:, a] * table.sizes[b] + rows[:, b], minlength=cells) / len(rows)
            for rows in (first, second)
        )
        found.append(float(np.abs(one - other).sum() / 2))
    return fmean(found)


def carry_out(job: Job, source: Sequence[str], kept: Path) -> dict[str, float]:
    """Its AUROC, workload error and seconds of one core. source: the reference's interpreter and checkout."""
    name, who, epsilon, seed = job
    layout, z, test = cohort(name)
    table, begun = Table.of(layout, BINS, 200), time.process_time()
    if who.startswith("their"):
        cells, seconds = _theirs(job, table.cells(z), table.sizes, source, kept)
        drawn = table.rows(cells, np.random.default_rng(seed))
    else:
        drawn = z if who == "real" else _ours(layout, z, who, epsilon, seed)
        seconds = time.process_time() - begun
    return {
        "auroc": taught(layout, drawn, test), "workload": workload(table, table.cells(z), table.cells(drawn)),
        "seconds": seconds,
    }  # fmt: skip


def _ours(layout: Layout, z: Floats, who: str, epsilon: float, seed: int) -> Floats:
    method: SynthesisMethod = Independent(layout) if who == "independent" else make(layout, algorithm=who, bins=BINS)
    noise = calibrate_noise_multiplier(
        epsilon, DELTA, lambda one: SelfComposedDpEvent(GaussianDpEvent(one), method.rounds + 1)
    )
    rng = np.random.default_rng(seed)
    return fit_centrally(method, z, np.arange(len(z)), len(z), noise, rng).sample(max(len(z), 5000), rng)


def _theirs(job: Job, cells: Ints, sizes: Ints, source: Sequence[str], kept: Path) -> tuple[Ints, float]:
    name, who, epsilon, seed = job
    python, checkout = source
    target = kept / f"{name}-{who.split()[1]}-{epsilon:g}-{seed}.npz"
    if not target.is_file():
        with tempfile.TemporaryDirectory() as folder:
            given = Path(folder) / "cells.npz"
            np.savez(given, cells=cells, sizes=sizes)
            options = [who.split()[1], epsilon, DELTA, seed, MEGABYTES, ROUNDS * len(sizes)]
            path = os.pathsep.join([f"{checkout}/src", f"{checkout}/mechanisms"])
            subprocess.run(
                [python, str(PEER), str(given), str(target), *map(str, options)], check=True, stdout=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
            )  # fmt: skip
    found = np.load(target)
    return found["cells"], float(found["seconds"])


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, 2 wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.utility.marginals", description=__doc__.split("\n")[0])
    parser.add_argument("--reference", help="an interpreter with the authors' requirements")
    parser.add_argument("--source", help="a checkout of the authors' repository")
    parser.add_argument("--kept", default="", help="a folder in which what the authors' code draws is kept")
    parser.add_argument("--cohorts", nargs="*", default=COHORTS)
    parser.add_argument("--epsilons", nargs="*", type=float, default=EPSILONS)
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--methods", nargs="*", default=TITLES)
    given = parser.parse_args(arguments)
    source = [given.reference, given.source] if given.reference and given.source else []
    methods = [one for one in given.methods if source or not one.startswith("their")]
    if not source:
        print("The authors' code was not named by --reference and --source: their rows are those of before.")
    lines = PARTS.read_text(encoding="utf-8").splitlines() if PARTS.is_file() else []
    done: dict[Job, dict[str, float]] = {tuple(job): values for job, values in map(json.loads, lines)}  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        for name in given.cohorts:
            for epsilon in given.epsilons:
                for who in methods:
                    for seed in given.seeds if who != "real" else given.seeds[:1]:
                        if (job := (name, who, epsilon, seed)) not in done:
                            done[job] = carry_out(job, source, Path(given.kept or folder))
                            with PARTS.open("a", encoding="utf-8") as file:
                                file.write(json.dumps([job, done[job]]) + "\n")
    result = {"machine": machine(), "command": "python -m benchmarks.utility.marginals", "delta": DELTA,
              "reference": {"commit": "4d2b3c5", "jax": "0.6.2", "megabytes": MEGABYTES, "rounds": f"{ROUNDS} a column"},
              "rows": rows(done)}  # fmt: skip
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    write_between(PAGE, BEGIN, END, tables(result))
    print(tables(result))
    return 0


def rows(results: Mapping[Job, Mapping[str, float]]) -> list[dict[str, Any]]:
    """A row for each cohort, method and epsilon, with what ``carry_out`` says of each seed."""
    by: dict[tuple[str, str, float], list[Mapping[str, float]]] = {}
    for (name, who, epsilon, _), values in results.items():
        by.setdefault((name, who, epsilon), []).append(values)
    return [
        {"cohort": name, "method": who, "epsilon": epsilon, "seeds": seeds}
        for (name, who, epsilon), seeds in by.items()
    ]


def tables(result: Mapping[str, Any]) -> str:
    """GitHub markdown: a table for each cohort."""
    parts = []
    for name in dict.fromkeys(row["cohort"] for row in result["rows"]):
        cells = {(row["method"], row["epsilon"]): row for row in result["rows"] if row["cohort"] == name}
        lines = [f"| {name} | {' | '.join(f'ε = {one:g}' for one in EPSILONS)} |", "|---|" + "---|" * len(EPSILONS)]
        lines += [
            f"| {title} | {' | '.join(_cell(cells.get((who, epsilon))) for epsilon in EPSILONS)} |"
            for who, title in TITLES.items()
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    aurocs = [seed["auroc"] for seed in row["seeds"]]
    error = f" ± {standard_error(aurocs):.3f}" if len(aurocs) > 1 else ""
    if row["method"] == "real":
        return f"{fmean(aurocs):.3f}"
    means = {part: fmean(seed[part] for seed in row["seeds"]) for part in ("workload", "seconds")}
    return f"{fmean(aurocs):.3f}{error}; {means['workload']:.3f}; {means['seconds']:.1f} s; {len(aurocs)}"


if __name__ == "__main__":
    raise SystemExit(main())
