"""The page of an upgrade, followed line by line: from a version of the same privacy format to this one, hospital first.

The earlier version is this package under another number.
"""

import os
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import polyclinic
from polyclinic.inspection.result import RunResult
from polyclinic.privacy.ledger import Ledger

from .conftest import ROOT, Cli
from .federation import Federation, free_ports, other_version, wait_for

pytestmark = [pytest.mark.flower, pytest.mark.slow]
EARLIER = "0.1.99"
PAGE = ROOT / "docs" / "deploy" / "upgrade.md"
RUN = (
    "rounds=1",
    "training.local-steps=2",
    "privacy.patients-per-site=150",
    "privacy.epsilon=0.5",
    "privacy.delta=1e-3",
)


@pytest.fixture
def earlier(tmp_path: Path) -> dict[str, str]:
    """The environment in which the earlier version is the one that is installed."""
    return other_version(tmp_path / "earlier", EARLIER)


@pytest.fixture
def federation(cli: Cli, tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path / "federation", free_ports(3), cli)
    made.folder.mkdir()
    try:
        yield made
    finally:
        made.stop()


def lines() -> list[str]:
    """What the page tells to type, in its order."""
    steps = PAGE.read_text().split("## Step by step")[1].split("\n## ")[0]
    blocks = re.findall(r"^ *```text\n(.*?)^ *```", steps, re.S | re.M)
    return [line.strip() for block in blocks for line in block.splitlines() if line.strip()]


def test_hospital_and_coordinator_are_upgraded_as_the_page_says(
    federation: Federation, earlier: dict[str, str], tmp_path: Path
) -> None:
    federation.call("coordinator", "init", federation.co, "--host", "localhost", "--port", federation.ports[0])
    federation.start("coordinator", "coordinator", earlier)
    wait_for(federation.serving)
    federation.hospital("north", federation.ports[1])
    federation.register("north")
    federation.start("hospital", "north", earlier)

    def connected() -> bool:
        return federation.status("north") == "online"

    wait_for(connected)

    def run() -> RunResult:
        federation.call(
            "coordinator", "submit", federation.co, *(part for key in RUN for part in ("-c", key)), "--stream"
        )
        return RunResult.read((federation.co / "runs" / "latest.txt").read_text())

    first = run().folder.versions()
    assert first["coordinator"]["polyclinic"] == first["hospitals"]["north"]["polyclinic"] == EARLIER
    places = {
        "/srv/hospital": federation.folder / "north",
        "/srv/coordinator": federation.co,
        "/backups": tmp_path / "backups",
    }
    names = {"polyclinic-hospital": ("hospital", "north"), "polyclinic-coordinator": ("coordinator", "coordinator")}
    told = lines()
    assert [line.split()[0].rpartition("/")[2] for line in told].count("pip") == 2
    for line in told:
        program, *words = shlex.split(line)
        if program == "systemctl":
            room, name = names[words[1]]
            if words[0] == "stop":
                os.killpg(federation.processes[name].pid, signal.SIGTERM)
                federation.processes[name].wait(60)
            else:
                federation.start(room, name)
                wait_for(federation.serving)
                wait_for(connected)
        elif program == "polyclinic":
            for place, folder in places.items():
                words = [word.replace(place, str(folder)) for word in words]
            done = federation.run(*words)
            # A warning, as of a clock that nothing keeps right here, is exit code 1 as well.
            assert done.code == 0 or (words[1] == "check" and '"failed"' not in done.out), done.error + done.out
            if words[:2] == ["hospital", "check"]:  # the new hospital at the earlier coordinator
                assert EARLIER in done.out
                mixed = run().folder.versions()
                assert mixed["coordinator"]["polyclinic"] == EARLIER
                assert mixed["hospitals"]["north"]["polyclinic"] == polyclinic.__version__
                assert f"the coordinator has version '{EARLIER}'" in federation.log("north")
        else:
            assert words[:4] == ["install", "--upgrade", "-c", "constraints.txt"], line
    last = run().folder.versions()
    assert last["coordinator"]["polyclinic"] == last["hospitals"]["north"]["polyclinic"] == polyclinic.__version__
    ledger = Ledger.read(federation.folder / "north" / "home" / "ledger.sqlite")
    assert len(ledger.events()) == 3 and ledger.verify()
    assert (tmp_path / "backups" / "hospital" / "home" / "ledger.sqlite").is_file()
