"""A process that draws a run's figures, and gets ready for it while the run goes on.

To load Matplotlib and to draw take as long as two rounds of a small run. The process is a fork, made before anything has threads.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Draw = Callable[[Path], dict[str, Any]]
_waiting: list[Connection] = []


def stand_by(draw: Draw, others: Draw) -> None:
    """Start the process, once, where there is a core for it and a fork is safe. What it will be asked for is what ``draw`` and
    ``others`` return, which work side by side.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if _waiting or cores < 2 or threading.active_count() > 1 or "fork" not in get_all_start_methods():
        return
    context: Any = get_context("fork")
    ours, theirs = context.Pipe()
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which a run that fails ends it, whenever that is
    context.Process(target=_work, args=(draw, others, ours, theirs), daemon=True).start()
    signal.signal(signal.SIGTERM, before)
    theirs.close()
    _waiting.append(ours)


def ask(folder: Path) -> Callable[[], Any]:
    """Have the figures of the run in ``folder`` drawn; what is returned waits for them, and gives None where nobody drew any."""
    if not _waiting:
        return lambda: None
    line = _waiting.pop()

    def answer() -> Any:
        with line:
            try:
                return line.recv()
            except (EOFError, OSError):
                return None

    try:
        line.send(folder)
    except OSError:
        return lambda: None
    return answer


def _work(draw: Draw, others: Draw, theirs: Connection, line: Connection) -> None:
    theirs.close()  # so that the line ends with the run's process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run to answer
    from matplotlib.backends import backend_agg, backend_svg  # noqa: F401 - this is what it gets ready with
    from matplotlib.figure import Figure  # noqa: F401

    try:
        folder = line.recv()
    except EOFError:
        return  # the run ended without a report
    try:
        line.send(_side_by_side(draw, others, folder))
    except Exception:
        line.send(None)  # the run draws them itself, and says what is wrong


def _side_by_side(draw: Draw, others: Draw, folder: Path) -> dict[str, Any]:
    """What both return; a fork of this process, which has one thread, does the second. Raises EOFError where that fails."""
    there, here = get_context("fork").Pipe(duplex=False)
    if os.fork() == 0:
        try:
            here.send(others(folder))
        finally:
            os._exit(0)
    here.close()
    drawn = draw(folder)
    with there:
        return {**drawn, **there.recv()}
