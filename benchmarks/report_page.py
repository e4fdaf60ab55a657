"""How long the report of a large run takes and how large it is: ``python -m benchmarks.report_page [--quick] [--json]``.

A real run of the simulated trial, 200 hospitals and 100 rounds, privately, with groups, is made through the library in a folder
that goes again; then its page is written several times. The full benchmark writes benchmarks/results/report_page.json; with
``--quick`` (3 hospitals, 2 rounds) it prints, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.machine import machine
from benchmarks.common.probes import ROOT
from polyclinic import Federation
from polyclinic.config import RunConfig
from polyclinic.evaluation.report import render_comparison, render_report, write_plots

RESULT = ROOT / "benchmarks" / "results" / "report_page.json"
SITES, ROUNDS, TURNS, BESIDE = 200, 100, 5, 10
MOST_SECONDS, MOST_BYTES = 10.0, 5_000_000  # what issue 9 allows


def main(arguments: Sequence[str] | None = None) -> int:
    """0 within the limits, 1 beyond one, 2 wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report_page", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small run; writes nothing")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    given = parser.parse_args(arguments)
    sites, rounds, turns = (3, 2, 1) if given.quick else (SITES, ROUNDS, TURNS)
    with tempfile.TemporaryDirectory(prefix="polyclinic-") as folder:
        result = measured(Path(folder), sites, rounds, turns)
    result = {"machine": machine(), "command": "python -m benchmarks.report_page", **result}
    if not given.quick:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1) if given.json else sentences(result))
    return 0 if result["met"] else 1


def measured(folder: Path, sites: int, rounds: int, turns: int) -> dict[str, Any]:
    """Seconds and bytes of the page of a run of so many hospitals and rounds, and of its share of what is allowed."""
    config = RunConfig.build({
        "dataset": "trial", "sites": sites, "rounds": rounds, "evaluation.groups": "male", "privacy.epsilon": 4.0,
        "privacy.delta": 1e-3, "out": str(folder),
    })  # fmt: skip
    began = time.perf_counter()
    run = Federation.from_config(config).run().path
    training = time.perf_counter() - began
    page = run / "report.html"
    seconds = timed(lambda: render_report(run), turns)
    size = page.stat().st_size
    beside = folder / "comparison.html"
    return {
        "terms": {"sites": sites, "rounds": rounds, "turns": turns, "most_seconds": MOST_SECONDS, "most_bytes": MOST_BYTES},
        "run_seconds": training,
        "report": {"seconds": seconds, "bytes": size},
        "plots": {"seconds": timed(lambda: write_plots(run), turns)},
        "comparison": {"runs": BESIDE, "seconds": timed(lambda: render_comparison([run] * BESIDE, beside), turns),
                       "bytes": beside.stat().st_size},
        "share_of_limit": {"seconds": seconds / MOST_SECONDS, "bytes": size / MOST_BYTES},
        "met": seconds < MOST_SECONDS and size < MOST_BYTES,
    }  # fmt: skip


def timed(work: Callable[[], object], turns: int) -> float:
    """Median seconds of ``work``."""
    found = []
    for _ in range(turns):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return median(found)


def sentences(result: dict[str, Any]) -> str:
    """The result in words."""
    terms, report, share = result["terms"], result["report"], result["share_of_limit"]
    return (
        f"The report of {terms['sites']} hospitals and {terms['rounds']} rounds: {report['seconds']:.2f} s "
        f"({share['seconds']:.0%} of the limit), {report['bytes']:,} bytes ({share['bytes']:.0%})."
    )


if __name__ == "__main__":
    raise SystemExit(main())
