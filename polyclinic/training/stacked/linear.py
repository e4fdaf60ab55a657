"""Sums of clipped per-patient gradients in closed form, without building one, of linear and masked layers and convolutions.

A linear layer's gradient for one row is the outer product of the loss' gradient at its output and its input. So its
norm is the product of theirs (Goodfellow 2015, arXiv:1510.01799). Neighbouring relation: add or remove one patient. The
norm of a patient with several rows comes from two small Gram matrices (Li et al. 2022, arXiv:2110.05679) where that is
cheaper than the sum of outer products itself. S sites, B rows, M patients, P parameters in ``named_parameters`` order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from polyclinic.errors import ConfigError
from polyclinic.training.local import Penalty
from polyclinic.training.losses import CROSS_ENTROPY, Loss
from polyclinic.training.stacked.batches import Batch
from polyclinic.training.stacked.clip_factors import clip_factors, clip_rows, longest_factor
from polyclinic.training.stacked.layers import FlowPlan, Masks, Plan
from polyclinic.training.stacked.propagation import factors_of
from polyclinic.training.stacked.rows import AT_ONCE, LayerRows, Part, row_norms


def linear_sums(
    layers: Plan, theta: Tensor, batch: Batch, max_norm: float | None, loss: Loss = CROSS_ENTROPY,
    masks: Masks | None = None, penalty: Penalty | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(S, P) sums over patients of their gradients, clipped to ``max_norm`` unless None, and (S,) summed losses.

    Losses (``training.losses``) are weighted; with a bound, a patient whose gradient is not finite counts as zero.

    Args:
        layers: The module's plan.
        theta: (S, P) parameters; with a batch of patients apart (1, P), and the sums are of the one hospital.
        batch: Some patients of each site.
        max_norm: The clipping norm of a patient's gradient; None does not clip.
        loss: A name of a loss, or an objective.
        masks: For the plan's dropout layers, if it has any.
        penalty: None; there is no closed form of one.

    Raises:
        ConfigError: There is a penalty.
    """
    if penalty is not None:
        raise ConfigError("The engine 'linear' has no closed form of a loss with a penalty; take 'functional'.")
    sums, losses = _sums(layers, theta, batch, max_norm, loss, masks)
    return (sums.mul_(layers.mask) if isinstance(layers, FlowPlan) else sums), losses


def _sums(
    layers: Plan, theta: Tensor, batch: Batch, max_norm: float | None, loss: Loss, masks: Masks | None
) -> tuple[Tensor, Tensor]:
    """As ``linear_sums``, and anything where a mask is 0."""
    parts, losses = factors_of(layers, theta, batch, loss, masks)
    if max_norm is not None and batch.apart:
        return _apart(parts, batch, theta, max_norm), losses.sum(0, keepdim=True)
    return clipped_sums(parts, theta, batch, max_norm), losses


def clipped_sums(parts: Sequence[Part], theta: Tensor, batch: Batch, max_norm: float | None) -> Tensor:
    """(S, P) sums over patients of their gradients, like ``theta``, clipped to ``max_norm`` unless None.

    Args:
        parts: What each layer leaves of a pass through the module.
        theta: (S, P) parameters.
        batch: The patients of the rows.
        max_norm: The clipping norm of a patient's gradient; None does not clip.
    """
    if max_norm is None:
        return _products(parts, None, theta)
    rows, longest = row_norms(parts)
    norms = _one_row_norms(parts, rows) if batch.one_row else patient_norms(parts, rows, batch)
    factors = clip_factors(norms, max_norm, theta.dtype)
    if bool(longest.amax() < longest_factor(max_norm, theta.dtype)) and bool(
        torch.isfinite(rows + norms.sum(1, keepdim=True)).all()
    ):
        return _products(parts, _of_rows(factors, batch), theta)
    doubtful = ~torch.isfinite(rows) | (longest >= longest_factor(max_norm, theta.dtype))
    if not batch.one_row:
        of_patient = (~torch.isfinite(norms)).long().scatter_add_(1, batch.member, doubtful.long())
        doubtful = of_patient.gather(1, batch.member) > 0
    return _safe_sums(parts, doubtful, factors, batch, theta, max_norm)


def _apart(parts: Sequence[LayerRows], batch: Batch, theta: Tensor, max_norm: float) -> Tensor:
    """(1, P) sum of the contributions of patients apart, each the same bit for bit whoever the others are.

    Where several rows, or positions of a picture, add up to a patient's gradient it is built: their terms may cancel, and must
    do so before others' are added.
    """
    built = torch.ones(len(batch.x), dtype=torch.bool)
    total = torch.zeros_like(theta)
    if batch.one_row and not any(part.positions for part in parts):
        norms, longest = row_norms(parts, apart=True)
        doubtful = ~torch.isfinite(norms) | (longest >= longest_factor(max_norm, theta.dtype))
        some = [LayerRows(p.layer, p.input.transpose(0, 1), p.output.transpose(0, 1)) for p in parts]
        certain = [part.without(doubtful.mT) for part in some] if bool(doubtful.any()) else some
        total, built = _products(certain, clip_factors(norms, max_norm, theta.dtype).mT, theta), doubtful[:, 0]
    if bool(built.any()):
        gradients = torch.zeros(len(batch.x), theta.shape[1], dtype=theta.dtype)
        for part in parts:
            part.build_apart(gradients)
        rows, factors = clip_rows(gradients, max_norm)
        total = total + (factors * built) @ rows
    return total


def _safe_sums(
    parts: Sequence[Part], doubtful: Tensor, factors: Tensor, batch: Batch, theta: Tensor, max_norm: float
) -> Tensor:  # fmt: skip
    """The sums where some patients' norms overflow or are not to be trusted, ``doubtful`` (S, B): theirs are built instead."""
    total = _products([part.without(doubtful) for part in parts], _of_rows(factors, batch), theta)
    site, column = torch.nonzero(doubtful & (batch.weight > 0), as_tuple=True)
    patient, inverse = torch.unique(torch.stack([site, batch.member[site, column]]), dim=1, return_inverse=True)
    at_once = max(1, AT_ONCE // theta.shape[1])
    for begin in range(0, patient.shape[1], at_once):
        some = (inverse >= begin) & (inverse < begin + at_once)
        built = torch.zeros(min(at_once, patient.shape[1] - begin), theta.shape[1], dtype=theta.dtype)
        for row in some.nonzero()[:, 0].split(at_once):
            gradients = torch.zeros(len(row), theta.shape[1], dtype=theta.dtype)
            for part in parts:
                part.build(gradients, site[row], column[row])
            built.index_add_(0, inverse[row] - begin, gradients)
        built, scale = clip_rows(built, max_norm)
        total.index_add_(0, patient[0, begin : begin + at_once], built * scale[:, None])
    return total


def _of_rows(factors: Tensor, batch: Batch) -> Tensor:
    """(S, B) factors of the rows from those of their patients."""
    return factors if batch.one_row else factors.gather(1, batch.member)


def _products(parts: Sequence[Part], factors: Tensor | None, theta: Tensor) -> Tensor:
    total = torch.empty_like(theta)
    for part in parts:
        part.add(total, factors)
    return total


def _one_row_norms(parts: Sequence[Part], rows: Tensor) -> Tensor:
    """(S, B) norms of the rows' gradients, with what rounding may hide where positions cancel; ``rows``: the same, or more."""
    if not any(part.positions for part in parts):
        return rows
    squares = torch.zeros_like(rows)
    for part in parts:
        squares = squares + part.together().view_as(rows) if part.positions else part.norms(squares)[0]
    return squares.to(rows.dtype).clamp_(min=0).sqrt_() + 64 * torch.finfo(rows.dtype).eps * rows


def patient_norms(parts: Sequence[Part], rows: Tensor, batch: Batch) -> Tensor:
    """(S, M + 1) norms of the patients' gradients, in the dtype of ``rows``; the last column, of padding, is 0.

    What rounding may hide where a patient's rows cancel is added to the norm.

    Args:
        parts: What each layer leaves of a pass through the module.
        rows: (S, B) norms of the rows' gradients, or more.
        batch: The patients of the rows.
    """
    sites, width = batch.weight.shape
    slots = batch.patients + 1
    dtype = rows.dtype
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
            mask = torch.from_numpy(inside).to(patient.device)
            squares[torch.from_numpy(some).to(patient.device)] = (
                torch.stack([part.together(index, mask) for part in parts]).sum(0).to(dtype)
            )
    together = torch.zeros(sites * slots, dtype=dtype).index_add_(0, patient, rows.flatten())
    norms = squares.clamp_(min=0).sqrt_() + 64 * torch.finfo(dtype).eps * together
    norms[slots - 1 :: slots] = 0
    return norms.view(sites, slots)
