"""Simulation: classical Runge-Kutta of fourth order over whole heartbeats, all circulations of a batch at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from polyclinic.errors import ConfigError
from polyclinic.models.cvsim6.circuit import Circuit, circuit
from polyclinic.models.cvsim6.equilibrium import beginning

BEATS = 10
STEPS = 1000  # a beat: 0.83 ms at 72 beats a minute
ORIGINAL_CYCLE = 1.07  # seconds, whatever the heart rate


@dataclass(frozen=True)
class Trace:
    """The last cycle. Tensors are (steps + 1, 6, batch), in the order of ``COMPARTMENTS``.

    stressed, volumes: mL.  pressures: mmHg.  flows: mL/s, from each compartment to the next.
    seconds: (steps + 1, batch), since the simulation began.
    """

    circuit: Circuit
    seconds: Tensor
    stressed: Tensor
    pressures: Tensor
    flows: Tensor

    @property
    def volumes(self) -> Tensor:
        return self.stressed + self.circuit.unstressed


def simulate(parameters: Tensor, beats: int = BEATS, steps: int = STEPS, original: bool = False) -> Trace:
    """The last of ``beats`` cycles of parameters (batch, 23); differentiable in them, one cycle's memory at a time.

    A cycle is a heartbeat of ``steps`` equal steps, so that the last one is whole and in phase. ``original``: a cycle is
    1.07 s at every heart rate, and the simulation begins where the original's does.
    Raises ConfigError if a number is not positive or the parameters are not (batch, 23).
    """
    if beats < 1 or steps < 1:
        raise ConfigError(f"beats and steps must be at least 1, got {beats} and {steps}.")
    if parameters.ndim != 2 or parameters.shape[1] != 23:
        raise ConfigError(f"parameters must be (batch, 23), got {tuple(parameters.shape)}.")
    model = circuit(parameters)
    cycle = torch.full_like(model.period, ORIGINAL_CYCLE) if original else model.period
    halves = torch.arange(2 * steps + 1, dtype=parameters.dtype)[:, None] / (2 * steps)
    stressed = beginning(model, original)
    contraction = model.activation(halves * cycle)
    differentiated = torch.is_grad_enabled() and stressed.requires_grad
    for beat in range(beats):
        if original and beat:  # a heartbeat begins elsewhere in every cycle
            contraction = model.activation((halves + beat) * cycle)
        if beat == beats - 1:
            break
        if differentiated:
            stressed = checkpoint(_advance, model, stressed, contraction, cycle / steps, use_reentrant=False)
        else:
            stressed = _advance(model, stressed, contraction, cycle / steps)
    path = _path(model, stressed, contraction, cycle / steps)
    pressures = model.pressures(path, contraction[::2, None])
    return Trace(model, (halves[::2] + beats - 1) * cycle, path, pressures, model.flows(pressures))


def _step(model: Circuit, x: Tensor, activation: tuple[Tensor, Tensor, Tensor], dt: Tensor) -> Tensor:
    begin, middle, end = activation
    one = model.rates(x, begin)
    two = model.rates(torch.addcmul(x, one, dt, value=0.5), middle)
    three = model.rates(torch.addcmul(x, two, dt, value=0.5), middle)
    four = model.rates(torch.addcmul(x, three, dt), end)
    return torch.addcmul(x, one + four + 2 * (two + three), dt, value=1 / 6)


def _advance(model: Circuit, stressed: Tensor, contraction: Tensor, dt: Tensor) -> Tensor:
    times = contraction.unbind()
    for i in range(0, len(times) - 1, 2):
        stressed = _step(model, stressed, (times[i], times[i + 1], times[i + 2]), dt)
    return stressed


def _path(model: Circuit, stressed: Tensor, contraction: Tensor, dt: Tensor) -> Tensor:
    times, path = contraction.unbind(), [stressed]
    for i in range(0, len(times) - 1, 2):
        path.append(_step(model, path[-1], (times[i], times[i + 1], times[i + 2]), dt))
    return torch.stack(path)
