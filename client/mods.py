"""Mods around a hospital's answers, as Flower has them around a ClientApp.

A mod gets copies of what comes and of what leaves, which has its noise, and may change the arrays of the latter. So
whatever it does costs no patient anything. The hospital answers the message that came, once; everything but the arrays
leaves as it said.
"""

from __future__ import annotations

from copy import deepcopy
from logging import ERROR

from flwr.app import Context, Error, Message
from flwr.common.logger import log

from polyclinic.client.checks import check_mods
from polyclinic.client.home.hospital import is_real, own_policy
from polyclinic.config import RunConfig
from polyclinic.errors import why
from polyclinic.plugins import mod_named
from polyclinic.wire.messages import FAILED
from polyclinic.wire.mods import Answering, Mod


def mods_of(config: RunConfig, kind: str, context: Context) -> dict[str, Mod]:
    """The run's mods around answers of a kind by their names, the outermost first.

    Args:
        config: The run's configuration, which names the mods.
        kind: The kind of message that is answered.
        context: Flower's context, which tells a real hospital from a simulated one.

    Raises:
        BudgetRefused: A real hospital's policy does not allow a mod; none of its code was loaded.
    """
    if is_real(context):
        check_mods(*own_policy(context), config)
    return {name: mod_named(name) for name in config.mods_around(kind)}


def through(mods: dict[str, Mod], answer: Answering, message: Message, context: Context) -> Message:
    """The answer as it leaves the mods, which are handed neither where the hospital's files lie nor any record.

    Args:
        mods: The mods by their names, the outermost first.
        answer: What answers the message; called once, whatever the mods do.
        message: The message that came.
        context: Flower's context of the node.
    """
    given: list[Message] = []

    def innermost(asked: Message, seen: Context) -> Message:
        if not given:
            given.append(answer(message, context))
        return deepcopy(given[0])

    shown = {name: value for name, value in context.node_config.items() if name != "hospital"}
    seen = Context(context.run_id, context.node_id, shown, context.state, dict(context.run_config))
    answering: Answering = innermost
    for name, mod in reversed(mods.items()):
        answering = _around(name, mod, answering)
    try:
        reply = answering(deepcopy(message), seen)
    except _ModFailed as error:
        assert error.__cause__ is not None
        return _error_reply(message, context, f"the mod {error.args[0]!r} failed", why(error.__cause__))
    if given and given[0].has_error():
        return given[0]
    if reply.has_error():
        return _error_reply(message, context, "a mod refused the message", reply.error.reason)
    if not given:
        return _error_reply(message, context, "a mod answered in the hospital's place", "it did not call call_next")
    return _with_arrays(given[0], reply, message, context)


def _with_arrays(hospital_reply: Message, reply: Message, message: Message, context: Context) -> Message:
    """What the hospital replied, with the arrays that the mods made of its own."""
    if reply.content.array_records.keys() != hospital_reply.content.array_records.keys():
        names = ", ".join(reply.content.array_records) or "none"
        return _error_reply(message, context, "a mod took records of arrays away, or added some", f"it leaves {names}")
    for name, record in reply.content.array_records.items():
        hospital_reply.content[name] = record
    return hospital_reply


def _error_reply(message: Message, context: Context, what: str, reason: str | None) -> Message:
    """An error in place of the answer. At a real hospital even a mod's own words could hold a path, so that its log has them."""
    if not is_real(context):
        return Message(Error(FAILED, f"{what}: {reason}"), reply_to=message)
    log(ERROR, "%s: %s", what, reason)
    return Message(Error(FAILED, f"{what}; the hospital's own log says why"), reply_to=message)


class _ModFailed(Exception):
    """A mod of this name raised what is its cause."""


def _around(name: str, mod: Mod, inner: Answering) -> Answering:
    def answer(message: Message, context: Context) -> Message:
        try:
            reply = mod(message, context, inner)
            if not isinstance(reply, Message):
                raise TypeError(f"it gives {type(reply).__name__} where it must give a Message")
            return reply
        except _ModFailed:
            raise
        except (Exception, SystemExit) as error:  # a stranger's code, which may raise anything
            log(ERROR, "The mod %s failed.", name, exc_info=error)
            raise _ModFailed(name) from error

    return answer
