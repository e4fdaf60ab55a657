"""The surrogate: exact on what it can represent, and within a per cent of CVSim-6 on runs that it has not seen."""

import pytest
import torch

from polyclinic.errors import ConfigError
from polyclinic_studies.cvsim6 import TARGETS, measured, parameter, parameters
from polyclinic_studies.cvsim6.surrogate import error, fit, sobol


def test_hold_out_error_on_cvsim6_is_below_one_per_cent_of_the_range() -> None:
    pair = parameter("r_ri"), parameter("c_a")
    low, high = (torch.tensor([getattr(p, end) for p in pair], dtype=torch.float64) for end in ("low", "high"))
    inputs = sobol(low, high, 300, seed=3)
    values = {p.name: inputs[:, i] for i, p in enumerate(pair)}
    found = measured(parameters(values), TARGETS, beats=4, steps=250)
    surrogate = fit(inputs[:100], found[:100], low, high, iterations=400)
    assert error(surrogate, inputs[100:], found[100:]).max() < 0.01


def test_a_constant_output_stays_one_and_does_not_disturb_the_rest() -> None:
    low, high = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    inputs = sobol(low, high, 64)
    smooth = torch.sin(2 * inputs[:, 0]) + inputs[:, 1]
    constant = 1333.22 * (1 + 1e-15 * inputs[:, 0])
    surrogate = fit(inputs, torch.stack((smooth, constant), 1), low, high, iterations=300)
    fresh = sobol(low, high, 50, seed=9)
    found = surrogate(fresh)
    assert torch.allclose(found[:, 0], torch.sin(2 * fresh[:, 0]) + fresh[:, 1], atol=0.01)
    assert torch.allclose(found[:, 1], torch.tensor(1333.22, dtype=torch.float64))


def test_two_fits_of_one_seed_are_equal() -> None:
    low, high = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    inputs = sobol(low, high, 16)
    one, two = (fit(inputs, inputs**2, low, high, iterations=20, seed=5)(inputs) for _ in range(2))
    assert torch.equal(one, two)


def test_bad_requests_are_named() -> None:
    low, high = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    with pytest.raises(ConfigError, match="low < high"):
        sobol(high, low, 4)
    with pytest.raises(ConfigError, match="finite outputs for 4 inputs"):
        fit(sobol(low, high, 4), torch.full((4, 1), torch.nan), low, high)
