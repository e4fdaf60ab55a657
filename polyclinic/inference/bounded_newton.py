"""Gauss-Newton steps on noisy sums for regressions, whose intervals cover although patients' vectors are shortened.

To shorten the score of an unlikely outcome more than that of a likely one moves the estimate. Here the score of every outcome is
bounded by itself with mean zero (``families.PrivateFamily``). A row is shortened by the longest score that it could have: by
its design alone, which moves nothing (Mallows' weights; Cantoni and Ronchetti 2001).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from polyclinic.inference.families import PrivateFamily
from polyclinic.inference.gauss_newton import MARGIN, WEIGHT, GaussNewton, Released
from polyclinic.inference.likelihood import Likelihood
from polyclinic.types import Arrays, Bools, Floats

#: Standard deviation of the public prior of standardised columns' coefficients.
PRIOR = 10.0
# Standard deviations in the first round's coordinates, bounds of its scores by the root of the number of parameters, and of
# information by that number.
_COORDINATES, _FIRST, _INFORMATION = 2.0, 2.5, 2.5
# Bounds are such that rows keep this share of their weight, and change by so much from one round to the next.
_WANTED, _SHORTER, _LONGER = 0.92, 0.8, 1.6
# A square of residuals is not seen to be further below what was expected.
_SMALLEST = 0.05
_COUNTS = np.sqrt(WEIGHT / 2)


class Regressed(Likelihood):
    """A family's likelihood of an outcome, last in a record, by a design, of which an intercept is a column."""

    def __init__(self, family: PrivateFamily, names: tuple[str, ...]) -> None:
        self.family, self.columns = family, (*names, "outcome")
        self.names = (*names, *([f"log {family.spread}"] if family.spread else []))

    def split(self, parameters: Floats) -> tuple[Floats, float]:
        """Coefficients, and the logarithm of the spread; 0 where the family has none."""
        return (parameters[:-1], float(parameters[-1])) if self.family.spread else (parameters, 0.0)

    def log_density(self, parameters: Tensor, records: Tensor) -> Tensor:
        x, y, densities = records.numpy()[:, :-1], records.numpy()[:, -1], []
        for coefficients, spread in map(self.split, parameters.numpy()):
            pieces = self.family.pieces(y * np.exp(-spread), x @ coefficients * np.exp(-spread))
            densities.append(torch.from_numpy(pieces.loglik - spread))
        return torch.stack(densities)


def is_hidden(released: Released) -> Bools:
    """(k,) of which parameters the noise hides nearly all: their posterior is more than a quarter as wide as the prior."""
    return np.asarray(released.posterior.deviations > PRIOR / 4)


@dataclass(frozen=True, eq=False)
class BoundedNewton(GaussNewton):
    """``GaussNewton`` of a ``Regressed`` likelihood over standardised columns; the outcome is NaN of a row that adds nothing.

    Its sums also count rows with an outcome, and the bound of scores follows the weight that rows kept.
    """

    likelihood: Regressed
    name: str = field(default="bounded-newton", init=False)
    least_kept: ClassVar[float] = 0.3

    @property
    def width(self) -> int:
        return super().width + 1

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return super().shapes | {"bound": (1,)}

    def begin(self, patients: float) -> Arrays:
        k = len(self.start)
        return super().begin(patients) | {"basis": _COORDINATES * np.eye(k), "bound": np.array([_FIRST * np.sqrt(k)])}

    def question(self, state: Arrays) -> Arrays:
        return super().question(state) | {"bound": state["bound"]}

    def contributions(self, question: Arrays, records: Floats) -> Floats:
        """(n, width) of records (n, p + 1), each of length at most 1; a record without an outcome gives zeros."""
        family, basis, (x, y) = self.likelihood.family, question["basis"], np.split(records, [-1], axis=1)
        coefficients, spread = self.likelihood.split(question["estimate"])
        first, second = np.triu_indices(len(basis))
        twice = np.where(first == second, 1.0, np.sqrt(2.0)) / self._information
        with np.errstate(all="ignore"):
            eta, rows = x @ coefficients, x @ basis[: x.shape[1]]
            last = basis[x.shape[1] :].sum(axis=0)  # of the spread, if there is one
            outcomes = np.stack([y[:, 0], *family.extremes(eta, spread)])
            own, (weight, *_), of_spread, (also, *_) = family.score_and_weight(outcomes, eta, spread)[..., None]
            scores = (rows * own + last * of_spread) / question["bound"]
            information = (weight * rows[:, first] * rows[:, second] + also * last[first] * last[second]) * twice
            longest = (scores[1:] ** 2).sum(axis=2).max(axis=0)
            return self._shorten(scores[0], information, longest + (information**2).sum(axis=1), ~np.isnan(y))

    @staticmethod
    def _shorten(scores: Floats, information: Floats, longest: Floats, there: Bools) -> Floats:
        """(n, width) shortened by rows' ``longest`` (n,) squared lengths of any outcome; zeros unless ``there`` (n, 1)."""
        factors = 1 / np.sqrt(np.maximum(1.0, longest))[:, None]
        block = np.sqrt(1 - WEIGHT) * factors * np.column_stack([scores, information])
        vectors = np.column_stack([block, _COUNTS * factors, np.full(len(factors), _COUNTS)]) * MARGIN
        return np.where(np.isfinite(vectors).all(axis=1, keepdims=True) & there, vectors, 0.0)

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        complete = max(float(mean[-1] / _COUNTS), 1e-3)
        weight_left = float(np.clip(mean[-2] / _COUNTS / complete, self.least_kept / 2, 1.0))
        after = super().absorb(round, state, np.append(mean[:-2], weight_left * np.sqrt(WEIGHT)), noise)
        if "information" in after:  # of rows as they were: their scores vary, and slope, by this factor less
            after["information"] = np.concatenate([after["information"][:-1], after["information"][-1:] / weight_left])
        if self.likelihood.family.spread:  # squares of residuals are linear in the step, and their logarithm is wanted
            before, estimate, basis = state["estimate"][-1], after["estimate"].copy(), after["basis"].copy()
            estimate[-1] = before + np.log(max(1 + 2 * (estimate[-1] - before), _SMALLEST)) / 2
            basis[:-1] *= np.exp(estimate[-1] - before)
            after |= {"estimate": estimate, "basis": basis}
        bound = state["bound"] * np.clip((_WANTED / weight_left) ** 3, _SHORTER, _LONGER)
        return after | {"bound": bound, "complete": np.array([complete])}

    @property
    def _information(self) -> float:
        return _INFORMATION * len(self.start)

    def _score_bound(self, state: Arrays) -> float:
        return float(state["bound"][0])
