"""An environment of its own for a peer whose packages do not go with ours, made once and kept out of version control."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import torch

PFL = "pfl[pytorch]==0.6.0"
HOME = Path(__file__).parents[1] / ".venvs" / "pfl"
_INSTALL_SECONDS = 900


class Unavailable(Exception):
    """The peer's packages cannot be installed here."""


def pfl_python(install: bool = True) -> str:
    """The interpreter that has pfl, installing it at the first call, with the torch that Polyclinic has.

    Raises Unavailable when it cannot be installed, or is not there and ``install`` is False.
    """
    python = HOME / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    if _has_pfl(python):
        return str(python)
    if not install:
        raise Unavailable("pfl is not installed; a full run installs it")
    venv.create(HOME, with_pip=True, clear=True)
    # The exact torch, of the CPU where ours is, is taken if pip's sources have it; else the release of that number.
    for version in dict.fromkeys((torch.__version__, torch.__version__.split("+")[0])):
        if _installs(python, f"torch=={version}", PFL) and _has_pfl(python):
            return str(python)
    raise Unavailable(f"{PFL} could not be installed with pip")


def _installs(python: Path, *packages: str) -> bool:
    command = [str(python), "-m", "pip", "install", "--quiet", *packages]
    try:
        return subprocess.run(command, capture_output=True, timeout=_INSTALL_SECONDS, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _has_pfl(python: Path) -> bool:
    if not python.is_file():
        return False
    asked = [str(python), "-c", "import torch, pfl.model.pytorch"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0
