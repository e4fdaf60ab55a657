"""What a figure was measured on; names no host."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.common.probes import ROOT

_PACKAGES = ("polyclinic", "torch", "flwr", "opacus", "ray", "numpy")
MOST_BUSY = 0.7  # cores that other work may take while a figure is measured
# A resumed result must agree in these.
SAME = ("cpu", "cores", "memory_gigabytes", "python", *_PACKAGES)


def machine() -> dict[str, Any]:
    return {
        "cpu": _cpu(), "cores": os.cpu_count(), "memory_gigabytes": _memory(), "system": platform.system(),
        "python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}, "commit": commit(),
        "date": time.strftime("%Y-%m-%d"), "load": _load(),
    }  # fmt: skip


def commit() -> str | None:
    """The commit that is measured, with a plus where files differ from it."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or None


def quiet(patience: float = 60.0) -> float | None:
    """Cores that work of others takes, once they are at most ``MOST_BUSY``; None where the system does not count them.

    Raises Busy when that is not so within ``patience`` seconds.
    """
    began = time.monotonic()
    while (busy := busy_cores()) is not None and busy > MOST_BUSY:
        if time.monotonic() - began > patience:
            raise Busy(
                f"Other work takes {busy:.1f} of {os.cpu_count()} cores, and a figure may be kept at {MOST_BUSY} or less; wait, "
                "and go on with --resume."
            )
    return busy


class Busy(Exception):
    """Other work on the machine would be measured too."""


def busy_cores(seconds: float = 1.0) -> float | None:
    """How many cores worked in the last ``seconds``; unlike the load it forgets at once what a benchmark did before."""
    before = _ticks()
    time.sleep(seconds)
    after = _ticks()
    if before is None or after is None:
        return None
    idle, all_ = (b - a for a, b in zip(before, after, strict=True))
    return round((1 - idle / max(all_, 1)) * (os.cpu_count() or 1), 2)


def _ticks() -> tuple[int, int] | None:
    """The idle and all ticks of all cores since the start."""
    try:
        line = Path("/proc/stat").read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return None
    ticks = [int(word) for word in line.split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, AttributeError):
        return None


def _load() -> float | None:
    """Mean processes that wanted a core in the last minute: other work on the machine disturbs the figures."""
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
