"""The published private flow, with batch norm between its blocks, and how far one record moves its clipped gradient.

Su, Wang, Schiavazzi and Liu 2023 clip each record's gradient to C. Batch norm makes every record's gradient depend on all
others in the batch, so that clipping bounds nothing: a record without which the sum of clipped gradients differs by more than C
voids the guarantee. Only for demonstrations: hospitals refuse it.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from polyclinic.models.flows import ConditionalFlow, flow
from polyclinic.training.auditing.densities import with_batch_norm


def published_flow(
    features: int, context: int = 0, blocks: int = 5, hidden: int = 100, batch_norm: bool = True
) -> ConditionalFlow:
    """The published MAF: ``blocks`` of two masked hidden layers with ReLU, and batch norm after each unless it is left out."""
    made = flow("maf", features, context, blocks, (hidden, hidden), activation="relu")
    for step in made.steps:
        if hasattr(step, "hyper"):  # as published: random from the first step
            cast(nn.Linear, cast(nn.Sequential, step.hyper)[-1]).reset_parameters()
    return with_batch_norm(made) if batch_norm else made


def clipped_sum(module: nn.Module, rows: Tensor, clip: float) -> Tensor:
    """(P,) the sum of the rows' gradients, each clipped to ``clip``, as published: one by one out of the whole batch's losses."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    losses = module(rows)[:, 0]
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=rows.dtype)
    for loss in losses:
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters, retain_graph=True)])
        total += gradient * min(1.0, clip / (float(gradient.norm()) + 1e-12))
    return total


def clipped_sum_at_once(module: nn.Module, rows: Tensor, clip: float) -> Tensor:
    """``clipped_sum`` by one backward pass for all rows' losses."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    each = torch.autograd.grad(
        module(rows)[:, 0], parameters, torch.eye(len(rows), dtype=rows.dtype), is_grads_batched=True
    )
    gradients = torch.cat([one.flatten(1) for one in each], dim=1)
    shares: Tensor = (clip / (gradients.norm(dim=1) + 1e-12)).clamp(max=1.0)
    return shares @ gradients


def influence(module: nn.Module, rows: Tensor, clip: float) -> Tensor:
    """(n,) by how many times ``clip`` the batch's clipped sum moves where a row is left out.

    At most 1 where the module keeps rows apart. ``module`` is used in training mode; what it keeps of batches changes.
    """
    module.train()
    whole = clipped_sum_at_once(module, rows, clip)
    apart = [clipped_sum_at_once(module, torch.cat([rows[:i], rows[i + 1 :]]), clip) for i in range(len(rows))]
    return torch.stack([(whole - other).norm() for other in apart]) / clip
