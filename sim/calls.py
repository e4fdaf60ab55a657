"""One call of a ClientApp for many nodes: what a worker does, whatever kind of worker it is."""

from __future__ import annotations

import gc
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

APP_FAILED = 0

Stack = list[tuple[Message, Context]]
Answer = tuple[Message, RecordDict]


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


def call_app(reference: AppReference, stack: Stack) -> list[Answer]:
    """The ClientApp's replies and the nodes' new states: all at once where the app has ``call_stack``, else one by one.

    One by one, each node has a message and a configuration of its own, as if they had come over a wire; messages to a
    stack may share records, which ``call_stack`` must not change. A ClientApp that raises gives an Error reply, as under
    Flower.
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
        own = replace(context, node_config=dict(context.node_config), run_config=dict(context.run_config))
        try:
            reply = app(_copied(message), own)
            answers.append((_copied(reply), own.state))
        except Exception as error:
            answers.append(_failed(message, context, error))
    return answers


def call_in_worker(reference: AppReference, stack: Stack) -> list[Answer]:
    """``call_app`` in a process that does nothing else.

    What lives after its first call, modules and records, lives to its end: the garbage collector need not walk it again.
    """
    answers = call_app(reference, stack)
    _freeze_once()
    return answers


def _copied(message: Message) -> Message:
    """The message with content of its own."""
    found = copy(message)
    if message.has_content():
        found.content = deepcopy(message.content)
    return found


@cache
def _freeze_once() -> None:
    gc.freeze()


def _failed(message: Message, context: Context, error: Exception) -> Answer:
    return Message(Error(APP_FAILED, f"{type(error).__name__}: {error}"), reply_to=message), context.state
