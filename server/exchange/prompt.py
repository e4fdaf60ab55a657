"""A Flower runtime's Grid whose replies are asked for sooner than every 3 seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable
from logging import ERROR, WARNING

import httpx
from flwr.app import Error, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from polyclinic.errors import without_name
from polyclinic.server.exchange.sites import node_title, reason_of, registered_names
from polyclinic.wire.messages import ENROL, FAILED
from polyclinic.wire.passing import PassingGrid


class PromptGrid(PassingGrid):
    """``grid``, with a pause between two pulls of a tenth of what was waited, of 0.1 to 3 seconds.

    A grid of Flower's runtimes pauses 3 seconds, which is most of a small round. ``simulates``: whether its nodes may host
    simulated hospitals.
    """

    def __init__(self, grid: Grid, simulates: bool = True) -> None:
        super().__init__(grid)
        self.simulates = simulates
        self._asked: dict[str, Message] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        pending = list(messages)
        names = list(self._grid.push_messages(pending))
        if not self.simulates:
            self._asked |= {name: _without_content(message, name) for name, message in zip(names, pending, strict=True)}
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that are there; of real hospitals each by itself, for Flower fails on all at once if it cannot read one."""
        if self.simulates:
            return list(self._grid.pull_messages(message_ids))
        replies: list[Message] = []
        for name in message_ids:
            try:
                replies += self._grid.pull_messages([name])
            except (httpx.HTTPError, OSError):  # the SuperLink's, not the hospital's
                raise
            except Exception as error:
                log(ERROR, "Polyclinic: a reply cannot be read.", exc_info=error)
                replies.append(
                    Message(Error(FAILED, "its reply is no message that can be read"), reply_to=self._asked[name])
                )
        for reply in replies:
            asked = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if reply.has_error() and asked and asked.metadata.message_type != ENROL:  # of those the run itself tells
                node, names = asked.metadata.dst_node_id, registered_names(self._grid)
                reason = without_name(names.get(node, ""), reason_of(reply))
                log(WARNING, "Polyclinic: %s gives no result: %s", node_title(node, names), reason)
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """The replies that came within ``timeout`` seconds (None: however long it takes), in order of arrival."""
        return replies_to(self, self.push_messages(messages), timeout)


def replies_to(grid: Grid, messages: Iterable[str], timeout: float | None) -> list[Message]:
    """The replies to messages that were pushed which come in time.

    Args:
        grid: Flower's grid.
        messages: The ids of the messages.
        timeout: For how many seconds replies are waited for; None for however long it takes.
    """
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


def _without_content(message: Message, name: str) -> Message:
    asked = message.metadata
    emptied = Message(RecordDict(), asked.dst_node_id, asked.message_type, group_id=asked.group_id)
    emptied.metadata.__dict__["_message_id"] = name
    return emptied
