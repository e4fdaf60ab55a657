"""What every experiment writes, and how one is run from the command line."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy
import scipy
import torch
from matplotlib.figure import Figure

Results = dict[str, Any]
BLUE, GREEN, ORANGE, GREY = "#0072B2", "#009E73", "#D55E00", "#555555"


def say(line: str) -> None:
    """Progress, to standard error."""
    print(line, file=sys.stderr, flush=True)


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def write(out: Path, results: Results, table: str, figures: dict[str, Figure]) -> Results:
    """results.json (with the machine and the versions), table.md and ``NAME.svg`` of each figure, into ``out``."""
    versions = {module.__name__: module.__version__ for module in (matplotlib, numpy, scipy, torch)}
    whole = {"machine": platform.platform(), "python": platform.python_version(), "versions": versions} | results
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (out / "table.md").write_text(table, encoding="utf-8")
    with matplotlib.rc_context({"svg.hashsalt": "polyclinic"}):
        for name, figure in figures.items():
            figure.savefig(out / f"{name}.svg", metadata={"Date": None})
    return whole


def main(run: Callable[[Path, bool], Results], here: Path) -> None:
    """``[--out DIR] [--quick]``: runs the experiment into DIR, which is ``here`` unless it is given or the run is quick."""
    parser = argparse.ArgumentParser(description=(sys.modules[run.__module__].__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--quick", action="store_true", help="a small form that takes seconds")
    given = parser.parse_args()
    if given.quick and given.out is None:
        parser.error("--quick needs --out: the committed results are of the whole experiment.")
    out = given.out or here
    run(out, given.quick)
    print((out / "table.md").read_text(encoding="utf-8"))
