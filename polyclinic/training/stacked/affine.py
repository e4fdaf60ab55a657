"""A linear layer's place among flat parameters, and what its gradients are made of. S sites, B rows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Affine:
    """A linear layer's place among a model's P flat parameters."""

    start: int
    inputs: int
    outputs: int
    bias: bool

    def weight(self, flat: Tensor) -> Tensor:
        """(K, outputs, inputs) view of (K, P)."""
        end = self.start + self.inputs * self.outputs
        return flat[:, self.start : end].view(-1, self.outputs, self.inputs)

    def offset(self, flat: Tensor) -> Tensor:
        """(K, outputs) view of (K, P)."""
        start = self.start + self.inputs * self.outputs
        return flat[:, start : start + self.outputs]


@dataclass(frozen=True, eq=False)
class LayerRows:
    """A layer's input (S, B, inputs) and the loss' gradient at its output (S, B, outputs).

    Of a convolution with L positions: (S, B, L, inputs), the patches, and (S, B, L, outputs).
    """

    layer: Affine
    input: Tensor
    output: Tensor
