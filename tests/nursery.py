"""Fresh Pythons for tests, forked from a process that has imported torch, Flower and Polyclinic already.

A fork has its own folder, environment, process group and end, and may be killed. What Python reads before its first line
(``PYTHON*``, the locale) it has from its parent: a test that changes those gets a Python of its own.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
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
    "polyclinic.federation", "polyclinic.client_app", "polyclinic.server_app", "polyclinic.attacking",
    "polyclinic.evaluation.report", "polyclinic.quality", "polyclinic.preparing", "polyclinic.auditing",
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
    """A process that forks, and ends with this one."""

    def __init__(self) -> None:
        self._one_by_one = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.nursery"], cwd=Path(__file__).parent.parent, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def run(self, arguments: Sequence[str], environment: Mapping[str, str], timeout: float) -> Done:
        """As ``subprocess.run`` does, without waiting for what the fork leaves running."""
        with self._one_by_one, tempfile.TemporaryDirectory() as folder:
            streams = [str(Path(folder, name)) for name in ("out", "err")]
            request = {"environment": dict(environment), "folder": str(Path.cwd()), "streams": streams}
            assert self._process.stdin and self._process.stdout
            print(json.dumps(request | {"arguments": arguments}), file=self._process.stdin, flush=True)
            child = int(self._process.stdout.readline())
            late = not select([self._process.stdout], [], [], timeout)[0]
            if late:
                os.killpg(child, signal.SIGKILL)
            code = int(self._process.stdout.readline())
            out, err = (Path(stream).read_text() for stream in streams)
        if late:
            raise subprocess.TimeoutExpired(list(arguments), timeout, out, err)
        return subprocess.CompletedProcess(list(arguments), code, out, err)


@cache
def _nursery() -> Nursery:
    return Nursery()


def fork_for_each_request() -> dict[str, Any] | None:
    """Fork for every request on stdin, print its process and then its exit status; returns a request in its fork."""
    while line := sys.stdin.readline():
        if not (child := os.fork()):
            os.setpgid(0, 0)
            return dict(json.loads(line))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
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


def main() -> None:
    gc.disable()
    for name in LOADED:
        import_module(name)
    commands = import_module("polyclinic.cli.commands")
    for command in commands.COMMANDS:
        commands.Lazy()[command]
    gc.freeze()
    gc.enable()
    if request := fork_for_each_request():
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
