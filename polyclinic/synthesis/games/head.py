"""A generator's last step: from any numbers to a row as the layout has it, so that every generated row is nearly a record.

Before a game stands a fixed change of coordinates: trajectories as a cosine transform over their visits. It is a
function of the public schema alone. What is slow over visits (a patient's level, its trend) comes first, so that few
numbers carry most of a trajectory. Each is brought to about the same size, as clipping and noise treat all alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

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
        matrices = []
        for at in self.layout.trajectories:
            steps = at.stop - at.start
            size = np.sqrt(steps) * self.spread / (1.0 + np.arange(steps)) ** self.fall
            cosines = cosine_transform(steps)
            there, back = cosines / size[:, None], cosines.T * size
            matrices.append((at, torch.from_numpy(there.T.copy()), torch.from_numpy(back.T.copy())))
        return tuple(matrices)

    def forth(self, z: Tensor) -> Tensor:
        """(n, >= F) rows as the critic sees them; differentiable."""
        return self._map(z, 1)

    def back(self, u: Tensor) -> Tensor:
        """The inverse of ``forth``, up to rounding."""
        return self._map(u, 2)

    def rows(self, z: Floats) -> Floats:
        """``forth`` of (n, D) float64 numbers."""
        return self.forth(torch.tensor(z, dtype=torch.float64)).numpy()

    def _map(self, x: Tensor, which: int) -> Tensor:
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
    cosines: Floats = np.sqrt(2.0 / steps) * np.cos(np.pi * (2 * t + 1) * k / (2 * steps))
    cosines[0] /= np.sqrt(2.0)
    return cosines


class Generator(nn.Module):
    """``core`` (latent (n, L), label (n,) int64) -> (n, D - K), and what makes z's features of its output.

    Scaled numbers stay as they are (trajectories leave the front's coordinates), 0/1 places go through a sigmoid,
    one-hot groups through a softmax. A cell whose indicator says missing is 0, as in real rows.

    hard: 0/1 places are rounded, with the gradient of what was rounded (Bengio et al. 2013). A critic that sees whole
        numbers on one side and fractions on the other tells them apart by that alone.
    unit: the core ends in [0, 1] itself, of each place's bounds; then nothing else is done to it.
    """

    low: Tensor
    high: Tensor

    def __init__(self, core: nn.Module, layout: Layout, front: Front, hard: bool, unit: bool) -> None:
        super().__init__()
        self.core, self.hard, self.unit = core, hard, unit
        self._front = front
        for name, bound in zip(("low", "high"), layout.bounds, strict=True):
            self.register_buffer(
                name, torch.from_numpy(bound[: layout.label.start].astype(np.float32)), persistent=False
            )
        self._parts = _parts(layout)
        self._missing = layout.missing
        self._nullable = torch.from_numpy(np.flatnonzero(layout.nullable))

    def forward(self, latent: Tensor, label: Tensor) -> Tensor:
        raw: Tensor = self.core(latent, label)
        if self.unit:
            z = self.low + raw * (self.high - self.low)
        else:
            raw = self._front.back(raw)
            z = torch.cat([part(raw[:, at], self.hard) for at, part in self._parts], 1)
        if not len(self._nullable):
            return z
        there = torch.ones_like(z).index_copy(1, self._nullable, 1.0 - z[:, self._missing])
        return z * there


_Part = Callable[[Tensor, bool], Tensor]


def _parts(layout: Layout) -> list[tuple[slice, _Part]]:
    """The layout's places before the label, in their order, and what each goes through."""
    columns = {at.start: column for column, at in layout.columns}
    groups = {at.start: at for at in layout.groups if at != layout.label}
    parts: list[tuple[slice, _Part]] = []
    place, end = 0, layout.label.start
    while place < end:
        if place in groups:
            column, at = columns[place], groups[place]
            parts.append((at, _one_hot_or_none if column.nullable or column.drop_first else _one_hot))
        else:
            kind, last = bool(layout.numeric[place]), place
            while last < end and last not in groups and bool(layout.numeric[last]) == kind:
                last += 1
            parts.append((at := slice(place, last), _number if kind else _zero_or_one))
        place = int(at.stop)
    return parts


def _number(raw: Tensor, hard: bool) -> Tensor:
    return raw


def _zero_or_one(raw: Tensor, hard: bool) -> Tensor:
    soft = torch.sigmoid(raw)
    return _straight_through(soft, (soft > 0.5).to(soft)) if hard else soft


def _one_hot(raw: Tensor, hard: bool) -> Tensor:
    soft = torch.softmax(raw, 1)
    return _straight_through(soft, nn.functional.one_hot(soft.argmax(1), soft.shape[1]).to(soft)) if hard else soft


def _one_hot_or_none(raw: Tensor, hard: bool) -> Tensor:
    return _one_hot(torch.cat([torch.zeros_like(raw[:, :1]), raw], 1), hard)[:, 1:]


def _straight_through(soft: Tensor, whole: Tensor) -> Tensor:
    return whole + (soft - soft.detach())
