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
