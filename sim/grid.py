"""A Flower ``Grid`` that runs a ClientApp for many nodes on this machine, without SuperLink, Ray or polling.

Any ClientApp written for Flower's Message API runs on it unchanged, node by node. One that also has the method
``call_stack(messages, contexts) -> replies`` gets the messages of one type together, and may work on many nodes at once.
With workers, processes of this machine or Ray actors, each node has its worker. A node's ``Context.state`` travels with its
call, so results do not depend on which worker takes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import count
from threading import Lock, current_thread, main_thread
from time import monotonic
from types import TracebackType
from typing import Any

from flwr.app import Context, Message, RecordDict, UserConfig
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from polyclinic.errors import PolyclinicError
from polyclinic.sim.calls import Answer, App, call_app
from polyclinic.sim.randomness import Generators
from polyclinic.sim.workers import Workers

# How often a ServerApp may look for nodes, a second or so apart, before it is told that it waits in vain.
_MOST_LOOKS = 5
_RUN = 1


class LocalGrid(Grid):
    """Nodes 1 to ``nodes``, as in Flower's simulation. Several threads may use it, as Flower's older strategies do.

    Node k has ``partition-id`` k-1 and ``num-partitions`` ``nodes``, and what ``node_config`` adds.

    generators: the clients' global random generators, where they work in this process; None leaves them the server's.
    ``merges``: replies reach the server all or not at all, so an app may put the arrays of many into one of them.
    ``messages``, ``failures``: how many replies there were, and how many of them were errors.
    ``first_failure``: the first error's reason.
    """

    merges = True

    def __init__(
        self, app: App, nodes: int, run_config: UserConfig, workers: Workers | None = None,
        costs: Sequence[float] | None = None, node_config: UserConfig | None = None, generators: Generators | None = None,
    ) -> None:  # fmt: skip
        # Messages take their run and sender from this class attribute of Flower's.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, _RUN, 0
        self._app = app
        self._run = Run.create_empty(_RUN)
        self._run.override_config = dict(run_config)
        self._generators = generators
        own = node_config or {}
        self._contexts = {
            node: Context(
                _RUN, node, {"partition-id": node - 1, "num-partitions": nodes, **own}, RecordDict(), run_config
            )
            for node in range(1, nodes + 1)
        }
        self._workers = workers
        self._placed = place(costs or [1.0] * nodes, workers.count) if workers else [0] * nodes
        # The messages to a node are numbered apart, so that a message's name does not depend on threads.
        self._ids = {node: count(1) for node in range(nodes + 1)}
        self._replies: dict[str, Message] = {}
        # Clients in this process work one at a time.
        self._alone = Lock()
        self._looks, self._looked = 0, -60.0
        self.messages = self.failures = 0
        self.first_failure = ""

    def __enter__(self) -> LocalGrid:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._workers is not None:
            self._workers.close(now=kind is not None and issubclass(kind, KeyboardInterrupt))

    def set_run(self, run: Any) -> None:
        """Nothing to set: this grid has one run, made by its constructor."""

    @property
    def run(self) -> Run:
        """A Run that was submitted to no SuperLink: it has a number and a configuration."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """All nodes, from the start. Raises PolyclinicError for a ServerApp that goes on looking for more."""
        now, before = monotonic(), self._looked
        self._looked = now
        self._looks = self._looks + 1 if 0.5 < now - before < 5.0 else 0
        # Flower's older strategies look from a thread of their own all the time.
        if self._looks >= _MOST_LOOKS and current_thread() is main_thread():
            raise PolyclinicError(
                f"The ServerApp waits for more nodes than the {len(self._contexts)} that there are, and no more will come; take "
                "more nodes, or a smaller min_available_nodes of the strategy."
            )
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        pending = list(messages)
        self._looks = 0
        for message in pending:
            metadata = message.metadata
            node = metadata.dst_node_id
            if node not in self._contexts:
                raise ValueError(f"Node {node} does not exist; this grid has {len(self._contexts)}.")
            metadata.__dict__["_message_id"] = f"{node}.{next(self._ids[node])}"
        for message, (reply, state) in zip(pending, self._call(pending), strict=True):
            metadata = message.metadata
            reply.metadata.__dict__["_message_id"] = f"0.{next(self._ids[0])}"
            self._contexts[metadata.dst_node_id].state = state
            self._replies[metadata.message_id] = reply
            self.messages += 1
            if reply.has_error():
                self.failures += 1
                self.first_failure = self.first_failure or str(reply.error.reason)
        return [message.metadata.message_id for message in pending]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _call(self, messages: Sequence[Message]) -> list[Answer]:
        """Replies and new states in order; the messages of one type go to the app together, or a part to each worker."""
        answers: dict[int, Answer] = {}
        for indices in _by_type(messages):
            count = self._workers.count if self._workers else 1
            parts: list[list[int]] = [[] for _ in range(count)]
            for index in indices:
                parts[self._placed[messages[index].metadata.dst_node_id - 1]].append(index)
            stacks = [[(messages[i], self._contexts[messages[i].metadata.dst_node_id]) for i in part] for part in parts]
            if self._workers:
                replies_of_parts = self._workers.call(self._app, stacks)
            else:
                with self._alone, self._generators.in_place() if self._generators else nullcontext():
                    replies_of_parts = [call_app(self._app, stacks[0])]
            for part, replies in zip(parts, replies_of_parts, strict=True):
                answers |= zip(part, replies, strict=True)
        return [answers[index] for index in range(len(messages))]


def place(costs: Sequence[float], workers: int) -> list[int]:
    """The worker of each node: the dearest first, each to the worker that has least (Graham 1969), always the same."""
    load, placed = [0.0] * workers, [0] * len(costs)
    for node in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        worker = min(range(workers), key=lambda index: (load[index], index))
        placed[node], load[worker] = worker, load[worker] + costs[node]
    return placed


def _by_type(messages: Sequence[Message]) -> list[list[int]]:
    """Positions of the messages of each type."""
    positions: dict[str, list[int]] = {}
    for index, message in enumerate(messages):
        positions.setdefault(message.metadata.message_type, []).append(index)
    return list(positions.values())
