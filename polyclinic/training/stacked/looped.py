"""Sums of clipped gradients by compiled loops (``loops.perceptron``), of the modules and rows that these take.

Loading them pays in long runs alone (``TrainSettings.compiled``). What they leave, a hospital with a row so long that its
clipping would lose digits, is computed as without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from polyclinic.ehr.shard import Rows
from polyclinic.loops import normals
from polyclinic.training.losses import CROSS_ENTROPY
from polyclinic.training.stacked.batches import Table
from polyclinic.training.stacked.clip_factors import longest_factor
from polyclinic.training.stacked.layers import Affine, Plan
from polyclinic.training.task import TrainSettings
from polyclinic.types import Bools, Ints, Reals

_AFTER: dict[type[nn.Module], int] = {nn.ReLU: 1, nn.Tanh: 2, nn.Sigmoid: 3}  # as in ``loops.perceptron``
# What a step of the hospitals that take it together reads and writes stays in the processor's cache.
_CACHE = 1 << 22


def loop_layers(plan: Plan | str, settings: TrainSettings, dtype: torch.dtype) -> Ints | None:
    """The layers as the loops take them, (L, 5); None where they do not take the module or the settings.

    They take linear layers with ReLU, Tanh, Sigmoid or nothing between two of them, in float32, on the processor.

    Args:
        plan: The module's plan, or why it has none.
        settings: The settings of the round.
        dtype: Of the model's parameters.
    """
    if not settings.compiled or settings.apart or settings.device != "cpu" or settings.loss != CROSS_ENTROPY:
        return None
    if isinstance(plan, str) or dtype != torch.float32 or not isinstance(plan, tuple):
        return None
    layers: list[list[int]] = []
    for layer in plan:
        if type(layer) is Affine:
            layers.append([layer.start, layer.inputs, layer.outputs, layer.bias, 0])
        elif type(layer) in _AFTER and layers and not layers[-1][-1]:
            layers[-1][-1] = _AFTER[type(layer)]  # type: ignore[index]
        elif type(layer) is not nn.Identity:
            return None
    # The loops look at no shapes.
    fit = all(before[2] == after[1] for before, after in pairwise(layers))
    return np.array(layers, dtype=np.int64) if layers and not layers[-1][-1] and fit else None


def in_turn(sites: Sequence[int], layers: Ints) -> list[list[int]]:
    """The sites that take their steps together."""
    parameters = int(layers[-1, 0] + layers[-1, 2] * (layers[-1, 1] + layers[-1, 3]))
    at_once = max(1, _CACHE // (16 * parameters))
    return [[*sites[begin : begin + at_once]] for begin in range(0, len(sites), at_once)]


def takes(rows: Rows, layers: Ints) -> bool:
    """Whether every patient has one row, as long as the first layer takes it, and labelled with a class."""
    if rows.x.shape[1] != layers[0, 1] or rows.y.ndim != 1 or rows.y.dtype.kind not in "iu" or not rows.one_each:
        return False
    return bool(((rows.y >= 0) & (rows.y < max(2, int(layers[-1, 2])))).all())


def looped_sums(
    layers: Ints, theta: Tensor, table: Table, taken: Ints, max_norm: float | None
) -> tuple[Tensor, Reals, Bools]:
    """(S, P) sums of (clipped) gradients of patients, by ascending numbers, and (S,) summed losses, as ``linear_sums``.

    Args:
        layers: (L, 5) the layers, as ``loop_layers`` gives them.
        theta: (S, P) parameters, float32.
        table: The sites' rows.
        taken: The numbers of the patients in the batch, ascending.
        max_norm: The clipping norm of a patient's gradient; None does not clip.

    Returns:
        The sums, the losses, and (S,) which hospitals are left to another engine, as some layer's input is too long.
    """
    from polyclinic.loops.perceptron import clipped_sums

    ends = np.cumsum(np.bincount(table.site[taken], minlength=table.sites))
    out, losses, left = torch.empty(theta.shape), np.empty(table.sites), np.zeros(table.sites, dtype=bool)
    longest = longest_factor(max_norm, theta.dtype) if max_norm else np.inf
    clipped_sums()(
        layers, theta.contiguous().numpy(), table.x.numpy(), table.y.numpy(), table.first[taken], ends,
        max_norm or 0.0, longest, out.numpy(), losses, left,
    )  # fmt: skip
    return out, losses, left


def looped_noise(
    places: Sequence[tuple[int, int]], steps: int, parameters: int, scale: float
) -> list[Callable[[Tensor], None]]:
    """What adds each step's noise to (S, P) sums in place, one function for each step.

    Args:
        places: For each site the key and the word of its stream from which draws go on.
        steps: The number of steps.
        parameters: P.
        scale: The standard deviation of the noise.
    """
    keys = np.array([[key & (2**64 - 1), key >> 64] for key, _ in places], dtype=np.uint64)
    at = np.array([word for _, word in places], dtype=np.uint64)
    width = (parameters + 1) // 2

    def add(step: int, gradient: Tensor) -> None:
        normals.add_normal(keys, at + np.uint64(step * width), scale, gradient.numpy())

    return [partial(add, step) for step in range(steps)]
