"""SGD, Adam, AdamW and RMSprop for S models at once, step for step the same numbers as torch.optim's.

All work coordinate by coordinate, so that a model is one row of an (S, P) tensor: its trainable parameters in
``named_parameters`` order, flattened. Sutskever et al. 2013 (momentum as PyTorch has it); Kingma and Ba 2015;
Loshchilov and Hutter 2019; RMSprop as PyTorch has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyclinic.training.task import TrainSettings
from polyclinic.types import Arrays

BETAS = (0.9, 0.999)
ALPHA = 0.99
EPSILON = 1e-8
ADAPTIVE = ("adam", "adamw", "rmsprop")


@dataclass(frozen=True, eq=False)
class OptimizerState:
    """``slots``: (S, P) tensors by torch.optim's names; ``steps``: (S,) float32, the steps taken so far."""

    slots: dict[str, Tensor]
    steps: Tensor


def slot_names(settings: TrainSettings) -> tuple[str, ...]:
    """What the optimizer keeps of each coordinate, by torch.optim's names."""
    if settings.optimizer in ("adam", "adamw"):
        return ("exp_avg", "exp_avg_sq")
    momentum = ("momentum_buffer",) if settings.momentum else ()
    return ("square_avg", *momentum) if settings.optimizer == "rmsprop" else momentum


def restore_state(
    kept: Sequence[Mapping[str, np.ndarray]], sizes: Sequence[int], settings: TrainSettings, dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> OptimizerState:  # fmt: skip
    """The sites' kept states stacked, on ``device``; zeros where a site has kept none.

    kept: for each site ``{"<index of the parameter>.<slot>": array}``, as ``dump_state`` and torch.optim have it;
    sizes: the parameters' numbers of elements.
    """
    slots = {name: torch.zeros(len(kept), sum(sizes), dtype=dtype, device=device) for name in slot_names(settings)}
    steps = torch.zeros(len(kept), device=device)
    for site, state in enumerate(kept):
        if any(f"0.{name}" not in state for name in slots):
            continue
        for name, slot in slots.items():
            row = [torch.from_numpy(np.array(state[f"{index}.{name}"])).reshape(-1) for index in range(len(sizes))]
            slot[site] = torch.cat(row)
        steps[site] = float(state.get("0.step", 0.0))
    return OptimizerState(slots, steps)


def dump_state(state: OptimizerState, shapes: Sequence[torch.Size], settings: TrainSettings) -> list[Arrays]:
    """Each site's state in the form that ``restore_state`` reads."""
    kept: list[Arrays] = [{} for _ in range(len(state.steps))]
    counts = settings.optimizer in ADAPTIVE
    slots = {
        name: [piece.cpu().numpy() for piece in torch.split(slot, [shape.numel() for shape in shapes], dim=1)]
        for name, slot in state.slots.items()
    }
    steps = state.steps.cpu().numpy()
    for site, arrays in enumerate(kept):
        for index, shape in enumerate(shapes):
            if counts:
                arrays[f"{index}.step"] = steps[site : site + 1].reshape(()).copy()
            for name, pieces in slots.items():
                arrays[f"{index}.{name}"] = pieces[index][site].reshape(tuple(shape)).copy()
    return kept


def apply_step(theta: Tensor, gradient: Tensor, state: OptimizerState, settings: TrainSettings) -> None:
    """One step of every model. ``theta`` and ``state`` are written in place, ``gradient`` is not: all (S, P)."""
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "adamw":
        theta.mul_(1 - rate * decay)
    elif decay:
        gradient = gradient.add(theta, alpha=decay)
    if settings.optimizer in ADAPTIVE:
        state.steps.add_(1)
    if settings.optimizer == "rmsprop":
        square = state.slots["square_avg"].mul_(ALPHA).addcmul_(gradient, gradient, value=1 - ALPHA)
        gradient = gradient / square.sqrt().add_(EPSILON)
    if settings.optimizer not in ("adam", "adamw"):
        if settings.momentum:
            gradient = state.slots["momentum_buffer"].mul_(settings.momentum).add_(gradient)
        theta.add_(gradient, alpha=-rate)
        return
    steps = state.steps.double()[:, None]
    mean, square = state.slots["exp_avg"], state.slots["exp_avg_sq"]
    mean.lerp_(gradient, 1 - BETAS[0])
    square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    correction = (1 - BETAS[1] ** steps).sqrt().to(theta.dtype)
    size = (rate / (1 - BETAS[0] ** steps)).to(theta.dtype)
    theta.sub_(mean / square.sqrt().div_(correction).add_(EPSILON) * size)
