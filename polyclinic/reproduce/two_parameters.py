"""Two of CVSim-6's parameters given patients' records: surrogate, flow posterior, and the exact posterior on a grid.

The protocol of Su, Wang, Schiavazzi and Liu 2023, Table 5: every patient is a noisy observation of one circulation whose
arterial compliance C_a and one resistance of the right ventricle are unknown and uniform on a box; eight outputs count, each
with the standard deviation that it has among the patients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.interpolate import RectBivariateSpline
from torch import Tensor

from polyclinic.inference.variational import Box, Posterior, posterior
from polyclinic.models.cvsim6 import BEATS, STEPS, TARGETS, measured, parameter, parameters
from polyclinic.models.surrogate import Surrogate, error, fit, sobol

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """C_a and a resistance, within ``width`` times the limits' width, centred at the defaults.

    resistance: "r_ro", out of the right ventricle, which the paper names; or "r_ri", into it, which its code varies.
    width: 1 as in the paper's equation 9; 2 as in its code.
    """

    resistance: str
    width: int

    @property
    def names(self) -> tuple[str, str]:
        return self.resistance, "c_a"

    def box(self) -> tuple[Tensor, Tensor]:
        """(2,) low and (2,) high, mmHg s/mL and mL/mmHg."""
        middle = torch.tensor([parameter(name).default for name in self.names], dtype=torch.float64)
        whole = [parameter(name).high - parameter(name).low for name in self.names]
        half = torch.tensor(whole, dtype=torch.float64) * self.width / 2
        return middle - half, middle + half

    def outputs(self, values: Tensor, beats: int = BEATS, steps: int = STEPS) -> Tensor:
        """(n, 8) ``TARGETS`` of (n, 2) values, everything else at its default."""
        return measured(parameters(dict(zip(self.names, values.T, strict=True))), TARGETS, beats, steps)


@dataclass(frozen=True)
class Fitted:
    """A surrogate and the largest error of each output at ``held_out`` new points, as a share of its range."""

    surrogate: Surrogate
    errors: list[float]


def fitted(pair: Pair, points: int = 100, held_out: int = 200, iterations: int = 3000, beats: int = BEATS) -> Fitted:
    """2-64-32-8 on Sobol points of the box, checked at uniform ones."""
    low, high = pair.box()
    inputs = sobol(low, high, points)
    surrogate = fit(inputs, pair.outputs(inputs, beats), low, high, iterations)
    fresh = sobol(low, high, held_out, seed=1)
    return Fitted(surrogate, error(surrogate, fresh, pair.outputs(fresh, beats)).tolist())


def log_likelihood(found: Tensor, records: Tensor) -> Tensor:
    """(n,) of outputs (n, 8) given records (m, 8), each with the standard deviation of its column, up to a constant.

    A sum over patients needs only their mean and number.
    """
    deviation = (found - records.mean(0)) / records.std(0)
    return -len(records) * deviation.square().sum(-1) / 2


def by_flow(pair: Pair, surrogate: Surrogate, records: Tensor, steps: int = 1500, seed: int = 0) -> Posterior:
    """The flow's posterior of the two parameters, uniform on the box before."""
    low, high = pair.box()
    return posterior(lambda z: log_likelihood(surrogate(z), records), Box(low, high), 2, steps, seed=seed)


@dataclass(frozen=True)
class Grid:
    """CVSim-6's own outputs between (points, points) runs: the exact posterior, but for interpolation."""

    low: Tensor
    high: Tensor
    fine: Tensor  # (finer * finer, 2)
    outputs: Tensor  # (finer * finer, 8)

    def moments(self, records: Tensor) -> tuple[Tensor, Tensor]:
        """(2,) mean and (2, 2) covariance of the posterior given records (m, 8)."""
        weights = torch.softmax(log_likelihood(self.outputs, records), 0)
        mean = weights @ self.fine
        centred = self.fine - mean
        return mean, (weights[:, None] * centred).T @ centred


def grid(pair: Pair, points: int = 33, finer: int = 301, beats: int = BEATS) -> Grid:
    """Runs of the model on a square grid of the box, and cubic splines between them."""
    low, high = pair.box()

    def square(n: int) -> tuple[list[Floats], Tensor]:
        lines = [torch.linspace(float(a), float(b), n, dtype=torch.float64) for a, b in zip(low, high, strict=True)]
        return [line.numpy() for line in lines], torch.cartesian_prod(*lines)

    coarse_axes, coarse = square(points)
    fine_axes, fine = square(finer)
    found = pair.outputs(coarse, beats).reshape(points, points, -1).numpy()
    splines = [RectBivariateSpline(*coarse_axes, found[:, :, i])(*fine_axes).ravel() for i in range(found.shape[2])]
    return Grid(low, high, fine, torch.from_numpy(np.stack(splines, 1)))
