"""A program that runs as our child, so that all it says, and all that the programs it starts say, passes through us.

From outside it is as if it ran in our place: signals go on to it and its end is ours, with all that was said until then.
Where we are killed it is too (Linux), so that no second node runs beside the next one.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from polyclinic.deployment.monitoring.logs import LONGEST, Event, Lines, encode_line
from polyclinic.errors import PolyclinicError

STOPS = {signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP}
_PAUSE = 0.2  # seconds of silence after which a record is taken to be whole
_AFTER = 5.0  # seconds in which programs that the child started may still end after it
_REASON = 10.0  # seconds before the end in which an error tells its reason
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def relay(command: Sequence[str], environment: Mapping[str, str], folder: Path, lines: Lines) -> int:
    """Runs the program and writes its output to our stdout as JSON; returns its exit code, negative for a signal.

    Only for the main thread of a process that does nothing else.

    Args:
        command: The program and its arguments.
        environment: The whole environment of the program.
        folder: The folder in which it runs.
        lines: What makes events of its output.

    Raises:
        PolyclinicError: The program cannot start.
    """
    errors = [-math.inf]  # when the newest was written

    def put(event: Event) -> None:
        if event["level"] in ("error", "critical"):
            errors[0] = time.monotonic()
        write(event)

    prctl, us = getattr(ctypes.CDLL(None), "prctl", None), os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)

    def bind() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != us:
            os._exit(1)

    try:
        # In a group of its own, so that Ctrl-C does not come to it twice.
        child = subprocess.Popen(
            command, env=dict(environment), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
            process_group=0, preexec_fn=bind,
        )  # fmt: skip
    except OSError as error:
        raise PolyclinicError(f"{command[0]} cannot be started: {error.strerror}.") from None
    assert child.stdout is not None
    # Begun while signals wait, the thread never takes one: they come to the thread that passes them on.
    reader = threading.Thread(target=_read, args=(child.stdout.fileno(), lines, put), daemon=True)
    reader.start()
    for number in STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: child.send_signal(number))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code, ended = child.wait(), time.monotonic()
    reader.join(_AFTER)
    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    level = "info" if code in (0, -signal.SIGTERM, -signal.SIGINT) else "error"
    # The last line of level error is to be the one that says why.
    if code > 0 and ended - errors[0] < _REASON:
        level = "warning"
    write(lines.event(level, f"The program ended {how}."))
    return code


def end_as(code: int) -> int:
    """End this process by the signal of a negative code; else, and where that does not end it, the code of its exit."""
    if code >= 0:
        return code
    with contextlib.suppress(OSError):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code  # the first process of a container takes no signal from itself


def write(event: Event) -> None:
    """One line on stdout. Where nobody reads it any more, the node goes on."""
    line = encode_line(event)
    with contextlib.suppress(OSError):
        while line:
            line = line[os.write(1, line) :]


def _read(source: int, lines: Lines, put: Callable[[Event], None] = write) -> None:
    """All lines until every writer has closed its end."""
    rest = b""
    while True:
        if lines.waiting and not rest and not select.select([source], [], [], _PAUSE)[0]:
            for event in lines.flush():
                put(event)
        part = os.read(source, 1 << 16)
        *whole, rest = (rest + part).split(b"\n")
        if not part or len(rest) > LONGEST:
            piece, rest = lines.cut(rest) if part else (rest, b"")
            whole.append(piece)
        for line in whole:
            for event in lines.feed(line.decode("utf-8", errors="replace")):
                put(event)
        if not part:
            break
    for event in lines.flush():
        put(event)
