"""What strategies do with hospitals' replies before they take means."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import Message


def weigh_alike(replies: Iterable[Message], key: str) -> list[Message]:
    """The replies that are no errors, each with the weight 1 under ``key``: for means over hospitals, whatever their size."""
    answers = [reply for reply in replies if not reply.has_error()]
    for reply in answers:
        for record in reply.content.metric_records.values():
            record[key] = 1.0
    return answers
