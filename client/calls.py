"""One message to one hospital, and the shape of its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from flwr.app import ConfigRecord, MetricRecord, RecordDict

from polyclinic.client.home.hospital import Hospital, open_ledgers
from polyclinic.config import RunConfig
from polyclinic.privacy.ledger import past_all
from polyclinic.privacy.ledger.terms import to_text
from polyclinic.types import Arrays
from polyclinic.wire.arrays import fill_record, to_record
from polyclinic.wire.messages import RECORD, R

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


def ledger_fields(hospital: Hospital, spent: float) -> dict[str, str | float]:
    """What every reply says of the ledger: the site, its epsilon and its delta.

    A real hospital's also says how often it was charged what. Only so can the server compose it with others' for a
    patient of several hospitals.
    """
    fields: dict[str, str | float] = {"site": hospital.site, "epsilon": spent, "delta": hospital.policy.delta}
    return fields if hospital.simulated else fields | {"charged": to_text(past_all(open_ledgers([hospital]))[0])}


def reply(
    hospital: Hospital, arrays: Arrays, metrics: dict[str, float], spent: float, key: str = "arrays"
) -> RecordDict:
    """The content of a reply: arrays, metrics, and what the ledger has spent.

    The ledger's numbers are in a record of their own, so that strategies do not average them.

    Args:
        hospital: The hospital that replies.
        arrays: What is sent as an ArrayRecord; no record where it is empty.
        metrics: Numbers that a strategy may average, by name.
        spent: The ledger's epsilon after this call.
        key: The name of the ArrayRecord.
    """
    content = fill_record(RecordDict(), {
        "metrics": fill_record(MetricRecord(), metrics),
        RECORD: fill_record(ConfigRecord(), ledger_fields(hospital, spent)),
    })  # fmt: skip
    if arrays:
        content[key] = to_record(arrays)
    return content
