"""The versions that a result may depend on, and the rule that all parties of a run have the same version of Polyclinic."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from platform import platform, python_version

import polyclinic

#: The packages of which a hospital tells the coordinator the versions when it enrols.
ENROLLED = ("flwr", "torch", "dp-accounting")
#: The packages of which a run's folder records the coordinator's versions.
RECORDED = (*ENROLLED, "opacus", "ray", "numpy", "pandas", "scikit-learn", "pydantic")


@lru_cache(maxsize=4)
def versions(packages: tuple[str, ...] = ENROLLED) -> Mapping[str, str]:
    """The versions of Polyclinic, of Python and of those of ``packages`` that are installed, by name."""
    installed = {"polyclinic": polyclinic.__version__, "python": python_version()}
    for package in packages:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed


def recorded_versions() -> dict[str, str]:
    """What a run's folder records of the machine that coordinates the run."""
    return {**versions(RECORDED), "platform": platform()}


def version_conflict(hospital: str, coordinator: str) -> str | None:
    """Why a hospital and a coordinator of these versions of Polyclinic cannot work together, or None.

    Only equal versions can: another one may count privacy, split patients or check a message differently. An empty
    text stands for a version that was not said.

    >>> version_conflict("0.1.0", "0.1.0")
    >>> version_conflict("0.9.9", "0.1.0").partition(";")[0]
    'the hospital has Polyclinic 0.9.9 and the coordinator has Polyclinic 0.1.0'
    """
    if hospital == coordinator:
        return None
    theirs, ours = (f"Polyclinic {name}" if name else "a Polyclinic that does not say its version"
                    for name in (hospital, coordinator))  # fmt: skip
    return (
        f"the hospital has {theirs} and the coordinator has {ours}; two versions may count privacy or split patients "
        "differently: install the same version at both."
    )
