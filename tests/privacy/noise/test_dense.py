"""Dense noise: golden mean losses, and that no other factorisation does better."""

from __future__ import annotations

import numpy as np
import pytest

from polyclinic.privacy.noise import Participation, error, noise_process

ONCE = Participation(1, 1)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(16, 2.854085), (64, 4.409397), pytest.param(256, 6.372668, marks=pytest.mark.slow)],
)
def test_golden_mean_loss(steps, expected):
    assert error(noise_process("dense", steps), ONCE).rms_mean ** 2 == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 16, 50])
def test_fault_25_the_strategy_is_lower_triangular_with_columns_of_norm_one(steps):
    strategy = np.linalg.inv(noise_process("dense", steps).matrix())
    np.testing.assert_allclose((strategy**2).sum(axis=0), 1, rtol=1e-9)
    np.testing.assert_allclose(np.triu(strategy, 1), 0, atol=1e-9)
    assert noise_process("dense", steps).sensitivity(ONCE) == pytest.approx(1, rel=1e-9)


def test_fault_25_the_other_factor_would_show():
    strategy = np.linalg.inv(noise_process("dense", 16).matrix())
    other = np.linalg.cholesky(strategy.T @ strategy)
    assert (other**2).sum(axis=0).max() > 3


def test_it_has_the_least_mean_error_of_all():
    least = error(noise_process("dense", 32), ONCE).rms_mean
    for name, options in (
        ("independent", {}), ("sqrt-toeplitz", {}), ("banded", {"objective": "mean"}),
        ("blt", {"objective": "mean"}), ("tree", {}),
    ):  # fmt: skip
        assert least < error(noise_process(name, 32, **options), ONCE).rms_mean
