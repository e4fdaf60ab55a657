"""Filters of the noised gradients over steps. They look at nothing but what was released, and so cost no privacy.

kalman: the gradient is taken for a random walk seen through noise; the estimate moves towards each noised gradient by
the Kalman gain, which begins at 1 and settles at ``denoise_gain``. disk (Zhang et al. 2024, arXiv 2410.03883, Algorithm
1, with gamma = (1 - kappa) / kappa, where its two gradients of each patient become one): the gradient is taken, clipped
and noised at the point to which the last step leads on, so that the estimate is carried by the gradient's own change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from polyclinic.privacy.denoise import filtered, kalman_update
from polyclinic.training.task import TrainSettings
from polyclinic.types import Arrays

_KEPT = "filter."


class GradientFilter:
    """The filter of S models at once; ``kept`` is what each site's next call begins from. Without one it passes all on."""

    def __init__(self, kept: Sequence[Mapping[str, np.ndarray]], settings: TrainSettings, start: Tensor) -> None:
        """start: (S, P), for shape and type alone."""
        self._kind, self._settled = settings.denoise, settings.denoise_gain
        # Relative to the noise of a release, the drift at which the gain settles there.
        self._drift = self._settled**2 / (1 - self._settled) if self._settled < 1 else 0.0
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
        for site, gain in enumerate(self._gain):
            # The variance of an estimate over that of a release is the gain that made it; at first nothing is known.
            known = gain and self._settled < 1
            self._gain[site] = kalman_update(gain, self._drift, 1.0)[0] if known else 1.0
            self._estimate[site] = filtered(self._estimate[site], gradient[site], self._gain[site])
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
