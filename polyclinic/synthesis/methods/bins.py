"""Equal public bins of numeric columns: histograms of them, and numbers drawn from histograms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.covariance import on_simplex
from polyclinic.types import Bools, Floats, Ints


@dataclass(frozen=True, eq=False)
class Bins:
    """places: (Q,) numeric numbers of a row; low, width: (Q,) least edge and breadth of a bin in z; counts: (Q,) bins.

    A column of whole numbers, or of ranks, of which there are no more than bins, has a bin for each.
    """

    places: Ints
    low: Floats
    width: Floats
    counts: Ints
    missing: Ints

    @classmethod
    def of(cls, layout: Layout, bins: int) -> Bins:
        """Raises nothing; ``bins`` at least 2."""
        places = np.flatnonzero(layout.numeric)
        low, high = (bound[places] for bound in layout.bounds)
        counts = np.full(len(places), bins)
        for column, at in layout.columns:
            steps = len(column.categories) - 1.0
            if column.kind == "integer" and column.bounds is not None:
                steps = column.bounds[1] - column.bounds[0]
            if column.kind in ("integer", "ordinal") and steps < bins:
                counts[np.flatnonzero(places == at.start)] = round(steps) + 1
        step = (high - low) / np.maximum(counts - 1, 1)
        whole = counts < bins
        # Each whole number stands in the middle of its bin.
        low, high = np.where(whole, low - step / 2, low), np.where(whole, high + step / 2, high)
        indicator = np.full(layout.features, -1)
        indicator[layout.nullable] = np.arange(layout.missing.start, layout.missing.stop)
        return cls(places, low, (high - low) / counts, counts, indicator[places])

    @property
    def most(self) -> int:
        """The most bins of a column."""
        return int(self.counts.max(initial=0))

    @property
    def used(self) -> Bools:
        """(Q, most) which bins there are."""
        return np.arange(self.most) < self.counts[:, None]

    def histograms(self, z: Floats) -> Floats:
        """(n, Q, most) one-hot bins of each row's numbers; all zero where one is missing."""
        at = np.floor((z[:, self.places] - self.low) / self.width)
        at = np.clip(np.nan_to_num(at), 0, self.counts - 1).astype(np.int64)
        found = np.zeros((len(z), len(self.places), self.most))
        rows, columns = np.ogrid[: len(z), : len(self.places)]
        found[rows, columns, at] = 1.0
        found[:, self.missing >= 0] *= z[:, self.missing[self.missing >= 0], None] <= 0.5
        return found

    def distribution(self, values: Floats) -> Floats:
        """(..., Q, most) the nearest distributions over the bins that there are."""
        return on_simplex(np.where(self.used, values, -1e9), 1.0)

    def of_normal(self, mean: Floats, deviation: Floats) -> Floats:
        """(K, Q, most) chances of each bin under (K, Q) normals; those beyond the bounds count to the outermost bins."""
        edges = self.low[:, None] + np.arange(1, self.most) * self.width[:, None]
        upto = ndtr((edges - mean[..., None]) / deviation[..., None])
        upto = np.where(np.arange(1, self.most) < self.counts[:, None], upto, 1.0)
        return np.diff(upto, axis=-1, prepend=0.0, append=1.0)

    def quantiles(self, chance: Floats, distributions: Floats) -> Floats:
        """(n, Q) numbers at (n, Q) chances, under (Q, most) distributions that are even within bins."""
        found = np.empty_like(chance)
        for column, (distribution, low, width) in enumerate(zip(distributions, self.low, self.width, strict=True)):
            upto = np.concatenate([[0.0], np.cumsum(distribution)])
            edges = low + width * np.arange(len(upto))
            found[:, column] = np.interp(chance[:, column] * upto[-1], upto, edges)
        return found
