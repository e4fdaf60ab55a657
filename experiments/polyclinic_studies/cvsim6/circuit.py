"""The circuit: six compartments in a ring, each an elastance, joined by resistances of which four have a valve.

The order is that of the blood: left ventricle, systemic arteries, systemic veins, right ventricle, pulmonary arteries,
pulmonary veins. The state is each compartment's stressed volume (mL above the volume at which it has no pressure), so that
what leaves one enters the next, and the volume of blood stays what it is but for rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from polyclinic_studies.cvsim6.parameters import column

COMPARTMENTS = ("lv", "a", "v", "rv", "pa", "pv")
_OUTFLOW = ("r_lo", "r_a", "r_ri", "r_ro", "r_pv", "r_li")  # from each compartment to the next
_UNSTRESSED = tuple(f"v_0_{name}" for name in COMPARTMENTS)
_IN_THORAX = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0], dtype=torch.float64)[:, None]
_FALL = torch.eye(6, dtype=torch.float64) - torch.eye(6, dtype=torch.float64).roll(1, 1)  # of the pressure, to the next
_VALVES = torch.tensor([0.0, -math.inf, 0.0, 0.0, -math.inf, 0.0], dtype=torch.float64)[:, None]


@dataclass(frozen=True)
class Circuit:
    """A batch of circulations; every tensor is (6, batch) unless it says otherwise.

    resting: elastance in diastole, mmHg/mL.  active: what full contraction adds.  outside: pressure around, mmHg.
    conductance: to the next compartment, mL/(s mmHg).  unstressed: mL.  period, systole: (batch,), seconds.
    """

    resting: Tensor
    active: Tensor
    outside: Tensor
    conductance: Tensor
    unstressed: Tensor
    period: Tensor
    systole: Tensor

    def elastance(self, activation: Tensor) -> Tensor:
        """mmHg/mL (..., 6, batch) at a contraction (..., 1, batch) between 0 and 1."""
        return torch.addcmul(self.resting, activation, self.active)

    def pressures(self, stressed: Tensor, elastance: Tensor) -> Tensor:
        """mmHg, of stressed volumes (..., 6, batch) at an elastance of that shape."""
        return torch.addcmul(self.outside, elastance, stressed)

    def flows(self, pressures: Tensor) -> Tensor:
        """mL/s from each compartment to the next, of pressures (..., 6, batch)."""
        return torch.maximum((_FALL @ pressures) * self.conductance, _VALVES)

    def losses(self, stressed: Tensor, elastance: Tensor) -> Tensor:
        """mL/s that each compartment passes on less what it is given."""
        return _FALL.mT @ self.flows(self.pressures(stressed, elastance))

    def activation(self, seconds: Tensor) -> Tensor:
        """The contraction, 0 to 1, at times (n, batch): up over the systole, down over half of one, then rest."""
        phase = torch.remainder(seconds, self.period) / self.systole
        rising, falling = (1 - torch.cos(math.pi * phase)) / 2, (1 + torch.cos(2 * math.pi * (phase - 1))) / 2
        return torch.where(phase <= 1, rising, torch.where(phase <= 1.5, falling, torch.zeros_like(phase)))


def circuit(parameters: Tensor) -> Circuit:
    """The circuit of parameters (batch, 23), in the order of ``NAMES``."""

    def rows(*names: str) -> Tensor:
        return torch.stack([parameters[:, column(name)] for name in names])

    contracted, nothing = rows("c_l_sys", "c_r_sys"), torch.zeros_like(parameters[:, 0])
    resting = 1 / rows("c_l_dia", "c_a", "c_v", "c_r_dia", "c_pa", "c_pv")
    left, right = 1 / contracted[0] - resting[0], 1 / contracted[1] - resting[3]
    return Circuit(
        resting=resting,
        active=torch.stack((left, nothing, nothing, right, nothing, nothing)),
        outside=rows("p_th") * _IN_THORAX,
        conductance=1 / rows(*_OUTFLOW),
        unstressed=rows(*_UNSTRESSED),
        period=60 / parameters[:, column("hr")],
        systole=parameters[:, column("tr_sys")],
    )
