"""Models averaged before a strategy sees them, where the strategy declares that its aggregation allows it.

Simulated hospitals that are called together have averaged theirs already: one reply carries their mean, the others
say only that they are in it, so that the server's memory does not grow with hospitals. Means are in float64, so that it
does not matter who is averaged with whom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flwr.app import ConfigRecord, Message, MetricRecord

from polyclinic.arrays import MERGED, WEIGHT, from_record, to_record, weighted_mean
from polyclinic.errors import PolyclinicError
from polyclinic.messages import RECORD


def is_merged(reply: Message) -> bool:
    """Whether the reply's model is, or is in, a mean that one of the replies carries."""
    return MERGED in _told(reply)


def merge(replies: Sequence[Message], key: str) -> list[Message]:
    """One reply with the mean of all models, weighted by the metric ``key``; the replies as they are if one lacks it.

    Raises PolyclinicError when a mean does not stand for just the replies that say they are in it.
    """
    if any(key not in _metrics(reply) for reply in replies):
        return list(replies)
    carriers = [reply for reply in replies if reply.content.array_records]
    weights = [float(_told(reply).get(WEIGHT, _metrics(reply)[key])) for reply in carriers]  # type: ignore[arg-type]
    total = math.fsum(float(_metrics(reply)[key]) for reply in replies)  # type: ignore[arg-type]
    if not math.isclose(math.fsum(weights), total, rel_tol=1e-9):
        raise PolyclinicError(
            "A mean of several hospitals' models was lost, or stands for others than those that replied."
        )
    if not total > 0:
        raise PolyclinicError(f"The replies' weights, by the metric {key!r}, add up to {total:g}.")
    whole = carriers[0]
    (name,) = whole.content.array_records
    models = [from_record(next(iter(reply.content.array_records.values()))) for reply in carriers]
    whole.content[name] = to_record(weighted_mean(models, weights))
    for metrics in whole.content.metric_records:
        whole.content[metrics] = MetricRecord({key: total})
    return [whole]


def _told(reply: Message) -> ConfigRecord:
    record = reply.content.get(RECORD)
    return record if isinstance(record, ConfigRecord) else ConfigRecord()


def _metrics(reply: Message) -> MetricRecord:
    return next(iter(reply.content.metric_records.values()))
