"""Matrix products of stacked rows whose rounding does not depend on what else is stacked.

A library picks the order of additions by a product's shape and by where its arrays lie in memory. Here every patient of a
hospital has a product of their own: equal shapes, equally aligned, whoever the others are.
docs/decisions/0010-every-patient-apart.md
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

# Widths are padded to this many numbers, so that every product begins at a multiple of 64 bytes, as torch's arrays do.
_ALIGNED = 8


def rows_product(rows: Tensor, weight: Tensor) -> Tensor:
    """(S, B, N) products of (S, B, K) rows with (S, K, N) weights, or with one (1, K, N) for all.

    With one weight for several S, each of the S products is the same, bit for bit, whatever the others hold.
    """
    if weight.shape[0] == rows.shape[0]:
        return torch.bmm(rows, weight)
    inner, outer = weight.shape[1:]
    weight = functional.pad(weight, (0, -outer % _ALIGNED, 0, -inner % _ALIGNED))
    return torch.bmm(_pad(rows), weight.expand(rows.shape[0], -1, -1))[..., :outer]


def outer_products(left: Tensor, right: Tensor) -> Tensor:
    """(S, M, N) sums over B of outer products of (S, B, M) and (S, B, N) rows; each of the S bit for bit by itself."""
    return torch.bmm(_pad(left).mT, _pad(right))[:, : left.shape[-1], : right.shape[-1]]


def _pad(rows: Tensor) -> Tensor:
    missing = -rows.shape[-1] % _ALIGNED
    return functional.pad(rows, (0, missing)) if missing else rows.contiguous()
