"""What a clinician would measure on the last cycle of a simulation."""

from __future__ import annotations

import torch
from torch import Tensor

from polyclinic.errors import ConfigError, nearest
from polyclinic_studies.cvsim6.circuit import COMPARTMENTS
from polyclinic_studies.cvsim6.parameters import DYNES
from polyclinic_studies.cvsim6.simulation import BEATS, STEPS, Trace, simulate

UNITS: dict[str, str] = {
    "hr": "1/min", "sbp": "mmHg", "dbp": "mmHg", "co": "L/min", "svr": "dyn s/cm^5", "pvr": "dyn s/cm^5", "cvp": "mmHg",
    "rv_diastolic": "mmHg", "rv_systolic": "mmHg", "lv_diastolic": "mmHg", "lv_systolic": "mmHg", "rvedp": "mmHg",
    "aov_mean_pg": "mmHg", "aov_peak_pg": "mmHg", "pv_peak_pg": "mmHg", "lv_esv": "mL", "lv_edv": "mL", "rv_esv": "mL",
    "rv_edv": "mL", "lvef": "%", "dpap": "mmHg", "spap": "mmHg", "mpap": "mmHg", "wedge": "mmHg",
}  # fmt: skip
OUTPUTS: tuple[str, ...] = tuple(UNITS)
# The eight that Su et al.'s code compares with records; the paper prints almost the list that its code leaves out.
TARGETS: tuple[str, ...] = ("sbp", "dbp", "co", "svr", "lvef", "dpap", "spap", "wedge")
_LV, _A, _V, _RV, _PA, _PV = range(len(COMPARTMENTS))
_KEPT = 10  # the original keeps every tenth step


def outputs(trace: Trace, original: bool = False) -> Tensor:
    """(batch, 24): ``OUTPUTS`` in their order, in ``UNITS``.

    Minima, maxima and means of the cycle. Pressures of the atria are those of the veins; a gradient across a valve is the
    pressure before it less that behind it, peak and mean while it is open; rvedp is the pressure when contraction begins.
    original: as the original has them. Every tenth step counts; cvp is the mean of the systemic flow, its mL/s read as
    dyn/cm^2, and svr follows it; the pulmonary gradient has the flow into the right ventricle where its pressure belongs;
    the aortic mean is over all the cycle, open or not.
    """
    if original:
        return _original(trace)
    p, q, v = trace.pressures[:-1], trace.flows[:-1], trace.ventricles[:-1]
    low, high, mean = p.amin(0), p.amax(0), p.mean(0)
    flow = q[:, _A].mean(0)
    aortic, pulmonary = (p[:, _LV] - p[:, _A]).clamp(min=0), (p[:, _RV] - p[:, _PA]).clamp(min=0)
    ejecting = (aortic > 0).sum(0).clamp(min=1)
    found = {
        "cvp": mean[_V],
        "svr": (mean[_A] - mean[_V]) / flow * DYNES,
        "rvedp": p[0, _RV],
        "aov_mean_pg": aortic.sum(0) / ejecting,
        "aov_peak_pg": aortic.amax(0),
        "pv_peak_pg": pulmonary.amax(0),
    }
    return _assembled(trace, found, low, high, mean, v.amin(0), v.amax(0), flow)


def _original(trace: Trace) -> Tensor:
    # The original keeps the state after the first of every ten steps.
    p, q, v = trace.pressures[1::_KEPT], trace.flows[1::_KEPT], trace.ventricles[1::_KEPT]
    low, high = p.amin(0), p.amax(0)
    mean, flow = _trapezium(p), _trapezium(q[:, _A])
    venous = flow / DYNES
    aortic, pulmonary = (p[:, _A] - p[:, _LV]).abs(), (p[:, _PA] - q[:, _V] / DYNES).abs()
    found = {
        "cvp": venous,
        "svr": (mean[_A] - venous) / flow * DYNES,
        "rvedp": p[0, _RV],
        "aov_mean_pg": _trapezium(aortic),
        "aov_peak_pg": aortic.amax(0),
        "pv_peak_pg": pulmonary.amax(0),
    }
    return _assembled(trace, found, low, high, mean, v.amin(0), v.amax(0), flow)


def _trapezium(values: Tensor) -> Tensor:
    return (values[1:] + values[:-1]).sum(0) / (2 * (len(values) - 1))


def _assembled(
    trace: Trace, found: dict[str, Tensor], low: Tensor, high: Tensor, mean: Tensor, least: Tensor, most: Tensor, flow: Tensor
) -> Tensor:  # fmt: skip
    values = found | {
        "hr": 60 / trace.circuit.period,
        "sbp": high[_A],
        "dbp": low[_A],
        "co": flow * 60 / 1000,
        "pvr": (mean[_PA] - mean[_PV]) / flow * DYNES,
        "rv_diastolic": low[_RV],
        "rv_systolic": high[_RV],
        "lv_diastolic": low[_LV],
        "lv_systolic": high[_LV],
        "lv_esv": least[0],
        "lv_edv": most[0],
        "rv_esv": least[1],
        "rv_edv": most[1],
        "lvef": (most[0] - least[0]) / most[0] * 100,
        "dpap": low[_PA],
        "spap": high[_PA],
        "mpap": mean[_PA],
        "wedge": mean[_PV],
    }
    return torch.stack([values[name] for name in OUTPUTS], dim=1)


def measured(
    parameters: Tensor, names: tuple[str, ...] = OUTPUTS, beats: int = BEATS, steps: int = STEPS, original: bool = False
) -> Tensor:
    """(batch, len(names)) outputs of parameters (batch, 23), differentiable; simulation and outputs ``original`` or not.

    Raises ConfigError for a name that is not one of ``OUTPUTS``.
    """
    for name in names:
        if name not in OUTPUTS:
            raise ConfigError(f"output must be one of {', '.join(OUTPUTS)}, got {name!r}.{nearest(name, OUTPUTS)}")
    every = outputs(simulate(parameters, beats, steps, original), original)
    return every[:, [OUTPUTS.index(name) for name in names]]
