"""Where a simulation begins: the linear system in which every part of the circuit passes the same volume in a beat.

Unknowns: the ventricles' pressures at the end of diastole and of systole, and the four vessels' pressures; equations: one
stroke volume through all six resistances and out of both ventricles, and the total volume (the system of Harrod et al. 2020's
supplement, for Davis 1991's model).
"""

from __future__ import annotations

import torch
from torch import Tensor

from polyclinic_studies.cvsim6.circuit import Circuit
from polyclinic_studies.cvsim6.parameters import PARAMETERS, TOTAL_VOLUME

# Columns of the unknown pressures.
_LEFT_DIASTOLE, _LEFT_SYSTOLE, _RIGHT_DIASTOLE, _RIGHT_SYSTOLE, _A, _V, _PA, _PV = range(8)
_LEFT, _RIGHT = 0, 3  # the ventricles' rows in a circuit
_UNSTRESSED = sum(p.default for p in PARAMETERS if p.name.startswith("v_0_"))


def beginning(circuit: Circuit, original: bool = False) -> Tensor:
    """Stressed volumes (6, batch), mL, at the end of diastole.

    original: as the original has it: unstressed volumes are the defaults whatever the parameters say, the systole is a share
    of the beat here though it is seconds in the dynamics, and a third of the thorax' pressure times c_a is added to
    the total, which leaves 4997.87 mL of 5000 at the defaults. Otherwise the total is 5000 mL.
    """
    compliance = 1 / circuit.resting
    contracted = 1 / (circuit.resting + circuit.active)
    thorax, period = circuit.outside[_LEFT], circuit.period
    systole = circuit.systole * period if original else torch.minimum(circuit.systole, 0.9 * period)
    diastole = period - systole
    batch = period.shape[0]
    matrix, right = torch.zeros(batch, 8, 8, dtype=period.dtype), torch.zeros(batch, 8, dtype=period.dtype)

    def stroke(row: int, ventricle: int, high: int, low: int, sign: float) -> None:
        """Adds ``sign`` times a ventricle's stroke volume."""
        matrix[:, row, high] += sign * compliance[ventricle]
        matrix[:, row, low] -= sign * contracted[ventricle]
        right[:, row] += sign * (compliance[ventricle] - contracted[ventricle]) * thorax

    paths = (
        (systole, 0, _LEFT_SYSTOLE, _A),
        (period, 1, _A, _V),
        (diastole, 2, _V, _RIGHT_DIASTOLE),
        (systole, 3, _RIGHT_SYSTOLE, _PA),
        (period, 4, _PA, _PV),
        (diastole, 5, _PV, _LEFT_DIASTOLE),
    )
    for row, (seconds, link, source, sink) in enumerate(paths):
        passed = seconds * circuit.conductance[link]
        stroke(row, _LEFT, _LEFT_DIASTOLE, _LEFT_SYSTOLE, 1.0)
        matrix[:, row, source] -= passed
        matrix[:, row, sink] += passed
    stroke(6, _LEFT, _LEFT_DIASTOLE, _LEFT_SYSTOLE, 1.0)
    stroke(6, _RIGHT, _RIGHT_DIASTOLE, _RIGHT_SYSTOLE, -1.0)
    vessels = (_LEFT_DIASTOLE, _A, _V, _RIGHT_DIASTOLE, _PA, _PV)
    for row, pressure in enumerate(vessels):
        matrix[:, 7, pressure] = compliance[row]
    unstressed = _UNSTRESSED if original else circuit.unstressed.sum(0)
    right[:, 7] = TOTAL_VOLUME - unstressed + (compliance * circuit.outside).sum(0)
    if original:
        right[:, 7] += compliance[1] * thorax / 3
    pressures: Tensor = torch.linalg.solve(matrix, right)[:, vessels].T
    return (pressures - circuit.outside) * compliance
