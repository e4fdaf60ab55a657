"""Additive models: bins, missing cells, and the smooth functions of which shape functions are made."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

from polyclinic.ehr.schema import Column, Schema
from polyclinic.models.additive import Additive, Basis, additive, bin_edges

SCHEMA = Schema(
    name="ward", unit="record",
    columns=(
        Column(name="age", kind="continuous", bounds=(0, 100), nullable=True), Column(name="male", kind="binary"),
        Column(name="ward", kind="categorical", categories=("a", "b", "c")), Column(name="died", kind="binary", role="label"),
    ),
)  # fmt: skip


def test_outputs_are_the_sum_of_the_cells_bins() -> None:
    model = additive(5, 2, SCHEMA, bins=4, components=2)
    assert isinstance(model, Additive)
    torch.manual_seed(0)
    torch.nn.init.normal_(model.shapes)
    torch.nn.init.normal_(model.intercept)
    rows = torch.tensor([[-5.0, 0, 1, 0, 0], [0.1, 1, 0, 0, 1], [torch.nan, 1, 0, 0, 0]])
    bins = [[0, 0, 1, 0, 0], [2, 1, 0, 0, 1], [4, 1, 0, 0, 0]]
    assert model.places(rows).tolist() == bins
    wanted = [model.intercept + sum(model.shapes[feature, bin] for feature, bin in enumerate(row)) for row in bins]
    torch.testing.assert_close(model(rows), torch.stack(wanted))


def test_functions_and_model_put_a_cell_into_the_same_bin() -> None:
    """Also where a cell is an edge."""
    basis, model = Basis.of(SCHEMA, 8, 3), additive(5, 1, SCHEMA, 8, 3)
    x = np.zeros((10, 5))
    x[:7, 0], x[7, 0], x[8:, 0] = bin_edges(SCHEMA, 8)[0], np.nan, (-9, 9)
    places = model.places(torch.from_numpy(x.astype(np.float32))).numpy()
    rows = np.stack([basis.tables[number, places[:, basis.feature[number]]] for number in range(len(basis.feature))], 1)
    np.testing.assert_array_equal(basis.rows(x), rows)


def test_functions_of_a_normal_number_are_uncorrelated_and_of_the_stated_variance() -> None:
    basis = Basis.of(SCHEMA, 32, 6, 1.5)
    cosines = basis.tables[:6, :32]
    shares = np.diff(norm.cdf(bin_edges(SCHEMA, 32)[0]), prepend=0.0, append=1.0)
    np.testing.assert_allclose(cosines @ shares, 0.0, atol=1e-6)
    np.testing.assert_allclose(cosines * shares @ cosines.T, np.diag(basis.usual[:6]), atol=1e-6)
    np.testing.assert_allclose(basis.usual[:6], np.arange(1, 7) ** -3.0)
    assert basis.tables[6].tolist() == [0.0] * 32 + [1.0]  # age missing


@pytest.mark.parametrize("options", [{"bins": 1}, {"components": 0}, {"components": 65}, {"smoothness": -1}])
def test_impossible_options_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        additive(5, 1, SCHEMA, **options)
