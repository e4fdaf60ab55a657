"""Sums of clipped per-patient gradients of any module, layer by layer: what goes into each layer and what comes back to it.

All sites' rows go through the module at once, as if they were of one site; only layers with parameters look at whose a
row is. One pass back gives the loss' gradient at every layer's output. From both a row's gradient has a norm, and many
a weighted sum, without being built (Bu et al. 2023, arXiv:2210.00038). A layer without a closed form has its own rows'
gradients built. S sites, B rows, P trainable parameters in ``named_parameters`` order; R = S * B rows of all sites, K
times as many positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn import functional
from torch.nn.utils.parametrize import is_parametrized

from polyclinic.errors import ConfigError
from polyclinic.training.local import Penalty
from polyclinic.training.losses import CROSS_ENTROPY, Loss, row_losses
from polyclinic.training.modules import split_flat
from polyclinic.training.stacked.batches import Batch
from polyclinic.training.stacked.layers import Affine, Convolution, Masks, convolution
from polyclinic.training.stacked.linear import clipped_sums
from polyclinic.training.stacked.per_example import functional_sums
from polyclinic.training.stacked.propagation import affine, before, by_position
from polyclinic.training.stacked.rows import BuiltRows, LayerRows, Part


@dataclass(frozen=True)
class Scaled:
    """The scale and the offset of layer norm over ``shape``."""

    start: int
    numbers: int
    shape: tuple[int, ...]
    bias: bool
    epsilon: float


@dataclass(frozen=True, eq=False)
class Whole:
    """A part of the module whose rows' gradients are built."""

    start: int
    numbers: int
    part: nn.Module

    def __call__(self, flat: Tensor, *given: Tensor) -> Tensor:
        """What the part with the parameters ``flat``, (numbers,), makes of rows."""
        made = functional_call(self.part, (split_flat(flat, self.part), dict(self.part.named_buffers())), given)
        if not isinstance(made, Tensor):
            raise TypeError(f"{type(self.part).__name__} makes more than one tensor")
        return made


Layer = Affine | Scaled | Whole


@dataclass(frozen=True, eq=False)
class Layered:
    """A module's parts with parameters, each as its layer, and those that drop out at random."""

    module: nn.Module
    layers: Mapping[nn.Module, Layer]
    dropping: tuple[nn.Dropout, ...]


def find_layers(module: nn.Module) -> Layered | str:
    """The module's layers; or, where they do not have all of its parameters to themselves, what is in the way."""
    if any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in module.modules()):
        return "it has hooks"
    if any("forward" in vars(part) for part in module.modules()):
        return "it has a part whose forward is its own"
    if any(map(is_parametrized, module.modules())):
        return "it computes weights from other parameters"
    if not all(p.requires_grad for p in module.parameters()):
        return "it has frozen parameters"
    layers, start = dict[nn.Module, Layer](), 0
    for part in _with_parameters(module):
        if part not in layers:
            layers[part] = _layer(part, start)
            start += sum(p.numel() for p in part.parameters())
    if start == 0 or start != sum(p.numel() for p in module.parameters()):
        return "its layers share parameters or have none"
    wholes = [layer.part for layer in layers.values() if isinstance(layer, Whole)]
    if len(wholes) == len(layers):
        return "none of its layers has a closed form"
    inside = {part for whole in wholes for part in whole.modules()}
    dropping = tuple(part for part in module.modules() if type(part) is nn.Dropout and part.p > 0 and part.training)
    if inside.intersection(dropping):
        return "a layer without a closed form drops out at random"
    return Layered(module, layers, dropping)


def _with_parameters(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost parts that have parameters themselves, in the order of their parameters."""
    if any(p is not None for p in module._parameters.values()):
        yield module
    else:
        for child in module.children():
            yield from _with_parameters(child)


def _layer(part: nn.Module, start: int) -> Layer:
    forward, numbers = type(part).forward, sum(p.numel() for p in part.parameters())
    if set(dict(part.named_parameters())) <= {"weight", "bias"}:
        if isinstance(part, nn.Linear) and forward is nn.Linear.forward:
            return Affine(start, part.in_features, part.out_features, part.bias is not None)
        if isinstance(part, nn.LayerNorm) and forward is nn.LayerNorm.forward:
            return Scaled(start, numbers, tuple(part.normalized_shape), part.bias is not None, part.eps)
        if isinstance(part, nn.Conv2d) and forward is nn.Conv2d.forward:
            layer = convolution(part, start)
            if isinstance(layer, Convolution):
                return layer
    return Whole(start, numbers, copy(part))  # the copy stays as it is while the part looks at whose rows it gets


def layered_sums(
    plan: Layered, theta: Tensor, batch: Batch, max_norm: float | None, loss: Loss = CROSS_ENTROPY,
    masks: Masks | None = None, penalty: Penalty | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(S, P) sums over patients of their gradients, clipped to ``max_norm`` unless None, and (S,) summed losses.

    Losses (``training.losses``) are weighted; with a bound, a patient whose gradient is not finite counts as zero.

    Args:
        plan: The module and its layers.
        theta: (S, P) parameters.
        batch: Some patients of each site.
        max_norm: The clipping norm of a patient's gradient; None does not clip.
        loss: A name of a loss, or an objective.
        masks: For dropout, if there is any.
        penalty: None; there is no closed form of one.

    Raises:
        ConfigError: There is a penalty.
    """
    if penalty is not None:
        raise ConfigError("The engine 'layered' has no closed form of a loss with a penalty; take 'functional'.")
    passing = _Pass(plan, theta.detach(), batch, masks)
    with torch.enable_grad(), passing.inside():
        losses = row_losses(loss, plan.module(batch.x.flatten(0, 1)), batch.y.flatten(0, 1)).view_as(batch.weight)
        losses = (losses * batch.weight).sum(1)
        torch.autograd.grad(losses.sum(), passing.anchor, allow_unused=True)
    return clipped_sums(passing.parts(), passing.theta, batch, max_norm), losses.detach()


def held_by_layers(plan: Layered, features: int) -> int:
    """How many numbers a row of ``features`` takes in what the layers take and give, and in gradients that are built."""
    flat = torch.cat([p.detach().flatten() for p in plan.module.parameters()])[None]
    x, unit = flat.new_zeros(1, 1, features), flat.new_ones(1, 1)
    passing = _Pass(plan, flat, Batch(x, unit, unit, unit, 1, True), Masks([0]))
    with torch.enable_grad(), passing.inside():
        torch.autograd.grad(plan.module(x[0]).sum(), passing.anchor, allow_unused=True)
    layers = sum(
        value.numel() for calls in passing.seen.values() for given, gradient in calls for value in (*given, gradient)
    )
    return layers + sum(2 * layer.numbers for layer in plan.layers.values() if isinstance(layer, Whole))


class _Pass:
    """A pass of S sites' rows through a module and back."""

    def __init__(self, plan: Layered, theta: Tensor, batch: Batch, masks: Masks | None) -> None:
        self.plan, self.theta, self.batch, self.masks = plan, theta, batch, masks
        self.sites, self.width = batch.weight.shape
        #: What every layer's output depends on, so that a gradient comes back to it.
        self.anchor = theta.new_zeros((), requires_grad=True)
        #: What each layer took and what came back, call by call, the last first.
        self.seen: dict[int, list[tuple[tuple[Tensor, ...], Tensor]]] = {}

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Within, the module's layers take S sites' rows."""
        calls: dict[nn.Module, Callable[..., Tensor]] = {
            part: self._call(layer) for part, layer in self.plan.layers.items()
        }
        calls |= {part: self._dropout(number, part.p) for number, part in enumerate(self.plan.dropping)}
        try:
            for part, call in calls.items():
                part.__dict__["forward"] = call
            yield
        finally:
            for part in calls:
                part.__dict__.pop("forward", None)

    def _call(self, layer: Layer) -> Callable[..., Tensor]:
        if isinstance(layer, Affine):
            return lambda x: _apply(_Affine, x, self, layer)
        if isinstance(layer, Scaled):
            return lambda x: _apply(
                _Scaled, functional.layer_norm(x, layer.shape, None, None, layer.epsilon), self, layer
            )

        def whole(*given: Tensor) -> Tensor:
            rows = tuple(x.reshape(self.sites, -1, *x.shape[1:]) for x in given)
            made = vmap(layer)(self.theta[:, layer.start : layer.start + layer.numbers], *rows)
            return _apply(_Noted, made.flatten(0, 1), self, layer, *(x.detach() for x in rows))

        return whole

    def _dropout(self, number: int, rate: float) -> Callable[[Tensor], Tensor]:
        calls = iter(range(number, 1 << 40, len(self.plan.dropping)))  # draws of its own for each time it is called

        def drop(x: Tensor) -> Tensor:
            assert self.masks is not None
            like = x.detach().reshape(self.sites, self.width, -1, *x.shape[1:])  # of a row perhaps several steps
            return x * self.masks.mask(next(calls), rate, like, self.batch.weight > 0).view_as(x)

        return drop

    def parts(self) -> list[Part]:
        """What the layers leave."""
        return [self._part(layer, self.seen.get(layer.start, [])) for layer in self.plan.layers.values()]

    def _part(self, layer: Layer, calls: list[tuple[tuple[Tensor, ...], Tensor]]) -> Part:
        if isinstance(layer, Affine) and calls:
            return LayerRows(layer, self._join([given[0] for given, _ in calls]), self._join([g for _, g in calls]))
        size = layer.inputs * layer.outputs + layer.bias * layer.outputs if isinstance(layer, Affine) else layer.numbers
        built = self.theta.new_zeros(1, 1, 1).expand(self.sites, self.width, size)
        for given, gradient in calls:
            built = built + (self._of_whole(layer, given, gradient) if isinstance(layer, Whole) else gradient)
        return BuiltRows(layer.start, built)

    def _join(self, calls: list[Tensor]) -> Tensor:
        """(S, B, n), or (S, B, L, n) of a layer that was called at several positions."""
        shaped = [call.reshape(self.sites, self.width, -1, call.shape[-1]) for call in calls]
        whole = shaped[0] if len(shaped) == 1 else torch.cat(shaped, 2)
        return whole[:, :, 0] if whole.shape[2] == 1 else whole

    def _of_whole(self, layer: Whole, given: tuple[Tensor, ...], gradient: Tensor) -> Tensor:
        def of_row(flat: Tensor, gradient: Tensor, *given: Tensor) -> Tensor:
            own: Tensor = vjp(lambda flat: layer(flat, *given), flat)[1](gradient)[0]
            return own

        flat = self.theta[:, layer.start : layer.start + layer.numbers]
        rows = [x.reshape(self.sites, self.width, -1, *x.shape[2:]) for x in (gradient, *given)]
        return vmap(vmap(of_row, in_dims=(None, *[0] * len(rows))))(flat, *rows)


class _Affine(torch.autograd.Function):
    """A linear layer or a convolution with every site's own weights; the way back notes what it took and what came back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, passing: _Pass, layer: Affine) -> Tensor:
        row = x.shape[1:] if isinstance(layer, Convolution) else (layer.inputs,)
        rows, out = affine(layer, passing.theta, x.reshape(passing.sites, -1, *row))
        ctx.passing, ctx.layer, ctx.shape = passing, layer, x.shape
        ctx.save_for_backward(rows)
        return _not_a_view(
            out, (-1, *out.shape[2:]) if isinstance(layer, Convolution) else (*x.shape[:-1], layer.outputs)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        passing, layer, shape = ctx.passing, ctx.layer, ctx.shape
        row = gradients[0].shape[1:] if isinstance(layer, Convolution) else (layer.outputs,)
        gradient = by_position(layer, gradients[0].reshape(passing.sites, -1, *row))
        passing.seen.setdefault(layer.start, []).append(((ctx.saved_tensors[0].detach(),), gradient))
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        row = shape[1:] if isinstance(layer, Convolution) else (layer.inputs,)
        at_input = before(layer, passing.theta, gradient, (*gradient.shape[:2], *row))
        return at_input.view(shape), None, None, None


class _Scaled(torch.autograd.Function):
    """Layer norm's scale and offset of every site; the way back notes each row's own gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, passing: _Pass, layer: Scaled) -> Tensor:
        size = layer.numbers // (1 + layer.bias)
        weight = torch.split(passing.theta[:, None, layer.start : layer.start + layer.numbers], size, -1)
        value = x.reshape(passing.sites, -1, size)
        ctx.passing, ctx.layer = passing, layer
        ctx.save_for_backward(value)
        out = torch.addcmul(weight[1], value, weight[0]) if layer.bias else value * weight[0]
        return _not_a_view(out, x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        passing, layer, value = ctx.passing, ctx.layer, ctx.saved_tensors[0].detach()
        size = value.shape[-1]
        gradient = gradients[0].reshape(value.shape)
        built = [(gradient * value), *([gradient] if layer.bias else [])]
        own = [part.view(passing.sites, passing.width, -1, size).sum(2) for part in built]
        passing.seen.setdefault(layer.start, []).append(((), torch.cat(own, -1)))
        weight = passing.theta[:, None, layer.start : layer.start + size]
        return (gradient * weight).view(gradients[0].shape), None, None, None


class _Noted(torch.autograd.Function):
    """What a part made of all sites' rows; the way back notes what came back to it, beside what it took."""

    @staticmethod
    def forward(ctx: Any, made: Tensor, anchor: Tensor, passing: _Pass, layer: Whole, *given: Tensor) -> Tensor:
        ctx.passing, ctx.layer, ctx.given = passing, layer, given
        return made.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradients[0].reshape(ctx.passing.sites, -1, *gradients[0].shape[1:])
        ctx.passing.seen.setdefault(ctx.layer.start, []).append((ctx.given, gradient))
        return gradients[0], None, None, None, *[None] * len(ctx.given)


def _not_a_view(out: Tensor, shape: Sequence[int]) -> Tensor:
    """The same numbers in another shape; what follows may write into it, which autograd forbids in a view made here."""
    made: Tensor = torch.ops.aten._unsafe_view(out, shape)
    return made


def _apply(function: type[torch.autograd.Function], x: Tensor, passing: _Pass, layer: Layer, *given: Tensor) -> Tensor:
    out: Tensor = function.apply(x, passing.anchor, passing, layer, *given)  # type: ignore[no-untyped-call]
    return out


def same_as_alone(plan: Layered, features: int) -> str | None:
    """None where the layers give of made-up rows what ``torch.func`` gives, row by row; otherwise what is in the way."""
    dropping, module = deepcopy(plan.module).double(), deepcopy(plan.module).double()
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.eval()
    own, own_dropping = find_layers(module), find_layers(dropping)
    if isinstance(own, str) or isinstance(own_dropping, str):
        return str(own)
    flat = torch.cat([p.detach().flatten() for p in module.parameters()])
    theta = flat + 0.1 * torch.cos(torch.arange(1.0, 2 * len(flat) + 1, dtype=flat.dtype)).view(2, -1)
    x = torch.sin(torch.arange(1.0, 6 * features + 1, dtype=flat.dtype)).view(2, 3, -1)
    far = x.clone()
    far[[0, 1], [0, 1]] *= 1e4  # beside which others' values are lost where a module compares rows
    try:
        with torch.random.fork_rng(devices=[]):
            begun = torch.random.get_rng_state()
            pairs = [
                (layered_sums(own, theta, batch, 0.01), functional_sums(module, theta, batch, 0.01, 3))
                for batch in map(_made_up, (x, 10 * x, far))
            ]
            if own_dropping.dropping:
                pairs.append(_with_dropout(own_dropping, theta, x))
            draws = not torch.equal(begun, torch.random.get_rng_state())
    except Exception as problem:  # whatever a module raises of rows that it gets in another form than it expects
        return (str(problem).splitlines() or [type(problem).__name__])[0]
    if draws:
        return "it draws random numbers by more than nn.Dropout"
    if not all(
        torch.allclose(a, b, rtol=1e-7, atol=1e-10) for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True)
    ):
        return "its parameters are used by more than the layers that they belong to"
    return None


def _with_dropout(plan: Layered, theta: Tensor, x: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The sums of sites together, and of each alone: a site's masks are those of its own rows."""
    together = layered_sums(plan, theta, _made_up(x), 0.01, masks=Masks([1, 2]))
    alone = [layered_sums(plan, theta[[s]], _made_up(x[[s]]), 0.01, masks=Masks([s + 1])) for s in range(len(x))]
    gradients, losses = (torch.cat(parts) for parts in zip(*alone, strict=True))
    return together, (gradients, losses)


def _made_up(x: Tensor) -> Batch:
    """Patients of one row each, (S, B, features)."""
    sites, width, _ = x.shape
    ones, member = torch.ones_like(x[:, :, 0]), torch.arange(width).expand(sites, width)
    return Batch(x, torch.zeros(sites, width, dtype=torch.int64), ones, member, width, True)
