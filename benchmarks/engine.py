"""How fast the engine is beside its peers: ``python -m benchmarks.engine [--quick] [--json]``.

The full benchmark writes benchmarks/results/engine.json and, from it, the table and the plot of docs/engine.md. With
``--quick`` or ``--only`` it prints, and writes no file but the one that ``--out`` names. Before a row that is written it waits
up to a minute until other work takes few enough cores (``machine.MOST_BUSY``), and refuses to measure it beside more.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.common.machine import SAME, Busy, machine, quiet
from benchmarks.common.plan import NAMES, full, quick
from benchmarks.common.probes import ROOT, Probe, Sample, run
from benchmarks.common.report import TITLES, seconds, table, write_plot, write_section
from benchmarks.common.rows import Row, measure

RESULT = ROOT / "benchmarks" / "results" / "engine.json"
PLOT = ROOT / "docs" / "results" / "engine.svg"
PAGE = ROOT / "docs" / "engine.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, 1 a command failed (its row says so), 2 wrong arguments, 3 other work would be measured too."""
    given = _parser().parse_args(arguments)
    names = tuple(given.only or NAMES)
    committed = not (given.quick or given.only)
    out = Path(given.out) if given.out else RESULT if committed else None
    result: dict[str, Any] = {"machine": machine(), "command": _command(given), "rows": []}
    if given.resume:
        found = [file for file in (_partial(out), out) if file.is_file()] if out else []
        if not found:
            return _wrong("--resume needs the result of the full benchmark, or one that --out names, to go on with.")
        before = json.loads(found[0].read_text(encoding="utf-8"))
        if differs := [key for key in SAME if before["machine"].get(key) != result["machine"][key]]:
            return _wrong(f"The result to resume was measured with another {', '.join(differs)}.")
        result["rows"] = [row for row in before["rows"] if not (given.only and row["against"] in names)]
    rows = (quick if given.quick else full)(names)
    try:
        _measure_all(rows, result, cache(run) if given.quick else run, out)
    except Busy as refusal:
        _say(str(refusal))
        return 3
    if out is not None:
        _write(out, result)
        _partial(out).unlink(missing_ok=True)
    if committed and out == RESULT:
        write_plot(PLOT, result)
        write_section(PAGE, result, PLOT.relative_to(PAGE.parent).as_posix())
    sys.stdout.write((json.dumps(result, indent=2) if given.json else table(result)) + "\n")
    return 1 if any(row.get("failed") for row in result["rows"]) else 0


def _measure_all(rows: Sequence[Row], result: dict[str, Any], run: Callable[[Probe], Sample], out: Path | None) -> None:
    """Measure the rows that ``result`` lacks, and write what there is after each."""
    have = {(row["against"], row["sites"], row["dp"]) for row in result["rows"] if not row.get("failed")}
    result["rows"] = [row for row in result["rows"] if not row.get("failed")]
    order = {name: place for place, name in enumerate(TITLES)}
    for number, row in enumerate(rows, start=1):
        head = f"[{number}/{len(rows)}] {row.against}, {row.sites} sites, {'DP' if row.dp else 'no DP'}"
        if row.key in have:
            _say(f"{head}: kept")
            continue
        load = quiet() if out is not None else None
        began = time.perf_counter()
        found = measure(row, run, result["machine"]["commit"]) | {"busy_cores": load}
        result["rows"] = sorted([*result["rows"], found], key=lambda r: (order[r["against"]], r["sites"], not r["dp"]))
        if out is not None:
            _write(_partial(out), result)
        _say(f"{head}: {_short(found)} (took {time.perf_counter() - began:.0f} s)")


def _partial(out: Path) -> Path:
    """Where the rows go while more are measured, so that an interrupted run leaves the last whole result as it was."""
    return out.with_suffix(".partial.json")


def _write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _short(row: dict[str, Any]) -> str:
    if row.get("failed"):
        return f"FAILED: {row['note']}"
    ratio = "no ratio" if row["ratio"] is None else f"{row['ratio']:.3g}x"
    theirs = f"theirs {seconds(row['theirs_seconds']) or 'none'}"
    return f"ours {seconds(row['ours_seconds'])}, {theirs}, {ratio}, goal {row['goal']}"


def _command(given: argparse.Namespace) -> str:
    parts = ["python -m benchmarks.engine"]
    parts += [f"--{name}" for name in ("quick", "resume") if getattr(given, name)]
    return " ".join([*parts, *(["--only", *given.only] if given.only else [])])


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _wrong(sentence: str) -> int:
    _say(sentence)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, under two minutes; not for quoting")
    parser.add_argument("--json", action="store_true", help="print the result's JSON alone on stdout")
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--out", metavar="FILE", help="where the JSON is written after each row")
    parser.add_argument(
        "--resume", action="store_true", help="keep the rows that the result has; with --only, measure those anew"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
