"""One measurement: a command started in a process of its own, and the seconds read from what it prints or how long it takes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

ROOT = Path(__file__).parents[2]
OUT = "{out}"  # stands for a new folder in a command's arguments
_ENVIRONMENT = {
    "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_TELEMETRY_ENABLED": "0", "NO_COLOR": "1", "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0",
}  # fmt: skip


class ProbeFailed(Exception):
    """A measured command failed or took too long."""


@dataclass(frozen=True)
class Probe:
    """A command to measure.

    kind: "rounds" reads the list ``seconds`` of the JSON on its last line and takes the median after the first ``skip``;
    "command" takes the time from start to end; "start" the time until it prints the line of its first round.
    divide: the seconds are divided by this, for figures per site.
    """

    label: str
    argv: tuple[str, ...]
    kind: Literal["rounds", "command", "start"] = "rounds"
    skip: int = 2
    divide: int = 1
    timeout: float = 1800.0


@dataclass(frozen=True)
class Sample:
    """What a probe found."""

    seconds: float
    noise: float | None = None
    peak_bytes: int | None = None


def module(name: str, *options: object, python: str = sys.executable) -> tuple[str, ...]:
    """The arguments of ``python -m name options``."""
    return (python, "-m", name, *map(str, options))


def run(probe: Probe) -> Sample:
    """Start the command and wait for its end. Raises ProbeFailed with the last line that it said."""
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryFile("w+") as said:
        argv = [part.replace(OUT, out) for part in probe.argv]
        started = time.perf_counter()
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=said if probe.kind != "start" else subprocess.STDOUT, text=True,
            cwd=ROOT, env=os.environ | _ENVIRONMENT, start_new_session=True,
        )  # fmt: skip
        watchdog = threading.Timer(probe.timeout, _stop, [process])
        watchdog.start()
        try:
            lines, first_round = _read(process, started)
            process.wait()
        finally:
            watchdog.cancel()
            _stop(process)
        wall = time.perf_counter() - started
        if process.returncode != 0:
            said.seek(0)
            tail = [line for line in [*lines, *said.read().splitlines()] if line.strip()]
            raise ProbeFailed(f"{probe.label} ended with {process.returncode}: {tail[-1] if tail else 'nothing said'}")
    return _sample(probe, lines, wall, first_round)


def _read(process: subprocess.Popen[str], started: float) -> tuple[list[str], float | None]:
    """All lines of stdout, and when the first one about round 1 came."""
    lines: list[str] = []
    first_round = None
    assert process.stdout is not None
    for line in process.stdout:
        if first_round is None and line.startswith("round 1/"):
            first_round = time.perf_counter() - started
        lines.append(line.rstrip("\n"))
    return lines, first_round


def _stop(process: subprocess.Popen[str]) -> None:
    """End a command that still runs, with the processes it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _sample(probe: Probe, lines: list[str], wall: float, first_round: float | None) -> Sample:
    if probe.kind == "command":
        return Sample(wall / probe.divide)
    if probe.kind == "start":
        if first_round is None:
            raise ProbeFailed(f"{probe.label} told of no first round")
        return Sample(first_round / probe.divide)
    found = json.loads(lines[-1])
    steady = found["seconds"][probe.skip :]
    if not steady:
        raise ProbeFailed(f"{probe.label} gave {len(found['seconds'])} rounds, too few to leave out {probe.skip}")
    return Sample(median(steady) / probe.divide, found.get("noise"), found.get("peak_bytes"))
