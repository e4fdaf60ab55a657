"""Four dissimilarities between centred Gaussians, and the correlation that each asks for where the spread is wrong.

Su, Wang, Schiavazzi and Liu 2023, Figure 4: the target is bivariate with standard deviation 1 and correlation rho0, the
approximation has the standard deviation ``ratio``, which noise for privacy inflates, and a free correlation. Covariances
are (..., 2, 2); the target comes second.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from polyclinic.errors import ConfigError, nearest
from polyclinic.types import Floats

Dissimilarity = Callable[[Tensor, Tensor], Tensor]
_ANGLES = 240


def kl(found: Tensor, target: Tensor) -> Tensor:
    """KL(found || target), (...): what variational inference minimises."""
    trace = torch.linalg.solve(target, found).diagonal(dim1=-2, dim2=-1).sum(-1)
    dimension = found.shape[-1]
    value: Tensor = (trace - dimension + torch.logdet(target) - torch.logdet(found)) / 2
    return value


def reverse_kl(found: Tensor, target: Tensor) -> Tensor:
    """KL(target || found), (...): what maximum likelihood minimises."""
    return kl(target, found)


def wasserstein_squared(found: Tensor, target: Tensor) -> Tensor:
    """The squared 2-Wasserstein distance, (...): tr S + tr T - 2 tr (T^1/2 S T^1/2)^1/2 (Dowson and Landau 1982).

    The paper's "W2" is this square, which has the same minimum.
    """
    values, vectors = torch.linalg.eigh(target)
    root = (vectors * values.sqrt()[..., None, :]) @ vectors.mT
    between = torch.linalg.eigvalsh(root @ found @ root).clamp(min=0).sqrt().sum(-1)
    value: Tensor = found.diagonal(dim1=-2, dim2=-1).sum(-1) + target.diagonal(dim1=-2, dim2=-1).sum(-1) - 2 * between
    return value


def l1(found: Tensor, target: Tensor) -> Tensor:
    """The integral of the densities' absolute difference, (...), in two dimensions: 0 to 2.

    Along a ray both densities are exponentials of the squared radius, which cross once: the radial integral is exact, and
    the angles' is a periodic sum of 240 terms.
    """
    angle = torch.arange(_ANGLES, dtype=found.dtype) * (math.pi / _ANGLES)  # the other half is the same
    ray = torch.stack((angle.cos(), angle.sin()), -1)

    def along(covariance: Tensor) -> tuple[Tensor, Tensor]:
        decay = torch.einsum("ai,...ij,aj->...a", ray, torch.linalg.inv(covariance), ray)
        return decay, (torch.linalg.det(covariance).rsqrt() / (2 * math.pi))[..., None]

    (fast, high), (slow, low) = along(found), along(target)
    gap = torch.where((fast - slow).abs() < 1e-12, 1e-12, fast - slow)
    crossing = ((high / low).log() / gap).clamp(min=0, max=1e6)
    before = high / fast - low / slow  # of the difference, from the centre on
    after = high / fast * (-fast * crossing).exp() - low / slow * (-slow * crossing).exp()
    return ((before - after).abs() + after.abs()).mean(-1) * 2 * math.pi


DISSIMILARITIES: dict[str, Dissimilarity] = {
    "kl": kl, "reverse-kl": reverse_kl, "l1": l1, "wasserstein": wasserstein_squared,
}  # fmt: skip


def covariance(deviation: Tensor, correlation: Tensor) -> Tensor:
    """(..., 2, 2) of equal standard deviations (...) and correlations (...)."""
    one = torch.ones_like(correlation)
    return deviation[..., None, None] ** 2 * torch.stack(
        (torch.stack((one, correlation), -1), torch.stack((correlation, one), -1)), -2
    )


def best_correlation(name: str, ratio: float, rho0: float) -> float:
    """The correlation with the least dissimilarity at standard deviations ``ratio`` times the target's; the positive of two.

    Wasserstein: rho0 itself. KL: rho / (1 - rho^2) = s rho0 / (1 - rho0^2) with s = ratio^2. Reverse KL: the root of
    s rho^3 - rho0 rho^2 + (2 - s) rho - rho0 with the least value. l1: a minimum on the line, to 1e-7.
    Raises ConfigError for an unknown name, a ratio that is not positive or a rho0 outside [0, 1).
    """
    if name not in DISSIMILARITIES:
        raise ConfigError(
            f"dissimilarity must be one of {', '.join(DISSIMILARITIES)}, got {name!r}.{nearest(name, DISSIMILARITIES)}"
        )
    if not (ratio > 0 and 0 <= rho0 < 1):
        raise ConfigError(f"ratio must be positive and rho0 in [0, 1), got {ratio} and {rho0}.")
    s = ratio**2
    if name == "wasserstein":
        return rho0
    if name == "kl":
        asked = s * rho0 / (1 - rho0**2)
        return 2 * asked / (1 + math.sqrt(1 + 4 * asked**2))

    target = covariance(torch.ones(1, dtype=torch.float64), torch.tensor([rho0], dtype=torch.float64))

    def values(rho: Floats) -> Floats:
        correlation = torch.from_numpy(np.atleast_1d(rho).astype(np.float64))
        found: Floats = DISSIMILARITIES[name](
            covariance(torch.full_like(correlation, ratio), correlation), target
        ).numpy()
        return found

    if name == "reverse-kl":
        roots = np.roots([s, -rho0, 2 - s, -rho0])
        real = np.array([root.real for root in roots if abs(root.imag) < 1e-9 and -1e-9 <= root.real < 1])
        return float(real[np.argmin(values(real))])
    line = np.linspace(0, 0.999, 101)
    near = int(np.argmin(values(line)))
    between = (float(line[max(near - 1, 0)]), float(line[min(near + 1, 100)]))
    found = optimize.minimize_scalar(
        lambda rho: values(rho)[0], bounds=between, method="bounded", options={"xatol": 1e-7}
    )
    return float(found.x)


def descend(name: str, ratio: Tensor, rho0: Tensor, start: float = 0.1, steps: int = 300, rate: float = 0.08) -> Tensor:
    """The correlations (n,) that gradient descent (Adam) on the dissimilarity finds, for ratios (n,) and rho0 (n,)."""
    free = torch.full_like(rho0, math.atanh(start)).requires_grad_()
    target = covariance(torch.ones_like(rho0), rho0)
    optimizer = torch.optim.Adam([free], lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        DISSIMILARITIES[name](covariance(ratio, torch.tanh(free)), target).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return torch.tanh(free).detach()
