"""What does the model take a patient of each class to look like?

The attacker has the model alone and changes a record along the gradient until the model is sure of a class. Of a class
that has one patient, as in the recognition of faces, the outcome is that patient. Of one that has many it is what they
have in common (Fredrikson, Jha and Ristenpart 2015, Algorithm 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from polyclinic.types import Floats, Ints

_MOST_STEPS, _PATIENCE, _STEP, _SURE = 1_000, 100, 0.01, -math.log(0.99)


def invert(
    module: nn.Module, label: int, start: Floats, low: Floats, high: Floats, losses: Callable[[Tensor, Tensor], Tensor]
) -> Floats | None:
    """(D,) the record of least loss for a class that descent meets, in float64.

    It ends where the model gives the class 99 %, or after a hundred steps without gain. Steps are 1 % of the bounds' diagonal,
    with each feature in units of its bounds.

    Args:
        module: From (1, D) records to outputs; loaded, in float64.
        label: The number of the class.
        start: (D,) the record from which descent begins.
        low, high: (D,) bounds of the features.
        losses: Of outputs and (1,) labels, minus the logarithm of the class's probability or alike.

    Returns:
        None where the outputs have no gradient in the record, as a tree's.
    """
    span, wanted = torch.from_numpy(high - low), torch.tensor([label])
    x, best, least, waited = torch.from_numpy(start.copy()), start.copy(), math.inf, 0
    module = module.eval()
    for _ in range(_MOST_STEPS):
        x.requires_grad_(True)
        loss = losses(module(x[None]), wanted).sum()
        if not loss.requires_grad:
            return None
        (slope,) = torch.autograd.grad(loss, x, allow_unused=True)
        waited += 1
        if loss.item() < least:
            best, least, waited = x.detach().numpy().copy(), loss.item(), 0
        if slope is None or not slope.any() or least <= _SURE or waited >= _PATIENCE:
            break
        scaled = slope * span
        x = x.detach() - _STEP * math.sqrt(len(span)) * span * scaled / scaled.norm()
        x = x.clamp(torch.from_numpy(low), torch.from_numpy(high))
    return best


def likeness(x: Floats, y: Ints, inverted: Floats, low: Floats, high: Floats) -> Floats:
    """Return (n,) minus the root mean square distances of records to the inverted ones of their class, over bounds.

    Args:
        x: (n, D) records.
        y: (n,) class numbers.
        inverted: (C, D) the inverted record of each class.
        low, high: (D,) bounds of the features.
    """
    span = np.where(high > low, high - low, 1.0)
    return np.asarray(-np.sqrt(np.mean(((x - inverted[y]) / span) ** 2, axis=1)))
