"""Simulation: classical Runge-Kutta of fourth order over whole heartbeats, all circulations of a batch at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from polyclinic.errors import ConfigError
from polyclinic_studies.cvsim6.circuit import Circuit, circuit
from polyclinic_studies.cvsim6.equilibrium import beginning

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

    @property
    def ventricles(self) -> Tensor:
        """mL of the left and the right ventricle, (steps + 1, 2, batch)."""
        return self.stressed[:, ::3] + self.circuit.unstressed[::3]


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
    path = torch.stack([stressed, *_steps(model, stressed, contraction, cycle / steps)])
    pressures = model.pressures(path, model.elastance(contraction[::2, None]))
    return Trace(model, (halves[::2] + beats - 1) * cycle, path, pressures, model.flows(pressures))


def _step(model: Circuit, x: Tensor, elastances: tuple[Tensor, Tensor, Tensor], dt: Tensor) -> Tensor:
    begin, middle, end = elastances
    one = model.losses(x, begin)
    two = model.losses(torch.addcmul(x, one, dt, value=-0.5), middle)
    three = model.losses(torch.addcmul(x, two, dt, value=-0.5), middle)
    four = model.losses(torch.addcmul(x, three, dt, value=-1), end)
    whole = torch.add(torch.add(one, two, alpha=2), three, alpha=2) + four
    return torch.addcmul(x, whole, dt, value=-1 / 6)


def _steps(model: Circuit, stressed: Tensor, contraction: Tensor, dt: Tensor) -> Iterator[Tensor]:
    times = contraction.unbind()
    end = model.elastance(times[0])
    for i in range(1, len(times), 2):
        begin, middle, end = end, model.elastance(times[i]), model.elastance(times[i + 1])
        stressed = _step(model, stressed, (begin, middle, end), dt)
        yield stressed


def _advance(model: Circuit, stressed: Tensor, contraction: Tensor, dt: Tensor) -> Tensor:
    *_, last = deque(_steps(model, stressed, contraction, dt), maxlen=1)
    return last
