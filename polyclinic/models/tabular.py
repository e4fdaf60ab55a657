"""Classifiers of encoded tables: logistic regression and a multilayer perceptron.

Both are plain stacks of linear layers without batch norm, so one patient's gradient depends on that patient alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn


def logistic(features: int, outputs: int) -> nn.Module:
    """Multinomial logistic regression: (B, features) float to (B, outputs) logits.

    It begins at zero: nothing has to tell its outputs apart, and a random start is noise that few steps do not forget.
    """
    layer = nn.Linear(features, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(layer)


@lru_cache(maxsize=64)
def logistic_shapes(features: int, outputs: int) -> Mapping[str, tuple[int, ...]]:
    """The names and shapes of the arrays of ``logistic``."""
    arrays = initialise(lambda: logistic(features, outputs), 0)
    return {name: tuple(value.shape) for name, value in arrays.items()}


def mlp(features: int, outputs: int, widths: Sequence[int] = (32,)) -> nn.Module:
    """Return a perceptron with tanh units (they train better than ReLU under clipping, Papernot et al. 2021).

    (B, features) float to (B, outputs) logits. Its ``representation`` is what the last hidden layer makes of a row.

    Args:
        features: The width of a row.
        outputs: The number of logits.
        widths: Units of the hidden layers, at least one.
    """
    layers: list[nn.Module] = []
    for inputs, units in zip((features, *widths[:-1]), widths, strict=True):
        layers += [nn.Linear(inputs, units), nn.Tanh()]
    module = nn.Sequential(*layers, nn.Linear(widths[-1], outputs))
    module.representation = str(len(layers) - 1)  # type: ignore[assignment]
    return module


def initialise(build: Callable[[], nn.Module], seed: int) -> dict[str, Tensor]:
    """The parameters and buffers of a new module, a function of ``seed`` alone; global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return {name: value.detach().clone() for name, value in build().state_dict().items()}


def fill_module(build: Callable[[], nn.Module], arrays: Mapping[str, np.ndarray]) -> nn.Module:
    """A new module with ``arrays`` in it; global random state is left as it was.

    Raises ValueError where names or shapes differ.
    """
    with torch.random.fork_rng(devices=[]):
        module = build()
    own = module.state_dict()
    if {name: tuple(value.shape) for name, value in own.items()} != {name: np.shape(a) for name, a in arrays.items()}:
        raise ValueError("The arrays are those of another module.")
    module.load_state_dict({name: torch.from_numpy(np.array(a)).to(own[name]) for name, a in arrays.items()})
    return module
