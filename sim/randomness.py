"""The global random generators of Python, NumPy and torch, where several programs share a process.

Under Flower's simulation the ServerApp and the ClientApps are processes of their own. In one process a client that seeds
its generators would decide which nodes the server samples next. So each side has its own state, put in place while it works.
Torch is not loaded for it: programs without torch have no state of it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

State = dict[str, Any]


def current() -> State:
    """The generators' state."""
    state: State = {"random": random.getstate(), "numpy": np.random.get_state()}  # noqa: NPY002
    if "torch" in sys.modules:
        state["torch"] = sys.modules["torch"].get_rng_state()
    return state


def restore(state: State) -> None:
    """Put a state back. torch, where it was loaded since, begins at random, as in a new process."""
    random.setstate(state["random"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    if "torch" in state:
        sys.modules["torch"].set_rng_state(state["torch"])
    elif "torch" in sys.modules:
        sys.modules["torch"].seed()


def same(before: State, after: State) -> bool:
    """Whether nothing was drawn or seeded between two states."""
    return before["random"] == after["random"] and all(
        np.array_equal(a, b) for a, b in zip(before["numpy"], after["numpy"], strict=True)
    ) and ("torch" not in before or bool((before["torch"] == after["torch"]).all()))  # fmt: skip


def seed_all(*numbers: int) -> None:
    """Seed the generators, each with its own part of what follows from ``numbers``, all at least 0."""
    first, second, third = np.random.SeedSequence(numbers).generate_state(3)
    random.seed(int(first))
    np.random.seed(second)  # noqa: NPY002
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(int(third))


class Generators:
    """The generators of one of the programs in this process. state: where they begin; None: anywhere, as a new process."""

    def __init__(self, state: State | None = None) -> None:
        if state is not None:
            self._state = state
            return
        before = current()
        random.seed()
        np.random.seed()  # noqa: NPY002
        if "torch" in sys.modules:
            sys.modules["torch"].seed()
        self._state = current()
        restore(before)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Its generators are the process's, until the end of the block."""
        others = current()
        restore(self._state)
        try:
            yield
        finally:
            self._state = current()
            restore(others)
