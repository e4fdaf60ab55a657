"""The nonlinear regression of Su, Wang, Schiavazzi and Liu 2023, equations (11) to (13), and its posterior without privacy.

Five measurements of y in each record share a random effect:
y_ij = b0 + exp(b1 x1) + log(x2 + exp(b2)) + b3 exp(x3) + log(x4 + exp(b4)) + u_i + e_ij, u and e normal. Their equation (12)
prints b3 inside the exponent; their data and Table 6 have it outside, as here.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from polyclinic.errors import DataError
from polyclinic.inference.likelihood import Gaussian, Likelihood, Regression
from polyclinic.privacy.streams import generator
from polyclinic.types import Floats

TRUTH = (0.2, 1.0, 0.8, -1.2, 0.6)
RECORDS, MEASUREMENTS = 6000, 5
SHARED, OWN = 0.2, 0.2  # standard deviations of u and of e
_WIDTHS = (1.0, 3.0, 0.5, 2.0)


class PaperRegression(Regression):
    """The model of a record's covariates and mean measurement, which is sufficient for the parameters: (n, 5)."""

    names = ("beta0", "beta1", "beta2", "beta3", "beta4")
    columns = ("x1", "x2", "x3", "x4", "y")
    deviation = float(np.sqrt(SHARED**2 + OWN**2 / MEASUREMENTS))

    def mean(self, parameters: Tensor, records: Tensor) -> Tensor:
        b0, b1, b2, b3, b4 = parameters.T[:, :, None]
        x1, x2, x3, x4 = records[:, :4].T
        found: Tensor = b0 + (x1 * b1).exp() + (x2 + b2.exp()).log() + b3 * x3.exp() + (x4 + b4.exp()).log()
        return found

    def slopes(self, parameters: Tensor, records: Tensor) -> Tensor:
        _, b1, b2, _, b4 = parameters
        x1, x2, x3, x4 = records[:, :4].T
        inside2, inside4 = b2.exp(), b4.exp()
        found = (
            torch.ones_like(x1),
            x1 * (x1 * b1).exp(),
            inside2 / (x2 + inside2),
            x3.exp(),
            inside4 / (x4 + inside4),
        )
        return torch.stack(found, 1)


def measurements(seed: int, records: int = RECORDS) -> Floats:
    """(records, 9) made-up x1 to x4, uniform on boxes as in the paper's generator, and five measurements of y each."""
    rng = generator(seed, "regression")
    x = rng.uniform(size=(records, 4)) * _WIDTHS
    model = PaperRegression()
    centre = model.mean(torch.tensor([TRUTH], dtype=torch.float64), torch.from_numpy(x))[0].numpy()
    shared = SHARED * rng.standard_normal((records, 1))
    y = centre[:, None] + shared + OWN * rng.standard_normal((records, MEASUREMENTS))
    return np.concatenate([x, y], axis=1)


def records_of(table: Floats) -> Tensor:
    """(n, 5) records of (n, 9) measurements. Raises DataError for another shape or numbers that are not finite."""
    if table.ndim != 2 or table.shape[1] != 4 + MEASUREMENTS or not np.isfinite(table).all():
        raise DataError(f"Measurements must be finite and (records, {4 + MEASUREMENTS}), got shape {table.shape}.")
    return torch.from_numpy(np.concatenate([table[:, :4], table[:, 4:].mean(1, keepdims=True)], axis=1))


def maximum_likelihood(likelihood: Likelihood, records: Tensor, start: Tensor, steps: int = 50) -> Gaussian:
    """The maximum by scoring steps from (k,) ``start``, and the inverse information there (for a regression, GLS). Not private.

    Raises DataError where the steps do not settle or the records do not tell the parameters.
    """
    estimate = start.double()
    for _ in range(steps):
        total = likelihood.information(estimate, records).sum(0)
        try:
            step = torch.linalg.solve(total, likelihood.score(estimate, records).sum(0))
        except RuntimeError:  # singular
            break
        estimate = estimate + step
        if not bool(torch.isfinite(estimate).all()):
            break
        if float(step.abs().max()) < 1e-10:
            return Gaussian(estimate.numpy(), torch.linalg.inv(total).numpy())
    raise DataError(f"The likelihood's maximum was not found in {steps} steps: other records or another start may do.")


def exact(
    likelihood: Likelihood, records: Tensor, laplace: Gaussian, draws: int = 4000, seed: int = 0
) -> tuple[Gaussian, float]:
    """The posterior under a flat prior by importance sampling, and the effective share of the draws; not private.

    Draws are of ``laplace`` with Student's tails (5 degrees of freedom), so that weights are bounded where it is near.
    """
    rng = generator(seed, "exact")
    k, freedom = len(laplace.mean), 5
    z = rng.standard_normal((draws, k)) / np.sqrt(rng.chisquare(freedom, (draws, 1)) / freedom)
    points = laplace.mean + z @ np.linalg.cholesky(laplace.covariance).T
    log_draw = -(freedom + k) / 2 * np.log1p((z**2).sum(1) / freedom)
    pieces = torch.split(torch.from_numpy(points), max(1, 2_000_000 // len(records)))
    log_target = np.concatenate([likelihood.log_density(piece, records).sum(1).numpy() for piece in pieces])
    log_weight = log_target - log_draw
    weights = np.exp(log_weight - log_weight.max())
    weights /= weights.sum()
    mean = weights @ points
    centred = points - mean
    return Gaussian(mean, (weights[:, None] * centred).T @ centred), float(1 / (weights**2).sum() / draws)
