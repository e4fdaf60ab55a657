"""What a strategy must keep between rounds, taken out and put back for checkpoints.

Flower's strategies have no such method; their state (moments, momentum, current arrays, counters) lies in attributes.
All attributes that arrays, numbers, texts, and lists, tuples and dicts of these make up are saved, those of a strategy
that another wraps as well; others, such as functions, are configuration.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy

from polyclinic.types import Arrays

_TREE = "tree"


class _Unknown(Exception):
    """A value that cannot be saved."""


def strategy_state(strategy: Strategy) -> Arrays:
    """The attributes' arrays by number, and as ``tree`` (UTF-8 bytes of JSON) what they are part of."""
    found: list[np.ndarray] = []
    tree = {}
    for path, holder in _holders(strategy):
        for attribute, value in vars(holder).items():
            seen = len(found)
            try:
                tree[path + attribute] = _packed(value, found)
            except _Unknown:
                del found[seen:]
    text = np.frombuffer(json.dumps(tree).encode(), dtype=np.uint8)
    return {_TREE: text} | {str(index): value for index, value in enumerate(found)}


def restore_strategy(strategy: Strategy, state: Arrays) -> None:
    """Put back what ``strategy_state`` took out of a strategy of the same class and options."""
    holders = dict(_holders(strategy))
    for name, part in json.loads(state[_TREE].tobytes()).items():
        path, dot, attribute = name.rpartition(".")
        setattr(holders[path + dot], attribute, _unpacked(part, state))


def _holders(strategy: Strategy, path: str = "") -> Iterator[tuple[str, Strategy]]:
    """The strategy and those that it wraps, each by the attributes that lead to it: "", "base."."""
    yield path, strategy
    for attribute, value in vars(strategy).items():
        if isinstance(value, Strategy):
            yield from _holders(value, f"{path}{attribute}.")


def _packed(value: Any, found: list[np.ndarray]) -> list[Any]:
    """[kind, content] in JSON's types; an array is its number in ``found``."""
    if value is None or type(value) in (bool, int, float, str):
        return ["plain", value]
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        found.append(np.asarray(value))
        # The shape too, for files make an array of one number of a single number.
        return ["array" if isinstance(value, np.ndarray) else "scalar", [len(found) - 1, list(value.shape)]]
    if isinstance(value, ArrayRecord):
        return ["record", [[name, _packed(array.numpy(), found)] for name, array in value.items()]]
    if type(value) is dict:
        return ["dict", [[_packed(key, found), _packed(part, found)] for key, part in value.items()]]
    if type(value) in (list, tuple):
        return [type(value).__name__, [_packed(part, found) for part in value]]
    raise _Unknown


def _unpacked(part: list[Any], state: Arrays) -> Any:
    kind, content = part
    match kind:
        case "array" | "scalar":
            array = state[str(content[0])].reshape(content[1])
            return array.copy() if kind == "array" else array[()]
        case "record":
            return ArrayRecord({name: Array(_unpacked(array, state)) for name, array in content})
        case "dict":
            return {_unpacked(key, state): _unpacked(value, state) for key, value in content}
        case "list" | "tuple":
            return (list if kind == "list" else tuple)(_unpacked(value, state) for value in content)
    return content
