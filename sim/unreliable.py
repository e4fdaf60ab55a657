"""Hospitals that cannot be reached, are slow, or have thin lines: a Grid around another, for simulations.

Time is simulated: nobody waits. A hospital that misses a deadline has worked, and its ledger was charged; its reply is
lost all the same. What happens in a round follows from (seed, round, node), so a run can be repeated and resumed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ConfigRecord, Error, Message, MessageType, MetricRecord
from flwr.serverapp import Grid

from polyclinic.wire.arrays import fill_record, records_of, size_of
from polyclinic.wire.passing import PassingGrid

UNREACHABLE = 503
SECONDS = "simulated-seconds"


@dataclass(frozen=True)
class Conditions:
    """What a simulation's hospitals and lines are like.

    dropout_rate: probability that a node cannot be reached in a round.
    away: (round, node) pairs that cannot.
    straggling: standard deviation of the logarithm of a node's time in a round.
    bandwidth: bytes per second, each way, 0 without limit.
    deadline: seconds after which a round does not wait, 0 for none.
    compute_seconds: of one round's training.
    """

    seed: int
    dropout_rate: float = 0.0
    away: frozenset[tuple[int, int]] = field(default_factory=frozenset)
    compute_seconds: float = 0.0
    straggling: float = 0.0
    bandwidth: float = 0.0
    deadline: float = 0.0

    def reachable(self, round: int, node: int) -> bool:
        if not self.dropout_rate:
            return (round, node) not in self.away
        draw = np.random.default_rng((self.seed, round, node, 0)).random()
        return (round, node) not in self.away and draw >= self.dropout_rate

    def seconds(self, round: int, node: int, sent: int) -> float:
        """How long a node takes to be asked, to train, and to reply.

        Args:
            round: The number of the round.
            node: The number of the node.
            sent: Bytes that go over the node's line, both ways together.
        """
        slow = 1.0
        if self.straggling:
            slow = np.exp(self.straggling * np.random.default_rng((self.seed, round, node, 1)).standard_normal())
        return float(self.compute_seconds * slow + (sent / self.bandwidth if self.bandwidth else 0.0))


class UnreliableGrid(PassingGrid):
    """``grid`` under ``conditions``; only training is affected."""

    def __init__(self, grid: Grid, conditions: Conditions) -> None:
        super().__init__(grid)
        self._conditions = conditions

    @property
    def merges(self) -> bool:
        """Not with a deadline: who misses it must not be in another's reply."""
        return not self._conditions.deadline and getattr(self._grid, "merges", False)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        asked: dict[int, tuple[Message, int | None]] = {}
        away = []
        for message in messages:
            round, node = _round(message), message.metadata.dst_node_id
            if round is None or self._conditions.reachable(round, node):
                asked[node] = message, round
            else:
                away.append(message)
        given = self._grid.send_and_receive([message for message, _ in asked.values()], timeout=timeout)
        counted: dict[int, int] = {}
        replies = []
        for reply in given:
            sent, round = asked.get(reply.metadata.src_node_id, (None, None))
            replies.append(self._in_time(sent, round, reply, counted))
        return [*replies, *(_error(message, "could not be reached in this round (simulated)") for message in away)]

    def _in_time(self, message: Message | None, round: int | None, reply: Message, counted: dict[int, int]) -> Message:
        if message is None or round is None or reply.has_error():
            return reply
        sent = size_of(message.content, counted) + size_of(reply.content, counted) if self._conditions.bandwidth else 0
        taken = self._conditions.seconds(round, reply.metadata.src_node_id, sent)
        if 0 < self._conditions.deadline < taken:
            return _error(
                message, f"missed the deadline of {self._conditions.deadline:g} simulated seconds with {taken:.3g}"
            )
        for _, record in records_of(reply.content, MetricRecord)[:1]:
            fill_record(record, {SECONDS: taken})
        return reply


def _round(message: Message) -> int | None:
    """The round of a message that asks for training, as Flower's strategies or Polyclinic's requests tell it."""
    if message.metadata.message_type != MessageType.TRAIN:
        return None
    for _, record in records_of(message.content, ConfigRecord):
        for key in ("server-round", "round"):
            if isinstance(record.get(key), int):
                return int(record[key])  # type: ignore[arg-type]
    return None


def _error(message: Message, reason: str) -> Message:
    return Message(Error(UNREACHABLE, reason), reply_to=message)
