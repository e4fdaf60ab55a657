"""The oldest versions that Polyclinic takes have no advisory that was known, and the tested ones are among those it takes."""

import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FLOORS = {canonicalize_name(r.name): r for r in map(Requirement, PROJECT["dependencies"])}
PINNED = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
# The newest version with a published advisory that a use as here could meet, and which it is.
VULNERABLE = {
    "jinja2": ("3.1.5", "CVE-2025-27516"),
    "torch": ("2.7.1", "CVE-2025-3730"),
    "cryptography": ("44.0.0", "CVE-2024-12797"),
    "pyarrow": ("14.0.0", "CVE-2023-47248"),
    "scikit-learn": ("1.4.2", "CVE-2024-5206"),
    "starlette": ("0.49.0", "CVE-2025-62727"),
}


@pytest.mark.parametrize("name", VULNERABLE)
def test_no_version_with_a_known_advisory_is_taken(name: str) -> None:
    newest, advisory = VULNERABLE[name]
    assert not FLOORS[name].specifier.contains(newest), advisory


@pytest.mark.parametrize("pinned", PINNED, ids=lambda pinned: pinned.name)
def test_the_tested_versions_satisfy_the_floors(pinned: Requirement) -> None:
    [exact] = pinned.specifier
    assert canonicalize_name(pinned.name) not in FLOORS or FLOORS[canonicalize_name(pinned.name)].specifier.contains(
        exact.version
    )


@pytest.mark.parametrize("name", FLOORS)
def test_what_is_installed_satisfies_the_floors(name: str) -> None:
    assert FLOORS[name].specifier.contains(version(name), prereleases=True)
