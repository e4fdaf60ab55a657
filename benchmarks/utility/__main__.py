"""AUROC by method at the same true epsilon: ``python -m benchmarks.utility [--quick] [--json]``.

The full benchmark writes benchmarks/results/utility.json and, from it, the tables and the plot of docs/privacy/choosing.md. With
``--quick`` it prints, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.common.machine import machine
from benchmarks.common.probes import ROOT
from benchmarks.utility.measure import Plan, beside_opacus, measured, measured_further, quick
from benchmarks.utility.noise import noise_rows
from benchmarks.utility.report import goals, tables, write_plot, write_section
from benchmarks.utility.runs import Runs
from benchmarks.utility.splits import DELTAS, HELD_OUT, HOSPITALS

RESULT = ROOT / "benchmarks" / "results" / "utility.json"
RUNS = RESULT.with_suffix(".partial.json")
PLOT = ROOT / "docs" / "results" / "utility.svg"
PAGE = ROOT / "docs" / "privacy" / "choosing.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, 2 wrong arguments."""
    given = _parser().parse_args(arguments)
    plan = quick(Plan()) if given.quick else Plan()
    result: dict[str, Any] = {
        "machine": machine(),
        "command": "python -m benchmarks.utility" + (" --quick" if given.quick else ""),
        "terms": {"seeds": list(plan.seeds), "further_seeds": list(plan.further_seeds), "tuned_on": list(plan.tuned_on),
                  "held_out": HELD_OUT, "hospitals": HOSPITALS, "deltas": DELTAS},
    }  # fmt: skip
    runs = Runs(None if given.quick else RUNS, given.processes)
    result["rows"] = measured(plan, runs, _say) + measured_further(plan, runs, _say)
    result["opacus"] = beside_opacus(plan, runs, _say)
    result["noise"] = noise_rows()
    result["goals"] = goals(result["rows"])
    if not given.quick:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        write_plot(PLOT, result)
        write_section(PAGE, result)
    sys.stdout.write((json.dumps(result, indent=2) if given.json else tables(result)) + "\n")
    return 0


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.utility", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="heart disease, few methods, untuned; not for quoting")
    parser.add_argument("--json", action="store_true", help="print the result's JSON alone on stdout")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="runs side by side (1)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
