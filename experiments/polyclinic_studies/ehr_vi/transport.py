"""Losses of optimal transport for variational inference: a spread that is too wide does not change the correlations.

Su, Wang, Schiavazzi and Liu 2023 find that noise for privacy widens a posterior and so moves its correlations, and name a
Wasserstein distance as the way out. Of all laws with given marginals, the one nearest to a target in the 2-Wasserstein
distance has the target's own copula, for a map that acts coordinate by coordinate and rises is optimal (Alfonsi and
Jourdain 2014): with Gaussians its correlations stay, whatever factor each standard deviation is off by. The distance needs the
target itself and not a density up to a constant, so the target is what was released about the records (``gauss_newton``, or
draws): what is done here costs no privacy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polyclinic.errors import ConfigError, nearest
from polyclinic.inference.likelihood import Gaussian
from polyclinic_studies.ehr_vi.dissimilarities import DISSIMILARITIES, wasserstein_squared
from polyclinic_studies.flows.variational import Loss

_STEPS, _STARTS = 200, 3


def gelbrich(mean: Tensor, covariance: Tensor, target: Gaussian) -> Tensor:
    """(...) the squared 2-Wasserstein distance of Gaussians, (..., k) and (..., k, k), from ``target``.

    Of other laws with these moments it is the least that the distance can be (Gelbrich 1990). Differentiable.
    """
    centre, spread = torch.from_numpy(target.mean), torch.from_numpy(target.covariance)
    value: Tensor = (mean - centre).square().sum(-1) + wasserstein_squared(covariance, spread)
    return value


def held(target: Tensor, deviations: Tensor, name: str = "wasserstein") -> Tensor:
    """(k, k) covariance with the standard deviations (k,) ``deviations`` that is least dissimilar to ``target`` (k, k).

    name: of ``DISSIMILARITIES``. Wasserstein's is in closed form: the target's correlations. The others are minimised from
    several starts; l1 is for k = 2.
    Raises ConfigError for an unknown name, deviations that are not positive, or l1 in more dimensions.
    """
    k = len(target)
    if name not in DISSIMILARITIES:
        raise ConfigError(
            f"dissimilarity must be one of {', '.join(DISSIMILARITIES)}, got {name!r}.{nearest(name, DISSIMILARITIES)}"
        )
    if deviations.shape != (k,) or not bool((deviations > 0).all()):
        raise ConfigError(f"deviations must be {k} positive numbers, got {deviations.tolist()}.")
    if name == "l1" and k != 2:
        raise ConfigError(f"dissimilarity 'l1' is for 2 parameters, got {k}.")
    spread = target.diag().sqrt()
    correlations = target / spread[:, None] / spread
    if name == "wasserstein":
        return deviations[:, None] * correlations * deviations
    root = torch.linalg.cholesky(correlations)
    starts = [torch.lerp(torch.eye(k, dtype=target.dtype), root, share) for share in torch.linspace(0.1, 1, _STARTS)]
    found = [_descend(name, start, target, deviations) for start in starts]
    return min(found, key=lambda one: one[0])[1]


def _descend(name: str, start: Tensor, target: Tensor, deviations: Tensor) -> tuple[float, Tensor]:
    """The least dissimilarity from ``start``, the rows of a triangular root of a correlation, and its covariance."""
    free = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([free], max_iter=_STEPS, line_search_fn="strong_wolfe", tolerance_change=1e-12)

    def covariance() -> Tensor:
        rows = torch.nn.functional.normalize(free.tril(), dim=1) * deviations[:, None]
        return rows @ rows.T

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = DISSIMILARITIES[name](covariance(), target)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        found = covariance()
        return float(DISSIMILARITIES[name](found, target)), found


def sliced(draws: Tensor, target: Gaussian | Tensor, directions: Tensor) -> Tensor:
    """The squared distance of (n, k) draws from a Gaussian or from other draws (m, k), along (p, k) unit ``directions``, mean
    over these: the sliced 2-Wasserstein distance (Bonneel, Rabin, Peyre and Pfister 2015). Differentiable in the draws.
    """
    levels = (torch.arange(len(draws), dtype=draws.dtype) + 0.5) / len(draws)
    if isinstance(target, Gaussian):
        mean, spread = torch.from_numpy(target.mean), torch.from_numpy(target.covariance)
        along = torch.einsum("pi,ij,pj->p", directions, spread, directions).sqrt()
        wanted = directions @ mean + torch.special.ndtri(levels)[:, None] * along
    else:
        wanted = torch.quantile(target @ directions.T, levels, dim=0)
    value: Tensor = ((draws @ directions.T).sort(dim=0).values - wanted).square().mean()
    return value


def sliced_loss(target: Gaussian | Tensor, frames: int = 16, seed: int = 0) -> Loss:
    """``sliced`` as a loss of ``fit_flow``, over the target's standard deviations, along fresh frames of k directions that are
    at right angles: of a spread held at one multiple of the target's, each frame by itself then has its least value at the
    target's correlations. At multiples that differ between parameters they stay nearly (``held`` keeps them exactly).

    Raises ConfigError for less than one frame.
    """
    if frames < 1:
        raise ConfigError(f"frames must be at least 1, got {frames}.")
    if isinstance(target, Gaussian):
        spread = torch.from_numpy(target.deviations)
        unit: Gaussian | Tensor = Gaussian(
            target.mean / target.deviations, target.covariance / target.deviations[:, None] / target.deviations
        )
    else:
        spread = target.std(0)
        unit = target / spread
    source = torch.Generator()
    source.manual_seed(seed)

    def loss(draws: Tensor, log_density: Tensor) -> Tensor:
        drawn = torch.empty(frames, len(spread), len(spread), dtype=draws.dtype).normal_(generator=source)
        return sliced(draws / spread, unit, torch.linalg.qr(drawn)[0].flatten(0, 1))

    return loss
