"""Buffered noise: golden losses and parameters, the gradient that finds them, and what they are optimal for."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import solve_triangular
from scipy.optimize import check_grad

from polyclinic.privacy.noise import Participation, error, noise_process
from polyclinic.privacy.noise.factorisations import Buffered, log_loss
from polyclinic.privacy.noise.sensitivity import toeplitz
from polyclinic.privacy.streams import keyed_stream

ONCE = Participation(1, 1)


@pytest.mark.parametrize(("steps", "buffers", "expected"), [(16, 2, 3.778977), (1024, 3, 10.742661)])
def test_golden_loss(steps, buffers, expected):
    process = noise_process("blt", steps, buffers=buffers)
    assert error(process, ONCE).rms_max ** 2 == pytest.approx(expected, abs=1e-6)


def test_golden_parameters():
    scale, decay = Buffered(16, ONCE, 2).scale_decay
    assert decay == pytest.approx([0.954379, 0.531684], abs=2e-6)
    assert scale == pytest.approx([0.270984, 0.227183], abs=2e-6)


@pytest.mark.parametrize("objective", ["max", "mean"])
@pytest.mark.parametrize("participation", [ONCE, Participation(3, 2), Participation(1, 9)])
def test_the_loss_has_the_gradient_it_says(objective, participation):
    def loss(column):
        return log_loss(column, lambda x: solve_triangular(toeplitz(column), x, lower=True), participation, objective)

    column = np.sort(np.random.default_rng(0).uniform(0.1, 1, 9))[::-1]
    assert check_grad(lambda x: loss(x)[0], lambda x: loss(x)[1], column) < 1e-6
    prefix = toeplitz(np.cumsum(solve_triangular(toeplitz(column), np.eye(9)[0], lower=True)))
    variances = (prefix**2).sum(axis=1)
    moved = np.zeros(9)
    for shift in range(0, participation.within(9) * participation.separation, participation.separation):
        moved[shift:] += column[: 9 - shift]
    expected = np.log(moved @ moved) + np.log(variances.max() if objective == "max" else variances.mean())
    assert loss(column)[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("steps", "separation"), [(64, 8), (1024, 64)])
def test_design_for_a_participation_and_an_objective_is_better_at_it(steps, separation):
    often = Participation(separation, steps)
    designed = error(noise_process("blt", steps, participation=often), often)
    by_mean = error(noise_process("blt", steps, participation=often, objective="mean"), often)
    assert designed.rms_max < error(noise_process("blt", steps), often).rms_max
    assert designed.rms_max < by_mean.rms_max and by_mean.rms_mean < designed.rms_mean
    assert (
        error(noise_process("blt", steps), ONCE).rms_max
        < error(noise_process("blt", steps, participation=often), ONCE).rms_max
    )


def test_made_for_every_step_it_becomes_independent_noise():
    every = Participation(1, 64)
    assert error(noise_process("blt", 64, participation=every), every).rms_max == pytest.approx(64, rel=1e-4)


def test_buffered_noise_keeps_its_buffers():
    process = noise_process("blt", 100, buffers=2)
    assert process.draw(keyed_stream(0, "a"), {}, 99, 5)[1]["memory"].shape == (2, 5)
