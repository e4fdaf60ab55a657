"""Plans of modules whose gradients have a closed form: which modules have one, and where each layer lies among flat parameters.

A plan may be a stack of linear layers and convolutions. Between them is what works cell by cell or row by row and has
no parameters, and dropout with masks of each site's own. Or it is an autoregressive flow, whose masked layers have
closed forms and what lies between works number by number. S sites, B rows, P parameters; N pictures, C channels, L
positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from zuko.flows.autoregressive import MaskedAutoregressiveTransform
from zuko.nn import MaskedLinear, MaskedMLP
from zuko.utils import unpack

from polyclinic.models.flows import ConditionalFlow
from polyclinic.models.gan import Leading, Planes, Products
from polyclinic.privacy.streams import generator, system_stream
from polyclinic.training.stacked.products import rows_product

ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.SELU, nn.SiLU, nn.LeakyReLU, nn.Softplus, nn.Identity)
# Without parameters, a row at a time; beside each, how many dimensions a row has before and after it.
_RESHAPING: dict[type[nn.Module], tuple[int, int]] = {
    nn.Unflatten: (1, 3), nn.ZeroPad2d: (3, 3), nn.MaxPool2d: (3, 3), Planes: (1, 3), Leading: (1, 1), Products: (1, 1),
}  # fmt: skip
ROW_BY_ROW = (*_RESHAPING, nn.Flatten)


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


Pair = tuple[int, int]


@dataclass(frozen=True)
class Convolution(Affine):
    """A convolution as a linear layer of patches: every position is one more row of the same picture.

    Its gradient for a picture is the sum over positions of outer products, as that of a linear layer is over a patient's rows
    (Bu et al. 2022, arXiv:2205.10683). ``inputs`` is the size of a patch, C * kernel; ``padding``: cells added left, right,
    above, below.
    """

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

    def fold(self, patches: Tensor, shape: Pair) -> Tensor:
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


@dataclass(frozen=True, eq=False)
class Masked(Affine):
    """A linear layer whose weights count where ``mask``, (outputs, inputs), is 1 and not where it is 0.

    Its gradient for one row is the outer product of a linear layer's times its mask.
    """

    mask: Tensor


@dataclass(frozen=True, eq=False)
class Step:
    """A step of a flow: ``layers`` make of a row and its context what ``univariate`` maps each number by, of ``shapes``."""

    layers: tuple[Any, ...]
    univariate: Callable[..., Any]
    shapes: Sequence[Sequence[int]]
    total: int

    def map(self, x: Tensor, phi: Tensor) -> tuple[Tensor, Tensor]:
        """(S, B, features) numbers by the layers' (S, B, features * total), and (S, B) the log of the change of volume."""
        parts = unpack(phi.view(*x.shape, self.total), self.shapes)
        u, slope = self.univariate(*parts).call_and_ladj(x)
        return u, slope.sum(-1)


@dataclass(frozen=True, eq=False)
class FlowPlan:
    """The steps of a flow of ``features`` numbers, and its (P,) mask: 1 for what is trained, 0 for weights that never count.

    base: the (features,) mean and (features, features) inverse root of a normal base that is not standard.
    """

    features: int
    steps: tuple[Step, ...]
    mask: Tensor
    base: tuple[Tensor, Tensor] | None = None

    def surprise(self, x: Tensor, apart: bool) -> tuple[Tensor, Tensor]:
        """(S, B) minus the log-density of (S, B, features) numbers under the base, and its gradient at them."""
        if self.base is None:
            return 0.5 * (x.square() + math.log(2 * math.pi)).sum(-1), x
        mean, whiten = self.base
        times = (lambda rows, weight: rows_product(rows, weight[None])) if apart else torch.matmul
        white = times(x - mean, whiten.mT)
        far = 0.5 * (white.square() + math.log(2 * math.pi)).sum(-1) - whiten.diagonal().log().sum()
        return far, times(white, whiten)


def flow_plan(module: ConditionalFlow) -> FlowPlan | str:
    """The flow's steps; or what has no closed form here."""
    steps, masks, start = [], [], 0
    step: Any
    for step in module.steps:
        if type(step) is not MaskedAutoregressiveTransform or type(step.hyper) is not MaskedMLP:
            return f"a step of the flow is {type(step).__name__}"
        layers: list[Any] = []
        for part in step.hyper:
            if type(part) is MaskedLinear and part.bias is not None:
                mask = part.mask.to(part.weight.dtype)
                layers.append(Masked(start, part.in_features, part.out_features, True, mask))
                masks += [mask.flatten(), torch.ones_like(part.bias)]
                start += part.weight.numel() + part.bias.numel()
            elif type(part) in ELEMENTWISE:
                layers.append(part)
            else:
                return f"{type(part).__name__} is not a masked layer or an elementwise activation"
        steps.append(Step(tuple(layers), step.univariate, step.shapes, step.total))
    base = (cast(Tensor, module.mean), cast(Tensor, module.whiten)) if module.based else None
    return FlowPlan(module.features, tuple(steps), torch.cat(masks).detach(), base)


@dataclass(frozen=True)
class Dropped:
    """Dropout at ``rate`` in (0, 1], as a layer of a plan."""

    rate: float


class Masks:
    """The masks that sites of these ``seeds`` draw in one call of training; None takes seeds of the system's entropy.

    Each site's masks come from its own seed, whatever is stacked with it. Its draws for a layer go on from one row to the next,
    so that neither padding nor cutting a batch in parts changes them. Srivastava et al. 2014.
    """

    def __init__(self, seeds: Sequence[int] | None) -> None:
        self._seeds = seeds
        self._draws: dict[tuple[int, int], np.random.Generator] = {}

    def mask(self, layer: int, rate: float, like: Tensor, real: Tensor) -> Tensor:
        """What to multiply ``like`` with: 0, or 1 / (1 - rate). Zero where a row is not ``real``.

        Args:
            layer: The number of the layer, which has draws of its own.
            rate: The share of numbers that are dropped, 0 to 1.
            like: (S, B, ...) a tensor of the mask's shape, dtype and device.
            real: (S, B) whether a row is a patient's, and no padding.
        """
        if self._seeds is None:
            self._seeds = [int(seed) for seed in system_stream().uniform(len(like)) * 2**53]
        scale = 0.0 if rate == 1 else 1.0 / (1.0 - rate)
        rows = real.cpu().numpy()
        mask = np.zeros(like.shape, dtype=np.float32)
        for site, here in enumerate(rows):
            drawn = self._generator(site, layer).random((int(here.sum()), *like.shape[2:]), dtype=np.float32)
            mask[site, here] = drawn >= rate
        return torch.from_numpy(mask).to(like).mul_(scale)

    def _generator(self, site: int, layer: int) -> np.random.Generator:
        if (site, layer) not in self._draws:
            assert self._seeds is not None
            self._draws[site, layer] = generator(self._seeds[site], "dropout", layer)
        return self._draws[site, layer]


Layers = tuple[Affine | Dropped | nn.Module, ...]
Plan = Layers | FlowPlan


def plan(module: nn.Module) -> Plan | str:
    """The module's layers in order; or, where its gradients have no closed form here, what is in the way."""
    steps_of_module = flow_plan(module) if type(module) is ConditionalFlow else _layers(module)
    if isinstance(steps_of_module, str):
        return steps_of_module
    if any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in module.modules()):
        return "it has hooks"
    if not all(p.requires_grad for p in module.parameters()):
        return "it has frozen parameters"
    return steps_of_module


def _layers(module: nn.Module) -> Layers | str:
    layers: list[Affine | Dropped | nn.Module] = []
    start, dims = 0, 1
    for part in _leaves(module):
        layer = _layer(part, start)
        if isinstance(layer, str):
            return layer
        before, after = _dims(part, dims)
        if before != dims:
            return f"{type(part).__name__} follows what it does not take"
        dims = after
        layers.append(layer)
        start += sum(p.numel() for p in part.parameters())
    if start == 0 or start != sum(p.numel() for p in module.parameters()):
        return "its layers share parameters or have none"
    return tuple(layers) if dims == 1 else "what comes out is not a row of numbers"


def _layer(part: nn.Module, start: int) -> Affine | Dropped | nn.Module | str:
    plain = set(dict(part.named_parameters())) <= {"weight", "bias"}
    if type(part) is nn.Linear and plain:
        return Affine(start, part.in_features, part.out_features, part.bias is not None)
    if type(part) is nn.Conv2d and plain:
        return convolution(part, start)
    if type(part) is nn.Dropout and part.p > 0 and part.training:
        return Dropped(part.p)
    if type(part) is nn.Flatten and (part.start_dim, part.end_dim) != (1, -1):
        return "Flatten joins other dimensions than all of a row's"
    if type(part) is nn.Unflatten and (part.dim != 1 or len(tuple(part.unflattened_size)) != 3):
        return "Unflatten makes something else of a row than channels of pictures"
    if type(part) in (*ELEMENTWISE, *ROW_BY_ROW, nn.Dropout):
        return part
    return f"{type(part).__name__} is not a linear layer or an elementwise activation"


def _dims(part: nn.Module, dims: int) -> tuple[int, int]:
    """How many dimensions a row has before and after the layer: 1 for numbers, 3 for channels of pictures."""
    if type(part) is nn.Linear:
        return 1, 1
    if type(part) is nn.Conv2d:
        return 3, 3
    return _RESHAPING.get(type(part), (dims, 1 if type(part) is nn.Flatten else dims))


def _leaves(module: nn.Module) -> list[nn.Module]:
    if type(module).forward is not nn.Sequential.forward:
        return [module]
    return [leaf for child in module._modules.values() if child is not None for leaf in _leaves(child)]
