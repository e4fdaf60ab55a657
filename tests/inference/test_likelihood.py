"""Closed forms against torch.func, and what is refused."""

import pytest
import torch

from polyclinic.errors import ConfigError
from polyclinic.inference.likelihood import Likelihood, Linear, Logistic, likelihood_named
from polyclinic.inference.regression import PaperRegression, measurements, records_of

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
    built_in = {"linear": Linear, "logistic": Logistic}
    assert isinstance(likelihood_named("polyclinic.inference.regression:PaperRegression", built_in), PaperRegression)
    with pytest.raises(ConfigError, match="Did you mean 'logistic'"):
        likelihood_named("logistik", built_in)
    with pytest.raises(ConfigError, match="does not load: ModuleNotFoundError"):
        likelihood_named("nowhere.at_all:Model", built_in)
    with pytest.raises(ConfigError, match="positive deviation"):
        likelihood_named("linear", built_in, columns=("a", "y"), deviation=0.0)
    with pytest.raises(ConfigError, match="makes no"):
        likelihood_named("builtins:dict", built_in)
