"""A small network in place of a slow simulator: fitted to a few runs on a low-discrepancy grid.

Su, Wang, Schiavazzi and Liu 2023 put one of 2-64-32-8 tanh units in the place of CVSim-6, fitted to 100 Sobol points.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from polyclinic.errors import ConfigError

HIDDEN = (64, 32)
_CONSTANT = 1e-9


class Surrogate(nn.Module):
    """Outputs (n, m) of inputs (n, k), float64; tanh layers between scales that are fixed at the fit.

    low, high: (k,) the box of the inputs.  centre, scale: (m,) of the outputs, 0 for one that is constant.
    """

    low: Tensor
    high: Tensor
    centre: Tensor
    scale: Tensor

    def __init__(
        self, low: Tensor, high: Tensor, centre: Tensor, scale: Tensor, hidden: Sequence[int] = HIDDEN
    ) -> None:
        super().__init__()
        for name, value in (("low", low), ("high", high), ("centre", centre), ("scale", scale)):
            self.register_buffer(name, value.detach().double())
        widths = (low.numel(), *hidden, centre.numel())
        layers: list[nn.Module] = []
        for inside, outside in itertools.pairwise(widths):
            layers += [nn.Linear(inside, outside, dtype=torch.float64), nn.Tanh()]
        self.network = nn.Sequential(*layers[:-1])

    def scaled(self, inputs: Tensor) -> Tensor:
        """(n, m) outputs less their centre, over their scale."""
        found: Tensor = self.network((2 * inputs - self.low - self.high) / (self.high - self.low))
        return found

    def forward(self, inputs: Tensor) -> Tensor:
        return self.scaled(inputs) * self.scale + self.centre


def sobol(low: Tensor, high: Tensor, points: int, seed: int = 0) -> Tensor:
    """(points, k) float64 scrambled Sobol points in the box of (k,) ``low`` and ``high``.

    Raises ConfigError if the box is empty in any direction or no points are asked for.
    """
    if points < 1 or low.shape != high.shape or not bool((low < high).all()):
        raise ConfigError(f"A Sobol grid needs a point and low < high, got {points}, {low.tolist()}, {high.tolist()}.")
    engine = torch.quasirandom.SobolEngine(low.numel(), scramble=True, seed=seed)  # type: ignore[no-untyped-call]
    return low + (high - low) * engine.draw(points, dtype=torch.float64)


def fit(
    inputs: Tensor, outputs: Tensor, low: Tensor, high: Tensor, iterations: int = 3000, decay: float = 1e-9, seed: int = 0,
    hidden: Sequence[int] = HIDDEN,
) -> Surrogate:  # fmt: skip
    """The network of least squares on outputs (n, m) at inputs (n, k), each output over its spread, by L-BFGS.

    decay: weight of the squared weights, of which more is smoother.  low, high: (k,) the box.
    Raises ConfigError if the lengths differ or values are not finite.
    """
    if len(inputs) != len(outputs) or not bool(torch.isfinite(outputs).all() and torch.isfinite(inputs).all()):
        raise ConfigError(f"A surrogate needs finite outputs for {len(inputs)} inputs, got {len(outputs)} or gaps.")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        spread, centre = outputs.std(0), outputs.mean(0)
        # What does not vary but for rounding is a constant: as noise of unit size it would spoil the fit of the rest.
        varies = spread > _CONSTANT * centre.abs()
        surrogate = Surrogate(low, high, centre, torch.where(varies, spread, 0.0), hidden)
    target = torch.where(varies, (outputs - centre) / torch.where(varies, spread, 1.0), 0.0)
    weights = [p for p in surrogate.parameters() if p.ndim == 2]
    optimizer = torch.optim.LBFGS(
        surrogate.parameters(), max_iter=iterations, history_size=50, line_search_fn="strong_wolfe",
        tolerance_grad=1e-9, tolerance_change=1e-13,
    )  # fmt: skip

    def loss() -> Tensor:
        optimizer.zero_grad()
        penalty = torch.stack([w.square().sum() for w in weights]).sum()
        found: Tensor = (surrogate.scaled(inputs) - target).square().mean() + decay * penalty
        found.backward()  # type: ignore[no-untyped-call]
        return found

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return surrogate.requires_grad_(False)


def error(surrogate: Surrogate, inputs: Tensor, outputs: Tensor) -> Tensor:
    """(m,) the largest absolute error at inputs (n, k), as a share of each output's range (n, m) there; 0 for a constant."""
    spread = outputs.amax(0) - outputs.amin(0)
    share = (surrogate(inputs) - outputs).abs().amax(0) / spread
    return torch.where(surrogate.scale > 0, share, 0.0)
