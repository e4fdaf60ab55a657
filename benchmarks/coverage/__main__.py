"""How often 95 % intervals from synthetic patients hold the truth: ``python -m benchmarks.coverage [--quick] [--json]``.

2,000 patients of a known distribution, ``marginals`` with ``mst`` as a trusted curator would fit it, and three ways to an
interval: one set as if real, rule 'partial' of 20 sets of one model, and rule 'full' of 20 sets of models drawn anew. The full
benchmark writes benchmarks/results/coverage.json as it goes, and the table of docs/synthesis/inference.md; with ``--quick`` it
prints, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from scipy import stats

from benchmarks.common.machine import machine
from benchmarks.common.probes import ROOT
from benchmarks.coverage.population import INTERACTION, LAYOUT, MEANS, SLOPES, Population, analysed, counted
from benchmarks.critics import write_between
from polyclinic.privacy.accounting import calibrate_noise_multiplier
from polyclinic.privacy.streams import generator
from polyclinic.synthesis.combining import Rule, combine
from polyclinic.synthesis.marginals import Marginals, NetworkSynthesizer, make
from polyclinic.synthesis.marginals.counts import merged_sizes
from polyclinic.synthesis.marginals.estimation import maximal
from polyclinic.synthesis.marginals.field import order_of
from polyclinic.synthesis.marginals.network import shares_within
from polyclinic.synthesis.sums import clipped_total
from polyclinic.types import Arrays, Bools, Floats

RESULT = ROOT / "benchmarks" / "results" / "coverage.json"
PAGE = ROOT / "docs" / "synthesis" / "inference.md"
BEGIN, END = "<!-- benchmarks.coverage: begin -->", "<!-- benchmarks.coverage: end -->"
PATIENTS, SETS, TIMES, DELTA, TRIALS = 2000, 20, 5, 1e-5, 200
#: Epsilon, and the interaction in the population.
SETTINGS = ((1.0, 0.0), (3.0, 0.0), (0.5, 0.0), (3.0, 2.0), (10.0, 0.0))
#: The pairs that depend on each other beyond the label.
DEPENDENT = (("decade", "diabetes"), ("diabetes", "smokes"), ("smokes", "stage"))
Intervals = dict[str, tuple[Floats, Floats]]
WAYS = ("real", "one set", "partial", "anew")


@cache
def noise_multiplier(epsilon: float, sums: int) -> float:
    """Of each of so many sums and of the counts of classes."""
    if math.isinf(epsilon):
        return 0.0
    return calibrate_noise_multiplier(
        epsilon, DELTA, lambda noise: SelfComposedDpEvent(GaussianDpEvent(noise), sums + 1)
    )


def measured(method: Marginals, z: Floats, noise: float, rng: np.random.Generator) -> NetworkSynthesizer:
    """The model where the posterior is highest, which is what is fitted but for a wide prior, without its compilation."""
    state: Arrays = {"classes": np.full(2, 0.5), "patients": np.array([float(len(z))])}
    for round in range(1, method.rounds + 1):
        total = clipped_total(method, round, method.question(round, state), z, np.arange(len(z)), len(z))
        noisy = total + noise * rng.standard_normal(len(total))
        state = method.absorb(round, state, noisy / len(z), noise / len(z))
    evidence, sizes = method.evidence(state), merged_sizes(state["merged"], method.table)
    order, parents = order_of(len(sizes) - 1, maximal(sizes, evidence.cliques), len(sizes))
    empty = NetworkSynthesizer(
        method.table,
        method.bins,
        state["merged"],
        shares_within(method.table, state["merged"], evidence.alone),
        order,
        parents,
        (),
        evidence,
    )
    assert empty.posterior is not None
    top = empty.posterior.field.conditionals(empty.posterior.highest[0][None])
    return replace(empty, conditionals=tuple(one[0] for one in top))


def trial(method: Marginals, population: Population, noise: float, rng: np.random.Generator) -> tuple[Intervals, bool]:
    """For each way the (k,) lower and upper ends of 95 % intervals, and whether all dependent pairs were measured."""
    z = population.patients(PATIENTS, rng)
    model = measured(method, z, noise, rng)
    drawn = model.anew(SETS, rng)

    def tables(models: Sequence[NetworkSynthesizer], rows: int) -> tuple[Floats, Floats]:
        found = [analysed(counted(one.sample(rows, rng)), population.interaction) for one in models]
        return np.array([q for q, _ in found]), np.array([u for _, u in found])

    def combined(q: Floats, u: Floats, rule: Rule, ratio: float = 1.0) -> tuple[Floats, Floats]:
        return combine(q, u, rule, ratio=ratio).interval()

    one = tables([model] * SETS, PATIENTS)
    return {
        "real": as_if_real(*analysed(counted(z), population.interaction)),
        "one set": as_if_real(one[0][0], one[1][0]),
        "partial": combined(*one, "partial"),
        "anew": combined(*tables(drawn, TIMES * PATIENTS), "full", TIMES),
    }, set(DEPENDENT) <= set(model.together)


def as_if_real(estimates: Floats, variances: Floats) -> tuple[Floats, Floats]:
    half = stats.norm.ppf(0.975) * np.sqrt(variances)
    return estimates - half, estimates + half


def covered(epsilon: float, interaction: float, trials: int) -> dict[str, Any]:
    """By way the share of intervals that hold the truth, and their median width by that from the patients, of each quantity."""
    method = make(LAYOUT, algorithm="mst", rounds=4)
    population, noise = Population(interaction), noise_multiplier(epsilon, method.rounds)
    names = (*MEANS, *SLOPES, *((INTERACTION,) if interaction else ()))
    held: dict[str, list[Bools]] = {way: [] for way in WAYS}
    widths: dict[str, list[Floats]] = {way: [] for way in WAYS}
    complete = 0
    for number in range(trials):
        rng = generator(0, "coverage", str(epsilon), str(interaction), number)
        intervals, all_measured = trial(method, population, noise, rng)
        complete += all_measured
        for way, (low, high) in intervals.items():
            held[way].append((low <= population.truth) & (population.truth <= high))
            widths[way].append(high - low)
    shares = {way: np.mean(held[way], axis=0) for way in WAYS}
    wide = {way: np.median(widths[way], axis=0) for way in WAYS}
    return {
        "epsilon": epsilon if math.isfinite(epsilon) else None, "interaction": interaction, "trials": trials,
        "all_pairs_measured": complete / trials, "noise_multiplier": noise,
        "truth": dict(zip(names, population.truth.tolist(), strict=True)),
        "held": {way: dict(zip(names, shares[way].tolist(), strict=True)) for way in WAYS},
        "width": {way: dict(zip(names, (wide[way] / wide["real"]).tolist(), strict=True)) for way in WAYS},
    }  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The page's table: mean and least coverage in percent, and the mean of median widths, over means and over coefficients."""
    found = [
        "| privacy | of | from the patients | one set as if real | `partial`, one model | `full`, models anew |",
        "|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: (row["interaction"], -(row["epsilon"] or math.inf))):
        name = f"ε = {row['epsilon']:g}" if row["epsilon"] else "none"
        groups = [("means and shares", MEANS), ("coefficients", SLOPES)]
        if row["interaction"]:
            name, groups = f"{name}, interaction in the population", [("interaction", (INTERACTION,))]
        for group, names in groups:
            cells = []
            for way in WAYS:
                held, width = ([row[part][way][one] for one in names] for part in ("held", "width"))
                cells.append(f"{100 * np.mean(held):.1f} / {100 * min(held):.1f} / {np.mean(width):.2f}")
            found.append(f"| {name} | {group} | {' | '.join(cells)} |")
    return "\n".join(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, 2 wrong arguments. Settings whose results lie there already are not measured again."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few trials; writes nothing")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    given = parser.parse_args(arguments)
    trials = 4 if given.quick else TRIALS
    rows: list[dict[str, Any]] = []
    if not given.quick and RESULT.is_file():
        rows = json.loads(RESULT.read_text(encoding="utf-8"))["rows"]
    done = {(row["epsilon"], row["interaction"]) for row in rows}
    for epsilon, interaction in SETTINGS:
        if (epsilon if math.isfinite(epsilon) else None, interaction) in done:
            continue
        rows.append(covered(epsilon, interaction, trials))
        own = machine()
        result = {
            "machine": {
                name: own[name] for name in own if name not in ("commit", "load")
            },  # of many runs, and no timings
            "command": "python -m benchmarks.coverage",
            "patients": PATIENTS,
            "sets": SETS,
            "delta": DELTA,
            "rows": rows,
        }
        if not given.quick:
            RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if not given.quick:
        write_between(PAGE, BEGIN, END, table(rows))
    print(json.dumps(rows, indent=1) if given.json else table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
