"""How many threads numerical libraries take, so that processes that work side by side do not fight for the cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

_VARIABLES = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS",
)  # fmt: skip


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(count: int) -> None:
    """This process and those that it starts use ``count`` threads: libraries that are loaded and those that will be."""
    os.environ.update(dict.fromkeys(_VARIABLES, str(count)))
    threadpool_limits(count)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """``set_threads`` until the end of the block."""
    before = {name: os.environ.get(name) for name in _VARIABLES}
    torch_before = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None
    try:
        with threadpool_limits(count):
            set_threads(count)
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ |= {} if value is None else {name: value}
        if torch_before is not None:
            sys.modules["torch"].set_num_threads(torch_before)
