"""A simulator's likelihood against differentiation and against least squares, with cells that were not measured."""

import numpy as np
import pytest
import torch
from torch import Tensor

from polyclinic.errors import ConfigError
from polyclinic.inference.gauss_newton import GaussNewton, fit
from polyclinic.inference.likelihood import Likelihood
from polyclinic.privacy.streams import generator
from polyclinic_studies.ehr_vi.simulated import Simulated
from polyclinic_studies.flows.paper_regression import maximum_likelihood

MIXING = torch.tensor([[1.0, 0.5], [-0.3, 2.0], [0.0, 1.0]], dtype=torch.float64)
DEVIATIONS = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
TRUTH = torch.tensor([0.4, -0.7], dtype=torch.float64)
NAMES, COLUMNS = ("a", "b"), ("x", "y", "z")


def bent(parameters: Tensor) -> Tensor:
    return (parameters @ MIXING.T).exp()


def straight(parameters: Tensor) -> Tensor:
    return parameters @ MIXING.T


def measurements(n: int, missing: float = 0.0) -> Tensor:
    rng = generator(4, "measurements")
    table = straight(TRUTH) + DEVIATIONS * torch.from_numpy(rng.standard_normal((n, 3)))
    table[torch.from_numpy(rng.uniform(size=(n, 3)) < missing)] = torch.nan
    return table


def test_scores_are_gradients_also_where_cells_are_missing() -> None:
    model, records = Simulated(NAMES, COLUMNS, bent, DEVIATIONS), measurements(6, 0.4)
    assert bool(records.isnan().any())
    assert torch.allclose(model.score(TRUTH, records), Likelihood.score(model, TRUTH, records))


def test_the_information_of_a_straight_simulator_is_the_observed_one() -> None:
    model, records = Simulated(NAMES, COLUMNS, straight, DEVIATIONS), measurements(6, 0.4)
    assert torch.allclose(model.information(TRUTH, records), Likelihood.information(model, TRUTH, records))
    nothing = torch.full((1, 3), torch.nan, dtype=torch.float64)
    assert not model.information(TRUTH, nothing).any() and not model.score(TRUTH, nothing).any()


def test_the_maximum_is_least_squares_of_the_cells_that_are_there() -> None:
    model, records = Simulated(NAMES, COLUMNS, straight, DEVIATIONS), measurements(50, 0.3)
    found = maximum_likelihood(model, records, torch.zeros(2, dtype=torch.float64))
    row, column = torch.nonzero(~records.isnan(), as_tuple=True)
    weighted = (MIXING / DEVIATIONS[:, None])[column].numpy()
    expected, *_ = np.linalg.lstsq(weighted, (records[row, column] / DEVIATIONS[column]).numpy())
    assert found.mean == pytest.approx(expected)
    assert found.covariance == pytest.approx(np.linalg.inv(weighted.T @ weighted))


def test_noisy_sums_over_hospitals_find_the_parameters() -> None:
    model = Simulated(NAMES, COLUMNS, bent, DEVIATIONS)
    records = bent(TRUTH) - straight(TRUTH) + measurements(3000, 0.1)
    method = GaussNewton(model, np.zeros(2), np.ones(2))
    released = fit(method, np.split(records.numpy(), [1200, 2000]), 5.0, generator(1, "noise")).posterior
    assert (abs(released.mean - TRUTH.numpy()) < 4 * released.deviations).all()
    exact = maximum_likelihood(model, records, TRUTH)
    assert released.deviations / exact.deviations == pytest.approx([1.0, 1.0], abs=0.3)


def test_deviations_that_do_not_fit_are_named() -> None:
    with pytest.raises(ConfigError, match="3 positive numbers"):
        Simulated(NAMES, COLUMNS, bent, DEVIATIONS[:2])
