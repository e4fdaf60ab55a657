"""How often intervals of private regressions cover the truth: ``python -m benchmarks.regressions [--quick] [--json]``.

Made-up patients of four hospitals that follow one law; each hospital adds its own noise to its sum. Rounds, clipping and what
the server makes of the sums are those of a run (``training.regression.private``); messages and ledgers are left out. The full
benchmark writes benchmarks/results/regressions.json and the table of docs/regression.md; with ``--quick`` it prints, and
writes nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from multiprocessing import get_context
from typing import Any

import numpy as np
import pandas as pd
from dp_accounting import DpEvent, SelfComposedDpEvent

from benchmarks.common.machine import machine
from benchmarks.common.probes import ROOT
from benchmarks.critics import write_between
from polyclinic.ehr.encoding import encode
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import PolyclinicError
from polyclinic.inference.families import FAMILIES
from polyclinic.privacy.accounting import calibrate_noise_multiplier, gaussian_event
from polyclinic.privacy.streams import generator
from polyclinic.privacy.sums import clipped_total
from polyclinic.synthesis.layout import Layout
from polyclinic.training.regression.formula import design_of
from polyclinic.training.regression.private import PrivateRegression
from polyclinic.types import Arrays, Floats

RESULT = ROOT / "benchmarks" / "results" / "regressions.json"
PAGE = ROOT / "docs" / "regression.md"
BEGIN, END = "<!-- benchmarks.regressions: begin -->", "<!-- benchmarks.regressions: end -->"
TRIALS, ROUNDS, HOSPITALS, DELTA = 500, 10, 4, 1e-5
#: By epsilon, numbers of patients from where the noise hides the information for some family.
PATIENTS = {1.0: (2000, 4000, 8000), 3.0: (1000, 2000), 10.0: (500, 1000)}
#: By family the formula, and the truth of its design: intercept, age, sex, two regions.
LAWS = {
    "logistic": ("died ~ age + sex + C(region)", (-2.8, 0.03, 0.5, -0.4, 0.3)),
    "linear": ("stay ~ age + sex + C(region)", (4.0, 0.1, 2.0, -1.0, 1.5)),
    "poisson": ("visits ~ age + sex + C(region)", (-0.6, 0.02, 0.3, -0.4, 0.2)),
}
SCHEMA = Schema(
    name="made-up", unit="record",
    columns=(
        Column(name="age", kind="integer", bounds=(18, 98), centre=62, spread=14),
        Column(name="sex", kind="binary"),
        Column(name="region", kind="categorical", categories=("north", "south", "west")),
        Column(name="visits", kind="integer", bounds=(0, 60)),
        Column(name="stay", kind="continuous", bounds=(-20, 60)),
        Column(name="died", kind="binary", role="label"),
    ),
)  # fmt: skip
LAYOUT = Layout.of(SCHEMA)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, 2 wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regressions", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few trials; writes nothing")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--processes", type=int, default=1, help="trials side by side")
    given = parser.parse_args(arguments)
    cells = [(family, count, epsilon) for family in LAWS for epsilon, counts in PATIENTS.items() for count in counts]
    if given.quick:
        cells = [(family, 4000, 3.0) for family in LAWS]
    with get_context("spawn").Pool(given.processes) as pool:
        rows = pool.starmap(covered, [(*cell, 10 if given.quick else TRIALS) for cell in cells], chunksize=1)
    result = {
        "machine": machine(), "command": "python -m benchmarks.regressions", "trials": TRIALS, "rounds": ROUNDS,
        "hospitals": HOSPITALS, "delta": DELTA, "rows": rows,
    }  # fmt: skip
    if not given.quick:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        write_between(PAGE, BEGIN, END, table(result))
    print(json.dumps(result, indent=1) if given.json else table(result))
    return 0


def covered(family: str, patients: int, epsilon: float, trials: int) -> dict[str, Any]:
    """The share of 95 % intervals that hold the truth, by how much noise widened them, and of trials without a result."""
    formula, truth = LAWS[family]
    method = PrivateRegression.of(design_of(formula, LAYOUT), FAMILIES[family], LAYOUT, ROUNDS)

    def event(noise: float) -> DpEvent:
        return SelfComposedDpEvent(gaussian_event(noise), ROUNDS)

    multiplier = calibrate_noise_multiplier(epsilon, DELTA, event)
    hits, widened, away = [], [], []
    for trial in range(trials):
        rng = generator(trial, "regressions", family, patients, int(100 * epsilon))
        try:
            fit = fitted(method, drawn(family, patients, rng), multiplier, rng)
        except PolyclinicError:
            continue
        errors = np.sqrt(np.diag(fit.covariance))
        away.append((fit.estimates - truth) / errors)
        hits.append(np.abs(away[-1]) < 1.959964)
        widened.append(fit.noise)
    fits = len(hits)
    return {
        "family": family, "patients": patients, "epsilon": epsilon, "noise_multiplier": multiplier, "results": fits / trials,
        "covered": float(np.mean(hits)) if fits else None, "by_term": np.mean(hits, axis=0).tolist() if fits else None,
        "bias": np.mean(away, axis=0).tolist() if fits else None, "noise": float(np.median(widened)) if fits else None,
    }  # fmt: skip


def drawn(family: str, patients: int, rng: np.random.Generator) -> list[Floats]:
    """Rows of each hospital's patients, of whom age and region differ between hospitals."""
    truth, tables = np.array(LAWS[family][1]), []
    for hospital in range(HOSPITALS):
        count = patients // HOSPITALS
        age = np.clip(np.rint(rng.normal(58 + 3 * hospital, 13, count)), 18, 98)
        sex, region = rng.integers(0, 2, count), rng.choice(3, count, p=np.roll([0.5, 0.3, 0.2], hospital))
        eta = np.column_stack([np.ones(count), age, sex, region == 1, region == 2]) @ truth
        table = pd.DataFrame({"age": age, "sex": sex, "region": np.array(["north", "south", "west"], object)[region]})
        table["died"] = (rng.uniform(size=count) < 1 / (1 + np.exp(-eta))).astype(int)
        table["visits"] = np.minimum(rng.poisson(np.exp(np.minimum(eta, 4.0))), 60) if family == "poisson" else 0
        table["stay"] = np.clip(eta + rng.normal(0, 4, count), -20, 60)
        encoded = encode(table, SCHEMA)
        assert encoded.y is not None
        tables.append(LAYOUT.rows(encoded.x, encoded.y))
    return tables


def fitted(method: PrivateRegression, tables: list[Floats], multiplier: float, rng: np.random.Generator) -> Any:
    """The fit of hospitals that each add noise to their sum. Raises ConfigError or DataError where there is none."""
    counts = np.array([len(table) for table in tables], dtype=float)
    patients, noise = counts.sum(), multiplier * np.sqrt(len(tables)) / counts.sum()
    method.newton.check_noise(noise)
    state: Arrays = {"patients": np.array([patients])}
    for number in range(1, method.rounds + 1):
        question, total = method.question(number, state), np.zeros(method.newton.width)
        for z in tables:
            total += clipped_total(
                lambda z, of, n, asked=question: method.contributions(1, asked, z, of, n),
                len(total),
                z,
                np.arange(len(z)),
                len(z),
            )
            total += multiplier * rng.standard_normal(len(total))
        state = method.absorb(number, state, total / patients, noise)
    return method.fit(state)


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    lines = [
        "| family | ε | patients | intervals that hold the truth | wider by noise | without a result |",
        "|---" * 6 + "|",
    ]
    for row in result["rows"]:
        share = f"{row['covered']:.1%} | {row['noise']:.2f} times" if row["covered"] is not None else "– | –"
        lines.append(
            f"| {row['family']} | {row['epsilon']:g} | {row['patients']:,} | {share} | {1 - row['results']:.0%} |"
        )
    origin = result["machine"]
    return "\n".join([*lines, "", (
        f"{result['trials']} simulated sets each, of {result['hospitals']} hospitals that each add their own noise; δ = "
        f"{result['delta']:g}, {result['rounds']} rounds. Measured {origin['date']} at commit {origin['commit']} by "
        f"`{result['command']}`."
    )])  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
