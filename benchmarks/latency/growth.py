"""What a long run leaves behind: ``python -m benchmarks.latency.growth [--quick] [--json]``.

One real hospital (its own records, ledger and journal) and the server in one process, for a thousand rounds that train next to
nothing: bytes of the hospital's home and of the run's folder, and the memory of the process, after the first rounds and in the
end. The full benchmark writes benchmarks/results/growth.json and, from it, the table of docs/deploy/README.md. With ``--quick``
it prints, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common.machine import machine
from benchmarks.common.probes import ROOT
from benchmarks.critics import write_between
from benchmarks.latency import PAGE, SCHEMA
from polyclinic.config import RunConfig
from polyclinic.runs.folder import Run
from polyclinic.server.app import coordinate
from polyclinic.server.progress import Progress
from polyclinic.server.state import RunState
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid

RESULT = ROOT / "benchmarks" / "results" / "growth.json"
BEGIN, END = "<!-- benchmarks.latency.growth: begin -->", "<!-- benchmarks.latency.growth: end -->"
POLICY = 'budget = 3.0\ndelta = 1e-3\nallowed-tasks = ["classification", "statistics"]\n'
TITLES = {
    "journal": "the hospital's journal", "ledger": "its ledger", "home": "all other files of its home",
    "run": "the run's folder at the coordinator", "memory": "memory of hospital and server in one process",
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, 2 wrong arguments."""
    given = _parser().parse_args(arguments)
    rounds, early = (40, 20) if given.quick else (1000, 200)
    result: dict[str, Any] = {
        "machine": machine(),
        "command": "python -m benchmarks.latency.growth" + (" --quick" if given.quick else ""),
        "terms": {"rounds": rounds, "early": early, "patients": 200},
        "rows": measured(rounds, early),
    }
    if not given.quick:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        write_between(PAGE, BEGIN, END, table(result))
    sys.stdout.write((json.dumps(result, indent=2) if given.json else table(result)) + "\n")
    return 0


@dataclass
class Sizes(Progress):
    """Notes what there is after some of the rounds, in bytes."""

    home: Path
    run: Path
    rounds: tuple[int, ...]
    seen: dict[int, dict[str, float]] = field(default_factory=dict)

    def on_round(self, config: RunConfig, state: RunState) -> None:
        if state.round in self.rounds:
            self.seen[state.round] = self.now()

    def now(self) -> dict[str, float]:
        files: Counter[str] = Counter()
        for path in self.home.rglob("*"):
            files[path.relative_to(self.home).parts[0]] += path.stat().st_size if path.is_file() else 0
        journal = files.pop("journal.jsonl", 0)
        ledger = sum(files.pop(name) for name in [name for name in files if name.startswith("ledger.sqlite")])
        run = sum(path.stat().st_size for path in self.run.rglob("*") if path.is_file())
        status = Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]
        return {
            "journal": journal,
            "ledger": ledger,
            "home": sum(files.values()),
            "run": run,
            "memory": float(status) * 1024,
        }


def measured(rounds: int, early: int) -> list[dict[str, Any]]:
    """Of each thing its bytes after the ``early`` rounds and after all, and how much a round between them added."""
    with tempfile.TemporaryDirectory(prefix="polyclinic-growth-") as name:
        folder = Path(name)
        rng = np.random.default_rng(0)
        records = {"id": np.arange(200), "age": rng.integers(20, 90, 200), "died": rng.integers(0, 2, 200)}
        pd.DataFrame(records).to_csv(folder / "records.csv", index=False)
        (folder / "schema.toml").write_text(SCHEMA)
        lines = 'site = "north"\ndata = "records.csv"\nschema = "schema.toml"\nhome = "home"\n[policy]\n'
        (folder / "hospital.toml").write_text(lines + POLICY)
        config = RunConfig.build({
            "rounds": rounds, "participation.min-sites": 1, "training.local-steps": 1, "privacy.epsilon": 2.0,
            "privacy.delta": 1e-3, "evaluation.metrics": "none", "out": str(folder / "runs"),
        })  # fmt: skip
        hospital = {"hospital": str(folder / "hospital.toml")}
        run = Run.create(config, pictures=False)
        sizes = Sizes(folder / "home", run.path, (early, rounds))
        with LocalGrid(AppReference("polyclinic.client_app"), 1, config.flat(), node_config=hospital) as grid:
            coordinate(grid, config, run, progress=sizes)
    first, last = sizes.seen[early], sizes.seen[rounds]
    return [
        {
            "what": what,
            "early": first[what],
            "last": last[what],
            "a_round": (last[what] - first[what]) / (rounds - early),
        }
        for what in TITLES
    ]


def table(result: Mapping[str, Any]) -> str:
    """GitHub markdown, one line a thing and a sentence on the machine."""
    terms, about = result["terms"], result["machine"]
    lines = [
        f"| what grows | after {terms['early']} rounds | after {terms['rounds']:,} | bytes a round |",
        "| --- | ---: | ---: | ---: |",
    ]
    for row in result["rows"]:
        cells = [f"{row[name] / 1e6:.2f} MB" for name in ("early", "last")]
        lines.append(f"| {' | '.join([TITLES[row['what']], *cells, format(row['a_round'], ',.0f')])} |")
    return "\n".join(lines) + (
        f"\n\nOne hospital of {terms['patients']} patients, one step a round. Measured {about['date']} at commit "
        f"{about['commit']} by `{result['command']}` on {about['cpu']}, torch {about['torch']}, flwr {about['flwr']}."
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency.growth", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="40 rounds; not for quoting")
    parser.add_argument("--json", action="store_true", help="print the result's JSON alone on stdout")
    return parser


if __name__ == "__main__":
    sys.exit(main())
