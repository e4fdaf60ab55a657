"""How often bootstrap intervals cover the truth: ``python -m benchmarks.intervals [--quick] [--json]``.

Samples of two classes with normal scores (binormal, means ``shift`` apart), whose true probabilities the model gives; how many
have class 1 is chance too. The truth is of a sample of 400,000. The full benchmark writes benchmarks/results/intervals.json and
the table of docs/evaluation.md; with ``--quick`` it prints, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.machine import machine
from benchmarks.common.probes import ROOT
from benchmarks.critics import write_between
from polyclinic.evaluation.assessment import Predictions, judge
from polyclinic.evaluation.metrics import METRICS, weighted_metrics
from polyclinic.privacy.streams import generator

RESULT = ROOT / "benchmarks" / "results" / "intervals.json"
PAGE = ROOT / "docs" / "evaluation.md"
BEGIN, END = "<!-- benchmarks.intervals: begin -->", "<!-- benchmarks.intervals: end -->"
# Expected patients of class 1 and of class 0, and the shift.
SAMPLES = ((40, 40, 1.2), (20, 60, 1.8), (10, 90, 1.2), (150, 150, 1.2), (100, 900, 1.2))
TRIALS, RESAMPLES = 1000, 1000
SHOWN = ("auroc", "auprc", "accuracy", "f1", "sensitivity_at_90", "loss", "brier", "calibration_in_the_large")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, 2 wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.intervals", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few trials; writes nothing")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    given = parser.parse_args(arguments)
    trials, resamples = (20, 100) if given.quick else (TRIALS, RESAMPLES)
    result = {
        "machine": machine(), "command": "python -m benchmarks.intervals", "trials": trials, "resamples": resamples,
        "rows": [covered(*sample, trials, resamples) for sample in SAMPLES],
    }  # fmt: skip
    if not given.quick:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        write_between(PAGE, BEGIN, END, table(result))
    print(json.dumps(result, indent=1) if given.json else table(result))
    return 0


def covered(ill: int, well: int, shift: float, trials: int, resamples: int) -> dict[str, Any]:
    """By metric the truth and the share of trials whose interval has it; a trial without an interval counts as a miss."""
    rng = generator(0, "coverage", ill, well)
    large = 400_000 // (ill + well)
    labels, scores = drawn(ill * large, well * large, shift, rng)
    truth = dict(zip(METRICS, weighted_metrics(labels, scores, np.ones((1, len(labels))))[0], strict=True))
    hits = dict.fromkeys(SHOWN, 0)
    for _ in range(trials):
        labels, scores = drawn(ill, well, shift, rng)
        told = judge(Predictions(labels, scores, np.arange(len(labels))), resamples, rng).metrics
        for name in SHOWN:
            low, high = told[name]["low"], told[name]["high"]
            hits[name] += low is not None and high is not None and low <= truth[name] <= high
    return {
        "ill": ill, "well": well, "shift": shift, "truth": {name: float(truth[name]) for name in SHOWN},
        "covered": {name: count / trials for name, count in hits.items()},
    }  # fmt: skip


def drawn(ill: int, well: int, shift: float, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Labels (n,) and the true probabilities (n, 2) of patients of both classes, as many of each as chance has it."""
    labels = (rng.random(ill + well) < ill / (ill + well)).astype(np.int64)
    x = rng.normal(size=ill + well) + shift * labels
    chance = 1 / (1 + np.exp(shift * shift / 2 - shift * x) * well / ill)
    return labels, np.stack([1 - chance, chance], axis=1)


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    names = [name.replace("_", " ") for name in SHOWN]
    lines = [f"| patients of class 1, 0 | AUROC in truth | {' | '.join(names)} |", "|---" * (2 + len(SHOWN)) + "|"]
    for row in result["rows"]:
        shares = " | ".join(f"{100 * row['covered'][name]:.0f} %" for name in SHOWN)
        lines.append(f"| {row['ill']}, {row['well']} | {row['truth']['auroc']:.2f} | {shares} |")
    told = result["machine"]
    return "\n".join([*lines, "", (
        f"Share of {result['trials']:,} samples whose 95 % interval of {result['resamples']:,} resamples covers the truth. "
        f"Measured {told['date']} at commit {told['commit']} by `{result['command']}`."
    )])  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
