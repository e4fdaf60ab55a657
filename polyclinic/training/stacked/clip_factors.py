"""Clip factors for many patients at once, in the module's own dtype.

Neighbouring relation: add or remove one patient. A factor leaves a margin for rounding, so that no patient's
contribution, as computed, is longer than ``max_norm``. Abadi et al. 2016, Algorithm 1; the 1e-6 next to the norm is
Opacus'.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def clip_factors(norms: Tensor, max_norm: float, dtype: torch.dtype) -> Tensor:
    """max_norm / (norm + 1e-6), at most 1, less 64 roundings of ``dtype``; the shape of ``norms``, in ``dtype``.

    A norm that is not finite gets 0, and so does one so long that its factor would lose digits to underflow.

    Args:
        norms: The norms of patients' gradients, of any shape.
        max_norm: The clipping norm.
        dtype: Of the gradients that the factors are multiplied with.

    Raises:
        ValueError: ``max_norm`` is not positive and finite.
    """
    if not (math.isfinite(max_norm) and max_norm > 0):
        raise ValueError(f"max_norm must be positive and finite, got {max_norm}.")
    factors = (max_norm / (norms + 1e-6)).clamp_(max=1.0).mul_(1.0 - 64 * torch.finfo(dtype).eps)
    return torch.where(torch.isfinite(norms) & (factors >= torch.finfo(dtype).tiny), factors, 0.0).to(dtype)


def clip_rows(per_patient: Tensor, max_norm: float) -> tuple[Tensor, Tensor]:
    """(..., P) gradients, zero where one is not finite or its square overflows float64, and their (...) clip factors."""
    info = torch.finfo(per_patient.dtype)
    norms = per_patient.square().sum(-1).sqrt_()
    narrow = per_patient.dtype != torch.float64
    if narrow and (max_norm**2 * info.eps < per_patient.shape[-1] * info.tiny or not bool(torch.isfinite(norms).all())):
        # In float64 fewer squares overflow or vanish; it is several times slower.
        norms = torch.linalg.vector_norm(per_patient, dim=-1, dtype=torch.float64)
    factors = clip_factors(norms, max_norm, per_patient.dtype)
    finite = torch.isfinite(norms)
    if not bool(finite.all()):
        per_patient = torch.where(finite[..., None], per_patient, 0.0)
    return per_patient, factors


def longest_factor(max_norm: float, dtype: torch.dtype) -> float:
    """How long a layer's input may be for the closed form |input| |output gradient| to be trusted in ``dtype``.

    Beyond it, what underflows in the gradient could be worth more than a rounding of ``max_norm``.
    """
    info = torch.finfo(dtype)
    smallest = info.tiny * info.eps
    return max_norm * math.sqrt(info.eps / smallest / 2**20)
