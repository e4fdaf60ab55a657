"""Models averaged before a strategy sees them, where the strategy declares that its aggregation allows it.

Simulated hospitals that are called together have averaged theirs already. One reply carries their mean, the others say
only that they are in it, so that the server's memory does not grow with hospitals. Means are in float64, so that it
does not matter who is averaged with whom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord

from polyclinic.errors import PolyclinicError
from polyclinic.wire.arrays import MERGED, WEIGHT, from_record, records_of, to_record, weighted_mean
from polyclinic.wire.messages import RECORD


def is_merged(reply: Message) -> bool:
    """Whether the reply's model is, or is in, a mean that one of the replies carries."""
    return MERGED in _record_of(reply)


def merge(replies: Sequence[Message], key: str) -> list[Message]:
    """One reply with the mean of all models, weighted by the metric ``key``; the replies as they are if one lacks it.

    Raises PolyclinicError when a mean does not stand for just the replies that say they are in it.
    """
    figures = [metrics_of(reply) for reply in replies]
    if any(key not in metrics for metrics in figures):
        return list(replies)
    weights = [float(metrics[key]) for metrics in figures]  # type: ignore[arg-type]
    parts = [(reply, arrays_of(reply), weight) for reply, weight in zip(replies, weights, strict=True)]
    carriers = [(reply, *arrays[0], _record_of(reply).get(WEIGHT, weight)) for reply, arrays, weight in parts if arrays]
    borne = [float(weight) for *_, weight in carriers]  # type: ignore[arg-type]
    total = math.fsum(weights)
    if not math.isclose(math.fsum(borne), total, rel_tol=1e-9):
        raise PolyclinicError(
            "A mean of several hospitals' models was lost, or stands for others than those that replied."
        )
    if not total > 0:
        raise PolyclinicError(f"The replies' weights, by the metric {key!r}, add up to {total:g}.")
    whole, name, *_ = carriers[0]
    whole.content[name] = to_record(weighted_mean([from_record(record) for _, _, record, _ in carriers], borne))
    for label in whole.content.metric_records:
        whole.content[label] = MetricRecord({key: total})
    return [whole]


def metrics_of(reply: Message) -> MetricRecord:
    return records_of(reply.content, MetricRecord)[0][1]


def arrays_of(reply: Message) -> list[tuple[str, ArrayRecord]]:
    """The reply's records of arrays by name."""
    return records_of(reply.content, ArrayRecord)


def _record_of(reply: Message) -> ConfigRecord:
    record = reply.content.get(RECORD)
    return record if isinstance(record, ConfigRecord) else ConfigRecord()
