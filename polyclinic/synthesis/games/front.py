"""The fixed change of coordinates that stands before a game: trajectories as a cosine transform over their visits.

It is a function of the public schema alone. What is slow over visits (a patient's level, its trend) comes first, so that
few numbers carry most of a trajectory, and each is brought to about the same size, as clipping and noise treat all alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from polyclinic.synthesis.layout import Layout
from polyclinic.types import Floats


@dataclass(frozen=True, eq=False)
class Front:
    """``spread`` of a trajectory's first cosine, relative to which the others fall as 1/(1 + k)^``fall``; 0: no transform."""

    layout: Layout
    spread: float = 0.0
    fall: float = 0.0

    @cached_property
    def _matrices(self) -> tuple[tuple[slice, Tensor, Tensor], ...]:
        if not self.spread:
            return ()
        found = []
        for at in self.layout.trajectories:
            steps = at.stop - at.start
            size = np.sqrt(steps) * self.spread / (1.0 + np.arange(steps)) ** self.fall
            cosines = cosine_transform(steps)
            there, back = cosines / size[:, None], cosines.T * size
            found.append((at, torch.from_numpy(there.T.copy()), torch.from_numpy(back.T.copy())))
        return tuple(found)

    def forth(self, z: Tensor) -> Tensor:
        """(n, >= F) rows as the critic sees them; differentiable."""
        return self._mapped(z, 1)

    def back(self, u: Tensor) -> Tensor:
        """The inverse of ``forth``, up to rounding."""
        return self._mapped(u, 2)

    def rows(self, z: Floats) -> Floats:
        """``forth`` of (n, D) float64 numbers."""
        return self.forth(torch.tensor(z, dtype=torch.float64)).numpy()

    def _mapped(self, x: Tensor, which: int) -> Tensor:
        if not self._matrices:
            return x
        pieces, begin = [], 0
        for matrices in self._matrices:
            at, matrix = matrices[0], matrices[which]
            assert isinstance(matrix, Tensor)
            pieces += [x[:, begin : at.start], x[:, at] @ matrix.to(x)]
            begin = at.stop
        return torch.cat([*pieces, x[:, begin:]], 1)


def cosine_transform(steps: int) -> Floats:
    """(steps, steps) the orthonormal discrete cosine transform (DCT-II): row k is the k-th cosine over the visits."""
    k, t = np.arange(steps)[:, None], np.arange(steps)[None]
    found: Floats = np.sqrt(2.0 / steps) * np.cos(np.pi * (2 * t + 1) * k / (2 * steps))
    found[0] /= np.sqrt(2.0)
    return found
