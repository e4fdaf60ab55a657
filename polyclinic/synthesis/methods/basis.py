"""The coordinates in which moments are taken: a fixed, public, linear map of a row without its label, block by block.

Visits of a trajectory go through an orthonormal cosine transform. Each of its components is divided by the deviation
that it would have if any two visits had correlation ``PERSISTENCE``. The transform diagonalises that matrix, and what
is left of the correlations is small. So noise that is equal in all coordinates hurts none of them much more than
another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from polyclinic.synthesis.layout import Layout
from polyclinic.types import Bools, Floats, Ints

#: Correlation between two visits that the scale of a trajectory's components expects.
PERSISTENCE = 0.5
# Expected squares: of a numeric column scaled by its bounds alone; of ranks; of an indicator of missing cells; of a row's codes.
_BOUNDED_SQUARE, _RANKS_SQUARE, _MISSING_SQUARE, _CODES = 0.3, 1.5, 0.1, 20.0


def cosines(steps: int) -> Floats:
    """(steps, steps) orthonormal DCT-II: row k is the k-th component."""
    k, t = np.arange(steps)[:, None], np.arange(steps)[None, :]
    rows = np.sqrt(2.0 / steps) * np.cos(np.pi * k * (2 * t + 1) / (2 * steps))
    rows[0] /= np.sqrt(2.0)
    return np.asarray(rows)


@dataclass(frozen=True, eq=False)
class Basis:
    """u = scaled and turned (z - centre), of the P numbers of a row that stand before its label; missing cells are at 0.

    centre, scale: (P,); square: the expected |u|^2, from the schema alone; blocks: each trajectory's place and its transform;
    nullable: places of features that may be missing; missing: where their indicators are; numeric: (P,) True for scaled numbers;
    of_numeric: their share of ``square``.
    """

    centre: Floats
    scale: Floats
    square: float
    blocks: tuple[tuple[slice, Floats], ...]
    nullable: Ints
    missing: slice
    numeric: Bools
    of_numeric: float

    @classmethod
    def of(cls, layout: Layout) -> Basis:
        width = layout.label.start
        centre, scale = np.zeros(width), np.ones(width)
        square, of_numeric = _MISSING_SQUARE * float(layout.nullable.sum()), 0.0
        blocks = []
        for column, at in layout.columns:
            length = at.stop - at.start
            if column.kind == "trajectory":
                rest = np.full(length, np.sqrt(1.0 - PERSISTENCE))
                rest[0] = np.sqrt(1.0 + PERSISTENCE * (length - 1))
                blocks.append((at, cosines(length) / rest[:, None]))
            if column.kind == "binary":
                centre[at], scale[at] = 0.5, 2.0
            if column.kind == "code_set":
                square += min(_CODES, length)
            elif column.kind in ("binary", "categorical"):
                square += 1.0
            elif column.kind == "ordinal":
                of_numeric += _RANKS_SQUARE
            else:
                of_numeric += length * (1.0 if column.spread is not None else _BOUNDED_SQUARE)
        return cls(
            centre, scale, square + of_numeric, tuple(blocks), np.flatnonzero(layout.nullable), layout.missing,
            layout.numeric[:width], of_numeric,
        )  # fmt: skip

    def of_scores(self) -> Basis:
        """The same for rows whose numbers are normal scores."""
        centre, scale = (np.where(self.numeric, plain, own) for plain, own in ((0.0, self.centre), (1.0, self.scale)))
        return replace(
            self, centre=centre, scale=scale, square=self.square - self.of_numeric + float(self.numeric.sum())
        )

    def forward(self, z: Floats) -> Floats:
        """(n, P) of (n, at least P) rows."""
        centred = z[:, : len(self.centre)] - self.centre
        centred[:, self.nullable] *= 1.0 - z[:, self.missing]
        return self.turn(centred)

    def turn(self, apart: Floats) -> Floats:
        """(n, P) of (n, P) z - centre."""
        u: Floats = apart * self.scale
        for at, block in self.blocks:
            u[:, at] = u[:, at] @ block.T
        return u

    def turn_back(self, u: Floats) -> Floats:
        """(..., P) of z - centre, from (..., P) of u."""
        z = np.array(u, dtype=np.float64)
        for at, block in self.blocks:
            z[..., at] = u[..., at] @ np.linalg.inv(block).T
        return z / self.scale

    def turned_square(self, moments: Floats) -> Floats:
        """(P, P) second moments of z - centre, from those of u."""
        return self.turn_back(self.turn_back(moments).T)

    def square_of(self, moments: Floats) -> Floats:
        """(P, P) second moments of u, from those of z - centre."""
        return self.turn(self.turn(moments).T)
