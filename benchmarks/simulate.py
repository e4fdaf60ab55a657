"""Flower apps under `polyclinic simulate` and under `flwr run`: ``python -m benchmarks.simulate [--quick] [--json]``.

The same app (benchmarks/flower_apps) in turns: ``net``, PyTorch's quickstart with an epoch at every node, of whose time most is
training, and ``linear``, whose nodes have little to do. Measured are the wall seconds of the whole command, those of the
strategy alone (``start`` inside the ServerApp), and the most memory that all processes of the run together held. Flower's
SuperLink runs before: the time of its start is left out, its memory is not. Ray starts with each run, as Flower starts it. The
full benchmark writes benchmarks/results/simulate.json; with ``--quick`` it prints, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common.machine import machine
from benchmarks.common.probes import ROOT
from polyclinic.cli.runs.flower import superlink
from polyclinic.deployment.environment import flower_settings, with_settings

RESULT = ROOT / "benchmarks" / "results" / "simulate.json"
APPS = ROOT / "benchmarks" / "flower_apps"
# App, nodes, rounds, workers of ours, and how many times theirs ours shall be better in each figure.
CASES: tuple[tuple[str, int, int, int, dict[str, float]], ...] = (
    ("net", 10, 3, 1, {"command": 5.0, "memory": 3.0}),
    ("linear", 50, 10, 1, {"strategy": 10.0, "memory": 3.0}),
    ("net", 50, 10, 1, {"strategy": 10.0, "memory": 3.0}),
    ("net", 50, 10, 2, {"strategy": 10.0, "memory": 3.0}),
)


class Memory(threading.Thread):
    """The most memory of a group of processes, each shared page counted by its share (PSS), looked at four times a second."""

    def __init__(self, belongs: str) -> None:
        """belongs: what the environment of each of the processes names."""
        super().__init__(daemon=True)
        self._belongs, self._end = belongs.encode(), threading.Event()
        self.most = 0

    def run(self) -> None:
        while not self._end.wait(0.25):
            self.most = max(self.most, sum(_pss(process, self._belongs) for process in Path("/proc").glob("[0-9]*")))

    def stop(self) -> int:
        self._end.set()
        self.join()
        return self.most


def _pss(process: Path, belongs: bytes) -> int:
    try:
        if belongs not in (process / "environ").read_bytes():
            return 0
        lines = (process / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def measure(command: Sequence[str], environment: Mapping[str, str], out: Path, mark: str) -> dict[str, float]:
    """One run of a command that leaves the app's own figures in ``out``; ``mark`` is in the environment of its processes."""
    memory = Memory(mark)
    memory.start()
    begun = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    seconds, most = time.perf_counter() - begun, memory.stop()
    if done.returncode or not out.exists():
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    found = json.loads(out.read_text())
    out.unlink()
    return {"command": seconds, "strategy": found["seconds"], "memory": float(most), "accuracy": found["accuracy"]}


def main(arguments: Sequence[str] | None = None) -> int:
    """0 done, 2 wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="One turn of the small case; writes nothing.")
    parser.add_argument("--json", action="store_true", help="Print JSON in place of a table.")
    given = parser.parse_args(arguments)
    cases, turns = (CASES[:1], 1) if given.quick else (CASES, 3)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        home, out = Path(folder) / "flower", Path(folder) / "out.json"
        home.mkdir()
        environment = with_settings(flower_settings(home))
        with superlink(home, environment):
            for app, nodes, rounds, workers, limits in cases:
                config = f'rounds={rounds} out="{out}"'
                ours = [sys.executable, "-m", "polyclinic", "simulate", str(APPS / app), "--nodes", str(nodes), "-c", config,
                        "--workers", str(workers)]  # fmt: skip
                theirs = ["flwr", "run", str(APPS / app), "run", "--stream", "--run-config", config, "--federation-config",
                          f"num-supernodes={nodes} client-resources-num-cpus=1"]  # fmt: skip
                marked = environment | {"SIMULATED_BY_POLYCLINIC": folder}
                pairs = [
                    (measure(ours, marked, out, f"SIMULATED_BY_POLYCLINIC={folder}"),
                     measure(theirs, environment, out, f"FLWR_HOME={home}")) for _ in range(turns)
                ]  # fmt: skip
                what = {"app": app, "nodes": nodes, "rounds": rounds, "workers": workers}
                rows += [what | row for row in figures(pairs, limits)]
    command = "python -m benchmarks.simulate" + (" --quick" if given.quick else "")
    result = {"machine": machine(), "command": command, "terms": {"turns": turns}, "rows": rows}
    if not given.quick:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write((json.dumps(result, indent=2) if given.json else table(rows)) + "\n")
    return 0


def figures(
    pairs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]], limits: Mapping[str, float]
) -> list[dict[str, Any]]:
    """The medians of each figure, ours and theirs, and of the ratios of the turns."""
    rows = []
    for figure in ("command", "strategy", "memory"):
        ours, theirs = ([pair[side][figure] for pair in pairs] for side in (0, 1))
        ratio = median(b / a for a, b in zip(ours, theirs, strict=True))
        limit = limits.get(figure)
        rows.append({"figure": figure, "ours": median(ours), "theirs": median(theirs), "ratio": ratio, "limit": limit,
                     "met": None if limit is None else ratio >= limit})  # fmt: skip
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| app, nodes x rounds, workers | figure | ours | flwr run | ratio | wanted |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        unit, scale = ("MB", 1e-6) if row["figure"] == "memory" else ("s", 1.0)
        wanted = "" if row["limit"] is None else f"≥ {row['limit']:g}x"
        lines.append(
            f"| {row['app']}, {row['nodes']} x {row['rounds']}, {row['workers']} | {row['figure']} | "
            f"{row['ours'] * scale:.3g} {unit} | {row['theirs'] * scale:.3g} {unit} | {row['ratio']:.3g}x | {wanted} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
