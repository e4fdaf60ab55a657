"""Norms of the gradients of patients who have several rows, or pictures, for stacked linear layers and convolutions.

A patient's gradient is a sum of outer products, one for each row. Its norm comes from two small Gram matrices
(Li et al. 2022, arXiv:2110.05679) where that is cheaper than the sum itself. S sites, B rows, M patients.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from polyclinic.training.stacked.affine import LayerRows
from polyclinic.training.stacked.batches import Batch
from polyclinic.training.stacked.flows import Masked

AT_ONCE = 1 << 24  # numbers in gradients built at once, where they have to be


def patient_norms(parts: Sequence[LayerRows], rows: Tensor, batch: Batch) -> Tensor:
    """(S, M + 1) norms of the patients' gradients, in the dtype of ``rows``; the last column, of padding, is 0.

    rows: (S, B) norms of the rows' gradients, or more. What rounding may hide where a patient's rows cancel is added to the norm.
    """
    sites, width = batch.weight.shape
    slots = batch.patients + 1
    dtype = batch.weight.dtype
    patient = (batch.member + torch.arange(sites)[:, None] * slots).flatten()
    order = np.argsort(patient.cpu().numpy(), kind="stable")
    counts = np.bincount(patient.cpu().numpy(), minlength=sites * slots)
    first = np.cumsum(counts) - counts
    counts[slots - 1 :: slots] = 0
    squares = torch.zeros(sites * slots, dtype=dtype)
    # Patients with similar numbers of rows together, so that padding at most doubles the work.
    power = np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64)
    for exponent in np.unique(power[counts > 0]):
        chosen = np.flatnonzero((power == exponent) & (counts > 0))
        at_once = max(1, sites * width >> int(exponent))
        for some in np.split(chosen, range(at_once, len(chosen), at_once)):
            inside = np.arange(1 << int(exponent)) < counts[some, None]
            place = np.where(inside, first[some, None] + np.arange(1 << int(exponent)), 0)
            index = torch.from_numpy(order[place]).to(patient.device)
            mask = torch.from_numpy(inside)[..., None].to(patient.device)
            squares[torch.from_numpy(some).to(patient.device)] = (
                torch.stack([_squares(p, index, mask) for p in parts]).sum(0).to(dtype)
            )
    together = torch.zeros(sites * slots, dtype=dtype).index_add_(0, patient, rows.flatten())
    norms = squares.clamp_(min=0).sqrt_() + 64 * torch.finfo(dtype).eps * together
    norms[slots - 1 :: slots] = 0
    return norms.view(sites, slots)


def _squares(part: LayerRows, index: Tensor, mask: Tensor) -> Tensor:
    """(K,) squared norms of the layer's gradients summed over each patient's rows: index (K, R), mask (K, R, 1)."""
    there = mask.view(*mask.shape, *[1] * (part.input.dim() - 3))
    # Padding points at some other patient's row, and 0 * inf is NaN: both factors are masked.
    a, g = (
        torch.where(there, value.flatten(0, 1)[index], 0.0).flatten(1, -2) for value in (part.input, part.output)
    )  # positions of a convolution are like more rows
    layer = part.layer
    gram_is_cheaper = 2 * a.shape[1] * (layer.inputs + layer.outputs) < layer.inputs * layer.outputs
    # In float64, for a Gram matrix squares what cancels; a float64 module has no wider type, so there the sum is built.
    weights = layer.mask if isinstance(layer, Masked) else None
    if weights is None and gram_is_cheaper and a.dtype != torch.float64:
        a, g = a.double(), g.double()
        grams = torch.bmm(a, a.mT)
        return (torch.bmm(g, g.mT) * (grams + 1 if layer.bias else grams)).sum((1, 2))
    at_once = max(1, AT_ONCE // (layer.inputs * layer.outputs))
    built = (
        torch.bmm(some.mT, inputs)
        for some, inputs in zip(torch.split(g, at_once), torch.split(a, at_once), strict=True)
    )
    squares = torch.cat([(one if weights is None else one * weights).square().sum((1, 2)) for one in built])
    return squares + g.sum(1).square().sum(1) if layer.bias else squares
