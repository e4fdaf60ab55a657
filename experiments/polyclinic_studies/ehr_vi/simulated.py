"""Parameters of a simulator given many patients' measurements of its outputs: a likelihood for the private posteriors.

The simulator is any differentiable map of parameters to outputs, such as a surrogate network of CVSim-6
(``polyclinic_studies.cvsim6.surrogate``), as in Su, Wang, Schiavazzi and Liu 2023, section 5.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jacrev

from polyclinic.errors import ConfigError
from polyclinic.inference.likelihood import Likelihood


class Simulated(Likelihood):
    """Every record (d,) is normal around the simulator's outputs, with a known standard deviation for each of them.

    Cells that are NaN were not measured and say nothing. The information is Fisher's.
    """

    def __init__(
        self, names: tuple[str, ...], columns: tuple[str, ...], simulator: Callable[[Tensor], Tensor], deviations: Tensor
    ) -> None:  # fmt: skip
        """simulator: (m, k) parameters -> (m, d) outputs, in the units of ``columns`` and of ``deviations`` (d,).

        Raises ConfigError for deviations that are not positive, or not one for each column.
        """
        if deviations.shape != (len(columns),) or not bool((deviations > 0).all()):
            raise ConfigError(f"deviations must be {len(columns)} positive numbers, got {deviations.tolist()}.")
        self.names, self.columns, self.simulator = names, columns, simulator
        self.deviations = deviations.double()

    def log_density(self, parameters: Tensor, records: Tensor) -> Tensor:
        residual = (records - self.simulator(parameters)[:, None]) / self.deviations
        return -torch.nan_to_num(residual, nan=0.0).square().sum(-1) / 2

    def score(self, parameters: Tensor, records: Tensor) -> Tensor:
        residual = (records - self.simulator(parameters[None])) / self.deviations
        return torch.nan_to_num(residual, nan=0.0) @ self._slopes(parameters)

    def information(self, parameters: Tensor, records: Tensor) -> Tensor:
        slopes = self._slopes(parameters)
        there = (~torch.isnan(records)).to(slopes.dtype)
        return torch.einsum("nd,di,dj->nij", there, slopes, slopes)

    def _slopes(self, parameters: Tensor) -> Tensor:
        """(d, k) of outputs over their deviations."""
        found: Tensor = jacrev(lambda one: self.simulator(one[None])[0])(parameters)
        return found / self.deviations[:, None]
