"""A coordinator and hospitals as processes of this machine, each in its folder, as docs/deploy/README.md makes them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

import polyclinic

from .conftest import ROOT, Cli, Done, records

STRUCTURED = ("coordinator", "north")
PAGE = ROOT / "docs" / "deploy" / "README.md"


def page(path: Path = PAGE) -> list[tuple[int, list[str]]]:
    """(step, arguments after ``polyclinic``) of every shell line of the page, in order."""
    found = []
    for section in path.read_text().split("\n## ")[1:]:
        for block in re.findall(r"^```sh\n(.*?)^```", section, re.S | re.M):
            for line in block.replace("\\\n", " ").splitlines():
                program, *arguments = shlex.split(line)
                assert program == "polyclinic"
                found.append((int(section.partition(".")[0]), arguments))
    return found


def free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [int(probe.getsockname()[1]) for probe in probes]


def wait_for(what: Callable[[], Any], seconds: float = 240.0) -> Any:
    """The first true value of ``what``, asked again and again."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        time.sleep(0.2)
    return found


def other_version(folder: Path, number: str) -> dict[str, str]:
    """The environment in which the package that is installed has this version number; the package lies in ``folder``."""
    shutil.copytree(ROOT / "polyclinic", folder / "polyclinic", ignore=shutil.ignore_patterns("__pycache__"))
    package = folder / "polyclinic" / "__init__.py"
    text = package.read_text()
    assert polyclinic.__version__ in text
    package.write_text(text.replace(polyclinic.__version__, number))
    return {"PYTHONPATH": str(folder)}


@dataclass
class Federation:
    """The folder of a coordinator and of its hospitals, and the processes of those that were started."""

    folder: Path
    ports: list[int]
    cli: Cli
    page: Path = PAGE
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def co(self) -> Path:
        return self.folder / "coordinator"

    def follow(self, *steps: int, also: Sequence[str] = (), words: Mapping[str, str] | None = None) -> list[Any]:
        """Run the page's lines of these steps, with ``words`` for its capitals; what each but a start printed as JSON."""
        lines = [arguments for step, arguments in page(self.page) if step in steps]
        return [self._line([*((words or {}).get(part, part) for part in line), *also]) for line in lines]

    def _line(self, arguments: list[str]) -> Any:
        room, action, name = arguments[:3]
        if action == "start":
            return self.start(room, name)
        replaced = {"coordinator.example": "localhost", ":8000": f":{self.ports[0]}"}
        for old, new in (*replaced.items(), *zip(("8000", "9094", "9095"), map(str, self.ports), strict=True)):
            arguments = [
                part.replace(old, new) if old.startswith((":", "c")) or part == old else part for part in arguments
            ]
        with contextlib.chdir(self.folder):
            return self.call(*arguments)

    def run(self, *arguments: object) -> Done:
        return self.cli(*arguments, "--json")

    def call(self, *arguments: object) -> Any:
        done = self.run(*arguments)
        assert done.code == 0, done.error
        return json.loads(done.out)

    def start(self, room: str, name: str, environment: Mapping[str, str] = {}) -> subprocess.Popen[bytes]:  # noqa: B006
        """Through a shell's environment without Flower's programs on PATH, as systemd's is; some with their log in JSON."""
        log_format = {"POLYCLINIC_LOG_FORMAT": "json" if name in STRUCTURED else "text"}
        with (self.folder / f"{name}.log").open("ab") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "polyclinic", room, "start", str(self.folder / name)], stdout=sink, stderr=sink,
                env=os.environ | {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"} | log_format | dict(environment),
                start_new_session=True,
            )  # fmt: skip
        self.processes[name] = process
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def returns(self, name: str) -> int:
        """How often the node found its coordinator again."""
        return self.log(name).count("Connection successful")

    def hospital(self, name: str, port: int, ca: Path | None = None) -> None:
        data, schema = records(self.folder / f"records-{name}")
        self.call(
            "hospital", "init", self.folder / name, "--site", name, "--data", data, "--schema", schema, "--coordinator",
            f"localhost:{self.ports[0]}", "--ca", ca or self.co / "ca.crt", "--budget", 2.0, "--delta", 1e-3,
            "--port", port, "--no-check",
        )  # fmt: skip

    def register(self, name: str) -> None:
        self.call("coordinator", "register", self.co, self.folder / name / "node.pub", "--name", name)

    def status(self, name: str) -> str:
        """Of the newest node of that name."""
        return next(str(node["status"]) for node in self.nodes()[::-1] if node["name"] == name)

    def nodes(self) -> list[dict[str, Any]]:
        return list(self.call("coordinator", "nodes", self.co))

    def serving(self) -> bool:
        try:
            return httpx.get(
                f"https://localhost:{self.ports[0]}/health", verify=str(self.co / "ca.crt"), timeout=2.0
            ).is_success
        except httpx.HTTPError:
            return False

    def stop(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=15)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
