"""Through a plan and back: what the gradients of its linear layers and convolutions are made of.

S sites with parameters of their own, B rows of each; a row is one of numbers, or channels of a picture. In a batch of patients
apart the S are patients of one hospital, who share (1, P) parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from polyclinic.training.losses import Loss, losses_and_gradients
from polyclinic.training.stacked.batches import Batch
from polyclinic.training.stacked.layers import (
    ROW_BY_ROW,
    Affine,
    Convolution,
    Dropped,
    FlowPlan,
    Layers,
    Masks,
    Plan,
)
from polyclinic.training.stacked.products import rows_product
from polyclinic.training.stacked.rows import LayerRows


def factors_of(
    layers: Plan, theta: Tensor, batch: Batch, loss: Loss, masks: Masks | None
) -> tuple[list[LayerRows], Tensor]:
    """Each affine layer's inputs and the losses' gradients at its outputs, by backpropagation; (S,) summed losses.

    Args:
        layers: The module's plan.
        theta: (S, P) parameters.
        batch: Some patients of each site.
        loss: A name of a loss, or an objective.
        masks: For the plan's dropout layers; None where it has none.
    """
    if isinstance(layers, FlowPlan):
        return _of_flow(layers, theta * layers.mask, batch, loss)
    values, taken = _forth(layers, theta, batch.x, masks, batch.weight > 0)
    losses, gradient = losses_and_gradients(loss, values[-1], batch.y)
    losses = (losses * batch.weight).sum(1)
    gradient *= batch.weight[..., None]
    first = next(index for index, layer in enumerate(layers) if isinstance(layer, Affine))
    return _back(layers, theta, values, taken, gradient, first)[0], losses


def _of_flow(flow: FlowPlan, theta: Tensor, batch: Batch, loss: Loss) -> tuple[list[LayerRows], Tensor]:
    """As ``factors_of``, of (S, P) parameters that are 0 where the flow's mask is."""
    x, context = batch.x[..., : flow.features], batch.x[..., flow.features :]
    slopes, begun = batch.weight.new_zeros(()), list[tuple[list[Tensor], list[Tensor], tuple[Tensor, ...]]]()
    for step in flow.steps:
        values, taken = _forth(step.layers, theta, torch.cat([x, context], -1), None, None)
        with torch.enable_grad():
            leaves = x.detach().requires_grad_(), values[-1].detach().requires_grad_()
            mapped = step.map(*leaves)
        begun.append((values, taken, (*leaves, *mapped)))
        x, slope = (part.detach() for part in mapped)
        slopes = slopes + slope
    far, at_base = flow.surprise(x, batch.apart)
    losses, gradient = losses_and_gradients(loss, (far - slopes)[..., None], batch.y)
    losses = (losses * batch.weight).sum(1)
    gradient *= batch.weight[..., None]
    there, volume, parts = at_base * gradient, -gradient[..., 0], list[LayerRows]()
    for step, (values, taken, (x, phi, u, slope)) in zip(flow.steps[::-1], begun[::-1], strict=True):
        there, at_phi = torch.autograd.grad((u, slope), (x, phi), (there, volume))
        last = step is flow.steps[0]
        some, before = _back(step.layers, theta, values, taken, at_phi, 0 if last else -1)
        if not last:
            there = there + before[..., : flow.features]
        parts = some + parts
    return parts, losses


def _forth(
    layers: Layers, theta: Tensor, value: Tensor, masks: Masks | None, there: Tensor | None
) -> tuple[list[Tensor], list[Tensor]]:
    """What goes into each layer and comes out of the last; and the affine layers' inputs and the dropout layers' masks."""
    values, taken = [value], list[Tensor]()
    for number, layer in enumerate(layers):
        if isinstance(layer, Affine):
            rows, value = affine(layer, theta, value)
            taken.append(rows)
        elif isinstance(layer, Dropped):
            assert masks is not None and there is not None
            # Of patients apart all rows are the one site's.
            like = value if theta.shape[0] == value.shape[0] else value.flatten(0, 1)[None]
            taken.append(masks.mask(number, layer.rate, like, there.view(like.shape[:2])).view_as(value))
            value = value * taken[-1]
        else:
            value = _forward(layer, value)
        values.append(value)
    return values, taken


def _back(
    layers: Layers, theta: Tensor, values: list[Tensor], taken: list[Tensor], gradient: Tensor, first: int
) -> tuple[list[LayerRows], Tensor]:
    """The affine layers' rows, and the gradient behind the layer ``first``, before which none is needed; -1: before them all."""
    parts: list[LayerRows] = []
    for index in range(len(layers) - 1, max(first, 0) - 1, -1):
        layer = layers[index]
        if isinstance(layer, Affine):
            gradient = by_position(layer, gradient)
            parts.append(LayerRows(layer, taken.pop(), gradient))
            gradient = before(layer, theta, gradient, values[index].shape) if index > first else gradient
        elif isinstance(layer, Dropped):
            gradient = gradient * taken.pop()
        else:
            gradient = _backward(layer, values[index], values[index + 1], gradient)
    return parts[::-1], gradient


def affine(layer: Affine, theta: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """The layer's input as ``LayerRows`` has it, and its output: (S, B, outputs), or (S, B, outputs, height, width).

    Args:
        layer: A linear layer or a convolution.
        theta: (S, P) parameters.
        value: (S, B, ...) the layer's input.
    """
    rows, weight = value, layer.weight(theta).mT
    shape = value.shape[:2]
    if isinstance(layer, Convolution):
        patches, grid = layer.patches(value.flatten(0, 1))
        rows = _of_sites(patches, shape)
        value = rows.flatten(1, 2)
    if layer.bias and theta.shape[0] == value.shape[0]:
        value = torch.baddbmm(layer.offset(theta)[:, None], value, weight)
    else:
        value = rows_product(value, weight)
        value = value + layer.offset(theta)[:, None] if layer.bias else value
    return rows, value.view(*shape, *grid, -1).movedim(-1, 2) if isinstance(layer, Convolution) else value


def by_position(layer: Affine, gradient: Tensor) -> Tensor:
    """The gradient at a layer's output as ``LayerRows`` has it."""
    return gradient.flatten(3).mT.contiguous() if isinstance(layer, Convolution) else gradient


def before(layer: Affine, theta: Tensor, gradient: Tensor, shape: Sequence[int]) -> Tensor:
    """The gradient at a layer's input, from the one at its output.

    Args:
        layer: A linear layer or a convolution.
        theta: (S, P) parameters.
        gradient: The gradient at the layer's output.
        shape: The shape of the layer's input, (S, B, ...).
    """
    if not isinstance(layer, Convolution):
        return rows_product(gradient, layer.weight(theta))
    patches = rows_product(gradient.flatten(1, 2), layer.weight(theta)).reshape(-1, gradient.shape[2], layer.inputs)
    return layer.fold(patches, (shape[3], shape[4])).reshape(*shape)


def _forward(layer: nn.Module, value: Tensor) -> Tensor:
    if type(layer) is nn.Tanh and value.dtype == torch.float32 and value.device.type == "cpu":
        # 2 sigmoid(2x) - 1, equal to 2 roundings of 1: on a CPU torch's sigmoid takes a sixth of its tanh's time.
        return (value * 2).sigmoid_().mul_(2).sub_(1)
    if isinstance(layer, ROW_BY_ROW):
        return _of_sites(cast(Tensor, layer(value.flatten(0, 1))), value.shape[:2])
    # What a layer writes in place is still needed: slopes are taken there.
    return cast(Tensor, layer(value.clone() if getattr(layer, "inplace", False) else value))


def _backward(layer: nn.Module, before: Tensor, after: Tensor, gradient: Tensor) -> Tensor:
    """The gradient before a layer without parameters from the one after it."""
    if type(layer) is nn.Tanh:
        return cast(Tensor, torch.ops.aten.tanh_backward(gradient, after))
    if type(layer) is nn.ReLU:
        return cast(Tensor, torch.ops.aten.threshold_backward(gradient, after, 0))
    if type(layer) is nn.LeakyReLU:
        return cast(Tensor, torch.ops.aten.leaky_relu_backward(gradient, before, layer.negative_slope, False))
    with torch.enable_grad():
        before = before.detach().requires_grad_()
        return torch.autograd.grad(_forward(layer, before), before, gradient)[0]


def _of_sites(rows: Tensor, sites: Sequence[int]) -> Tensor:
    """(S, B, ...) of (S * B, ...)."""
    return rows.view(*sites, *rows.shape[1:])


def held_by_pictures(layers: Plan, parameters: int, features: int) -> int:
    """How many numbers a row takes in the inputs and outputs of layers, 0 for a stack of rows alone.

    Args:
        layers: The module's plan.
        parameters: P.
        features: The width of a row.
    """
    if isinstance(layers, FlowPlan) or not any(isinstance(layer, (Convolution, *ROW_BY_ROW)) for layer in layers):
        return 0
    theta, value, numbers = torch.zeros(1, parameters), torch.zeros(1, 1, features), 0
    for layer in layers:
        if isinstance(layer, Affine):
            rows, value = affine(layer, theta, value)
            numbers += rows.numel()
        elif not isinstance(layer, Dropped):
            value = _forward(layer, value)
        numbers += value.numel()
    return numbers
