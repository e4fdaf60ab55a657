"""What can go wrong, each done for real: ``FAULTS`` by name. A fault strikes, lasts, and is over; the schedule does the rest."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyclinic.client.home.approvals import approvals, decide, pause, resume, stop
from polyclinic.client.home.journal import NAME as JOURNAL
from polyclinic.client.home.policy import HospitalFile, Policy
from polyclinic.deployment.backup import back_up
from polyclinic.deployment.control import Caller, control, runs, stop_run
from polyclinic.deployment.coordinator import Coordinator
from polyclinic.deployment.restore import restore_hospital
from polyclinic.deployment.submitting import submit
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.privacy.events import gaussian_event
from polyclinic.privacy.ledger import Ledger, Terms
from tests.chaos.place import BUDGET, DELTA, OTHER_VERSION, Hospital, Place, held, other_clock
from tests.chaos.wire import CUT, SILENT, Wire

_PATIENCE = 30.0


@dataclass(frozen=True)
class Strike:
    """One fault of a schedule: ``at`` seconds after a hospital was first asked for something, or, ``early``, after the run was
    submitted; for ``lasting`` seconds, at ``hospital``."""

    fault: str
    hospital: str
    early: bool
    at: float
    lasting: float
    seed: int

    @property
    def random(self) -> random.Random:
        return random.Random(self.seed)


def _kill_training(place: Place, strike: Strike) -> str:
    """The ClientApp, between the two lines of a round."""
    found = _soon(lambda: place.at_work(strike.hospital))
    if not found:
        return "no round came"
    time.sleep(strike.random.uniform(0, 0.3))
    return f"killed {sum(map(_kill, found))} at work"


def _kill_any(place: Place, strike: Strike) -> str:
    """Any process of the hospital: its node, what starts tasks, a task."""
    found = place.processes(strike.hospital)
    killed = strike.random.choice(found) if found else 0
    return f"killed one of {len(found)}" if found and _kill(killed) else "nothing to kill"


def _kill_node(place: Place, strike: Strike) -> str:
    place.kill(strike.hospital)
    time.sleep(strike.lasting)
    place.start(strike.hospital)
    return f"away for {strike.lasting:.1f} s"


def _kill_superlink(place: Place, strike: Strike) -> str:
    place.kill("coordinator")
    time.sleep(strike.lasting)
    place.start("coordinator")
    return f"away for {strike.lasting:.1f} s"


def _kill_serverapp(place: Place, strike: Strike) -> str:
    found = _soon(place.server_apps)
    time.sleep(strike.random.uniform(0, 3))
    return f"killed {sum(map(_kill, found))}"


def _break_checkpoint(place: Place, strike: Strike) -> str:
    """The ServerApp dies, and its newest checkpoint with it; those that are kept stay."""
    runs = place.federation.co / "runs"
    found = _soon(lambda: [path for path in runs.rglob("checkpoint.safetensors") if held(path.parent)])
    if not found:
        return "no checkpoint came"
    time.sleep(strike.random.uniform(0, 3))
    for process in place.server_apps():
        _kill(process)
    _soon(lambda: not place.server_apps())  # one that has not ended yet could put a whole file in its place
    content = found[0].read_bytes()
    torn = strike.random.choice([b"", content[: len(content) // 2], _flipped(content, strike.random)])
    # What is kept has the same inode: a disk's fault is of one place alone.
    found[0].unlink()
    found[0].write_bytes(torn)
    return f"{len(torn)} of {len(content)} bytes left"


def _records(hospital: Hospital) -> Wire:
    return hospital.database


def _net(hospital: Hospital) -> Wire:
    return hospital.net


def _line(of: Callable[[Hospital], Wire], state: str) -> Callable[[Place, Strike], str]:
    def strike_it(place: Place, strike: Strike) -> str:
        wire = of(place.hospitals[strike.hospital])
        wire.state = state
        time.sleep(strike.lasting)
        wire.heal()
        return f"{state} for {strike.lasting:.1f} s"

    return strike_it


def _database_slow(place: Place, strike: Strike) -> str:
    wire = place.hospitals[strike.hospital].database
    wire.delay = strike.random.uniform(0.2, 1.0)
    time.sleep(2 * strike.lasting)
    wire.heal()
    return "slow"


def _database_gone(place: Place, strike: Strike) -> str:
    """In the middle of an answer."""
    wire = place.hospitals[strike.hospital].database
    wire.allowance = strike.random.randrange(500, 6000)
    _soon(lambda: (wire.allowance or 0) < 0)
    wire.heal()
    return "cut in mid-answer"


def _late(place: Place, strike: Strike) -> str:
    """It was not there when the run began."""
    time.sleep(strike.lasting)
    place.start(strike.hospital)
    return f"came {strike.lasting:.1f} s late"


def _before_late(place: Place, strike: Strike) -> None:
    place.kill(strike.hospital)


def _disk_full(place: Place, strike: Strike) -> str:
    if not place.on_disks:
        return "left out: no disk can be mounted here"
    filler = place.hospitals[strike.hospital].home / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    time.sleep(strike.lasting)
    filler.unlink(missing_ok=True)
    return f"full for {strike.lasting:.1f} s"


def _clock(place: Place, strike: Strike) -> str:
    if other_clock() is None:
        return "left out: there is no C compiler"
    seconds = strike.random.choice([-20, 300, 3600, -7200, 40 * 86400, -400 * 86400])
    place.hospitals[strike.hospital].set_clock(seconds)
    time.sleep(2 * strike.lasting)
    return f"moved by {seconds} s"


def _before_replay(place: Place, strike: Strike) -> None:
    (place.tap / "replay").touch()


def _before_spent(place: Place, strike: Strike) -> None:
    """Most of the hospital's budget went to another run."""
    hospital = place.hospitals[strike.hospital]
    policy = Policy.build(HospitalFile.read(hospital.folder / "hospital.toml").policy, "policy")
    terms = Terms(strike.hospital, policy.delta, policy.relation, "patient", policy.budget, policy.accountant)
    ledger = Ledger.open(hospital.home / "ledger.sqlite", terms)
    round = 0
    while ledger.epsilon() < strike.random.uniform(0.7, 0.95) * BUDGET:
        round += 1
        ledger.charge(gaussian_event(8.0), "train", "an earlier run", round)
    assert terms.delta == DELTA


def _pause(place: Place, strike: Strike) -> str:
    home = place.hospitals[strike.hospital].home
    pause(home, "an audit")
    time.sleep(strike.lasting)
    resume(home)
    return f"paused for {strike.lasting:.1f} s"


def _before_approval(place: Place, strike: Strike) -> None:
    place.hospitals[strike.hospital].require_approval(True)


def _approve(place: Place, strike: Strike) -> str:
    """A person looks in from time to time and approves whatever waits, under its terms of then."""
    home, approved = place.hospitals[strike.hospital].home, 0
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        for asked in approvals(home):
            if asked.state == "pending":
                decide(home, asked.run, asked.digest, "approved", 1.0)
                approved += 1
        time.sleep(strike.lasting / 4)
    return f"approved {approved}"


def _stop_here(place: Place, strike: Strike) -> str:
    def stop_newest() -> str:
        started = folders(place.newest_runs())
        try:
            return stop(place.hospitals[strike.hospital].home, started[-1].name, "enough").run if started else ""
        except ConfigError:  # it has not asked here yet
            return ""

    stopped = _soon(stop_newest)
    return f"stopped {stopped}" if stopped else "no run had asked here"


def _stop_run(place: Place, strike: Strike) -> str:
    """The coordinator stops whatever runs; whoever looks after it goes on with it."""
    co, stopped = Coordinator.read(place.federation.co), 0
    _soon(lambda: folders(place.newest_runs()))
    with contextlib.suppress(PolyclinicError), control(co.here, co.folder / "ca.crt") as client:
        for run in runs(client):
            if not run["status"].startswith("finished"):
                stop_run(client, run["run"], [run["run"]])
                stopped += 1
    return f"stopped {stopped}" if stopped else "nothing to kill"


def _resume_twice(place: Place, strike: Strike) -> str:
    """The coordinator's mistake: the same run is given to it again while it goes on."""
    found = _soon(lambda: [path.parent for path in place.newest_runs().rglob("checkpoint.safetensors")])
    if not found:
        return "no checkpoint came"
    try:
        submit(Caller(Coordinator.read(place.federation.co)), {}, False, None, lambda line: None, found[0])
    except PolyclinicError as error:
        return f"refused: {error}"
    return "given twice"


def _upgrade(place: Place, strike: Strike) -> str:
    """The node is stopped, and starts with another version of the same privacy format."""
    place.kill(strike.hospital)
    place.upgraded.add(strike.hospital)
    time.sleep(strike.lasting)
    place.start(strike.hospital)
    return f"has {OTHER_VERSION} after {strike.lasting:.1f} s"


def _restore(place: Place, strike: Strike) -> str:
    """The home is lost, but for its journal, some time after a backup; the hospital goes on from these two."""
    hospital, federation = place.hospitals[strike.hospital], place.federation.folder
    backup, restored = (federation / f"{kind}-{time.time_ns()}" for kind in ("backup", "restored"))
    _soon((hospital.home / JOURNAL).exists)
    back_up(hospital.folder, backup, {"home": hospital.home})
    time.sleep(strike.lasting)
    place.kill(strike.hospital)
    _soon(lambda: not [process for process in place.processes(strike.hospital) if _kill(process)])
    _soon(lambda: not (hospital.home / "filler").exists())  # another fault's, which needs the disk
    journal = federation / f"journal-{time.time_ns()}"
    journal.write_bytes((hospital.home / JOURNAL).read_bytes() if (hospital.home / JOURNAL).exists() else b"")
    result = restore_hospital(backup, restored, journal)
    hospital.forget()
    shutil.copytree(restored / "home", hospital.home, dirs_exist_ok=True)
    resume(hospital.home)
    place.start(strike.hospital)
    return f"restored, {result['charges']} charges of the journal"


def _nothing(place: Place, strike: Strike) -> str:
    return ""


@dataclass(frozen=True)
class Fault:
    """``before``: what is done before the run is submitted; ``strike``: what is done while it goes on."""

    strike: Callable[[Place, Strike], str]
    before: Callable[[Place, Strike], None] | None = None


FAULTS: dict[str, Fault] = {
    "ClientApp killed in a round": Fault(_kill_training),
    "any process of a hospital killed": Fault(_kill_any),
    "SuperNode killed": Fault(_kill_node),
    "SuperLink killed": Fault(_kill_superlink),
    "ServerApp killed": Fault(_kill_serverapp),
    "checkpoint damaged": Fault(_break_checkpoint),
    "database down": Fault(_line(_records, CUT)),
    "database silent": Fault(_line(_records, SILENT)),
    "database slow": Fault(_database_slow),
    "database gone in a query": Fault(_database_gone),
    "network cut": Fault(_line(_net, CUT)),
    "network silent": Fault(_line(_net, SILENT)),
    "hospital late": Fault(_late, _before_late),
    "disk full": Fault(_disk_full),
    "clock moved": Fault(_clock),
    "two runs at once": Fault(_nothing),
    "messages replayed": Fault(_nothing, _before_replay),
    "budget spent before": Fault(_nothing, _before_spent),
    "hospital paused": Fault(_pause),
    "approval asked for": Fault(_approve, _before_approval),
    "run stopped at a hospital": Fault(_stop_here),
    "run stopped by the coordinator": Fault(_stop_run),
    "run given twice": Fault(_resume_twice),
    "hospital upgraded": Fault(_upgrade),
    "home restored": Fault(_restore),
}


def _kill(process: int) -> bool:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _soon(what: Callable[[], Any]) -> Any:
    """The first true value within the patience, else the last."""
    deadline = time.monotonic() + _PATIENCE
    while not (found := what()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def _flipped(content: bytes, draws: random.Random) -> bytes:
    """With a run of bytes of its first kilobyte changed, where the names and sizes are."""
    at = draws.randrange(min(len(content), 1000))
    return content[:at] + bytes(255 - byte for byte in content[at : at + 8]) + content[at + 8 :]


def folders(runs: Path) -> list[Path]:
    """The folders of runs, the newest last."""
    return sorted(path.parent for path in runs.glob("*/config.toml"))
