"""Equal public bins of numeric columns: histograms of them, and numbers drawn from histograms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.covariance import on_simplex
from polyclinic.types import Bools, Floats, Ints

# A bin counts where it stands so many standard deviations of its noise above nothing.
_ABOVE_NOISE = 3.0
# Scores reach no further than those of so rare numbers.
_TAIL = 1e-3


@dataclass(frozen=True, eq=False)
class Bins:
    """places: (Q,) numeric numbers of a row; low, width: (Q,) least edge and breadth of a bin in z; counts: (Q,) bins;
    whole: (Q,) whether a bin is a single number.

    A column of whole numbers, or of ranks, of which there are no more than bins, has a bin for each.
    """

    places: Ints
    low: Floats
    width: Floats
    counts: Ints
    whole: Bools
    missing: Ints

    @classmethod
    def of(cls, layout: Layout, bins: int) -> Bins:
        """Raises nothing; ``bins`` at least 2."""
        places = np.flatnonzero(layout.numeric)
        low, high = (bound[places] for bound in layout.bounds)
        steps = np.zeros(len(places))
        for column, at in layout.columns:
            if column.kind == "ordinal":
                steps[_within(places, at)] = len(column.categories) - 1
            elif column.bounds is not None and (column.kind == "integer" or column.whole):
                steps[_within(places, at)] = round(column.bounds[1] - column.bounds[0])
        counts = np.where(steps > 0, np.minimum(steps + 1, bins), bins).astype(np.int64)
        # Each whole number stands in the middle of its own share of a bin.
        half = np.where(steps > 0, (high - low) / np.maximum(steps, 1) / 2, 0.0)
        low, high = low - half, high + half
        indicator = np.full(layout.features, -1)
        indicator[layout.nullable] = np.arange(layout.missing.start, layout.missing.stop)
        return cls(places, low, (high - low) / counts, counts, counts == steps + 1, indicator[places])

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
        hot = np.zeros((len(z), len(self.places), self.most))
        rows, columns = np.ogrid[: len(z), : len(self.places)]
        hot[rows, columns, at] = 1.0
        hot[:, self.missing >= 0] *= z[:, self.missing[self.missing >= 0], None] <= 0.5
        return hot

    def standing_out(self, means: Floats, noise: float, blocks: Ints | None = None) -> Bools:
        """(Q, most) which bins' frequencies stand out of the noise; of a column without such a bin all.

        Noise alone would else fill bounds that are far wider than what patients have.

        Args:
            means: (Q, most) noisy frequencies.
            noise: The standard deviation of the noise in each.
            blocks: (Q,) how many neighbours, a power of two, may stand out together where none does alone; by default
                1.
        """
        standing, size = np.zeros(means.shape, dtype=bool), 1
        while size <= (1 if blocks is None else int(blocks.max(initial=1))):
            padded = np.pad(means, ((0, 0), (0, -means.shape[1] % size)))
            together = padded.reshape(len(means), padded.shape[1] // size, size).sum(
                axis=2
            ) > _ABOVE_NOISE * noise * np.sqrt(size)
            own = np.repeat(together, size, axis=1)[:, : means.shape[1]]
            standing |= own if blocks is None else own & (blocks[:, None] >= size)
            size *= 2
        standing &= self.used
        return standing | (self.used & ~standing.any(axis=1, keepdims=True))

    def scores(self, z: Floats, distributions: Floats) -> Floats:
        """(n, Q) standard normal scores of the numbers of (n, D) rows, under (Q, most) distributions: what ``quantiles`` takes
        their chances back to. Those of whole numbers are of the middle of their bins, and scaled to a variance of 1.
        """
        scores, middles = np.empty((len(z), len(self.places))), self.middle_scores(distributions)
        for column, (distribution, place) in enumerate(zip(distributions, self.places, strict=True)):
            at = np.clip((z[:, place] - self.low[column]) / self.width[column], 0.0, self.counts[column])
            if self.whole[column]:
                scores[:, column] = middles[column, np.minimum(at, self.counts[column] - 1).astype(np.int64)]
            else:
                upto = np.append(0.0, np.cumsum(distribution))
                scores[:, column] = _normal(np.interp(at, np.arange(len(upto)), upto))
        return scores

    def middle_scores(self, distributions: Floats) -> Floats:
        """(Q, most) scores of the middles of bins, with a mean square of 1."""
        scores = _normal(np.cumsum(distributions, axis=1) - distributions / 2)
        scores /= np.maximum(np.sqrt((distributions * scores**2).sum(axis=1, keepdims=True)), 0.1)
        return np.where(self.used, scores, 0.0)

    def constant(self, distributions: Floats) -> Bools:
        """(Q,) which columns are one whole number for all, under (Q, most) distributions; its score is 0."""
        squares = (distributions * self.middle_scores(distributions) ** 2).sum(axis=1)
        return np.asarray(self.whole & (squares < 0.5))

    def quantiles(self, chance: Floats, distributions: Floats) -> Floats:
        """(n, Q) numbers at (n, Q) chances, under (Q, most) distributions that are even within bins."""
        values = np.empty_like(chance)
        for column, (distribution, low, width) in enumerate(zip(distributions, self.low, self.width, strict=True)):
            upto = np.concatenate([[0.0], np.cumsum(distribution)])
            edges = low + width * np.arange(len(upto))
            values[:, column] = np.interp(chance[:, column] * upto[-1], upto, edges)
        return values


def _within(places: Ints, at: slice) -> Bools:
    return np.asarray((places >= at.start) & (places < at.stop))


def _normal(chances: Floats) -> Floats:
    return np.asarray(ndtri(np.clip(chances, _TAIL, 1.0 - _TAIL)))


def distributions(means: Floats, there: Bools) -> Floats:
    """(..., Q, most) the nearest distributions to noisy frequencies, over the (Q, most) bins that are ``there``."""
    total = np.maximum(np.where(there, means, 0.0).sum(axis=-1, keepdims=True), 0.05)
    return on_simplex(np.where(there, means / total, -1e9), 1.0)
