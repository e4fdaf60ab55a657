"""Proportional hazards: Cox's partial likelihood of one hospital's patients, and a likelihood of each patient by itself.

The partial likelihood compares each event with all patients at risk then, so that it is no sum over patients, and no clipping
bounds what one of them changes. With a constant hazard in each interval of a public grid, the same model is a Poisson regression
(Holford 1980), whose likelihood is such a sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polyclinic.inference.bounded_newton import BoundedNewton
from polyclinic.types import Arrays, Bools, Floats

# Logarithms of rates beyond it are as good as infinite.
_STEEPEST = 30.0


def partial_likelihood(
    time: Floats, event: Bools, x: Floats, estimate: Floats, ties: str = "efron"
) -> tuple[float, Floats, Floats]:
    """The log partial likelihood at an ``estimate``, its gradient (p,) and minus its Hessian (p, p).

    Args:
        time: (n,) of the event, or of the end of what is known.
        event: (n,) whether the event happened at that time.
        x: (n, p) features.
        estimate: (p,) coefficients.
        ties: Of events at one time: efron (Efron 1977) or breslow (Breslow 1974).

    Examples:
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


@dataclass(frozen=True, eq=False)
class BoundedHazards(BoundedNewton):
    """``BoundedNewton`` of hazards that are constant in each interval of a grid and, at any time, in proportion to exp(x beta).

    edges: (J + 1) where the first interval begins, and the ends of all. Parameters: for each interval the logarithm of the events
    expected of a patient with features 0 who is seen in all of it, and p logarithms of hazard ratios. A time beyond the last edge
    counts up to it. A patient's vector is shortened by the features alone: for whatever might have happened to the patient.
    """

    edges: tuple[float, ...] = ()

    def contributions(self, question: Arrays, records: Floats) -> Floats:
        """(n, width) of records (n, p + 2): features, the time, and the event, which is NaN where something is missing."""
        x, time, event = records[:, :-2], records[:, -2:-1], records[:, -1:]
        begins, ends, intervals = np.array(self.edges[:-1]), np.array(self.edges[1:]), len(self.edges) - 1
        first, second = np.triu_indices(len(question["basis"]))
        twice = np.where(first == second, 1.0, np.sqrt(2.0)) / self._information
        with np.errstate(all="ignore"):
            level = question["estimate"][:intervals] + (x @ question["estimate"][intervals:])[:, None]
            rows = question["basis"][:intervals] + (x @ question["basis"][intervals:])[:, None]
            rates = np.exp(np.clip(level, -_STEEPEST, _STEEPEST))
            here = np.clip(event, 0.0, 1.0) * ((time > np.append(-np.inf, begins[1:])) & (time <= ends))
            seen = np.clip((time - begins) / (ends - begins), 0.0, 1.0)

            def information(expected: Floats) -> Floats:
                of_each = (expected[:, [j]] * rows[:, j, first] * rows[:, j, second] for j in range(intervals))
                return np.asarray(sum(of_each, np.zeros(1)) * twice)

            scores = np.einsum("nj,njk->nk", here - seen * rates, rows) / question["bound"]
            passed = np.cumsum(rates[:, :, None] * rows, axis=1)
            before = passed - rates[:, :, None] * rows
            possible = (
                ((part / question["bound"]) ** 2).sum(axis=2) for part in (passed, rows - before, rows - passed)
            )
            longest = np.max([lengths.max(axis=1) for lengths in possible], axis=0)
            most = (information(rates) ** 2).sum(axis=1)
            return self._shorten(scores, information(seen * rates), longest + most, ~np.isnan(event))
