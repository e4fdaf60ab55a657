"""What starting costs: ``python -m benchmarks.imports [--quick] [--json]``.

Seconds of the processor of a fresh Python that does ours, beside one that imports only what ours cannot do without; and how
many modules and lines of ours a hospital's ClientApp loads. The full benchmark writes benchmarks/results/imports.json. With
``--quick`` it prints, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.common.machine import machine
from benchmarks.common.probes import ROOT

RESULT = ROOT / "benchmarks" / "results" / "imports.json"
# What is started, ours and theirs as Python's arguments, and how many times theirs ours may take.
STARTS: tuple[tuple[str, list[str], str, float | None], ...] = (
    ("`polyclinic --help`", ["-m", "polyclinic", "--help"], "import typer, rich", 1.5),
    ("`polyclinic datasets`", ["-m", "polyclinic", "datasets"], "import typer, rich, pydantic, pandas", None),
    ("import of `polyclinic.client_app`", ["-c", "import polyclinic.client_app"], "import torch, flwr", None),
)
MODULES = """
import json, sys
from pathlib import Path
import polyclinic.client_app
ours = [module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "polyclinic"]
print(json.dumps({"modules": len(ours), "lines": sum(len(Path(file).read_text().splitlines()) for file in ours)}))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, 2 wrong arguments."""
    given = _parser().parse_args(arguments)
    repeats = 2 if given.quick else 7
    rows = []
    for what, ours, imports, limit in STARTS:
        seconds, theirs = beside([ours, ["-c", imports]], repeats)
        ratio = seconds / theirs
        rows.append(
            {
                "what": what,
                "against": imports,
                "seconds": seconds,
                "theirs_seconds": theirs,
                "ratio": ratio,
                "limit": limit,
            }
        )
    result: dict[str, Any] = {
        "machine": machine(),
        "command": "python -m benchmarks.imports" + (" --quick" if given.quick else ""),
        "terms": {"repeats": repeats},
        "rows": rows,
        "client_app": loaded(),
    }
    if not given.quick:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write((json.dumps(result, indent=2) if given.json else table(result)) + "\n")
    return 0


def beside(commands: Sequence[Sequence[str]], repeats: int) -> list[float]:
    """The median seconds of the processor of each command, which take turns; a first turn fills the disk's cache."""
    turns = [[spent(command) for command in commands] for _ in range(repeats + 1)][1:]
    return [median(times) for times in zip(*turns, strict=True)]


def spent(arguments: Sequence[str]) -> float:
    """Seconds of the processor that a fresh Python with these arguments took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *arguments], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def loaded() -> dict[str, int]:
    """How many modules of ours a ClientApp loads, and how many lines they have."""
    done = subprocess.run([sys.executable, "-c", MODULES], cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def table(result: dict[str, Any]) -> str:
    """The rows in Markdown."""
    lines = ["| what | ours | against | theirs | ratio |", "| --- | ---: | --- | ---: | ---: |"]
    for row in result["rows"]:
        ours, theirs = f"{row['seconds']:.3f} s", f"{row['theirs_seconds']:.3f} s"
        lines.append(f"| {row['what']} | {ours} | `{row['against']}` | {theirs} | {row['ratio']:.2f}x |")
    count = result["client_app"]
    return "\n".join([*lines, "", f"A ClientApp loads {count['modules']} modules of ours, {count['lines']:,} lines."])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.imports", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few turns, and write nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
