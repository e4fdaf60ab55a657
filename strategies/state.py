"""What a strategy must keep between rounds, taken out and put back for checkpoints.

Flower's strategies have no such method; their state (moments, momentum, current arrays) lies in attributes that hold
arrays by name. Those attributes are read here, whatever the strategy; any other attribute is configuration.
"""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy

Arrays = dict[str, np.ndarray]


def strategy_state(strategy: Strategy) -> Arrays:
    """The strategy's arrays under ``attribute/form/name``."""
    state: Arrays = {}
    for attribute, value in vars(strategy).items():
        if isinstance(value, ArrayRecord):
            state |= {f"{attribute}/record/{name}": array.numpy() for name, array in value.items()}
        elif isinstance(value, dict) and value and all(isinstance(part, np.ndarray) for part in value.values()):
            state |= {f"{attribute}/dict/{name}": np.asarray(part) for name, part in value.items()}
        elif isinstance(value, list) and value and all(isinstance(part, np.ndarray) for part in value):
            state |= {f"{attribute}/list/{index}": np.asarray(part) for index, part in enumerate(value)}
    return state


def restore_strategy(strategy: Strategy, state: Arrays) -> None:
    """Put back what ``strategy_state`` took out of a strategy of the same class and options."""
    grouped: dict[tuple[str, str], Arrays] = {}
    for key, value in state.items():
        attribute, form, name = key.split("/", 2)
        grouped.setdefault((attribute, form), {})[name] = value
    for (attribute, form), arrays in grouped.items():
        if form == "list":
            setattr(strategy, attribute, [arrays[str(index)] for index in range(len(arrays))])
        elif form == "record":
            setattr(strategy, attribute, ArrayRecord({name: Array(value) for name, value in arrays.items()}))
        else:
            setattr(strategy, attribute, arrays)
