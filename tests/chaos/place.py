"""Where schedules take place: a coordinator and three hospitals as processes, whose wires, disks and clocks can be spoilt.

Each hospital has its table in one PostgreSQL server, reached by a wire of its own, and reaches the coordinator by another.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from tests.chaos.wire import Wire, to_port, to_socket
from tests.deployment.conftest import ROOT, Cli, records
from tests.deployment.federation import Federation, free_ports, other_version, wait_for
from tests.ehr.sources.postgres import Server, running_server

NAMES = ("north", "south", "west")
BUDGET, EPSILON, DELTA = 5.0, 2.0, 1e-3
DISK, OTHER_VERSION = "3m", "9.9.9"
_RESTART_SECONDS, _SETTLED = 20.0, 6.0


@dataclass
class Hospital:
    """``folder`` holds its files, ``net`` leads to the coordinator and ``database`` to its records."""

    name: str
    folder: Path
    net: Wire
    database: Wire

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def clock(self) -> Path:
        return self.folder.parent / f"{self.name}.clock"

    def set_clock(self, seconds: int) -> None:
        """That many seconds after the true time."""
        self.clock.write_text(f"{seconds}\n")

    def require_approval(self, wanted: bool) -> None:
        """Whether its policy makes runs wait for a person."""
        path, lines = self.folder / "hospital.toml", ("require-approval = false", "require-approval = true")
        path.write_text(path.read_text().replace(lines[not wanted], lines[wanted]))

    def forget(self) -> None:
        """Its home as on the first day."""
        for path in self.home.iterdir():
            if path.name != "README":
                shutil.rmtree(path) if path.is_dir() else path.unlink()


@dataclass
class Place:
    """The federation with its hospitals; ``on_disks``: whether their homes are small disks of their own; ``away``: who was
    killed and is to stay so for a while; ``upgraded``: whose nodes start with another version; ``started``: when each was
    started last."""

    federation: Federation
    hospitals: dict[str, Hospital]
    on_disks: bool
    away: set[str] = field(default_factory=set)
    upgraded: set[str] = field(default_factory=set)
    started: dict[str, float] = field(default_factory=dict)

    @property
    def tap(self) -> Path:
        return self.federation.folder / "tap"

    def start(self, name: str) -> None:
        """A coordinator's or a hospital's node, with what spoils its clock or listens at its wire."""
        self.away.discard(name)
        self.started[name] = time.monotonic()
        if name == "coordinator":
            environment = {
                "PYTHONPATH": f"{Path(__file__).parent / 'wiretap'}{os.pathsep}{ROOT}",
                "WIRETAP": str(self.tap),
            }
            self.federation.start("coordinator", name, environment)
            return
        environment = {"POLYCLINIC_CHAOS": name}
        if name in self.upgraded:
            environment |= self._other_version
        if library := other_clock():
            environment |= {"LD_PRELOAD": library, "CLOCK_OFFSET_FILE": str(self.hospitals[name].clock)}
        self.federation.start("hospital", name, environment)

    @cached_property
    def _other_version(self) -> dict[str, str]:
        return other_version(self.federation.folder / "other-version", OTHER_VERSION)

    def kill(self, name: str) -> None:
        self.away.add(name)
        process = self.federation.processes[name]
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.wait()

    def restart_fallen(self) -> None:
        """As systemd would, some seconds later: whoever ended by itself, or by a part of it that was killed."""
        for name in ("coordinator", *self.hospitals):
            rested = time.monotonic() - self.started[name] > _RESTART_SECONDS
            if name not in self.away and not self.runs_here(name) and rested:
                self.start(name)

    def runs_here(self, name: str) -> bool:
        return self.federation.processes[name].poll() is None

    def online(self) -> set[str]:
        with contextlib.suppress(AssertionError):
            return {str(node["name"]) for node in self.federation.nodes() if node["status"] == "online"}
        return set()

    def processes(self, name: str) -> list[int]:
        """Of the coordinator or of a hospital, by the folder of Flower's files."""
        mark = f"FLWR_HOME={self.federation.folder / name / 'flwr'}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def server_apps(self) -> list[int]:
        found = []
        for process in self.processes("coordinator"):
            with contextlib.suppress(OSError):
                if b"flwr-serverapp" in Path(f"/proc/{process}/cmdline").read_bytes():
                    found.append(process)
        return found

    def at_work(self, name: str) -> list[int]:
        """The hospital's processes that are between the two lines of a round."""
        lock, found = self.hospitals[name].home / "alone.sqlite", []
        for process in self.processes(name):
            with contextlib.suppress(OSError):
                if any(os.path.realpath(link) == str(lock) for link in Path(f"/proc/{process}/fd").iterdir()):
                    found.append(process)
        return found

    def heal(self) -> None:
        """Everything as it should be, and everybody online."""
        (self.tap / "replay").unlink(missing_ok=True)
        for hospital in self.hospitals.values():
            hospital.net.heal()
            hospital.database.heal()
            (hospital.home / "filler").unlink(missing_ok=True)
            hospital.set_clock(0)
            hospital.require_approval(False)
        self.away.clear()
        wait_for(self._whole)

    def _whole(self) -> bool:
        """Whether all are there, and were not just started: who comes back too soon is refused, and ends."""
        time.sleep(1)
        self.restart_fallen()
        now, names = time.monotonic(), ("coordinator", *self.hospitals)
        stay = all(self.runs_here(name) and now - self.started[name] > _SETTLED for name in names)
        return stay and self.federation.serving() and self.online() == set(self.hospitals)

    def fresh(self) -> None:
        """For the next schedule: nobody has spent anything, and no round of an earlier one is under way."""
        for process in self.server_apps():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        wait_for(lambda: not any(self.at_work(name) for name in self.hospitals), 60)
        for hospital in self.hospitals.values():
            hospital.forget()
        self.upgraded.clear()  # of the nodes that are started from now on
        (self.tap / "heard.jsonl").unlink(missing_ok=True)

    def newest_runs(self) -> Path:
        """The folder of the newest schedule's runs."""
        runs = [path for path in (self.federation.co / "runs").glob("*") if path.is_dir()]
        return max(runs, key=lambda path: path.stat().st_mtime, default=self.federation.co / "runs")

    def asked(self) -> bool:
        """Whether a hospital has been asked for anything since all was fresh."""
        return any((hospital.home / "journal.jsonl").exists() for hospital in self.hospitals.values())

    def heard(self) -> list[dict[str, Any]]:
        """The replies to training messages that reached the ServerApp."""
        path = self.tap / "heard.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def node_names(self) -> dict[str, str]:
        return {str(node["node"]): str(node["name"]) for node in self.federation.nodes()}


def held(folder: Path) -> bool:
    """Whether a process carries out the run of this folder."""
    try:
        with (folder / "held").open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@cache
def other_clock() -> str | None:
    """The library that gives a process another time of day, None where there is no C compiler to make it."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    made = Path(tempfile.mkdtemp(prefix="clock-")) / "clock.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", made, Path(__file__).parent / "clock.c", "-ldl"], check=True
    )
    return str(made)


@contextmanager
def made(folder: Path, cli: Cli) -> Iterator[Place]:
    """Skips, with the reason, where PostgreSQL is not installed."""
    with running_server() as server:
        found = _made(folder, cli, server)
        try:
            for name in ("coordinator", *NAMES):
                if name == NAMES[0]:
                    wait_for(found.federation.serving)
                    for hospital in NAMES:
                        found.federation.register(hospital)
                found.start(name)
            wait_for(lambda: found.online() == set(NAMES))
            yield found
        finally:
            found.federation.stop()
            for hospital in found.hospitals.values():
                hospital.net.close()
                hospital.database.close()
                if found.on_disks:
                    subprocess.run(["umount", "-l", str(hospital.home)], check=False)


def _made(folder: Path, cli: Cli, server: Server) -> Place:
    ports = free_ports(1 + 3 * len(NAMES))
    federation = Federation(folder, ports, cli)
    federation.call(
        "coordinator", "init", federation.co, "--host", "localhost", "--listen", "127.0.0.1", "--port", ports[0]
    )
    data, schema = records(folder / "records")
    hospitals, on_disks = {}, True
    for index, name in enumerate(NAMES):
        own, net, database = ports[1 + 3 * index : 4 + 3 * index]
        _fill(server, name, data)
        federation.call(
            "hospital", "init", folder / name, "--site", name, "--schema", schema, "--coordinator", f"localhost:{net}",
            "--data", f"postgresql://owner@127.0.0.1:{database}/postgres?connect_timeout=3&gssencmode=disable",
            "--source", f"query=SELECT id, age, sbp, died FROM {name}", "--source", f"password-file={server.password_file}",
            "--ca", federation.co / "ca.crt", "--budget", BUDGET, "--delta", DELTA, "--port", own, "--no-check",
        )  # fmt: skip
        socket = str(server.folder / ".s.PGSQL.5432")
        hospitals[name] = Hospital(name, folder / name, Wire(net, to_port(ports[0])), Wire(database, to_socket(socket)))
        hospitals[name].set_clock(0)
        disk = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(hospitals[name].home)], capture_output=True
        )
        on_disks = on_disks and disk.returncode == 0
    place = Place(federation, hospitals, on_disks)
    place.tap.mkdir()
    return place


def _fill(server: Server, name: str, data: Path) -> None:
    frame = pd.read_csv(data)
    rows = ", ".join(f"({row.id}, {row.age}, {row.sbp}, {row.died})" for row in frame.itertuples())
    server.execute(
        f"CREATE TABLE {name} (id integer, age integer, sbp double precision, died integer)",
        f"INSERT INTO {name} VALUES {rows}",
    )


if sys.platform != "linux":
    raise ImportError("The faults are those of Linux.")
