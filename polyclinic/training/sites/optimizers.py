"""SGD, Adam, AdamW and RMSprop for S models at once, step for step the same numbers as torch.optim's.

All work coordinate by coordinate, so that a model is one row of an (S, P) tensor: its trainable parameters in
``named_parameters`` order, flattened. Sutskever et al. 2013 (momentum as PyTorch has it); Kingma and Ba 2015;
Loshchilov and Hutter 2019; RMSprop as PyTorch has it.

Before a step there may be a filter of the noised gradients. It looks at nothing but what was released, and so costs no
privacy.

kalman: The gradient is taken for a random walk seen through noise. The estimate moves towards each noised gradient by
    the Kalman gain, which begins at 1 and settles at ``denoise_gain``.
disk: Zhang et al. 2024, arXiv 2410.03883, Algorithm 1, with gamma = (1 - kappa) / kappa, where its two gradients of
    each patient become one. The gradient is taken, clipped and noised at the point to which the last step leads on, so
    that the estimate is carried by the gradient's own change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyclinic.privacy.denoise import kalman_update, next_estimate
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
    states: Sequence[Mapping[str, np.ndarray]], sizes: Sequence[int], settings: TrainSettings, dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> OptimizerState:  # fmt: skip
    """The sites' states stacked, on ``device``; zeros where a site has kept none.

    Args:
        states: For each site ``{"<index of the parameter>.<slot>": array}``, as ``dump_state`` and torch.optim have it.
        sizes: The parameters' numbers of elements.
        settings: The settings of the round, with the optimizer.
        dtype: Of the stacked slots.
        device: Where they are.
    """
    slots = {name: torch.zeros(len(states), sum(sizes), dtype=dtype, device=device) for name in slot_names(settings)}
    steps = torch.zeros(len(states), device=device)
    for site, state in enumerate(states):
        if any(f"0.{name}" not in state for name in slots):
            continue
        for name, slot in slots.items():
            row = [torch.from_numpy(np.array(state[f"{index}.{name}"])).reshape(-1) for index in range(len(sizes))]
            slot[site] = torch.cat(row)
        steps[site] = float(state.get("0.step", 0.0))
    return OptimizerState(slots, steps)


def dump_state(state: OptimizerState, shapes: Sequence[torch.Size], settings: TrainSettings) -> list[Arrays]:
    """Each site's state in the form that ``restore_state`` reads.

    Args:
        state: The stacked state.
        shapes: The parameters' shapes.
        settings: The settings of the round, with the optimizer.
    """
    states: list[Arrays] = [{} for _ in range(len(state.steps))]
    counts = settings.optimizer in ADAPTIVE
    slots = {
        name: [piece.cpu().numpy() for piece in torch.split(slot, [shape.numel() for shape in shapes], dim=1)]
        for name, slot in state.slots.items()
    }
    steps = state.steps.cpu().numpy()
    for site, arrays in enumerate(states):
        for index, shape in enumerate(shapes):
            if counts:
                arrays[f"{index}.step"] = steps[site : site + 1].reshape(()).copy()
            for name, pieces in slots.items():
                arrays[f"{index}.{name}"] = pieces[index][site].reshape(tuple(shape)).copy()
    return states


def take_step(theta: Tensor, gradient: Tensor, state: OptimizerState, settings: TrainSettings) -> Tensor:
    """The models after one step of each, all (S, P), within ``settings.radius``.

    Bassily, Smith and Thakurta 2014, Algorithm 1, for the projection.

    Args:
        theta: (S, P) the models.
        gradient: (S, P) the gradient of each.
        state: The optimizer's state, which is written in place.
        settings: The settings of the round.
    """
    after = _step(theta, gradient, state, settings)
    if not settings.radius:
        return after
    return torch.renorm(after, p=2, dim=0, maxnorm=settings.radius)


def _step(theta: Tensor, gradient: Tensor, state: OptimizerState, settings: TrainSettings) -> Tensor:
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "adamw":
        theta = theta * (1 - rate * decay)
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
        return theta.add(gradient, alpha=-rate)
    steps = state.steps.double()[:, None]
    mean, square = state.slots["exp_avg"], state.slots["exp_avg_sq"]
    mean.lerp_(gradient, 1 - BETAS[0])
    square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    correction = (1 - BETAS[1] ** steps).sqrt().to(theta.dtype)
    size = (rate / (1 - BETAS[0] ** steps)).to(theta.dtype)
    return theta - mean / square.sqrt().div_(correction).add_(EPSILON) * size


_KEPT = "filter."


class GradientFilter:
    """The filter of S models at once; ``states_after`` is what each next call begins from. Without one it passes all on."""

    def __init__(self, states: Sequence[Mapping[str, np.ndarray]], settings: TrainSettings, start: Tensor) -> None:
        """start: (S, P), for shape and type alone."""
        self._kind, self._settled = settings.denoise, settings.denoise_gain
        # Relative to the noise of a release, the drift at which the gain settles there.
        self._drift = self._settled**2 / (1 - self._settled) if self._settled < 1 else 0.0
        self._estimate, self._direction = torch.zeros_like(start), torch.zeros_like(start)
        self._gain = np.zeros(len(start))
        for site, state in enumerate(states):
            if f"{_KEPT}gain" in state:
                self._gain[site] = float(state[f"{_KEPT}gain"])
                self._estimate[site] = torch.from_numpy(np.array(state[f"{_KEPT}estimate"]))
                self._direction[site] = torch.from_numpy(np.array(state[f"{_KEPT}direction"]))

    @property
    def looks_ahead(self) -> bool:
        return self._kind == "disk"

    def ahead(self, theta: Tensor) -> Tensor:
        """(S, P): where the next gradients are to be taken."""
        if not self.looks_ahead:
            return theta
        return theta + self._direction * ((1 - self._settled) / self._settled)

    def denoise(self, gradient: Tensor) -> Tensor:
        """(S, P): the estimate after these noised gradients."""
        if self._kind == "none":
            return gradient
        for site, gain in enumerate(self._gain):
            # The variance of an estimate over that of a release is the gain that made it; at first nothing is known.
            has_gain = gain and self._settled < 1
            self._gain[site] = kalman_update(gain, self._drift, 1.0)[0] if has_gain else 1.0
            self._estimate[site] = next_estimate(self._estimate[site], gradient[site], self._gain[site])
        return self._estimate.clone()

    def note_move(self, step: Tensor) -> None:
        """Take note of (S, P), how the models moved."""
        if self.looks_ahead:
            self._direction = step

    def states_after(self) -> list[Arrays]:
        if self._kind == "none":
            return [{} for _ in self._gain]
        return [
            {
                f"{_KEPT}gain": np.asarray(gain), f"{_KEPT}estimate": estimate.cpu().numpy().copy(),
                f"{_KEPT}direction": direction.cpu().numpy().copy(),
            }
            for gain, estimate, direction in zip(self._gain, self._estimate, self._direction, strict=True)
        ]  # fmt: skip
