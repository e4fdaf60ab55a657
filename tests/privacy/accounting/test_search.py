"""Brent's searches are SciPy's to the last bit, so that no epsilon depends on which of them is asked."""

import math

import numpy as np
import pytest
from scipy import optimize

from polyclinic.privacy.accounting.search import least, root


@pytest.mark.parametrize("seed", range(40))
def test_the_root_and_the_least_value_are_those_of_scipy_to_the_last_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b, c = rng.normal(size=3)
    low, high = -5 * rng.random(), 5 * rng.random()
    for f in (
        lambda x: math.tanh(a * x) + b * x + math.sin(3 * x) + c,
        lambda x: math.exp(-a * x) - abs(b) - 0.1 * x,
        lambda x: round(x - a, 2),  # steps, which no parabola fits
    ):
        for xtol in (1e-3, 1e-9):
            theirs = optimize.minimize_scalar(f, bounds=(low, high), method="bounded", options={"xatol": xtol})
            assert least(f, low, high, xtol) == theirs.fun
        if f(low) * f(high) < 0:
            assert root(f, low, high) == optimize.brentq(f, low, high)
            assert root(f, low, high, 1e-10, 1e-10) == optimize.brentq(f, low, high, xtol=1e-10, rtol=1e-10)


def test_a_root_needs_unlike_signs() -> None:
    with pytest.raises(ValueError, match="has one sign at 1 and 2"):
        root(lambda x: x, 1.0, 2.0)
