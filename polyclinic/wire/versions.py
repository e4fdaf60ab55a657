"""The versions that a result may depend on, and the rule that all parties of a run count privacy alike."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from platform import platform, python_version
from typing import Any

import polyclinic

#: Raised with every change after which a charge, a sample, a split, noise or a message is counted, drawn or read in another
#: way: who does so in the old way must not take part in a run in the new one. All else of two versions may differ.
PRIVACY_FORMAT = 1
#: The packages of which a hospital tells the coordinator the versions when it enrols.
ENROLLED = ("flwr", "torch", "dp-accounting")
#: The packages of which a run's folder records the coordinator's versions.
RECORDED = (*ENROLLED, "opacus", "ray", "numpy", "pandas", "scikit-learn", "pydantic")


@lru_cache(maxsize=4)
def versions(packages: tuple[str, ...] = ENROLLED) -> Mapping[str, str]:
    """The versions of Polyclinic, of its privacy format, of Python and of those of ``packages`` that are installed, by name."""
    installed = {
        "polyclinic": polyclinic.__version__,
        "privacy_format": str(PRIVACY_FORMAT),
        "python": python_version(),
    }
    for package in packages:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed


def recorded_versions() -> dict[str, str]:
    """What a run's folder records of the machine that coordinates the run."""
    return {**versions(RECORDED), "platform": platform()}


def version_conflict(hospital: Mapping[str, Any], coordinator: Mapping[str, Any]) -> str | None:
    """Why a hospital and a coordinator of these ``versions`` cannot work together, or None: they count privacy differently, or
    do not say how.

    Examples:
        >>> version_conflict({"polyclinic": "0.3.0", "privacy_format": "1"}, {"polyclinic": "0.2.0", "privacy_format": "1"})
        >>> version_conflict({"polyclinic": "0.9.9"}, {"polyclinic": "0.2.0", "privacy_format": "1"}).partition(";")[0]
        'the hospital has Polyclinic 0.9.9 (privacy format not said) and the coordinator has Polyclinic 0.2.0 (privacy format 1)'
    """
    if hospital.get("privacy_format") == coordinator.get("privacy_format"):
        return None
    return (
        f"the hospital has {version_title(hospital)} and the coordinator has {version_title(coordinator)}; under two privacy "
        "formats privacy is counted, or patients are drawn, differently: install versions of the same format at both."
    )


def version_title(versions: Mapping[str, Any]) -> str:
    """Both version and privacy format of what a party's ``versions`` say, which may be nothing."""
    name = (
        f"Polyclinic {versions['polyclinic']}"
        if versions.get("polyclinic")
        else "a Polyclinic that does not say its version"
    )
    return f"{name} (privacy format {versions.get('privacy_format') or 'not said'})"
