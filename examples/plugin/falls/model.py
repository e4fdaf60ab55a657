"""A linear way and a deep way from the row to the logits, added."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class WideAndDeep(nn.Module):
    def __init__(self, features: int, classes: int, widths: Sequence[int]) -> None:
        super().__init__()
        inputs = (features, *widths)
        hidden = [nn.Sequential(nn.Linear(*pair), nn.Tanh()) for pair in zip(inputs, widths, strict=False)]
        self.wide = nn.Linear(features, classes)
        self.deep = nn.Sequential(*hidden, nn.Linear(inputs[-1], classes))

    def forward(self, rows: Tensor) -> Tensor:
        """(batch, features) to (batch, classes)."""
        return self.wide(rows) + self.deep(rows)


def wide_and_deep(features: int, classes: int, widths: Sequence[int]) -> nn.Module:
    """``widths``: of the deep way's hidden layers; the configuration key ``hidden``."""
    return WideAndDeep(features, classes, widths)
