"""Fresh Pythons for tests, forked from a process that has imported torch, Flower and Polyclinic already.

A fork has its own folder, environment, process group and end, and may be killed. What Python reads before its first line
(``PYTHON*``, the locale) it has from its parent: a test that changes those gets a Python of its own.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from select import select
from types import ModuleType
from typing import Any

# Read when Python starts, or when a library is loaded.
AT_THE_START = ("PYTHON", "LC_", "LANG", "LD_", "CUDA_")
LOADED = (
    "polyclinic.federation", "polyclinic.client_app", "polyclinic.server_app", "polyclinic.inspection.attacks",
    "polyclinic.evaluation.report", "polyclinic.inspection.quality", "polyclinic.asking", "polyclinic.inspection.audits",
    "matplotlib.figure", "matplotlib.backends.backend_agg", "sklearn.datasets", "pyarrow.parquet", "jinja2", "opacus",
)  # fmt: skip

Done = subprocess.CompletedProcess[str]


def python(*arguments: str, timeout: float = 300, **more: str) -> Done:
    """``subprocess.run`` of this Python with ``-m MODULE ...`` or ``-c CODE ...`` and ``more`` in its environment."""
    environment = os.environ | more
    changed = {name for name in more if name.startswith(AT_THE_START) and os.environ.get(name) != more[name]}
    if not changed:
        return _nursery().run(arguments, environment, timeout)
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=timeout
    )


class Nursery:
    """This process's line to the one that forks, which all processes of a run of tests share and the first of them starts."""

    def __init__(self) -> None:
        self._one_by_one = threading.Lock()
        # No longer than a socket's name may be, so not in a test's folder.
        place = f"/tmp/polyclinic-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
        line = socket.socket(socket.AF_UNIX)
        tries = 0
        while line.connect_ex(place):
            assert tries < 600, f"nobody listens at {place}"
            if tries % 100 == 0:
                subprocess.Popen(
                    [sys.executable, "-m", "tests.nursery", place], cwd=Path(__file__).parent.parent,
                    env=os.environ | {"OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL,
                )  # fmt: skip
            tries += 1
            time.sleep(0.05)
        self._line = line

    def run(self, arguments: Sequence[str], environment: Mapping[str, str], timeout: float) -> Done:
        """As ``subprocess.run`` does, without waiting for what the fork leaves running."""
        with self._one_by_one, tempfile.TemporaryDirectory() as folder:
            streams = [str(Path(folder, name)) for name in ("out", "err")]
            request = {"environment": dict(environment), "folder": str(Path.cwd()), "streams": streams}
            self._line.sendall(json.dumps(request | {"arguments": arguments}).encode() + b"\n")
            child = number(self._line)
            late = not select([self._line], [], [], timeout)[0]
            if late:
                os.killpg(child, signal.SIGKILL)
            code = number(self._line)
            out, err = (Path(stream).read_text() for stream in streams)
        if late:
            raise subprocess.TimeoutExpired(list(arguments), timeout, out, err)
        return subprocess.CompletedProcess(list(arguments), code, out, err)


@cache
def _nursery() -> Nursery:
    return Nursery()


def number(line: socket.socket) -> int:
    return int.from_bytes(line.recv(4, socket.MSG_WAITALL), "big", signed=True)


def fork_for_each_line(place: str) -> socket.socket | None:
    """Fork for every process that connects, and end when all of them have ended; returns its line in a fork."""
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(place)
    except OSError:
        return None  # another process was quicker
    try:
        listening.listen()
        load()
        listening.settimeout(1)
        lines = 0
        while True:
            with contextlib.suppress(TimeoutError):
                line = listening.accept()[0]
                if not os.fork():
                    listening.close()
                    return line
                line.close()
                lines += 1
            while lines and os.waitpid(-1, os.WNOHANG)[0]:
                lines -= 1
                if not lines:
                    return None
    finally:
        if listening.fileno() >= 0:
            Path(place).unlink()


def fork_for_each_request(line: socket.socket) -> dict[str, Any] | None:
    """Fork for every request, answer its process and then its exit status; returns a request in its fork."""
    for request in line.makefile():
        if not (child := os.fork()):
            os.setpgid(0, 0)
            return dict(json.loads(request))
        line.sendall(child.to_bytes(4, "big", signed=True))
        line.sendall(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]).to_bytes(4, "big", signed=True))
    return None


def become(environment: Mapping[str, str], folder: str, streams: Sequence[str]) -> None:
    """Let this process be as if it had been started in the folder, with the environment and streams."""
    for number, path in enumerate([os.devnull, *streams]):
        opened = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: PTH123, SIM115
    sys.stderr = open(2, "w", errors="backslashreplace", buffering=1, closefd=False)  # noqa: PTH123, SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[0] = folder
    import_module("numpy").random.seed()


def run(kind: str, what: str, *arguments: str) -> None:
    """Run ``-m what`` or ``-c what``."""
    sys.argv = [kind, *arguments]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))


def load() -> None:
    """Import what the command line may need, out of the garbage collector's sight."""
    gc.disable()
    for name in LOADED:
        import_module(name)
    commands = import_module("polyclinic.cli.commands")
    for command in commands.COMMANDS:
        commands.Lazy()[command]
    gc.freeze()
    gc.enable()


def main() -> None:
    line = fork_for_each_line(sys.argv[1])
    if line and (request := fork_for_each_request(line)):
        become(request["environment"], request["folder"], request["streams"])
        code = 0
        try:
            run(*request["arguments"])
        except SystemExit as end:
            code = int(end.code or 0)
        # What Python does at its end but for freeing every object, which would copy all that the fork shares.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
