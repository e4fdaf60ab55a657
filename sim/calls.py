"""One call of a ClientApp for many nodes: what a worker does, whatever kind of worker it is."""

from __future__ import annotations

import gc
import sys
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import import_module
from logging import getLogger
from typing import Any, Protocol

import cloudpickle
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from polyclinic.sim.randomness import seed_all

Stack = list[tuple[Message, Context]]
Answer = tuple[Message, RecordDict]


class Callee(Protocol):
    """What answers one message."""

    def __call__(self, message: Message, context: Context) -> Message: ...


class App(Protocol):
    """How a worker comes by what answers messages; it can be pickled."""

    def load(self) -> Callee: ...


def find_in(folder: str) -> None:
    """Have this process, and those that it starts, find modules in the folder; an empty text changes nothing."""
    if folder and folder not in sys.path:
        sys.path.insert(0, folder)


def attribute(module: str, names: str, folder: str = "") -> Any:
    """The object that ``names`` leads to in a module.

    Args:
        module: Its name.
        names: Of attributes, separated by dots.
        folder: Where the module lies if it is not installed.
    """
    find_in(folder)
    target: Any = import_module(module)
    for name in names.split("."):
        target = getattr(target, name)
    return target


@dataclass(frozen=True)
class AppReference:
    """Where a worker process finds the ClientApp: ``package.module``, the attribute's name, and the folder of a module that
    is not installed."""

    module: str
    attribute: str = "app"
    folder: str = ""

    def load(self) -> ClientApp:
        loaded = attribute(self.module, self.attribute, self.folder)
        if not isinstance(loaded, ClientApp):
            raise TypeError(f"{self.module}:{self.attribute} is not a Flower ClientApp.")
        return loaded


@dataclass(frozen=True)
class AppValue:
    """A ClientApp itself, as a notebook defines it; a worker process gets it by value."""

    app: ClientApp

    def load(self) -> ClientApp:
        return self.app

    def __reduce__(self) -> tuple[Any, ...]:
        return _value, (_pickle_app(self),)


@dataclass(frozen=True)
class Guest:
    """A Flower app's own ClientApp, called as Flower's simulation calls it.

    seed: each call's global random generators are seeded by it, the node, and the call's number at the node. So results do not
    depend on which worker takes a call. None leaves the generators alone.
    """

    app: AppReference | AppValue
    seed: int | None = None

    def load(self) -> Callee:
        return self._call

    def _call(self, message: Message, context: Context) -> Message:
        if self.seed is not None:
            node, _, number = message.metadata.message_id.partition(".")
            seed_all(self.seed, int(node), int(number))
        configured = dict(context.run_config)
        try:
            reply = self.app.load()(message, context)
            if context.run_config != configured:
                raise ValueError("the ClientApp changed its context's run_config, which is the same for a whole run")
        except Exception:
            place = context.node_config.get("partition-id")
            getLogger("flwr").exception("The ClientApp failed at node %s (partition %s).", context.node_id, place)
            raise
        return reply


def call_app(app: App, stack: Stack) -> list[Answer]:
    """The ClientApp's replies and the nodes' new states: all at once where the app has ``call_stack``, else one by one.

    One by one, each node has a message, a state and a configuration of its own, as if they had come over a wire. Messages to
    a stack may share records, which ``call_stack`` must not change. A ClientApp that raises gives an Error reply, as under
    Flower, and leaves the node's state as it was.
    """
    loaded = app.load()
    together = getattr(loaded, "call_stack", None)
    if together is not None:
        try:
            replies = together([message for message, _ in stack], [context for _, context in stack])
            return [(reply, context.state) for reply, (_, context) in zip(replies, stack, strict=True)]
        except Exception as error:
            return [_error_answer(message, context, error) for message, context in stack]
    answers = []
    for message, context in stack:
        own = replace(
            context,
            node_config=dict(context.node_config),
            run_config=dict(context.run_config),
            state=deepcopy(context.state),
        )
        try:
            reply = loaded(_copy_message(message), own)
            answers.append((_copy_message(reply), own.state))
        except Exception as error:
            answers.append(_error_answer(message, context, error))
    return answers


def call_in_worker(app: App, stack: Stack) -> list[Answer]:
    """``call_app`` in a process that does nothing else.

    What lives after its first call, modules and records, lives to its end: the garbage collector need not walk it again.
    """
    answers = call_app(app, stack)
    _freeze_once()
    return answers


def crash_answers(stack: Stack) -> list[Answer]:
    """Errors for the nodes of a call whose worker died twice."""
    reason = (
        "the worker died twice before this site's reply; a script that uses workers must start its work under "
        "`if __name__ == '__main__':`"
    )
    return [
        (Message(Error(ErrorCode.CLIENT_APP_CRASHED, reason), reply_to=message), context.state)
        for message, context in stack
    ]


def _copy_message(message: Message) -> Message:
    """The message with content of its own."""
    duplicate = copy(message)
    if message.has_content():
        duplicate.content = deepcopy(message.content)
    return duplicate


@cache
def _freeze_once() -> None:
    gc.freeze()


def _error_answer(message: Message, context: Context, error: Exception) -> Answer:
    reason = f"{type(error).__name__}: {error}"
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message), context.state


@lru_cache(maxsize=4)
def _pickle_app(value: AppValue) -> bytes:
    return bytes(cloudpickle.dumps(value.app))


@lru_cache(maxsize=4)
def _value(pickled: bytes) -> AppValue:
    return AppValue(cloudpickle.loads(pickled))
