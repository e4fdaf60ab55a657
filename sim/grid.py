"""A Flower ``Grid`` that runs a ClientApp for many nodes on this machine, without SuperLink, Ray or polling.

Any ClientApp written for Flower's Message API runs on it unchanged, node by node. One that also has the method
``call_stack(messages, contexts) -> replies`` gets the messages of one type together, and may work on many nodes at once.
With ``workers`` > 1 the calls are spread over processes; a node's ``Context.state`` travels with its call, so results do
not depend on which worker takes it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from types import TracebackType
from typing import Any

import torch
from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

APP_FAILED = 0

Stack = list[tuple[Message, Context]]


@dataclass(frozen=True)
class AppReference:
    """Where a worker process finds the ClientApp: ``package.module`` and the attribute's name."""

    module: str
    attribute: str = "app"

    def load(self) -> ClientApp:
        app = getattr(import_module(self.module), self.attribute)
        if not isinstance(app, ClientApp):
            raise TypeError(f"{self.module}:{self.attribute} is not a Flower ClientApp.")
        return app


class LocalGrid(Grid):
    """Nodes 1 to ``nodes``; node k has ``partition-id`` k-1 and ``num-partitions`` ``nodes``, as in Flower's simulation."""

    def __init__(
        self, app: AppReference, nodes: int, run_config: UserConfig, workers: int = 1, run_id: int = 1
    ) -> None:
        # Messages take their run and sender from this class attribute of Flower's.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, 0
        self._app = app
        self._contexts = {
            node: Context(run_id, node, {"partition-id": node - 1, "num-partitions": nodes}, RecordDict(), run_config)
            for node in range(1, nodes + 1)
        }
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._ids = count(1)
        self._replies: dict[str, Message] = {}

    def __enter__(self) -> LocalGrid:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def set_run(self, run: Any) -> None:
        """Nothing to set: this grid has one run, made by its constructor."""

    @property
    def run(self) -> Any:
        raise NotImplementedError("A LocalGrid has no Flower Run: nothing was submitted to a SuperLink.")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        pending = list(messages)
        for message in pending:
            message.metadata.__dict__["_message_id"] = str(next(self._ids))
            if message.metadata.dst_node_id not in self._contexts:
                raise ValueError(
                    f"Node {message.metadata.dst_node_id} does not exist; this grid has {len(self._contexts)}."
                )
        for message, (reply, state) in zip(pending, self._call(pending), strict=True):
            reply.metadata.__dict__["_message_id"] = str(next(self._ids))
            self._contexts[message.metadata.dst_node_id].state = state
            self._replies[message.metadata.message_id] = reply
        return [message.metadata.message_id for message in pending]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _call(self, messages: Sequence[Message]) -> list[tuple[Message, RecordDict]]:
        """Replies and new states in order; the messages of one type go to the app together, in at most ``workers`` parts."""
        answers: list[tuple[Message, RecordDict] | None] = [None] * len(messages)
        for indices in _by_type(messages):
            parts = [indices[start :: self._workers] for start in range(min(self._workers, len(indices)))]
            stacks = [[(messages[i], self._contexts[messages[i].metadata.dst_node_id]) for i in part] for part in parts]
            for part, replies in zip(parts, self._spread(stacks), strict=True):
                for index, reply in zip(part, replies, strict=True):
                    answers[index] = reply
        return [answer for answer in answers if answer is not None]

    def _spread(self, stacks: Sequence[Stack]) -> list[list[tuple[Message, RecordDict]]]:
        if len(stacks) == 1:
            return [call_app(self._app, stacks[0])]
        found: list[list[tuple[Message, RecordDict]] | None] = [None] * len(stacks)
        # A worker that died took every call of its pool with it: those are made once more, in a new pool.
        for _ in range(2):
            waiting = [index for index, answer in enumerate(found) if answer is None]
            futures = {index: self._workers_pool().submit(call_app, self._app, stacks[index]) for index in waiting}
            for index, future in futures.items():
                try:
                    found[index] = future.result()
                except BrokenProcessPool:
                    self._pool = None
        return [self._lost(stack) if answer is None else answer for stack, answer in zip(stacks, found, strict=True)]

    def _lost(self, stack: Stack) -> list[tuple[Message, RecordDict]]:
        error = Error(
            APP_FAILED,
            "worker processes died twice before this site's reply; a script "
            "that uses workers must start its work under `if __name__ == '__main__':`",
        )
        return [(Message(error, reply_to=message), context.state) for message, context in stack]

    def _workers_pool(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # Not fork: torch's and Ray's threads do not survive it.
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(min(self._workers, len(self._contexts)), spawn, initializer=_begin_worker)
        return self._pool


def _begin_worker() -> None:
    # Ctrl-C reaches the whole process group; the run itself decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """A run that is killed takes its workers with it; they would hold its pipes and memory for ever."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _by_type(messages: Sequence[Message]) -> list[list[int]]:
    """Positions of the messages of each type."""
    found: dict[str, list[int]] = {}
    for index, message in enumerate(messages):
        found.setdefault(message.metadata.message_type, []).append(index)
    return list(found.values())


def call_app(reference: AppReference, stack: Stack) -> list[tuple[Message, RecordDict]]:
    """The ClientApp's replies and the nodes' new states: all at once where the app has ``call_stack``, else one by one.

    A ClientApp that raises gives an Error reply, as under Flower.
    """
    app = reference.load()
    together = getattr(app, "call_stack", None)
    if together is not None:
        try:
            replies = together([message for message, _ in stack], [context for _, context in stack])
            return [(reply, context.state) for reply, (_, context) in zip(replies, stack, strict=True)]
        except Exception as error:
            return [_failed(message, context, error) for message, context in stack]
    answers = []
    for message, context in stack:
        try:
            answers.append((app(message, context), context.state))
        except Exception as error:
            answers.append(_failed(message, context, error))
    return answers


def _failed(message: Message, context: Context, error: Exception) -> tuple[Message, RecordDict]:
    return Message(Error(APP_FAILED, f"{type(error).__name__}: {error}"), reply_to=message), context.state
