"""What a sweep saves: ``python -m benchmarks.sweeps [--quick] [--json]``, four minutes.

Whole commands, each a fresh Python. One after another is ``polyclinic run`` once for each run, of which a few are measured;
beside it stands the sweep with one job and with a job for each core. What a run reached alone is compared with what it reached
in the sweep. The full benchmark refuses to measure beside other work (``machine.MOST_BUSY``), and writes
benchmarks/results/sweeps.json and the table of docs/sweep.md; with ``--quick`` it prints, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.machine import MOST_BUSY, Busy, machine, quiet
from benchmarks.common.probes import ROOT
from benchmarks.critics import write_between
from benchmarks.latency import memory
from polyclinic.runs.folder import Run
from polyclinic.sim.threads import cores

RESULT = ROOT / "benchmarks" / "results" / "sweeps.json"
PAGE = ROOT / "docs" / "sweep.md"
BEGIN, END = "<!-- benchmarks.sweeps: begin -->", "<!-- benchmarks.sweeps: end -->"
CLOSE = 1e-6


@dataclass(frozen=True)
class Study:
    """Runs of one command that differ in seed and epsilon. ``goal``: how many times faster the sweep is wanted."""

    what: str
    arguments: tuple[str, ...]
    rounds: int
    epsilons: tuple[float, ...]
    seeds: int
    goal: float
    turns: int

    @property
    def runs(self) -> int:
        return len(self.epsilons) * self.seeds

    @property
    def shared(self) -> list[str]:
        return [*self.arguments, "--rounds", str(self.rounds)]

    def alone(self, seed: int, out: Path) -> list[str]:
        """The command of one of the runs."""
        settings = [f"privacy.epsilon={self.epsilons[seed % len(self.epsilons)]}", f"split.seed={seed}"]
        given = [word for setting in settings for word in ("-c", setting)]
        return ["run", *self.shared, *given, "--seed", str(seed), "--out", str(out)]

    def sweep(self, jobs: int, out: Path) -> list[str]:
        values = f"privacy.epsilon={','.join(map(str, self.epsilons))}"
        return ["sweep", *self.shared, "-c", values, "--seeds", str(self.seeds), "--jobs", str(jobs), "--out", str(out)]


STUDIES = (
    Study("heart disease, 4 hospitals", ("--dataset", "heart-disease"), 30, (0.5, 1.0, 3.0, 8.0), 20, 20.0, 2),
    Study(
        "50 hospitals of 500 patients, a perceptron",
        ("--dataset", "benchmarks.common.work:hospitals_500", "--sites", "50", "--model", "mlp"), 15, (1.0,), 20, 3.0, 1,
    ),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """0 measured, 1 other work is in the way, 2 wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweeps", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two short runs of each; writes nothing")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    given = parser.parse_args(arguments)
    studies = [replace(one, rounds=2, epsilons=(1.0,), seeds=2, turns=1) if given.quick else one for one in STUDIES]
    result: dict[str, Any] = {"machine": machine(), "command": "python -m benchmarks.sweeps", "most_busy": MOST_BUSY}
    try:
        result["busy_cores"] = None if given.quick else quiet()
    except Busy as busy:
        print(busy, file=sys.stderr)
        return 1
    result["rows"] = [measured(study) for study in studies]
    if not given.quick:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        write_between(PAGE, BEGIN, END, table(result))
    print(json.dumps(result, indent=1) if given.json else table(result))
    return 0


def measured(study: Study) -> dict[str, Any]:
    """The least of several turns of each way, which alternate."""
    jobs = cores()
    alone, one_job, several = list[float](), list[float](), list[float]()
    peak = difference = 0.0
    with tempfile.TemporaryDirectory(prefix="polyclinic-") as folder:
        for turn in range(study.turns):
            places = [Path(folder) / f"{way}-{turn}" for way in ("alone", "one", "several")]
            alone += [timed(study.alone(seed, places[0] / str(seed)))[0] for seed in (2 * turn, 2 * turn + 1)]
            one_job.append(timed(study.sweep(1, places[1]))[0])
            seconds, megabytes = timed(study.sweep(jobs, places[2]))
            several.append(seconds)
            peak = max(peak, megabytes)
            difference = max(difference, *(farthest(places[0], place) for place in places[1:]))
    ratios = [study.runs * min(alone) / min(times) for times in (several, one_job)]
    return {
        "what": study.what, "runs": study.runs, "rounds": study.rounds, "turns": study.turns, "jobs": jobs,
        "alone_seconds": study.runs * min(alone), "one_job_seconds": min(one_job), "seconds": min(several),
        "ratio": ratios[0], "one_job_ratio": ratios[1], "goal": study.goal, "difference": difference,
        "peak_gigabytes": peak / 1024, "met": ratios[0] >= study.goal and difference <= CLOSE,
    }  # fmt: skip


def timed(arguments: Sequence[str]) -> tuple[float, float]:
    """Seconds of the whole command, and the most megabytes that its processes took, looked at every second."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    began, most = time.perf_counter(), 0.0
    process = subprocess.Popen(
        [sys.executable, "-m", "polyclinic", *arguments], stdout=subprocess.DEVNULL, cwd=ROOT, env=environment
    )
    while process.poll() is None:
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            most = max(most, memory(process.pid))
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, arguments)
    return time.perf_counter() - began, most


def farthest(alone: Path, swept: Path) -> float:
    """The largest difference between the models of the runs that were made alone and those of the same runs of a sweep."""
    others = {(config.seed, config.privacy.epsilon): run for run in Run.all_in(swept) for config in [run.config()]}
    found = 0.0
    for folder in alone.iterdir():
        run = Run.open(folder)
        config, arrays = run.config(), run.stored_arrays()
        other = others[config.seed, config.privacy.epsilon].stored_arrays()
        found = max(found, *(float(np.abs(value - other[name]).max()) for name, value in arrays.items()))
    return found


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    lines = [
        "| sweep | one after another | one job | a job a core | faster, one job | faster | wanted | difference | memory |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for row in result["rows"]:
        cells = [f"{row['runs']} runs: {row['what']}, {row['rounds']} rounds"]
        cells += [f"{row[name]:.1f} s" for name in ("alone_seconds", "one_job_seconds", "seconds")]
        cells += [f"{row['one_job_ratio']:.1f}x", f"**{row['ratio']:.1f}x**", f"≥ {row['goal']:g}x"]
        cells += [f"{row['difference']:.0e}" if row["difference"] else "0", f"{row['peak_gigabytes']:.2f} GB"]
        lines.append(f"| {' | '.join(cells)} |")
    about, jobs = result["machine"], result["rows"][0]["jobs"]
    return "\n".join([*lines, "", (
        f"Seconds of whole commands, the least of the turns; {jobs} cores. One after another is `polyclinic run` once for each "
        "run, of which two a turn were measured; it draws each report's figures, which a sweep leaves to `polyclinic report`. "
        "The difference is the largest of any number of a model. Memory is of all processes, what they share counted once. "
        f"Measured {about['date']} at commit {about['commit']} by `{result['command']}` on {about['cpu']}, beside other work of "
        f"{result['busy_cores']} cores, of which at most {result['most_busy']} are allowed."
    )])  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
