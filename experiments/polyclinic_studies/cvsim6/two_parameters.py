"""Two of CVSim-6's parameters given patients' records: surrogate, flow posterior, and the exact posterior on a grid.

The protocol of Su, Wang, Schiavazzi and Liu 2023, Table 5: every patient is a noisy observation of one circulation whose
arterial compliance C_a and one resistance of the right ventricle are unknown and uniform on a box; eight outputs count, each
with the standard deviation that it has among the patients. Cells that are NaN were not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.interpolate import RectBivariateSpline
from torch import Tensor

from polyclinic.types import Floats
from polyclinic_studies.cvsim6 import BEATS, DYNES, STEPS, TARGETS, measured, parameter, parameters
from polyclinic_studies.cvsim6.surrogate import Surrogate, error, fit, sobol
from polyclinic_studies.flows.variational import Box, Posterior, posterior

#: Of a resistance and a compliance, from mmHg s/mL and mL/mmHg to dyn s/cm^5 and 1e-4 cm^5/dyn, as Table 5 has them.
UNITS = torch.tensor([DYNES, 1e4 / DYNES], dtype=torch.float64)


@dataclass(frozen=True)
class Pair:
    """C_a and a resistance, within ``width`` times the limits' width, centred at the defaults.

    resistance: "r_ro", out of the right ventricle, which the paper names; or "r_ri", into it, which its code varies.
    width: 1 as in the paper's equation 9; 2 as in its code.  others: parameters that are not at their defaults, by name.
    """

    resistance: str
    width: int
    others: Mapping[str, float] = field(default_factory=dict)

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
        """(n, 8) ``TARGETS`` of (n, 2) values, everything else as ``others`` say or at its default."""
        return measured(
            parameters(dict(self.others) | dict(zip(self.names, values.T, strict=True))), TARGETS, beats, steps
        )


@dataclass(frozen=True)
class Fitted:
    """A surrogate and the largest error of each output at ``held_out`` new points, as a share of its range."""

    surrogate: Surrogate
    errors: list[float]


def fitted(
    pair: Pair, points: int = 100, held_out: int = 200, iterations: int = 3000, beats: int = BEATS, seed: int = 0
) -> Fitted:
    """2-64-32-8 on Sobol points of the box, checked at others; ``seed``: of both, and of the network's first weights."""
    low, high = pair.box()
    inputs = sobol(low, high, points, seed)
    surrogate = fit(inputs, pair.outputs(inputs, beats), low, high, iterations, seed=seed)
    fresh = sobol(low, high, held_out, seed + 1)
    return Fitted(surrogate, error(surrogate, fresh, pair.outputs(fresh, beats)).tolist())


def log_likelihood(found: Tensor, records: Tensor, spread: Tensor | None = None) -> Tensor:
    """(n,) of outputs (n, 8) given records (m, 8), up to a constant. spread: (8,) standard deviations; None takes
    those of the columns.

    A sum over patients needs only the columns' means and numbers.
    """
    there = (~records.isnan()).sum(0)
    deviation = (found - records.nanmean(0)) / (deviations(records) if spread is None else spread)
    return -(there * deviation.square()).sum(-1) / 2


def deviations(records: Tensor) -> Tensor:
    """(8,) sample standard deviations of the cells of (m, 8) that are there."""
    there = (~records.isnan()).sum(0)
    return ((records - records.nanmean(0)).square().nansum(0) / (there - 1)).sqrt()


def by_flow(
    pair: Pair, surrogate: Surrogate, records: Tensor, steps: int = 1500, seed: int = 0, spread: Tensor | None = None
) -> Posterior:  # fmt: skip
    """The flow's posterior of the two parameters, uniform on the box before."""
    low, high = pair.box()
    return posterior(lambda z: log_likelihood(surrogate(z), records, spread), Box(low, high), 2, steps, seed=seed)


@dataclass(frozen=True)
class Grid:
    """CVSim-6's own outputs between (points, points) runs: the exact posterior, but for interpolation."""

    low: Tensor
    high: Tensor
    fine: Tensor  # (finer * finer, 2)
    outputs: Tensor  # (finer * finer, 8)
    splines: tuple[RectBivariateSpline, ...]

    def moments(self, records: Tensor, spread: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(2,) mean and (2, 2) covariance of the posterior given records (m, 8), uniform on the box before."""
        return _moments(self.fine, log_likelihood(self.outputs, records, spread))

    def near(self, log_density: Callable[[Tensor, Tensor], Tensor], zooms: int = 3) -> tuple[Tensor, Tensor]:
        """The same of any log density of values (n, 2) and their outputs (n, 8), however narrow: the grid closes in on it."""
        mean, covariance = _moments(self.fine, log_density(self.fine, self.outputs))
        points = round(len(self.fine) ** 0.5)
        step = (self.high - self.low) / (points - 1)
        for _ in range(zooms):
            reach = 8 * torch.maximum(covariance.diag().sqrt(), step / 2)
            axes, fine = _square(torch.maximum(mean - reach, self.low), torch.minimum(mean + reach, self.high), points)
            step = torch.tensor([axis[1] - axis[0] for axis in axes], dtype=torch.float64)
            mean, covariance = _moments(fine, log_density(fine, _between(self.splines, axes)))
        return mean, covariance


def grid(pair: Pair, points: int = 33, finer: int = 301, beats: int = BEATS) -> Grid:
    """Runs of the model on a square grid of the box, and cubic splines between them."""
    low, high = pair.box()
    (coarse_axes, coarse), (fine_axes, fine) = _square(low, high, points), _square(low, high, finer)
    found = pair.outputs(coarse, beats).reshape(points, points, -1).numpy()
    splines = tuple(RectBivariateSpline(*coarse_axes, found[:, :, i]) for i in range(found.shape[2]))
    return Grid(low, high, fine, _between(splines, fine_axes), splines)


def _square(low: Tensor, high: Tensor, points: int) -> tuple[list[Floats], Tensor]:
    lines = [torch.linspace(float(a), float(b), points, dtype=torch.float64) for a, b in zip(low, high, strict=True)]
    return [line.numpy() for line in lines], torch.cartesian_prod(*lines)


def _between(splines: tuple[RectBivariateSpline, ...], axes: list[Floats]) -> Tensor:
    return torch.from_numpy(np.stack([spline(*axes).ravel() for spline in splines], 1))


def _moments(values: Tensor, log_density: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(log_density, 0)
    mean = weights @ values
    centred = values - mean
    return mean, (weights[:, None] * centred).T @ centred
