"""CVSim-6's parameters: names, units, defaults and limits, in mmHg, mL and seconds.

Defaults: Davis 1991 (thesis, MIT), as Harrod et al. 2020 and Su et al. 2023 (Table 4) list them; limits: Harrod's supplement.
Resistances in CGS (dyn s/cm^5) are these times 1333.22, compliances in CGS these over 1333.22.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from polyclinic.errors import ConfigError, nearest

DYNES = 1333.22  # dyn/cm^2 in one mmHg, as the original has it
TOTAL_VOLUME = 5000.0  # mL of blood


@dataclass(frozen=True)
class Parameter:
    """One parameter of the circulation; ``low`` and ``high`` are the limits of Harrod et al. 2020."""

    name: str
    default: float
    low: float
    high: float
    unit: str
    meaning: str


_OHM, _FARAD = "mmHg s/mL", "mL/mmHg"
PARAMETERS: tuple[Parameter, ...] = (
    Parameter("hr", 72.0, 40.0, 100.0, "1/min", "heart rate"),
    Parameter("r_li", 0.01, 0.007, 0.013, _OHM, "resistance into the left ventricle"),
    Parameter("r_lo", 0.006, 0.004, 0.008, _OHM, "resistance out of the left ventricle"),
    Parameter("r_a", 1.0, 0.5, 2.0, _OHM, "resistance of the systemic circulation"),
    Parameter("r_ri", 0.05, 0.035, 0.065, _OHM, "resistance into the right ventricle"),
    Parameter("r_ro", 0.003, 0.002, 0.004, _OHM, "resistance out of the right ventricle"),
    Parameter("r_pv", 0.08, 0.05, 0.11, _OHM, "resistance of the pulmonary circulation"),
    Parameter("p_th", -4.0, -6.0, -2.0, "mmHg", "pressure in the thorax"),
    Parameter("c_a", 1.6, 1.1, 2.1, _FARAD, "compliance of the systemic arteries"),
    Parameter("c_v", 100.0, 70.0, 130.0, _FARAD, "compliance of the systemic veins"),
    Parameter("c_pa", 4.3, 3.0, 5.6, _FARAD, "compliance of the pulmonary arteries"),
    Parameter("c_pv", 8.4, 6.0, 10.8, _FARAD, "compliance of the pulmonary veins"),
    Parameter("tr_sys", 0.33, 0.1, 0.56, "s", "duration of the contraction"),
    Parameter("c_l_sys", 0.4, 0.28, 0.52, _FARAD, "compliance of the left ventricle, contracted"),
    Parameter("c_l_dia", 10.0, 7.0, 13.0, _FARAD, "compliance of the left ventricle, relaxed"),
    Parameter("c_r_sys", 1.2, 0.8, 1.6, _FARAD, "compliance of the right ventricle, contracted"),
    Parameter("c_r_dia", 20.0, 13.0, 27.0, _FARAD, "compliance of the right ventricle, relaxed"),
    Parameter("v_0_lv", 15.0, 10.0, 20.0, "mL", "volume without pressure: left ventricle"),
    Parameter("v_0_a", 715.0, 515.0, 915.0, "mL", "volume without pressure: systemic arteries"),
    Parameter("v_0_v", 2500.0, 1600.0, 3200.0, "mL", "volume without pressure: systemic veins"),
    Parameter("v_0_rv", 15.0, 10.0, 20.0, "mL", "volume without pressure: right ventricle"),
    Parameter("v_0_pa", 90.0, 60.0, 120.0, "mL", "volume without pressure: pulmonary arteries"),
    Parameter("v_0_pv", 490.0, 340.0, 640.0, "mL", "volume without pressure: pulmonary veins"),
)
NAMES: tuple[str, ...] = tuple(parameter.name for parameter in PARAMETERS)


def parameter(name: str) -> Parameter:
    """The parameter of that name. Raises ConfigError if there is none."""
    return PARAMETERS[column(name)]


def column(name: str) -> int:
    """The parameter's column in (batch, 23). Raises ConfigError for an unknown name."""
    if name not in NAMES:
        raise ConfigError(f"parameter must be one of {', '.join(NAMES)}, got {name!r}.{nearest(name, NAMES)}")
    return NAMES.index(name)


def parameters(values: Mapping[str, Tensor | float] | None = None, batch: int = 1) -> Tensor:
    """(batch, 23) float64: the defaults, with each of ``values`` a number or (batch,) in its parameter's unit.

    A tensor's length is the batch. Gradients flow to the values.
    Raises ConfigError for an unknown name, unequal lengths, or a value that is not finite or, but for p_th, not positive.
    """
    given = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in (values or {}).items()}
    sizes = {value.numel() for value in given.values() if value.ndim} or {batch}
    if len(sizes) > 1:
        raise ConfigError(f"parameters of one batch must have one length, got {sorted(sizes)}.")
    for name, value in given.items():
        column(name)
        if not bool(torch.isfinite(value).all()) or (name != "p_th" and bool((value <= 0).any())):
            raise ConfigError(f"parameter {name} must be finite{'' if name == 'p_th' else ' and positive'}.")
    size = sizes.pop()
    columns = [given.get(p.name, torch.tensor(p.default, dtype=torch.float64)).expand(size) for p in PARAMETERS]
    return torch.stack(columns, dim=1)
