"""A Flower runtime's Grid whose replies are asked for sooner than every 3 seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid


class PromptGrid(Grid):
    """``grid``, with a pause between two pulls of a tenth of what was waited, of 0.1 to 3 seconds.

    A grid of Flower's runtimes pauses 3 seconds, which is most of a small round.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(
        self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """The replies that came within ``timeout`` seconds (None: however long it takes), in order of arrival."""
        missing = set(self.push_messages(messages))
        began, replies = time.monotonic(), list[Message]()
        while True:
            came = list(self.pull_messages(missing)) if missing else []
            replies += came
            missing -= {reply.metadata.reply_to_message_id for reply in came}
            waited = time.monotonic() - began
            left = None if timeout is None else timeout - waited
            if not missing or (left is not None and left <= 0):
                return replies
            pause = min(3.0, max(0.1, waited / 10))
            time.sleep(pause if left is None else min(pause, left))
