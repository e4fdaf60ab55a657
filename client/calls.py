"""One message to one hospital, and the shape of its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from polyclinic.arrays import Arrays, filled, to_record
from polyclinic.client.hospital import Hospital
from polyclinic.config import RunConfig
from polyclinic.messages import RECORD, R

Answer = RecordDict | Exception
T = TypeVar("T")


@dataclass(frozen=True)
class Call(Generic[R]):
    """One message to one hospital, read."""

    content: RecordDict
    hospital: Hospital
    request: R
    config: RunConfig


def each(answer: Callable[[Call[R]], T], calls: Sequence[Call[R]]) -> list[T | Exception]:
    """An answer or an error for each call, where calls do not depend on each other."""
    answers: list[T | Exception] = []
    for call in calls:
        try:
            answers.append(answer(call))
        except Exception as error:
            answers.append(error)
    return answers


def reply(
    hospital: Hospital, arrays: Arrays, metrics: dict[str, float], spent: float, key: str = "arrays"
) -> RecordDict:
    """``spent`` is the ledger's epsilon after this call, in its own record so that strategies do not average it."""
    content = filled(RecordDict(), {
        "metrics": filled(MetricRecord(), metrics),
        RECORD: filled(ConfigRecord(), {"site": hospital.site, "epsilon": spent, "delta": hospital.policy.delta}),
    })  # fmt: skip
    if arrays:
        content[key] = to_record(arrays)
    return content
