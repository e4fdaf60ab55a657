"""What inference asks of a model: the log density of a record given parameters, and how it changes with them.

What a method says of the parameters in the end may be a ``Gaussian``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import hessian, jacrev, vmap

from polyclinic.errors import ConfigError, DataError, nearest
from polyclinic.types import Floats


class Likelihood(ABC):
    """A model of records (n, d) with parameters (k,), float64. A subclass gives ``names``, ``columns`` and ``log_density``;
    it may give ``score`` and ``information`` in closed form, which are by torch.func otherwise.

    names: of the k parameters.  columns: of the d numbers of a record, in the records' own units.  yes_or_no: whether the last
    of them must be 0 or 1.
    """

    names: tuple[str, ...]
    columns: tuple[str, ...]
    yes_or_no: bool = False

    @abstractmethod
    def log_density(self, parameters: Tensor, records: Tensor) -> Tensor:
        """(m, n) of parameters (m, k), up to a constant of each record."""

    def score(self, parameters: Tensor, records: Tensor) -> Tensor:
        """(n, k) gradient of each record's log density at (k,) parameters."""
        scores: Tensor = vmap(lambda record: jacrev(self._density_of_record)(parameters, record))(records)
        return scores

    def information(self, parameters: Tensor, records: Tensor) -> Tensor:
        """(n, k, k) information of each record at (k,) parameters: here the observed one, minus the log density's Hessian."""
        hessians: Tensor = vmap(lambda record: hessian(self._density_of_record)(parameters, record))(records)
        return -hessians

    def _density_of_record(self, parameters: Tensor, record: Tensor) -> Tensor:
        return self.log_density(parameters[None], record[None])[0, 0]


class Regression(Likelihood):
    """A number y, normal with a known standard deviation around ``mean`` of the other columns; y is the last column.

    A subclass gives ``mean`` and ``slopes``; the information is Fisher's, in closed form.
    """

    deviation: float

    @abstractmethod
    def mean(self, parameters: Tensor, records: Tensor) -> Tensor:
        """(m, n) of parameters (m, k)."""

    @abstractmethod
    def slopes(self, parameters: Tensor, records: Tensor) -> Tensor:
        """(n, k) gradient of the mean at (k,) parameters."""

    def log_density(self, parameters: Tensor, records: Tensor) -> Tensor:
        return -((records[:, -1] - self.mean(parameters, records)) / self.deviation).square() / 2

    def score(self, parameters: Tensor, records: Tensor) -> Tensor:
        residual = records[:, -1] - self.mean(parameters[None], records)[0]
        return self.slopes(parameters, records) * (residual / self.deviation**2)[:, None]

    def information(self, parameters: Tensor, records: Tensor) -> Tensor:
        slopes = self.slopes(parameters, records) / self.deviation
        return slopes[:, :, None] * slopes[:, None, :]


class Linear(Regression):
    """y on an intercept and features, of which each parameter is a slope. columns: the features, then y."""

    def __init__(self, columns: tuple[str, ...], deviation: float) -> None:
        if len(columns) < 2 or not 0 < deviation < math.inf:
            raise ConfigError(
                f"A linear model needs a feature, y and a positive finite deviation, got {columns}, {deviation}."
            )
        self.columns, self.deviation = columns, deviation
        self.names = ("intercept", *columns[:-1])

    def mean(self, parameters: Tensor, records: Tensor) -> Tensor:
        return parameters @ _with_one(records[:, :-1]).T

    def slopes(self, parameters: Tensor, records: Tensor) -> Tensor:
        return _with_one(records[:, :-1])


class Logistic(Likelihood):
    """y, 0 or 1, on an intercept and features. columns: the features, then y."""

    yes_or_no = True

    def __init__(self, columns: tuple[str, ...]) -> None:
        if len(columns) < 2:
            raise ConfigError(f"A logistic model needs a feature and y, got {columns}.")
        self.columns, self.names = columns, ("intercept", *columns[:-1])

    def log_density(self, parameters: Tensor, records: Tensor) -> Tensor:
        logit = parameters @ _with_one(records[:, :-1]).T
        return records[:, -1] * logit - torch.nn.functional.softplus(logit)

    def score(self, parameters: Tensor, records: Tensor) -> Tensor:
        features = _with_one(records[:, :-1])
        return features * (records[:, -1] - torch.sigmoid(features @ parameters))[:, None]

    def information(self, parameters: Tensor, records: Tensor) -> Tensor:
        features = _with_one(records[:, :-1])
        chance = torch.sigmoid(features @ parameters)
        return (chance * (1 - chance))[:, None, None] * features[:, :, None] * features[:, None, :]


def _with_one(features: Tensor) -> Tensor:
    return torch.cat((torch.ones_like(features[:, :1]), features), 1)


@dataclass(frozen=True, eq=False)
class Gaussian:
    """A posterior by its (k,) mean and (k, k) covariance."""

    mean: Floats
    covariance: Floats

    @property
    def deviations(self) -> Floats:
        """(k,) standard deviations."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def correlations(self) -> Floats:
        """(k (k - 1) / 2,) above the diagonal, row by row."""
        return (self.covariance / np.outer(self.deviations, self.deviations))[np.triu_indices(len(self.mean), 1)]


def table_of(likelihood: Likelihood, columns: Mapping[str, NDArray[Any]]) -> Floats:
    """(n, d) records of named columns, (n,) numbers each, in the likelihood's order.

    Raises DataError for a column that is missing, or that does not hold numbers.
    """
    for name in likelihood.columns:
        if name not in columns:
            raise DataError(f"The likelihood needs column {name!r}, which is not there.{nearest(name, columns)}")
    try:
        return np.column_stack([np.asarray(columns[name], dtype=np.float64) for name in likelihood.columns])
    except (TypeError, ValueError):
        raise DataError(f"Columns {', '.join(likelihood.columns)} must be numbers of one length.") from None
