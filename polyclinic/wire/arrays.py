"""Arrays in Flower's records, and back: the one place where NumPy meets a message.

Flower's Array holds serialised bytes. In one process nobody reads them, and writing and parsing them for every array of
every site takes longer than the training. So an array made here keeps its ndarray and is serialised when it leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from polyclinic.types import Arrays

R = TypeVar("R", ArrayRecord, ConfigRecord, MetricRecord, RecordDict)

# In a reply whose model went into the mean that one reply carries: how many bytes it was. In that one: whose weight it has.
MERGED, WEIGHT = "merged-bytes", "merged-weight"
_MODELS_AT_ONCE, _SHOWN = 256, 100
_NUMBERS = "biuf"  # kinds of dtype: truth values, whole and real numbers


class HeldArray(Array):
    """A Flower Array over an ndarray of this process; its ``data`` is made when it is first asked for."""

    def __init__(self, ndarray: np.ndarray) -> None:
        held = np.ascontiguousarray(ndarray).reshape(ndarray.shape)
        self.__dict__ |= {
            "dtype": _dtype_name(held.dtype),
            "shape": held.shape,
            "stype": "numpy.ndarray",
            "_held": held,
        }

    def __getattr__(self, name: str) -> Any:
        if name != "data":
            raise AttributeError(name)
        self.__dict__["data"] = Array.from_numpy_ndarray(self.__dict__["_held"]).data
        return self.__dict__["data"]

    def numpy(self) -> np.ndarray:
        """A copy, as Flower's own Array gives."""
        return np.array(self.__dict__["_held"])

    def __reduce__(self) -> tuple[Any, tuple[np.ndarray]]:
        return _hold_array, (self.__dict__["_held"],)


# On the wire Flower names an object by its class, and a receiver knows only its own.
HeldArray.__qualname__ = Array.__qualname__


def _hold_array(ndarray: np.ndarray) -> HeldArray:
    return HeldArray(ndarray)


_dtype_name = lru_cache(str)  # NumPy looks a type's name up anew every time


def to_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """An ArrayRecord of the arrays by name; they must not be changed after."""
    return fill_record(ArrayRecord(), {name: HeldArray(value) for name, value in arrays.items()})


def fill_record(record: R, items: Mapping[str, Any]) -> R:
    """A record with further items that are known to be of its types.

    Not by its constructor, which copies arrays' bytes, nor item by item, where Flower checks each: for thousands of
    small messages that takes longer than the training.
    """
    record.__dict__["_data"].update(items)
    return record


def from_record(record: ArrayRecord) -> Arrays:
    """The arrays by name, for reading: they may be shared with the record."""
    return {
        name: array.__dict__["_held"] if isinstance(array, HeldArray) else array.numpy()
        for name, array in record.items()
    }


def unreadable(content: RecordDict) -> str | None:
    """Which array of a message is not what it says, or not of numbers; None if all are.

    Nothing is ever unpickled; what a header claims is not allocated.
    """
    for _, record in records_of(content, ArrayRecord):
        for name, array in record.items():
            if not isinstance(array, HeldArray) and (problem := _problem(array)):
                return f"array {name[:_SHOWN]!r} {problem}"
    return None


def _problem(array: Array) -> str | None:
    try:
        value = array.numpy()
    except Exception:  # NumPy's readers raise what they please for bytes of another's making
        value = None
    if not isinstance(value, np.ndarray) or (str(value.dtype), value.shape) != (array.dtype, tuple(array.shape)):
        return "cannot be read as an array"
    return None if value.dtype.kind in _NUMBERS else "does not hold numbers"


def weighted_mean(models: Sequence[Arrays], weights: Sequence[float]) -> Arrays:
    """The float64 mean of models of the same names and shapes; ``weights`` are not negative, one at least is positive."""
    share = np.asarray(weights, dtype=np.float64) / math.fsum(weights)
    mean = {name: np.zeros(value.shape) for name, value in models[0].items()}
    for begin in range(0, len(models), _MODELS_AT_ONCE):
        some = models[begin : begin + _MODELS_AT_ONCE]
        for name, total in mean.items():
            total += np.tensordot(share[begin : begin + len(some)], np.stack([model[name] for model in some]), 1)
    return mean


def contents_of(messages: Iterable[Message]) -> list[RecordDict]:
    """The messages' contents, those that several share once: a strategy mostly sends all hospitals the same."""
    return list({id(message.content): message.content for message in messages}.values())


def records_of(content: RecordDict, kind: type[R]) -> list[tuple[str, R]]:
    """The records of a kind by name. Flower's own views copy and check all records, at each of thousands of sites."""
    return [(name, record) for name, record in content.__dict__["_data"].items() if _is_of(type(record), kind)]


# Flower's classes ask their registers each time.
_is_of = cast(Callable[[type[Any], type[Any]], bool], lru_cache(issubclass))


def size_of(content: RecordDict, counted: dict[int, int] | None = None) -> int:
    """Bytes of the arrays that a message has or stands for; names and the few numbers beside them are not counted.

    counted: by its identity, the bytes of each record of arrays, for messages that share them while they are counted.
    """
    for _, numbers in records_of(content, ConfigRecord):
        if MERGED in numbers.__dict__["_data"]:
            return int(numbers[MERGED])  # type: ignore[arg-type]
    counted = {} if counted is None else counted
    records = [record for _, record in records_of(content, ArrayRecord)]
    for record in records:
        if id(record) not in counted:
            counted[id(record)] = sum(map(_bytes_of, record.values()))
    return sum(counted[id(record)] for record in records)


def _bytes_of(array: Array) -> int:
    if isinstance(array, HeldArray):
        return int(array.__dict__["_held"].nbytes)
    return math.prod(array.shape) * np.dtype(array.dtype).itemsize


def bytes_of(message: Message) -> list[bytes]:
    """The bytes of the message's arrays, in order of their names."""
    if not message.has_content():
        return []
    records = message.content.array_records
    return [array.data for _, record in sorted(records.items()) for _, array in sorted(record.items())]
