"""Proportional hazards: Cox's partial likelihood of one hospital's patients, and a likelihood of each patient by itself.

The partial likelihood compares each event with all patients at risk then, so that it is no sum over patients, and no clipping
bounds what one of them changes. With a constant hazard in each interval of a public grid, the same model is a Poisson regression
(Holford 1980), whose likelihood is such a sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from polyclinic.inference.likelihood import Likelihood
from polyclinic.types import Bools, Floats


def partial_likelihood(
    time: Floats, event: Bools, x: Floats, estimate: Floats, ties: str = "efron"
) -> tuple[float, Floats, Floats]:
    """The log partial likelihood of (n, p) features at an ``estimate`` (p,), its gradient (p,) and minus its Hessian (p, p).

    ties: of events at one time: efron (Efron 1977) or breslow (Breslow 1974).

    >>> time, event, x = np.array([1.0, 2.0, 3.0]), np.array([True, True, False]), np.array([[1.0], [0.0], [0.0]])
    >>> value, score, information = partial_likelihood(time, event, x, np.zeros(1))
    >>> round(value, 4), score.round(4), information.round(4)
    (-1.7918, array([0.6667]), array([[0.2222]]))
    """
    width = x.shape[1]
    linear = x @ estimate
    shift = linear.max(initial=0.0)
    weight = np.exp(linear - shift)[:, None]
    at, place = np.unique(time, return_inverse=True)
    order = np.argsort(place, kind="stable")
    begins = np.searchsorted(place[order], np.arange(len(at)))
    products = (x[:, :, None] * x[:, None, :]).reshape(len(x), width * width)
    sums = np.concatenate([weight, weight * x, weight * products], axis=1)[order]
    at_risk = np.cumsum(np.add.reduceat(sums, begins)[::-1], axis=0)[::-1] if len(x) else sums
    happens = np.bincount(place, event, len(at)).astype(np.int64)
    tied = np.add.reduceat(sums * event[order, None], begins) if len(x) else sums
    which = np.repeat(np.arange(len(at)), happens)
    number = np.arange(len(which)) - np.repeat(np.cumsum(happens) - happens, happens)
    share = number / np.maximum(happens[which], 1) if ties == "efron" else np.zeros(len(which))
    risk = at_risk[which] - share[:, None] * tied[which]
    mean, second = risk[:, 1 : width + 1] / risk[:, :1], risk[:, width + 1 :] / risk[:, :1]
    value = float(linear[event].sum() - np.log(risk[:, 0]).sum() - len(which) * shift)
    return value, x[event].sum(axis=0) - mean.sum(axis=0), second.sum(axis=0).reshape(width, width) - mean.T @ mean


class ProportionalHazards(Likelihood):
    """A hazard that is constant in each interval of a grid and, at any time, in proportion to exp(x beta).

    edges: (J,) the ends of the intervals, rising; the first begins at ``start``. columns: p features, the time, and whether the
    event came then. Parameters: for each interval the logarithm of the events expected of a patient with features 0 who is seen
    in all of it, and p logarithms of hazard ratios. A time beyond the last edge counts up to it.
    """

    yes_or_no = True

    def __init__(self, columns: tuple[str, ...], edges: Sequence[float], start: float = 0.0) -> None:
        self.columns = columns
        self.ends = torch.tensor([*edges], dtype=torch.float64)
        self.begins = torch.tensor([start, *edges[:-1]], dtype=torch.float64)
        self.names = (*(f"until {edge:g}" for edge in edges), *columns[:-2])

    def _parts(self, records: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The features, whether the event was in each interval, and the share of each interval that was seen."""
        x, time, event = records[:, :-2], records[:, -2:-1], records[:, -1:]
        here = event * ((time > self.begins) & (time <= self.ends))
        return x, here, ((time - self.begins) / (self.ends - self.begins)).clamp(0, 1)

    def log_density(self, parameters: Tensor, records: Tensor) -> Tensor:
        x, here, seen = self._parts(records)
        linear = parameters[:, None, : len(self.ends)] + (parameters[:, len(self.ends) :] @ x.T)[:, :, None]
        return (here * linear - seen * linear.exp()).sum(-1)

    def score(self, parameters: Tensor, records: Tensor) -> Tensor:
        x, here, seen = self._parts(records)
        over = here - seen * self._hazards(parameters, x)
        return torch.cat([over, x * over.sum(1, keepdim=True)], 1)

    def information(self, parameters: Tensor, records: Tensor) -> Tensor:
        x, _, seen = self._parts(records)
        expected = seen * self._hazards(parameters, x)
        across = expected[:, :, None] * x[:, None, :]
        own = expected.sum(1)[:, None, None] * x[:, :, None] * x[:, None, :]
        return torch.cat([torch.cat([torch.diag_embed(expected), across], 2), torch.cat([across.mT, own], 2)], 1)

    def _hazards(self, parameters: Tensor, x: Tensor) -> Tensor:
        """(n, J) events expected in each whole interval."""
        return (parameters[: len(self.ends)] + (x @ parameters[len(self.ends) :])[:, None]).exp()
