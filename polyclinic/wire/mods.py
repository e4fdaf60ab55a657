"""The mods that come with Polyclinic: what Flower's ClientApps log of their messages."""

from __future__ import annotations

import time
from collections.abc import Callable
from logging import INFO, getLogger

from flwr.app import Context, Message

from polyclinic.wire.arrays import bytes_of

Answering = Callable[[Message, Context], Message]
#: Flower's own type of a mod: of (message, context, what comes next) the answer.
Mod = Callable[[Message, Context, Answering], Message]


# Flower's handlers, also in a simulation, where Flower's own lines are left out.
_LOG = getLogger("flwr.mods")
_LOG.setLevel(INFO)


def log_messages(message: Message, context: Context, call_next: Answering) -> Message:
    """The mod ``logging``: a line for each message, with its kind, how it was answered, and the time that took.

    Args:
        message: The message that came.
        context: Flower's context of the node.
        call_next: Answers the message.
    """
    begun = time.monotonic()
    reply = call_next(message, context)
    how = f"with an error: {reply.error.reason}" if reply.has_error() else f"with {', '.join(reply.content)}"
    _LOG.info("Mod logging: %r answered in %.2f s %s", message.metadata.message_type, time.monotonic() - begun, how)
    return reply


def log_sizes(message: Message, context: Context, call_next: Answering) -> Message:
    """The mod ``size``: a line for each message, with the bytes of its arrays and of the answer's.

    Args:
        message: The message that came.
        context: Flower's context of the node.
        call_next: Answers the message.
    """
    came = sum(map(len, bytes_of(message)))
    reply = call_next(message, context)
    leaves = sum(map(len, bytes_of(reply)))
    _LOG.info("Mod size: %r: %d bytes of arrays came, %d leave", message.metadata.message_type, came, leaves)
    return reply
