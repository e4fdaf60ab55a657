"""Rows of each class from a Gaussian or a Gaussian copula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.bins import Bins
from polyclinic.synthesis.methods.draws import drawn_classes, within
from polyclinic.synthesis.methods.normal import Places, drawn
from polyclinic.types import Arrays, Floats, Ints


@dataclass(frozen=True, eq=False)
class Gaussian:
    """Draws what ``Moments`` found. numbers: ``classes`` (K,) frequencies; of each class mean, deviation, root of the
    correlations beneath, cuts and biases of 0/1 numbers, and, of a copula, histograms of ``bins`` bins.
    """

    layout: Layout
    numbers: Arrays
    bins: int

    @property
    def classes(self) -> Floats:
        """(K,) frequencies of the classes."""
        return self.numbers["classes"]

    @classmethod
    def load(cls, layout: Layout, arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> Gaussian:
        return cls(layout, dict(arrays), int(options["bins"]))

    def arrays(self) -> Arrays:
        return self.numbers

    def options(self) -> dict[str, Any]:
        return {"bins": self.bins}

    def sample(self, rows: int, rng: np.random.Generator, labels: Ints | None = None) -> Floats:
        """(rows, D), within the schema's bounds; numbers of cells that are drawn as missing are 0."""
        layout = self.layout
        y = drawn_classes(self.classes, rows, rng) if labels is None else labels
        z = np.zeros((rows, layout.width))
        for label in np.unique(y):
            of_class = np.flatnonzero(y == label)
            z[of_class, : layout.label.start] = self._rows(int(label), len(of_class), rng)
        z[np.arange(rows), layout.label.start + y] = 1.0
        return within(layout, z)

    def _rows(self, label: int, rows: int, rng: np.random.Generator) -> Floats:
        mean, deviation, root, cut, biases, none = (
            self.numbers[name][label] for name in ("mean", "deviation", "root", "cuts", "biases", "none")
        )
        normals = rng.standard_normal((rows, len(mean))) @ root
        values = mean + deviation * normals
        if "histograms" in self.numbers:
            bins = Bins.of(self.layout, self.bins)
            at = bins.places
            normal = bins.of_normal(mean[None, at], deviation[None, at])[0]
            values[:, at] = mean[at] + deviation[at] * bent(normals[:, at], normal, self.numbers["histograms"][label])
        return drawn(Places.of(self.layout), normals, values, cut, biases, none, rng)


def bent(normals: Floats, expected: Floats, found: Floats) -> Floats:
    """(n, Q) standard normals moved so that (Q, bins) chances ``expected`` of bins become ``found``; within bins in their order.

    Where both are the same they stay what they are, however wide the bins.
    """
    moved = np.empty_like(normals)
    for column, (before, after) in enumerate(zip(expected, found, strict=True)):
        new, old = (np.concatenate([[0.0], np.cumsum(chances)]) for chances in (after, before))
        chance = np.interp(ndtr(normals[:, column]), new, old)
        moved[:, column] = ndtri(np.clip(chance, 1e-9, 1.0 - 1e-9))
    return moved
