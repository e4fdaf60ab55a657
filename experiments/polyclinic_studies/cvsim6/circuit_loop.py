"""CVSim-6 a second time, one run after another in plain Python: what the batched model is checked and timed against.

Written the way the literature writes it, with the six pressures as the state (Davis 1991), in mmHg, mL and seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from polyclinic.types import Floats

Pressures = tuple[float, float, float, float, float, float]


def pressure_rates(t: float, state: Sequence[float] | Floats, parameters: Sequence[float]) -> Pressures:
    """d/dt of the pressures in the left ventricle, arteries, veins, right ventricle, pulmonary arteries and veins, mmHg/s.

    parameters: the first 17 of ``cvsim6.NAMES``.
    """
    hr, r_li, r_lo, r_a, r_ri, r_ro, r_pv, p_th, c_a, c_v, c_pa, c_pv, ts, cls, cld, crs, crd = parameters[:17]
    p_l, p_a, p_v, p_r, p_pa, p_pv = state
    into_left, out_of_left = max(p_pv - p_l, 0.0) / r_li, max(p_l - p_a, 0.0) / r_lo
    into_right, out_of_right = max(p_v - p_r, 0.0) / r_ri, max(p_r - p_pa, 0.0) / r_ro
    systemic, pulmonary = (p_a - p_v) / r_a, (p_pa - p_pv) / r_pv
    phase = math.fmod(t, 60 / hr)
    act = slope = 0.0
    if phase <= ts:
        act, slope = 0.5 * (1 - math.cos(math.pi * phase / ts)), 0.5 * math.pi / ts * math.sin(math.pi * phase / ts)
    elif phase <= 1.5 * ts:
        angle = 2 * math.pi * (phase - ts) / ts
        act, slope = 0.5 * (1 + math.cos(angle)), -math.pi / ts * math.sin(angle)
    left, right = 1 / cld + act * (1 / cls - 1 / cld), 1 / crd + act * (1 / crs - 1 / crd)
    # p - p_th = E x, so p' = E x' + (E'/E) (p - p_th)
    return (
        left * (into_left - out_of_left) + slope * (1 / cls - 1 / cld) / left * (p_l - p_th),
        (out_of_left - systemic) / c_a,
        (systemic - into_right) / c_v,
        right * (into_right - out_of_right) + slope * (1 / crs - 1 / crd) / right * (p_r - p_th),
        (out_of_right - pulmonary) / c_pa,
        (pulmonary - into_left) / c_pv,
    )


def pressure_path(state: Sequence[float], parameters: Sequence[float], steps: int, dt: float) -> list[list[float]]:
    """The pressures (steps + 1, 6) at every step of classical Runge-Kutta from ``state`` at time 0."""
    path, y = [list(state)], list(state)
    for i in range(steps):
        t = i * dt
        one = pressure_rates(t, y, parameters)
        two = pressure_rates(t + dt / 2, [a + dt / 2 * k for a, k in zip(y, one, strict=True)], parameters)
        three = pressure_rates(t + dt / 2, [a + dt / 2 * k for a, k in zip(y, two, strict=True)], parameters)
        four = pressure_rates(t + dt, [a + dt * k for a, k in zip(y, three, strict=True)], parameters)
        slopes = zip(y, one, two, three, four, strict=True)
        y = [a + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4) for a, k1, k2, k3, k4 in slopes]
        path.append(y)
    return path


def array_path(stressed: Floats, parameters: Sequence[float], steps: int, dt: float) -> Floats:
    """The stressed volumes (steps + 1, 6) from those at time 0, (6,): one run as a loop over NumPy arrays of six.

    The same equations in the form that the batched model has, in the order of ``cvsim6.COMPARTMENTS``.
    """
    hr, r_li, r_lo, r_a, r_ri, r_ro, r_pv, p_th, c_a, c_v, c_pa, c_pv, ts, cls, cld, crs, crd = parameters[:17]
    resting = 1 / np.array([cld, c_a, c_v, crd, c_pa, c_pv])
    active = np.array([1 / cls - 1 / cld, 0, 0, 1 / crs - 1 / crd, 0, 0])
    outside = np.array([p_th, 0, 0, p_th, p_th, p_th])
    resistance, valve = np.array([r_lo, r_a, r_ri, r_ro, r_pv, r_li]), np.array([True, False, True, True, False, True])

    def rates(t: float, x: Floats) -> Floats:
        phase = math.fmod(t, 60 / hr) / ts
        act = (
            0.0
            if phase > 1.5
            else 0.5 * (1 - math.cos(math.pi * phase if phase <= 1 else 2 * math.pi * phase - math.pi))
        )
        pressure = outside + (resting + act * active) * x
        flow = (pressure - np.roll(pressure, -1)) / resistance
        flow = np.where(valve, np.maximum(flow, 0), flow)
        return np.asarray(np.roll(flow, 1) - flow)

    path = np.empty((steps + 1, 6))
    path[0] = stressed
    for i in range(steps):
        t, x = i * dt, path[i]
        one = rates(t, x)
        two = rates(t + dt / 2, x + dt / 2 * one)
        three = rates(t + dt / 2, x + dt / 2 * two)
        path[i + 1] = x + dt / 6 * (one + 2 * two + 2 * three + rates(t + dt, x + dt * three))
    return path
