"""The subsampled Gaussian mechanism in its three parts: Poisson sample, clipped sum, noise.

A clipped sum carries its own sensitivity, and the noise takes it from there. Accounting is elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyclinic.privacy.streams import Stream
from polyclinic.types import Bools, Reals


@dataclass(frozen=True)
class ClippedSum:
    """``total``: (P,) sum; ``sensitivity``: most that adding or removing one patient moves it in L2.

    Examples:
        >>> clipped = clipped_sum(torch.tensor([[3.0, 4.0]]), max_norm=1.0)
        >>> clipped.total.round(decimals=3).tolist(), clipped.sensitivity
        ([0.6, 0.8], 1.0)
    """

    total: Tensor
    sensitivity: float


def poisson_samples(n: int, sample_rate: float, steps: int, stream: Stream) -> Bools:
    """(steps, n): each of ``n`` taken in each step independently with probability ``sample_rate``; a step may be empty.

    An empty sample is a step like any other: it gets its noise and is charged.

    Args:
        n: Number of patients.
        sample_rate: In (0, 1].
        steps: Number of steps.
        stream: Draws the samples.

    Raises:
        ValueError: if ``sample_rate`` is outside (0, 1].

    Examples:
        >>> from polyclinic.privacy.streams import keyed_stream
        >>> samples = poisson_samples(n=1000, sample_rate=0.1, steps=3, stream=keyed_stream(0, "samples"))
        >>> samples.shape, samples.sum(axis=1).tolist()
        ((3, 1000), [95, 106, 112])
    """
    if not 0 < sample_rate <= 1:
        raise ValueError(f"sample_rate must lie in (0, 1], got {sample_rate}.")
    return np.asarray(stream.uniform((steps, n)) < sample_rate)


def clipped_sum(per_example: Tensor, max_norm: float) -> ClippedSum:
    """Sum of rows scaled to L2 norm at most ``max_norm``.

    per_example: (B, P) float, one row per patient (a patient's records already combined); B may be 0; rows with a
    non-finite entry count as zero.
    Returns the (P,) float64 sum and its sensitivity: ``max_norm`` when one patient is added or removed. Replacing one moves it
    by up to twice that; the accountant's "replace-one" relation allows for it.
    Raises ValueError if ``max_norm`` is not positive and finite, or the rows are not a matrix.
    Abadi et al. 2016, Algorithm 1; the 1e-6 next to the norm is Opacus'. A margin of 64 roundings keeps a row, as computed,
    within the norm.

    Examples:
        >>> patients = torch.tensor([[3.0, 4.0], [0.3, 0.4], [float("nan"), 0.0]])
        >>> clipped_sum(patients, max_norm=1.0).total.round(decimals=3).tolist()
        [0.9, 1.2]
    """
    if not (math.isfinite(max_norm) and max_norm > 0):
        raise ValueError(f"max_norm must be positive and finite, got {max_norm}.")
    if per_example.ndim != 2:
        raise ValueError(f"per_example must have shape (B, P), got {tuple(per_example.shape)}.")
    rows = torch.where(torch.isfinite(per_example).all(dim=1, keepdim=True), per_example, 0.0)
    # float64, for the square of a large float32 is infinite.
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    scale = (max_norm * (1.0 - 64 * torch.finfo(torch.float64).eps) / (norms + 1e-6)).clamp(max=1.0)
    # The sum stays float64: a scale rounded to float32 can leave a row longer than the bound.
    return ClippedSum(scale @ rows.double(), float(max_norm))


def privatise(clipped: ClippedSum, noise_multiplier: float, draws: Reals) -> Tensor:
    """The sum plus ``draws`` times noise_multiplier * sensitivity, in the sum's dtype.

    Args:
        clipped: A (P,) clipped sum with its sensitivity.
        noise_multiplier: Standard deviation of the noise over the sensitivity. 0 adds nothing and is not private.
        draws: (P,), a row of ``Stream.normal``: accounted as one Gaussian event of ``noise_multiplier``; or of a noise
            process, accounted by its own event.

    Raises:
        ValueError: if ``noise_multiplier`` is negative or not finite, or the sum is not of a floating type.

    Examples:
        >>> clipped = ClippedSum(torch.tensor([2.0, 1.0]), sensitivity=0.5)
        >>> privatise(clipped, noise_multiplier=2.0, draws=np.array([1.0, -1.0])).tolist()
        [3.0, 0.0]
    """
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0):
        raise ValueError(f"noise_multiplier must be finite and at least 0, got {noise_multiplier}.")
    if not clipped.total.is_floating_point():
        raise ValueError(f"Only floating point sums can be privatised, got {clipped.total.dtype}.")
    noise = torch.from_numpy(draws).double().to(clipped.total.device)
    return (clipped.total.double() + noise * (noise_multiplier * clipped.sensitivity)).to(clipped.total.dtype)
