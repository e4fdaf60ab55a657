"""Loaded by every Python of the coordinator: in the ServerApp, notes each training message and reply, and can send them twice.

WIRETAP names a folder: ``heard.jsonl`` gets a line for each reply to a training message; while a file ``replay`` is there,
each training message is sent a second time, and that of the round before once more.
"""

import contextlib
import hashlib
import json
import os
import sys
from pathlib import Path

_FOLDER = os.environ.get("WIRETAP", "")


def _tap() -> None:
    from flwr.app import Message
    from flwr.superlink.grid.http_grid import HttpGrid

    push, pull = HttpGrid.push_messages, HttpGrid.pull_messages
    asked: dict[str, dict[str, object]] = {}
    extra: set[str] = set()
    before: dict[int, Message] = {}

    def again(message: Message) -> Message:
        found = message.metadata
        return Message(message.content, found.dst_node_id, found.message_type, ttl=found.ttl, group_id=found.group_id)

    def note(ids: list[str], messages: list[Message], replayed: bool) -> None:
        for id, message in zip(ids, messages, strict=True):
            if message.metadata.message_type == "train" and id:
                told = message.content["polyclinic"]
                asked[id] = {name: told.get(name) for name in ("run", "round", "noise_multiplier")}
                asked[id] |= {"node": str(message.metadata.dst_node_id), "replayed": replayed}

    def pushing(self: HttpGrid, messages):  # type: ignore[no-untyped-def]
        messages = list(messages)
        ids = list(push(self, messages))
        note(ids, messages, False)
        trained = [message for message in messages if message.metadata.message_type == "train"]
        if trained and (Path(_FOLDER) / "replay").exists():
            old = [before[node] for node in (m.metadata.dst_node_id for m in trained) if node in before]
            twice = [again(message) for message in (*trained, *old)]
            more = list(push(self, twice))
            note(more, twice, True)
            extra.update(more)
        before.update({message.metadata.dst_node_id: message for message in trained})
        return ids

    def pulling(self: HttpGrid, message_ids):  # type: ignore[no-untyped-def]
        wanted = set(message_ids)
        found = list(pull(self, wanted | extra))
        for reply in found:
            told = asked.get(reply.metadata.reply_to_message_id)
            extra.discard(reply.metadata.reply_to_message_id)
            if told is not None and reply.has_content():
                content = reply.content.array_records
                digest = hashlib.sha256(
                    b"".join(array.data for _, record in sorted(content.items()) for _, array in sorted(record.items()))
                )
                with (Path(_FOLDER) / "heard.jsonl").open("a") as file:
                    file.write(json.dumps(told | {"digest": digest.hexdigest()}) + "\n")
        return [reply for reply in found if reply.metadata.reply_to_message_id in wanted]

    HttpGrid.push_messages, HttpGrid.pull_messages = pushing, pulling


if _FOLDER and any("flwr-serverapp" in argument for argument in sys.orig_argv):
    with contextlib.suppress(ImportError):
        _tap()
