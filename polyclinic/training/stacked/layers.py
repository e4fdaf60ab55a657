"""Plain stacks of linear layers: which modules are one, and where each layer lies among the flat parameters."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

ELEMENTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.SELU, nn.SiLU, nn.LeakyReLU, nn.Softplus, nn.Identity)


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


Plan = tuple[Affine | nn.Module, ...]


@dataclass(frozen=True, eq=False)
class LayerRows:
    """A layer's input (S, B, inputs) and the loss' gradient at its output (S, B, outputs)."""

    layer: Affine
    input: Tensor
    output: Tensor


def plan(module: nn.Module) -> Plan | str:
    """The module's layers in order; or, where it is not a plain stack of linear layers, what is in the way."""
    parts = list(_leaves(module))
    layers: list[Affine | nn.Module] = []
    start = 0
    for part in parts:
        if type(part) is nn.Linear and set(dict(part.named_parameters())) <= {"weight", "bias"}:
            layers.append(Affine(start, part.in_features, part.out_features, part.bias is not None))
            start += sum(p.numel() for p in part.parameters())
        elif type(part) in ELEMENTWISE or (type(part) is nn.Dropout and part.p == 0):
            layers.append(part)
        else:
            return f"{type(part).__name__} is not a linear layer or an elementwise activation"
    if any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in module.modules()):
        return "it has hooks"
    if not all(p.requires_grad for p in module.parameters()):
        return "it has frozen parameters"
    if start == 0 or start != sum(p.numel() for p in module.parameters()):
        return "its layers share parameters or have none"
    return tuple(layers)


def _leaves(module: nn.Module) -> list[nn.Module]:
    if type(module).forward is not nn.Sequential.forward:
        return [module]
    return [leaf for child in module._modules.values() if child is not None for leaf in _leaves(child)]
