"""A generator's last step: from any numbers to a row as the layout has it, so that every generated row is nearly a record."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from polyclinic.synthesis.games.front import Front
from polyclinic.synthesis.layout import Layout


class Generator(nn.Module):
    """``core`` (latent (n, L), label (n,) int64) -> (n, D - K), and what makes z's features of its output.

    Scaled numbers stay as they are (trajectories leave the front's coordinates), 0/1 places go through a sigmoid, one-hot
    groups through a softmax, and a cell whose indicator says missing is 0, as in real rows.
    hard: 0/1 places are rounded, with the gradient of what was rounded (Bengio et al. 2013): a critic that sees whole
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
    found: list[tuple[slice, _Part]] = []
    place, end = 0, layout.label.start
    while place < end:
        if place in groups:
            column, at = columns[place], groups[place]
            found.append((at, _one_hot_or_none if column.nullable or column.drop_first else _one_hot))
        else:
            kind, last = bool(layout.numeric[place]), place
            while last < end and last not in groups and bool(layout.numeric[last]) == kind:
                last += 1
            found.append((at := slice(place, last), _number if kind else _zero_or_one))
        place = int(at.stop)
    return found


def _number(raw: Tensor, hard: bool) -> Tensor:
    return raw


def _zero_or_one(raw: Tensor, hard: bool) -> Tensor:
    soft = torch.sigmoid(raw)
    return _rounded(soft, (soft > 0.5).to(soft)) if hard else soft


def _one_hot(raw: Tensor, hard: bool) -> Tensor:
    soft = torch.softmax(raw, 1)
    return _rounded(soft, nn.functional.one_hot(soft.argmax(1), soft.shape[1]).to(soft)) if hard else soft


def _one_hot_or_none(raw: Tensor, hard: bool) -> Tensor:
    return _one_hot(torch.cat([torch.zeros_like(raw[:, :1]), raw], 1), hard)[:, 1:]


def _rounded(soft: Tensor, whole: Tensor) -> Tensor:
    return whole + (soft - soft.detach())
