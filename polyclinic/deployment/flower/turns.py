"""Nodes of one machine that take turns: it works on two messages at once for each of its processors.

A message that waits for its turn stays at the SuperLink, where nothing of it expires; its ClientApp, which takes 400 MB, has not
been started. Begun all at once, the ClientApps of thirty nodes on two processors miss each other's time limits.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from polyclinic.deployment.flower import patch


class Turns:
    """Files of a folder that nodes of one user lock, each while it works on a message; a node that is killed lets go."""

    def __init__(self, folder: Path, places: int) -> None:
        self.files = [folder / str(place) for place in range(places)]
        self.held: int | None = None

    def take(self) -> bool:
        """Whether there is a place, which is then held; where the folder cannot be used, there always is."""
        for file in self.files if self.held is None else ():
            try:
                descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except OSError:
                return True
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                continue
            self.held = descriptor
            break
        return self.held is not None

    def give(self) -> None:
        """Leaves the place to others."""
        if self.held is not None:
            os.close(self.held)
            self.held = None


def turns_here() -> Turns:
    """The turns of this user's nodes on this machine."""
    folder = Path(tempfile.gettempdir()) / f"polyclinic-nodes-{os.getuid()}"
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
    return Turns(folder, 2 * (os.cpu_count() or 1))


def take_turns(node: Any, turns: Turns) -> None:
    """Let Flower's node (its module), which has one message at a time, fetch it in its turn and end that with the reply."""

    def fetching(pull: Callable[..., Any]) -> Callable[..., Any]:
        def fetch(**given: Any) -> Any:
            if not turns.take():
                return None
            run_id = None
            try:
                run_id = pull(**given)
            finally:
                if run_id is None:
                    turns.give()
            return run_id

        return fetch

    def answering(push: Callable[..., Any]) -> Callable[..., Any]:
        def answer(**given: Any) -> Any:
            try:
                return push(**given)
            finally:
                turns.give()

        return answer

    patch(node, "_pull_and_store_message", fetching, "turns of the nodes of one machine")
    patch(node, "_push_messages", answering, "turns of the nodes of one machine")
