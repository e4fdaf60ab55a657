"""A convolution as a linear layer of patches: every position is one more row of the same picture.

Its gradient for a picture is the sum over positions of outer products, as that of a linear layer is over a patient's
rows (Bu et al. 2022, arXiv:2205.10683). N pictures, C channels, L positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn
from torch.nn import functional

from polyclinic.training.stacked.affine import Affine

Pair = tuple[int, int]


@dataclass(frozen=True)
class Convolution(Affine):
    """``inputs`` is the size of a patch, C * kernel; ``padding``: cells added left, right, above, below."""

    kernel: Pair
    stride: Pair
    dilation: Pair
    padding: tuple[int, int, int, int]

    def patches(self, pictures: Tensor) -> tuple[Tensor, Pair]:
        """(N, L, inputs) of (N, C, height, width), and the height and width of what comes out."""
        padded = functional.pad(pictures, self.padding)
        across = zip((2, 3), self.kernel, self.stride, self.dilation, strict=True)
        for dim, size, step, apart in across:
            padded = padded.unfold(dim, (size - 1) * apart + 1, step)[..., ::apart]
        n, _, height, width = padded.shape[:4]
        return padded.permute(0, 2, 3, 1, 4, 5).reshape(n, height * width, self.inputs), (height, width)

    def folded(self, patches: Tensor, shape: Pair) -> Tensor:
        """(N, C, height, width): what stands at each cell of (N, L, inputs), added up; the transpose of ``patches``."""
        left, right, above, below = self.padding
        height, width = shape
        padded = functional.fold(
            patches.mT, (height + above + below, width + left + right), self.kernel, self.dilation, 0, self.stride
        )
        return padded[:, :, above : above + height, left : left + width]


def convolution(part: nn.Conv2d, start: int) -> Convolution | str:
    """The layer at ``start`` of the flat parameters; or, where it cannot be taken, what is in the way."""
    if part.groups != 1 or part.padding_mode != "zeros":
        return "a convolution has groups, or pads with something else than zeros"
    kernel, stride, dilation = (cast(Pair, tuple(pair)) for pair in (part.kernel_size, part.stride, part.dilation))
    padding = cast(tuple[int, int, int, int], tuple(part._reversed_padding_repeated_twice))
    inputs = part.in_channels * kernel[0] * kernel[1]
    return Convolution(start, inputs, part.out_channels, part.bias is not None, kernel, stride, dilation, padding)
