"""The grid that asks for replies sooner: the same replies, and silence as long as was agreed."""

import logging
import time
from collections.abc import Iterable

import pytest
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo

from polyclinic.server.exchange.prompt import PromptGrid
from polyclinic.sim.calls import AppReference
from polyclinic.sim.grid import LocalGrid

app = ClientApp()


@app.train()
def train(message: Message, _: object) -> Message:
    return Message(RecordDict(), reply_to=message)


class Late(LocalGrid):
    """Gives out one reply at a pull, in an order of its own, and never that of ``silent``."""

    silent = 0

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        first = sorted(name for name in message_ids if self._replies[name].metadata.src_node_id != self.silent)[-1:]
        return super().pull_messages(first)


def asked() -> list[Message]:
    return [Message(RecordDict(), node, "train") for node in (1, 2, 3)]


def test_replies_are_those_of_the_grid_however_they_come() -> None:
    with Late(AppReference(__name__), 3, {}) as grid:
        replies = PromptGrid(grid).send_and_receive(asked())
        assert sorted(reply.metadata.src_node_id for reply in replies) == [1, 2, 3]
        grid.silent = 2
        began = time.monotonic()
        replies = PromptGrid(grid).send_and_receive(asked(), timeout=0.5)
        assert sorted(reply.metadata.src_node_id for reply in replies) == [1, 3]
        assert time.monotonic() - began >= 0.5  # all of the time that a hospital has
        assert PromptGrid(grid).send_and_receive([], timeout=60.0) == []


class Garbled(LocalGrid):
    """Fails, as Flower's does, on every pull that has a reply which cannot be read; what came with it is lost."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = super().pull_messages(message_ids)
        if any(reply.metadata.src_node_id == 2 for reply in found):
            raise ValueError("no object")
        return found


def test_a_reply_that_flower_cannot_read_is_its_hospitals_alone() -> None:
    with Garbled(AppReference(__name__), 3, {}) as grid:
        replies = PromptGrid(grid, simulates=False).send_and_receive(asked(), timeout=5.0)
        said = {reply.metadata.src_node_id: reply.error.reason if reply.has_error() else "" for reply in replies}
        assert said == {1: "", 2: "its reply is no message that can be read", 3: ""}


def test_who_gives_no_result_is_named_with_its_reason_as_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    class Registered(Garbled):
        def get_nodes(self) -> list[NodeInfo]:
            return [NodeInfo(node_id=2, name="south")]

    with Registered(AppReference(__name__), 3, {}) as grid:
        PromptGrid(grid, simulates=False).send_and_receive(asked(), timeout=5.0)
    [told] = [entry for entry in caplog.records if "gives no result" in entry.getMessage()]
    assert told.levelno == logging.WARNING
    assert told.getMessage() == "Polyclinic: south (node 2) gives no result: its reply is no message that can be read"
