"""Mods around a hospital's answers, as Flower has them around a ClientApp.

A mod gets what comes and what leaves, which has its noise, so that whatever it does costs no patient anything. What the
hospital says of its ledger goes out as the hospital said it.
"""

from __future__ import annotations

from logging import ERROR

from flwr.app import ConfigRecord, Context, Error, Message
from flwr.common.logger import log

from polyclinic.client.checks import check_mods
from polyclinic.client.hospital import is_real, own_policy
from polyclinic.config import RunConfig
from polyclinic.errors import why
from polyclinic.messages import FAILED, RECORD
from polyclinic.mods import Answering, Mod
from polyclinic.plugins import mod_named


def mods_of(config: RunConfig, kind: str, context: Context) -> dict[str, Mod]:
    """The run's mods around answers of a kind by their names, the outermost first.

    Raises BudgetRefused, before any code of it is loaded, for one that a real hospital's policy does not allow.
    """
    if is_real(context):
        check_mods(*own_policy(context), config)
    return {name: mod_named(name) for name in config.mods_around(kind)}


def through(mods: dict[str, Mod], answer: Answering, message: Message, context: Context) -> Message:
    """The answer as it leaves the mods, which see neither where the hospital's files lie nor any record."""
    said: list[ConfigRecord] = []

    def innermost(asked: Message, _: Context) -> Message:
        reply = answer(asked, context)
        if reply.has_content() and RECORD in reply.content.config_records:
            said[:] = [ConfigRecord(dict(reply.content.config_records[RECORD]))]
        return reply

    shown = {name: value for name, value in context.node_config.items() if name != "hospital"}
    seen = Context(context.run_id, context.node_id, shown, context.state, context.run_config)
    try:
        answering: Answering = innermost
        for name, mod in reversed(mods.items()):
            answering = _around(name, mod, answering)
        reply = answering(message, seen)
    except _ModFailed as error:
        assert error.__cause__ is not None
        # At a real hospital even the text of an error may hold a path.
        cause = type(error.__cause__).__name__ if is_real(context) else why(error.__cause__)
        return Message(Error(FAILED, f"the mod {error.args[0]!r} failed: {cause}"), reply_to=message)
    if said and reply.has_content():
        reply.content[RECORD] = said[0]
    return reply


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
        except Exception as error:
            log(ERROR, "The mod %s failed.", name, exc_info=error)
            raise _ModFailed(name) from error

    return answer
