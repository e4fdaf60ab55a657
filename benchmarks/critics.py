"""How fast private steps of the AC-GAN's critic are: ``python -m benchmarks.critics [--quick] [--json]``.

5 hospitals of 1,300 patients with a real and a generated row each, batches of about 256 patients, the published critic of
1,858,947 parameters: the stacked engine against a loop over Opacus. The full benchmark writes
benchmarks/results/critics.json and, from it, the table of docs/engine.md. With ``--quick`` it prints, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.machine import machine
from benchmarks.common.probes import ROOT, module
from benchmarks.critic_steps import BATCH, PATIENTS, PHYSICAL, SITES

RESULT = ROOT / "benchmarks" / "results" / "critics.json"
PAGE = ROOT / "docs" / "engine.md"
BEGIN, END = "<!-- benchmarks.critics: begin -->", "<!-- benchmarks.critics: end -->"
GOAL = 5.0  # how many times faster than a loop over Opacus issue 6 wants the stacked engine
TITLES = {
    "linear": "ours, stacked, in closed form",
    "opacus": "the engine `opacus`: a loop over hospitals",
    "opacus_lean": f"a loop over Opacus for speed: float32, {PHYSICAL} patients at a time",
}
# Steps, and how many of the first are left out: a step of Opacus takes long enough to warm itself up.
_STEPS = {"linear": (8, 2), "opacus": (1, 0), "opacus_lean": (2, 0)}


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, 2 wrong arguments."""
    given = _parser().parse_args(arguments)
    sites, patients = (2, 20) if given.quick else (SITES, PATIENTS)
    result: dict[str, Any] = {
        "machine": machine(),
        "command": "python -m benchmarks.critics" + (" --quick" if given.quick else ""),
        "terms": {"sites": sites, "patients": patients, "batch": min(BATCH, patients), "goal": GOAL},
    }
    found = {way: measured(way, sites, patients) for way in TITLES}
    result["rows"] = [compared(way, row, found["linear"]) for way, row in found.items()]
    if not given.quick:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        write_between(PAGE, BEGIN, END, table(result))
    sys.stdout.write((json.dumps(result, indent=2) if given.json else table(result)) + "\n")
    return 0


def measured(way: str, sites: int, patients: int) -> dict[str, float]:
    """The median step of all hospitals in a process of its own, in seconds and seconds of the processor; its peak memory."""
    steps, skip = _STEPS[way]
    argv = module("benchmarks.critic_steps", "--way", way, "--sites", sites, "--patients", patients, "--steps", steps)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    row = {name: median(told[name][skip:]) for name in ("seconds", "processor_seconds")}
    sys.stderr.write(f"{way}: {row['seconds']:.2f} s, {row['processor_seconds']:.2f} s of the processor\n")
    return row | {"peak_gigabytes": round(told["peak_bytes"] / 1e9, 2)}


def compared(way: str, row: Mapping[str, float], ours: Mapping[str, float]) -> dict[str, Any]:
    """The row with how many times as long it takes as ``ours``, by the clock and by the processor."""
    ratios = {
        "ratio": row["seconds"] / ours["seconds"],
        "processor_ratio": row["processor_seconds"] / ours["processor_seconds"],
    }
    met = None if way == "linear" else min(ratios.values()) >= GOAL
    return {"way": way, **row, **ratios, "met": met}


def table(result: Mapping[str, Any]) -> str:
    """GitHub markdown, one line a way and a sentence on the machine."""
    terms, about = result["terms"], result["machine"]
    lines = [
        f"| a private step of {terms['sites']} hospitals | seconds | of the processor | peak memory | ours is faster | "
        "by the processor | goal | met |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for row in result["rows"]:
        peer = row["way"] != "linear"
        cells = [TITLES[row["way"]], f"{row['seconds']:.2f}", f"{row['processor_seconds']:.2f}"]
        cells += [f"{row['peak_gigabytes']:.2f} GB", f"{row['ratio']:.1f}x" if peer else ""]
        cells += [f"{row['processor_ratio']:.1f}x" if peer else "", f"≥ {terms['goal']:g}x" if peer else ""]
        lines.append(f"| {' | '.join([*cells, {True: 'yes', False: 'no', None: ''}[row['met']]])} |")
    return "\n".join(lines) + (
        f"\n\nThe critic of the SPRINT AC-GAN, {terms['patients']:,} patients a hospital, batches of about {terms['batch']}, two "
        f"rows a patient clipped as one, Adam, one thread. Other work slows the seconds, hardly those of the processor. "
        f"Measured {about['date']} at commit {about['commit']} by `{result['command']}` on {about['cpu']}, torch "
        f"{about['torch']}, opacus {about['opacus']}; load {about['load']} on {about['cores']} cores."
    )


def write_between(path: Path, begin: str, end: str, text: str) -> None:
    """Put ``text`` between the two marks of ``path``, which must hold them."""
    before, rest = path.read_text(encoding="utf-8").split(begin, 1)
    after = rest.split(end, 1)[1]
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.critics", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 hospitals of 20 patients; not for quoting")
    parser.add_argument("--json", action="store_true", help="print the result's JSON alone on stdout")
    return parser


if __name__ == "__main__":
    sys.exit(main())
