"""A Flower runtime's Grid whose replies are asked for sooner than every 3 seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable

from flwr.app import Message
from flwr.serverapp import Grid

from polyclinic.passing import PassingGrid


class PromptGrid(PassingGrid):
    """``grid``, with a pause between two pulls of a tenth of what was waited, of 0.1 to 3 seconds.

    A grid of Flower's runtimes pauses 3 seconds, which is most of a small round. ``simulates``: whether its nodes may host
    simulated hospitals.
    """

    def __init__(self, grid: Grid, simulates: bool = True) -> None:
        super().__init__(grid)
        self.simulates = simulates

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """The replies that came within ``timeout`` seconds (None: however long it takes), in order of arrival."""
        return replies_to(self, self.push_messages(messages), timeout)


def replies_to(grid: Grid, messages: Iterable[str], timeout: float | None) -> list[Message]:
    """The replies to messages that were pushed which come within ``timeout`` seconds (None: however long it takes)."""
    missing = set(messages)
    began, replies = time.monotonic(), list[Message]()
    while True:
        came = list(grid.pull_messages(missing)) if missing else []
        replies += came
        missing -= {reply.metadata.reply_to_message_id for reply in came}
        waited = time.monotonic() - began
        left = None if timeout is None else timeout - waited
        if not missing or (left is not None and left <= 0):
            return replies
        pause = min(3.0, max(0.1, waited / 10))
        time.sleep(pause if left is None else min(pause, left))
