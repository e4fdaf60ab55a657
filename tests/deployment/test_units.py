"""The systemd units: sound to systemd where it is installed, with the same confinement in any case."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import ROOT, Cli

UNITS = sorted((ROOT / "docs" / "deploy").glob("*.service"))
HARDENED = {
    "NoNewPrivileges": "true", "ProtectSystem": "strict", "ProtectHome": "true", "PrivateTmp": "true",
    "PrivateDevices": "true", "CapabilityBoundingSet": "", "RestrictSUIDSGID": "true", "LimitCORE": "0",
    "UMask": "0077", "KillMode": "mixed", "SystemCallFilter": "@system-service",
    "Environment": "POLYCLINIC_LOG_FORMAT=json",
}  # fmt: skip


def section(unit: Path, name: str) -> dict[str, str]:
    text = unit.read_text().split(f"[{name}]\n")[1].split("\n[")[0]
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_confines_what_it_starts(unit: Path) -> None:
    service = section(unit, "Service")
    assert HARDENED.items() <= service.items()
    assert service["User"] == "polyclinic" and service["ExecStart"].startswith("/opt/polyclinic/bin/polyclinic ")
    written = service.get("ReadWritePaths", "").split()
    folder = service["ExecStart"].split()[-1]
    assert all(path.startswith(folder) for path in written) and bool(written) != ("metrics" in unit.stem)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_waits_for_the_time_and_starts_its_program_again_however_it_ended(unit: Path) -> None:
    assert section(unit, "Service")["Restart"] == "always"
    for key in ("After", "Wants"):
        assert section(unit, "Unit")[key].split() == ["network-online.target", "time-sync.target"]


def test_a_hospital_s_unit_cannot_write_its_policy_or_key() -> None:
    service = section(ROOT / "docs" / "deploy" / "polyclinic-hospital.service", "Service")
    assert service["ReadWritePaths"].split() == ["/srv/hospital/home", "/srv/hospital/flwr"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_finds_nothing_wrong_with_a_unit(unit: Path, tmp_path: Path) -> None:
    """With a program that is there; systemd warns of keys that it does not know and still exits 0."""
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/polyclinic/bin/polyclinic", "/bin/sh"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True)
    assert done.returncode == 0 and unit.name not in done.stderr, done.stderr


def test_only_the_pages_that_a_test_follows_show_commands_of_deployment() -> None:
    """tests/docs leaves them out, since they need processes; tests/deployment/test_federation.py runs those pages'."""
    followed = {ROOT / "docs" / "deploy" / "README.md", ROOT / "docs" / "tutorials" / "administrator.md"}
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.S | re.M):
            if re.search(r"^polyclinic (coordinator|hospital) ", block, re.M):
                assert page in followed


def test_each_side_has_a_unit_of_its_node_and_one_of_its_metrics(cli: Cli) -> None:
    sides = ("polyclinic-coordinator", "polyclinic-hospital")
    assert [unit.stem for unit in UNITS] == [name for side in sides for name in (f"{side}-metrics", side)]
    for unit in UNITS:
        _, *command, _ = section(unit, "Service")["ExecStart"].split()
        shown = cli(*command[:2], "--help")
        assert shown.code == 0 and all(part in shown.out for part in command if part.startswith("--"))
