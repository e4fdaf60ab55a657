"""Sums of clipped per-patient gradients of stacked linear layers in closed form: no per-example gradient is built.

A linear layer's gradient for one row is the outer product of the loss' gradient at its output and its input, so its
norm is the product of theirs (Goodfellow 2015, arXiv:1510.01799). Neighbouring relation: add or remove one patient.
S sites, B rows, M patients, P parameters in ``named_parameters`` order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from polyclinic.training.losses import CROSS_ENTROPY, losses_and_gradients
from polyclinic.training.stacked.batches import Batch
from polyclinic.training.stacked.clip_factors import clip_factors, clip_rows, longest_factor
from polyclinic.training.stacked.ghost_norms import patient_norms
from polyclinic.training.stacked.layers import Affine, LayerRows, Plan

AT_ONCE = 1 << 24  # numbers in gradients built at once, where they have to be


def linear_sums(
    layers: Plan, theta: Tensor, batch: Batch, max_norm: float | None, loss: str = CROSS_ENTROPY
) -> tuple[Tensor, Tensor]:
    """(S, P) sums over patients of their gradients, clipped to ``max_norm`` unless None, and (S,) summed losses.

    theta: (S, P). Losses (``training.losses``) are weighted; with a bound, a patient whose gradient is not finite
    counts as zero.
    """
    parts, losses = _factors(layers, theta, batch, loss)
    if max_norm is None:
        return _products(parts, None, theta), losses
    rows, longest = _row_norms(parts)
    norms = rows if batch.one_row else patient_norms(parts, rows, batch)
    factors = clip_factors(norms, max_norm, theta.dtype)
    if bool(longest.amax() < longest_factor(max_norm, theta.dtype)) and bool(
        torch.isfinite(rows + norms.sum(1, keepdim=True)).all()
    ):
        return _products(parts, _of_rows(factors, batch), theta), losses
    return _guarded(parts, rows, longest, factors, batch, theta, max_norm), losses


def _row_norms(parts: Sequence[LayerRows]) -> tuple[Tensor, Tensor]:
    """(S, B) norms of the rows' gradients, and of each row's longest layer input."""
    squares, longest = torch.zeros((), dtype=parts[0].input.dtype), torch.zeros((), dtype=parts[0].input.dtype)
    for part in parts:
        length = torch.linalg.vecdot(part.input, part.input)
        longest = torch.maximum(longest, length)
        output = torch.linalg.vecdot(part.output, part.output)
        squares = torch.addcmul(squares, output, length + 1 if part.layer.bias else length)
    return squares.sqrt(), longest.sqrt()


def _guarded(
    parts: Sequence[LayerRows], rows: Tensor, longest: Tensor, factors: Tensor, batch: Batch, theta: Tensor,
    max_norm: float,
) -> Tensor:  # fmt: skip
    """The sums where some patients' norms overflow or are not to be trusted: theirs are built and measured instead."""
    doubtful = ~torch.isfinite(rows) | (longest >= longest_factor(max_norm, theta.dtype))
    if not batch.one_row:
        of_patient = torch.zeros_like(factors, dtype=torch.int64).scatter_add_(1, batch.member, doubtful.long())
        of_patient[~torch.isfinite(factors)] = 1
        doubtful = of_patient.gather(1, batch.member) > 0
    kept = [LayerRows(p.layer, *(torch.where(doubtful[..., None], 0.0, t) for t in (p.input, p.output))) for p in parts]
    total = _products(kept, _of_rows(factors, batch), theta)
    site, column = torch.nonzero(doubtful & (batch.weight > 0), as_tuple=True)
    patient, inverse = torch.unique(torch.stack([site, batch.member[site, column]]), dim=1, return_inverse=True)
    at_once = max(1, AT_ONCE // theta.shape[1])
    for begin in range(0, patient.shape[1], at_once):
        some = (inverse >= begin) & (inverse < begin + at_once)
        built = torch.zeros(min(at_once, patient.shape[1] - begin), theta.shape[1], dtype=theta.dtype)
        for row in some.nonzero()[:, 0].split(at_once):
            gradients = torch.zeros(len(row), theta.shape[1], dtype=theta.dtype)
            for part in parts:
                a, g = part.input[site[row], column[row]], part.output[site[row], column[row]]
                part.layer.weight(gradients).copy_(g[:, :, None] * a[:, None])
                if part.layer.bias:
                    part.layer.offset(gradients).copy_(g)
            built.index_add_(0, inverse[row] - begin, gradients)
        built, scale = clip_rows(built, max_norm)
        total.index_add_(0, patient[0, begin : begin + at_once], built * scale[:, None])
    return total


def _factors(layers: Plan, theta: Tensor, batch: Batch, loss: str) -> tuple[list[LayerRows], Tensor]:
    """Each linear layer's inputs and the losses' gradients at its outputs, by backpropagation; (S,) summed losses."""
    values = [batch.x]
    for layer in layers:
        values.append(_forward(layer, theta, values[-1]))
    losses, gradient = losses_and_gradients(loss, values[-1], batch.y)
    losses = (losses * batch.weight).sum(1)
    gradient *= batch.weight[..., None]
    parts: list[LayerRows] = []
    for index in range(len(layers) - 1, -1, -1):
        layer, value = layers[index], values[index]
        if isinstance(layer, Affine):
            parts.append(LayerRows(layer, value, gradient))
            gradient = torch.bmm(gradient, layer.weight(theta)) if index else gradient
        else:
            gradient = _backward(layer, value, values[index + 1], gradient)
    return parts[::-1], losses


def _forward(layer: Affine | nn.Module, theta: Tensor, value: Tensor) -> Tensor:
    if isinstance(layer, Affine):
        weight = layer.weight(theta).mT
        return torch.baddbmm(layer.offset(theta)[:, None], value, weight) if layer.bias else torch.bmm(value, weight)
    if type(layer) is nn.Tanh and value.dtype == torch.float32 and value.device.type == "cpu":
        # 2 sigmoid(2x) - 1, equal to 2 roundings of 1: on a CPU torch's sigmoid takes a sixth of its tanh's time.
        return (value * 2).sigmoid_().mul_(2).sub_(1)
    # What a layer writes in place is still needed: slopes are taken there.
    return cast(Tensor, layer(value.clone() if getattr(layer, "inplace", False) else value))


def _backward(layer: nn.Module, before: Tensor, after: Tensor, gradient: Tensor) -> Tensor:
    """The gradient before an elementwise layer from the one after it."""
    if type(layer) is nn.Tanh:
        return cast(Tensor, torch.ops.aten.tanh_backward(gradient, after))
    if type(layer) is nn.ReLU:
        return cast(Tensor, torch.ops.aten.threshold_backward(gradient, after, 0))
    with torch.enable_grad():
        before = before.detach().requires_grad_()
        return torch.autograd.grad(_forward(layer, before, before), before, gradient)[0]


def _of_rows(factors: Tensor, batch: Batch) -> Tensor:
    """(S, B, 1) factors of the rows from those of their patients."""
    return (factors if batch.one_row else factors.gather(1, batch.member))[..., None]


def _products(parts: Sequence[LayerRows], factors: Tensor | None, theta: Tensor) -> Tensor:
    total = torch.empty_like(theta)
    for part in parts:
        output = part.output if factors is None else part.output * factors
        part.layer.weight(total).copy_(torch.bmm(output.mT, part.input))
        if part.layer.bias:
            part.layer.offset(total).copy_(output.sum(1))
    return total
