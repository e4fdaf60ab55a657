"""Sums of clipped per-patient gradients by torch.func, for any module that it can differentiate row by row.

Per-row gradients are built in micro-batches, the rows of one patient added, and the sum clipped once. Neighbouring
relation: add or remove one patient. S sites, B rows, M patients, P trainable parameters in ``named_parameters`` order.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from polyclinic.training.local import Penalty
from polyclinic.training.losses import CROSS_ENTROPY, Loss
from polyclinic.training.modules import split_flat
from polyclinic.training.representation import penalised_losses
from polyclinic.training.stacked.batches import Batch
from polyclinic.training.stacked.clip_factors import clip_rows


def functional_sums(
    module: nn.Module, theta: Tensor, batch: Batch, max_norm: float | None, rows_at_once: int,
    loss: Loss = CROSS_ENTROPY, penalty: Penalty | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(S, P) sums over patients of their gradients, clipped to ``max_norm`` unless None, and (S,) summed losses.

    Losses (``training.losses``) are weighted, and have the penalty's term where there is one. With a bound, a patient
    whose gradient is not finite counts as zero.

    Args:
        module: The module.
        theta: (S, P) parameters.
        batch: Some patients of each site.
        max_norm: The clipping norm of a patient's gradient; None does not clip.
        rows_at_once: How many rows of each site have gradients at one time.
        loss: A name of a loss, or an objective.
        penalty: A term of the losses; None for none.
    """
    fixed = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
    fixed |= dict(module.named_buffers())

    others = tuple(penalty.models) if penalty else ()

    def weighted_loss(flat: Tensor, x: Tensor, y: Tensor, weight: Tensor, *others: Tensor) -> Tensor:
        def run() -> Tensor:
            outputs: Tensor = functional_call(module, (split_flat(flat, module), fixed), (x,))
            return outputs

        return (penalised_losses(module, run, x, y, loss, penalty, others) * weight).sum()

    whole = vmap(grad_and_value(weighted_loss), randomness="different")
    in_dims = (None, 0, 0, 0, *[None] * len(others))
    by_row = vmap(vmap(grad_and_value(weighted_loss), in_dims=in_dims, randomness="different"), randomness="different")
    pieces = zip(
        *(torch.split(t, rows_at_once, 1) for t in (batch.x, batch.y, batch.weight, batch.member)), strict=True
    )
    sites, parameters = theta.shape
    total, losses = torch.zeros_like(theta), theta.new_zeros(sites)
    slots = batch.patients + 1
    offset = torch.arange(sites)[:, None] * slots
    built = theta.new_zeros(0 if max_norm is None or batch.one_row else sites * slots, parameters)
    for x, y, weight, member in pieces:
        if max_norm is None:
            gradient, value = whole(theta, x, y, weight, *others)
            total += gradient
        else:
            gradient, value = by_row(theta, x[:, :, None], y[:, :, None], weight[:, :, None], *others)
            value = value.sum(1)
            if batch.one_row:
                total += _clipped_sum(gradient, max_norm)
            else:
                built.index_add_(0, (member + offset).flatten(), gradient.flatten(0, 1))
        losses += value
    if len(built):
        total += _clipped_sum(built.view(sites, slots, parameters)[:, :-1], max_norm or 0.0)
    return total, losses


def _clipped_sum(per_patient: Tensor, max_norm: float) -> Tensor:
    rows, factors = clip_rows(per_patient, max_norm)
    return torch.bmm(factors[:, None], rows)[:, 0]


def fits(module: nn.Module, features: int) -> str | None:
    """None where torch.func takes the module, tried on made-up rows; otherwise what it says, in one line."""
    module = deepcopy(module)  # what a module does with made-up rows stays in the copy
    trained: Mapping[str, Tensor] = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not trained:
        return "it has no trainable parameters"
    flat = torch.cat([p.detach().flatten() for p in trained.values()]).expand(2, -1)
    x = flat.new_zeros(2, 2, features)
    member = torch.arange(2).expand(2, 2)
    batch = Batch(x, torch.zeros(2, 2, dtype=torch.int64), torch.ones_like(x[:, :, 0]), member, 2, True)
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    try:
        with torch.random.fork_rng(devices=[]):
            functional_sums(module, flat, batch, 1.0, 2)
    except Exception as problem:  # torch.func has no error of its own: whatever it raises means that it cannot
        return (str(problem).splitlines() or [type(problem).__name__])[0]
    if any(not torch.equal(value, buffers[name]) for name, value in module.named_buffers()):
        return "it writes to its buffers"
    return None
