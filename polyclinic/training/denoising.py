"""Filters of the noised gradients over steps. They look at nothing but what was released, and so cost no privacy.

kalman: the gradient is taken for a random walk seen through noise; the estimate moves towards each noised gradient by
the Kalman gain, which begins at 1 and settles at ``denoise_gain``. disk (Zhang et al. 2025, arXiv 2410.03883, Algorithm
1, with gamma = (1 - kappa) / kappa, where its two gradients of each patient become one): the gradient is taken at the
point to which the last step would lead on, so that the estimate is carried by the gradient's own change, and clipped
and noised there. At a settled gain k the estimate has k / (2 - k) of the noise's variance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from polyclinic.training.task import Arrays, TrainSettings

_KEPT = "filter."


def kalman_gain(before: float, settled: float) -> float:
    """The gain after a step whose gain was ``before``: with the process noise q (over the measurement's) at which the
    Riccati recursion p' = p + q, k = p' / (p' + 1), p = k settles at ``settled``. The first gain is 1."""
    if settled == 1.0:
        return 1.0
    predicted = before + settled**2 / (1 - settled)
    return predicted / (predicted + 1)


class GradientFilter:
    """The filter of S models at once; ``kept`` is what each site's next call begins from. Without one it passes all on."""

    def __init__(self, kept: Sequence[Mapping[str, np.ndarray]], settings: TrainSettings, start: Tensor) -> None:
        """start: (S, P), for shape and type alone."""
        self._kind, self._settled = settings.denoise, settings.denoise_gain
        self._estimate, self._direction = torch.zeros_like(start), torch.zeros_like(start)
        self._gain = np.zeros(len(start))
        for site, state in enumerate(kept):
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

    def filtered(self, gradient: Tensor) -> Tensor:
        """(S, P): the estimate after these noised gradients."""
        if self._kind == "none":
            return gradient
        self._gain = np.array([kalman_gain(gain, self._settled) if gain else 1.0 for gain in self._gain])
        gain = torch.from_numpy(self._gain).to(gradient)[:, None]
        self._estimate = self._estimate + gain * (gradient - self._estimate)
        return self._estimate.clone()

    def moved(self, step: Tensor) -> None:
        """Take note of (S, P), how the models moved."""
        if self.looks_ahead:
            self._direction = step

    def kept(self) -> list[Arrays]:
        if self._kind == "none":
            return [{} for _ in self._gain]
        return [
            {
                f"{_KEPT}gain": np.asarray(gain), f"{_KEPT}estimate": estimate.cpu().numpy().copy(),
                f"{_KEPT}direction": direction.cpu().numpy().copy(),
            }
            for gain, estimate, direction in zip(self._gain, self._estimate, self._direction, strict=True)
        ]  # fmt: skip
