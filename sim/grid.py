"""A Flower ``Grid`` that runs a ClientApp for many nodes on this machine, without SuperLink, Ray or polling.

Any ClientApp written for Flower's Message API runs on it unchanged. With ``workers`` > 1 the nodes' calls are spread
over processes; a node's ``Context.state`` travels with its call, so results do not depend on which worker takes it.
"""

from __future__ import annotations

import multiprocessing
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
        contexts = [self._contexts[message.metadata.dst_node_id] for message in messages]
        if self._workers == 1 or len(messages) < 2:
            return [call_app(self._app, message, context) for message, context in zip(messages, contexts, strict=True)]
        if self._pool is None:
            # Not fork: torch's and Ray's threads do not survive it.
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                min(self._workers, len(self._contexts)), spawn, initializer=torch.set_num_threads, initargs=(1,)
            )
        futures = [self._pool.submit(call_app, self._app, m, c) for m, c in zip(messages, contexts, strict=True)]
        answers = []
        for future, message, context in zip(futures, messages, contexts, strict=True):
            try:
                answers.append(future.result())
            except BrokenProcessPool:
                # The next exchange starts new workers; a dead one must not take later messages.
                self._pool = None
                lost = Error(APP_FAILED, "a worker process died before this site's reply")
                answers.append((Message(lost, reply_to=message), context.state))
        return answers


def call_app(reference: AppReference, message: Message, context: Context) -> tuple[Message, RecordDict]:
    """The ClientApp's reply and the node's new state; a ClientApp that raises gives an Error reply, as under Flower."""
    try:
        return reference.load()(message, context), context.state
    except Exception as error:
        return Message(Error(APP_FAILED, f"{type(error).__name__}: {error}"), reply_to=message), context.state
