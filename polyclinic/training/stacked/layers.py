"""Plain stacks of layers: which modules are one that has a closed form, and where each layer lies among flat parameters.

Linear layers and convolutions, and between them what works cell by cell or row by row and has no parameters; and
autoregressive flows.
"""

from __future__ import annotations

from torch import nn

from polyclinic.models.flows import ConditionalFlow
from polyclinic.models.gan import Leading, Planes, Products
from polyclinic.training.stacked.affine import Affine
from polyclinic.training.stacked.convolution import convolution
from polyclinic.training.stacked.flows import FlowPlan, flow_plan
from polyclinic.training.stacked.masks import Dropped

ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.SELU, nn.SiLU, nn.LeakyReLU, nn.Softplus, nn.Identity)
# Without parameters, a row at a time; beside each, how many dimensions a row has before and after it.
_RESHAPING: dict[type[nn.Module], tuple[int, int]] = {
    nn.Unflatten: (1, 3), nn.ZeroPad2d: (3, 3), Planes: (1, 3), Leading: (1, 1), Products: (1, 1),
}  # fmt: skip
ROW_BY_ROW = (*_RESHAPING, nn.Flatten)
Layers = tuple[Affine | Dropped | nn.Module, ...]
Plan = Layers | FlowPlan


def plan(module: nn.Module) -> Plan | str:
    """The module's layers in order; or, where its gradients have no closed form here, what is in the way."""
    found = flow_plan(module, ELEMENTWISE) if type(module) is ConditionalFlow else _layers(module)
    if isinstance(found, str):
        return found
    if any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in module.modules()):
        return "it has hooks"
    if not all(p.requires_grad for p in module.parameters()):
        return "it has frozen parameters"
    return found


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
