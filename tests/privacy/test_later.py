"""What stands in for SciPy in dp-accounting is the same, to the last bit."""

import subprocess
import sys

import numpy as np
from scipy import signal, stats

from polyclinic.privacy.later import Normal, fftconvolve


def test_the_normal_distribution_that_stands_in_is_scipys_to_the_last_bit() -> None:
    x, shares = np.concatenate([np.linspace(-40, 40, 10_001), [np.inf, -np.inf, np.nan]]), np.linspace(0, 1, 10_001)
    for scale in (1.0, 1.37, 1e-3):
        ours, theirs = Normal()(scale=scale), stats.norm(scale=scale)
        for name in ("cdf", "logcdf", "sf"):
            np.testing.assert_array_equal(getattr(ours, name)(x), getattr(theirs, name)(x))
        np.testing.assert_array_equal(ours.ppf(shares), theirs.ppf(shares))


def test_the_convolution_that_stands_in_is_scipys_to_the_last_bit() -> None:
    rng = np.random.default_rng(0)
    for one, other in ((5, 9), (1000, 1000), (2, 3001), (1, 4), (7777, 123)):
        a, b = rng.random(one), rng.random(other)
        np.testing.assert_array_equal(fftconvolve(a, b), signal.fftconvolve(a, b))


def test_what_was_not_foreseen_comes_from_the_module_itself() -> None:
    code = """
import polyclinic, sys
from dp_accounting.pld import privacy_loss_mechanism as loss
assert "scipy.stats" not in sys.modules
assert type(loss.stats.norm).__name__ == "Normal"
found = loss.stats.laplace
import scipy.stats
assert found is scipy.stats.laplace
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
