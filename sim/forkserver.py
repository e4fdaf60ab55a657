"""The process that others are forked from: it only imports, once for all of them what they need."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver

# The environment and the fork server are of the whole process, and pools are made by several threads.
_STARTING = threading.Lock()


def begin(imported_once: Sequence[str], folder: str = "") -> None:
    """Start it, unless it runs, and return at once: it imports these modules, from ``folder`` where they are not installed."""
    with _STARTING, _finds(folder):
        multiprocessing.get_context("forkserver").set_forkserver_preload(list(imported_once))
        forkserver.ensure_running()


@contextmanager
def _finds(folder: str) -> Iterator[None]:
    """Processes that start in the block find modules in ``folder``: what workers are forked from does not read ``sys.path``."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, before)))
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"]
        os.environ |= {} if before is None else {"PYTHONPATH": before}
