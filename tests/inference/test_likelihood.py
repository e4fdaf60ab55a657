"""Closed forms against torch.func, and what is refused."""

import numpy as np
import pytest
import torch

from polyclinic.errors import ConfigError, DataError
from polyclinic.inference.gauss_newton import GaussNewton
from polyclinic.inference.likelihood import Likelihood, Linear, Logistic, table_of
from polyclinic.plugins import resolve
from polyclinic.synthesis.layout import Layout
from polyclinic.training.posterior import posterior_sums
from polyclinic_studies.flows.paper_regression import PaperRegression, measurements, records_of
from tests.synthesis.tables import MIXED

PAPER = records_of(measurements(3, 40))
PLAIN = torch.cat((PAPER[:, :2], (PAPER[:, 4:] > 2.5).double()), 1)
CASES = [
    (PaperRegression(), torch.tensor([0.1, 0.8, 0.5, -1.0, 0.3], dtype=torch.float64), PAPER),
    (Linear(("a", "b", "y"), 0.7), torch.tensor([0.1, 0.8, -0.5], dtype=torch.float64), PLAIN),
    (Logistic(("a", "b", "y")), torch.tensor([0.1, 0.8, -0.5], dtype=torch.float64), PLAIN),
]  # fmt: skip


@pytest.mark.parametrize(("model", "at", "records"), CASES)
def test_scores_in_closed_form_are_the_log_densitys_gradient(
    model: Likelihood, at: torch.Tensor, records: torch.Tensor
) -> None:
    assert model.log_density(at[None], records).shape == (1, len(records))
    assert torch.allclose(model.score(at, records), Likelihood.score(model, at, records))


@pytest.mark.parametrize(("model", "at", "records"), CASES)
def test_information_is_minus_the_hessian_where_the_mean_is_what_is_observed(
    model: Likelihood, at: torch.Tensor, records: torch.Tensor
) -> None:
    if isinstance(model, PaperRegression):  # elsewhere the residual bends the log density
        records = records.clone()
        records[:, -1] = model.mean(at[None], records)[0]
    assert torch.allclose(model.information(at, records), Likelihood.information(model, at, records), atol=1e-9)


def test_what_is_named_wrongly_is_said() -> None:
    assert resolve("likelihoods", "polyclinic_studies.flows.paper_regression:PaperRegression") is PaperRegression
    with pytest.raises(ConfigError, match="Did you mean 'logistic'"):
        resolve("likelihoods", "logistik")
    with pytest.raises(ConfigError, match="does not load: ModuleNotFoundError"):
        resolve("likelihoods", "nowhere.at_all:Model")
    with pytest.raises(ConfigError, match="positive finite deviation"):
        Linear(("a", "y"), deviation=0.0)
    with pytest.raises(ConfigError, match="makes no"):
        posterior_sums(lambda: {}, Layout.of(MIXED), "", {}, ([0.0], [1.0]), GaussNewton)


def test_records_are_made_of_named_columns() -> None:
    model = Linear(("age", "sbp"), 1.0)
    table = table_of(model, {"sbp": np.array([120, 130]), "age": np.array([50.0, 60.0]), "sex": np.array(["f", "m"])})
    assert table.tolist() == [[50, 120], [60, 130]]
    with pytest.raises(DataError, match="needs column 'sbp'.*Did you mean 'sbp1'"):
        table_of(model, {"age": np.ones(2), "sbp1": np.ones(2)})
    with pytest.raises(DataError, match="must be numbers"):
        table_of(model, {"age": np.ones(2), "sbp": np.array(["high", "low"])})
