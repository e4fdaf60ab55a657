"""Square-root noise against the design's golden numbers."""

from __future__ import annotations

import numpy as np
import pytest

from polyclinic.privacy.noise import Participation, error, noise_process
from polyclinic.privacy.noise.factorisations import SquareRoot
from polyclinic.privacy.noise.sensitivity import toeplitz

ONCE = Participation(1, 1)


def test_the_square_root_squared_is_the_prefix_sum():
    root = SquareRoot(256)
    assert root.coefficients[:6].tolist() == [1, 1 / 2, 3 / 8, 5 / 16, 35 / 128, 63 / 256]
    assert root.inverse[:6].tolist() == [1, -1 / 2, -1 / 8, -1 / 16, -5 / 128, -7 / 256]
    square = toeplitz(root.coefficients) @ toeplitz(root.coefficients)
    np.testing.assert_allclose(square, np.tril(np.ones((256, 256))), atol=1e-14)
    np.testing.assert_allclose(toeplitz(root.inverse) @ toeplitz(root.coefficients), np.eye(256), atol=1e-14)
    matrix = noise_process("sqrt-toeplitz", 256).matrix()
    np.testing.assert_allclose(matrix, toeplitz(root.inverse), atol=1e-15)


@pytest.mark.parametrize(
    ("steps", "expected"), [(4, 1.488281), (15, 1.923009), (16, 1.943879), (1000, 3.265003), (1024, 3.272554)]
)
def test_square_root_golden_sensitivity_and_error(steps, expected):
    process = noise_process("sqrt-toeplitz", steps)
    assert process.sensitivity(ONCE) ** 2 == pytest.approx(expected, abs=5e-7)
    assert process.variances().max() == pytest.approx(expected, abs=5e-7)
    assert error(process, ONCE).rms_max == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize(
    ("steps", "separation", "times", "expected"),
    [
        (16, 1, 16, 168.212384), (16, 2, 16, 46.019660), (16, 4, 16, 13.802866), (16, 5, 16, 11.096708),
        (16, 8, 16, 4.770129), (16, 1, 2, 6.460707), (16, 2, 2, 5.992187), (16, 4, 2, 5.458325),
        (16, 5, 2, 5.262657), (16, 8, 2, 4.770129), (1024, 64, 1024, 193.231681), (1024, 128, 1024, 57.397108),
        (1024, 256, 1024, 19.253047),
    ],
)  # fmt: skip
def test_square_root_golden_sensitivity_of_repeated_participation(steps, separation, times, expected):
    participation = Participation(separation, times)
    assert noise_process("sqrt-toeplitz", steps).sensitivity(participation) ** 2 == pytest.approx(expected, rel=2e-7)


@pytest.mark.parametrize(
    ("steps", "gains"),
    [
        (16, {1: 0.88, 2: 1.20, 4: 1.54, 8: 1.86, 16: 2.06}),
        (64, {1: 0.81, 2: 1.13, 4: 1.55, 8: 2.07, 16: 2.61, 64: 3.35}),
        (1024, {1: 0.69, 16: 2.72, 64: 5.09, 128: 6.60, 1024: 9.78}),
    ],
)
def test_when_matrix_noise_pays(steps, gains):
    for separation, gain in gains.items():
        participation = Participation(separation, steps)
        independent = error(noise_process("independent", steps), participation)
        ours = error(noise_process("sqrt-toeplitz", steps), participation)
        assert independent.rms_max / ours.rms_max == pytest.approx(gain, abs=0.006)
