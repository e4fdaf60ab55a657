"""What a strategy must keep between rounds, taken out and put back for checkpoints.

Flower's strategies have no such method; their state (moments, momentum, current arrays, counters) lies in attributes. A strategy
may say itself what it keeps, with two methods: ``state()`` returns a mapping of texts to values, and ``restore(state)`` takes
it back. Of one that does not, every attribute is saved, and so are those of a strategy that another wraps. A value may be:

- a number, a text, bytes, an array, a tensor, a generator of NumPy;
- an object with ``state_dict`` and ``load_state_dict``, as torch's optimizers are;
- a list, tuple, set, deque or dict of these.

Functions, classes and paths are configuration. Any other attribute cannot be saved; a strategy names in ``not_saved`` those
that a resumed run makes anew. Nothing is pickled.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy

from polyclinic.errors import DataError
from polyclinic.types import Arrays

_TREE = "tree"
_CONFIGURATION = (Path, ModuleType, logging.Logger)
_SEQUENCES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}


class _Unknown(Exception):
    """A value that cannot be saved."""


def strategy_state(strategy: Strategy) -> Arrays:
    """The strategy's values: arrays by number, and as ``tree`` (UTF-8 bytes of JSON) what they are part of.

    Examples:
        >>> from flwr.serverapp.strategy import FedAvgM
        >>> strategy = FedAvgM()
        >>> strategy.momentum_vector = [np.ones(2)]
        >>> state = strategy_state(strategy)
        >>> state["0"].tolist(), json.loads(state["tree"].tobytes())["momentum_vector"]
        ([1.0, 1.0], ['list', [['array', [0, [2]]]]])
    """
    arrays: list[np.ndarray] = []
    tree: dict[str, list[Any]] = {}
    for path, holder in holders(strategy):
        for name, value in _saved_values(holder).items():
            seen = len(arrays)
            try:
                tree[path + name] = _pack(value, arrays)
            except _Unknown:
                del arrays[seen:]
    text = np.frombuffer(json.dumps(tree).encode(), dtype=np.uint8)
    return {_TREE: text} | {str(index): value for index, value in enumerate(arrays)}


def unsaved_attributes(strategy: Strategy) -> list[str]:
    """The attributes that ``strategy_state`` cannot take along, though they are no configuration, each with its type.

    Examples:
        >>> from flwr.serverapp.strategy import FedAvg
        >>> strategy = FedAvg()
        >>> strategy.seen = iter([1, 2])
        >>> unsaved_attributes(FedAvg()), unsaved_attributes(strategy)
        ([], ['seen (list_iterator)'])
    """
    names = []
    for path, holder in holders(strategy):
        for name, value in _saved_values(holder).items():
            try:
                _pack(value, [])
            except _Unknown:
                if not (callable(value) or isinstance(value, _CONFIGURATION)):
                    names.append(f"{path}{name} ({type(value).__name__})")
    return names


def restore_strategy(strategy: Strategy, state: Arrays) -> None:
    """Put back what ``strategy_state`` took out of a strategy of the same class and options.

    Raises DataError where an attribute with a ``state_dict`` is not there to be filled.

    Examples:
        >>> from flwr.serverapp.strategy import FedAvgM
        >>> stopped, resumed = FedAvgM(), FedAvgM()
        >>> stopped.momentum_vector = [np.ones(2)]
        >>> restore_strategy(resumed, strategy_state(stopped))
        >>> resumed.momentum_vector[0].tolist()
        [1.0, 1.0]
    """
    strategies = dict(holders(strategy))
    own: dict[str, dict[str, Any]] = {path: {} for path, holder in strategies.items() if _says_itself(holder)}
    for full, part in json.loads(state[_TREE].tobytes()).items():
        path, dot, name = full.rpartition(".")
        holder = strategies[path + dot]
        if path + dot in own:
            own[path + dot][name] = _unpack(part, state)
        elif part[0] == "state-dict":
            attribute: Any = getattr(holder, name, None)
            if not hasattr(attribute, "load_state_dict"):
                raise DataError(
                    f"The strategy's {name} is not there to be filled from the checkpoint; make it in __init__, or give the "
                    "strategy state() and restore()."
                )
            attribute.load_state_dict(_unpack(part[1], state))
        else:
            value = _unpack(part, state)
            before: Any = getattr(holder, name, None)
            if _is_tensor(before) and _is_tensor(value) and before.shape == value.shape:
                before.detach().copy_(value)  # an optimizer of the strategy's may hold it
            else:
                setattr(holder, name, value)
    for path, values in own.items():
        strategies[path].restore(values)  # type: ignore[attr-defined]


def holders(strategy: Strategy, path: str = "") -> Iterator[tuple[str, Strategy]]:
    """The strategy and those that it wraps, each by the attributes that lead to it: "", "base.".

    Examples:
        >>> from flwr.serverapp.strategy import FedAvg
        >>> from polyclinic.privacy.central import CentralPlan
        >>> from polyclinic.strategies.central import CentralDP
        >>> strategy = CentralDP(FedAvg(), CentralPlan(1.0, clip_norm=0.5, expected_sites=20, expected_weight=20))
        >>> [(path, type(holder).__name__) for path, holder in holders(strategy)]
        [('', 'CentralDP'), ('base.', 'FedAvg')]
    """
    yield path, strategy
    for attribute, value in vars(strategy).items():
        if isinstance(value, Strategy):
            yield from holders(value, f"{path}{attribute}.")


def _says_itself(holder: Strategy) -> bool:
    return all(callable(getattr(type(holder), name, None)) for name in ("state", "restore"))


def _saved_values(holder: Strategy) -> Mapping[str, Any]:
    """What a strategy keeps, by name, without those that it wraps."""
    if _says_itself(holder):
        return dict(holder.state())  # type: ignore[attr-defined]
    anew = getattr(holder, "not_saved", ())
    return {name: value for name, value in vars(holder).items() if name not in anew and not isinstance(value, Strategy)}


def _pack(value: Any, arrays: list[np.ndarray]) -> list[Any]:
    """[kind, content] in JSON's types; an array is its number in ``arrays``."""
    if value is None or type(value) in (bool, int, float, str):
        return ["plain", value]
    if type(value) is bytes:
        return ["bytes", _pack(np.frombuffer(value, dtype=np.uint8), arrays)]
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        arrays.append(np.asarray(value))
        # The shape too, for files make an array of one number of a single number.
        return ["array" if isinstance(value, np.ndarray) else "scalar", [len(arrays) - 1, list(value.shape)]]
    if isinstance(value, np.random.Generator):
        return ["generator", [type(value.bit_generator).__name__, _pack(value.bit_generator.state, arrays)]]
    if isinstance(value, ArrayRecord):
        return ["record", [[name, _pack(array.numpy(), arrays)] for name, array in value.items()]]
    if isinstance(value, dict) and type(value).__name__ in ("dict", "OrderedDict"):
        return ["dict", [[_pack(key, arrays), _pack(part, arrays)] for key, part in value.items()]]
    if type(value) in _SEQUENCES.values():
        return [type(value).__name__, [_pack(part, arrays) for part in _in_order(value)]]
    if _is_tensor(value):
        return ["tensor", _pack(value.detach().cpu().numpy(), arrays)]
    if not isinstance(value, type) and hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return ["state-dict", _pack(value.state_dict(), arrays)]
    raise _Unknown


def _in_order(values: Any) -> Sequence[Any]:
    return sorted(values, key=repr) if isinstance(values, set | frozenset) else list(values)


def _is_tensor(value: Any) -> bool:
    return type(value).__module__.startswith("torch") and hasattr(value, "detach")


def _unpack(part: list[Any], state: Arrays) -> Any:
    kind, content = part
    match kind:
        case "array" | "scalar":
            array = state[str(content[0])].reshape(content[1])
            return array.copy() if kind == "array" else array[()]
        case "bytes":
            return _unpack(content, state).tobytes()
        case "tensor":
            import torch  # it takes a second to load

            return torch.from_numpy(_unpack(content, state))
        case "generator":
            made = np.random.Generator(getattr(np.random, content[0])())
            made.bit_generator.state = _unpack(content[1], state)
            return made
        case "record":
            return ArrayRecord({name: Array(_unpack(array, state)) for name, array in content})
        case "dict":
            return {_unpack(key, state): _unpack(value, state) for key, value in content}
        case "plain":
            return content
    return _SEQUENCES[kind](_unpack(value, state) for value in content)
