"""How fast private training of models that users bring is: ``python -m benchmarks.brought [--quick] [--only NAME ...] [--json]``.

Five models at 50 hospitals of 500 patients, batches of about 50: ours, the same without privacy, and a loop over Opacus in that
of its modes that is fastest for the model, each in processes of their own, by turns. The full benchmark refuses a busy
machine, and writes benchmarks/results/brought.json and, from it, the table of docs/engine.md; ``--quick`` and ``--only`` print.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.common.brought import MODELS, STEPS
from benchmarks.common.machine import machine
from benchmarks.common.probes import ROOT, Probe, ProbeFailed, module, run
from benchmarks.common.report import seconds
from benchmarks.critics import write_between

RESULT = ROOT / "benchmarks" / "results" / "brought.json"
PAGE = ROOT / "docs" / "engine.md"
BEGIN, END = "<!-- benchmarks.brought: begin -->", "<!-- benchmarks.brought: end -->"
SITES, TURNS, BUSY = 50, 3, 0.7
FASTER, TAX = 5.0, 2.5
MODES = ("hooks", "functorch", "ew", "ghost")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, 2 wrong arguments or a busy machine."""
    given = _parser().parse_args(arguments)
    whole = not (given.quick or given.only)
    if whole and (load := os.getloadavg()[0]) > BUSY:
        sys.stderr.write(f"The load is {load:.1f}; the full benchmark needs a machine at {BUSY} at most.\n")
        return 2
    sites, turns = (8, 1) if given.quick else (SITES, TURNS)
    command = " ".join(["python -m benchmarks.brought", *(["--quick"] if given.quick else [])])
    result: dict[str, Any] = {
        "machine": machine(), "command": command, "terms": {"sites": sites, "goal": FASTER, "tax": TAX},
        "rows": [measured(name, sites, turns) for name in given.only or MODELS],
    }  # fmt: skip
    if whole:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        write_between(PAGE, BEGIN, END, table(result))
    sys.stdout.write((json.dumps(result, indent=2) if given.json else table(result)) + "\n")
    return 0


def measured(name: str, sites: int, turns: int) -> dict[str, Any]:
    """The processor's least seconds of a round of all hospitals: ours, without privacy, and Opacus in its fastest mode."""

    def probe(program: str, way: str, sites: int, rounds: int = 3) -> Probe:
        flags = ("--way", way, "--sites", sites, "--rounds", rounds)
        return Probe(way, module(f"benchmarks.{program}.brought", name, *flags), skip=1)

    tried: dict[str, float] = {}
    for mode in MODES:
        try:
            tried[mode] = run(probe("peers", mode, 4)).seconds
        except ProbeFailed as failure:
            sys.stderr.write(f"{name}: {failure}\n")
    fastest = min(tried, key=lambda mode: tried[mode])
    probes = {
        "ours": probe("common", "dp", sites), "plain": probe("common", "plain", sites),
        "opacus": probe("peers", fastest, sites, 2),
    }  # fmt: skip
    taken = [{side: run(one).seconds for side, one in probes.items()} for _ in range(turns)]
    found = {side: min(turn[side] for turn in taken) for side in probes}
    row = compared(name, found, fastest)
    sys.stderr.write(f"{name}: {row['ratio']:.2f} times Opacus by {fastest}, tax {row['tax']:.2f}\n")
    return row


def compared(name: str, found: Mapping[str, float], mode: str) -> dict[str, Any]:
    ratio, tax = found["opacus"] / found["ours"], found["ours"] / found["plain"]
    return {"model": name, **found, "mode": mode, "ratio": ratio, "tax": tax, "met": ratio >= FASTER and tax <= TAX}


def table(result: Mapping[str, Any]) -> str:
    """GitHub markdown, one line a model and a sentence on the machine."""
    terms, about = result["terms"], result["machine"]
    lines = [
        f"| a round of {terms['sites']} hospitals | ours | ours without privacy | Opacus, its mode | times Opacus, wanted "
        f"≥ {terms['goal']:g} | price of privacy, wanted ≤ {terms['tax']:g} | met |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in result["rows"]:
        cells = [row["model"], seconds(row["ours"]), seconds(row["plain"]), f"{seconds(row['opacus'])}, {row['mode']}"]
        cells += [f"{row['ratio']:.1f}x", f"{row['tax']:.2f}x", "yes" if row["met"] else "no"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + (
        f"\n\n500 patients a hospital, batches of about 50, {STEPS} steps of SGD a round, one thread, seconds of the processor. "
        f"Measured {about['date']} at commit {about['commit']} by `{result['command']}` on {about['cpu']}, torch "
        f"{about['torch']}, opacus {about['opacus']}; load {about['load']} on {about['cores']} cores."
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.brought", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="8 hospitals and one turn; not for quoting")
    parser.add_argument("--only", nargs="+", choices=MODELS, metavar="NAME", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--json", action="store_true", help="print the result's JSON alone on stdout")
    return parser


if __name__ == "__main__":
    sys.exit(main())
