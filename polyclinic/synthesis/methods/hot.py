"""The 0/1 numbers of a row, label included: their sums, what frequencies noise leaves of those, and rows drawn by them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.covariance import on_simplex
from polyclinic.types import Floats, Ints

# Frequencies are kept this far from 0 and 1.
_RARE = 1e-6


@dataclass(frozen=True, eq=False)
class Hot:
    """The 0/1 numbers of a layout.

    places: (H,) where in z; the rest tells of those H.
    groups, none: one-hot groups, and for each whether none of its numbers may be 1.
    sets, singles: code sets, and numbers by themselves.
    cells: H numbers to (features, indicators) of cells that may be missing.
    most: codes of a set that count.
    """

    places: Ints
    groups: tuple[slice, ...]
    none: tuple[bool, ...]
    sets: tuple[slice, ...]
    singles: Ints
    cells: tuple[Ints, Ints]
    most: int

    @classmethod
    def of(cls, layout: Layout, most: int) -> Hot:
        places = np.flatnonzero(~layout.numeric)
        here = np.cumsum(~layout.numeric) - 1

        def local(at: slice) -> slice:
            return slice(int(here[at.start]), int(here[at.start]) + at.stop - at.start)

        single = np.ones(len(places), dtype=bool)
        chosen = [(column, local(at)) for column, at in layout.columns if column.kind in ("categorical", "code_set")]
        groups = [(at, column.nullable or column.drop_first) for column, at in chosen if column.kind == "categorical"]
        groups.append((local(layout.label), False))
        for at in (*(at for _, at in chosen), local(layout.label)):
            single[at] = False
        nullable = np.flatnonzero(layout.nullable)
        binary = ~layout.numeric[nullable]
        indicators = np.arange(layout.missing.start, layout.missing.stop)
        return cls(
            places, tuple(at for at, _ in groups), tuple(none for _, none in groups),
            tuple(at for column, at in chosen if column.kind == "code_set"), np.flatnonzero(single),
            (here[nullable[binary]], here[indicators[binary]]), most,
        )  # fmt: skip

    @property
    def square(self) -> float:
        """The largest square of ``values``."""
        alone = len(self.singles) - len(self.cells[0])
        return float(alone + len(self.groups) + sum(min(self.most, at.stop - at.start) for at in self.sets))

    def values(self, z: Floats) -> Floats:
        """(n, H) 0/1 numbers; missing ones 0; a set of more than ``most`` codes is shortened to the length of ``most``."""
        hot = (z[:, self.places] > 0.5).astype(np.float64)
        hot[:, self.cells[0]] *= 1.0 - hot[:, self.cells[1]]
        for at in self.groups:
            hot[:, at] /= np.maximum(hot[:, at].sum(axis=1, keepdims=True), 1.0)
        for at in self.sets:
            hot[:, at] *= np.sqrt(np.minimum(1.0, self.most / np.maximum(hot[:, at].sum(axis=1, keepdims=True), 1.0)))
        return hot

    def counts(self, z: Floats) -> Floats:
        """(n, sets, most + 1) one-hot numbers of codes in each set, from 0 to ``most``."""
        counts = np.zeros((len(z), len(self.sets), self.most + 1))
        for number, at in enumerate(self.sets):
            codes = (z[:, self.places[at]] > 0.5).sum(axis=1)
            counts[np.arange(len(z)), number, np.minimum(codes, self.most)] = 1.0
        return counts

    def frequencies(self, means: Floats) -> Floats:
        """(C, H) frequencies of cells that are there, the nearest to noisy (C, H) means of ``values`` that can be."""
        frequencies = np.clip(means, _RARE, 1.0 - _RARE)
        for at, none in zip(self.groups, self.none, strict=True):
            free = np.maximum(means[:, at].sum(axis=1, keepdims=True), _RARE)
            own = on_simplex(means[:, at] / (1.0 if none else free), 1.0)
            frequencies[:, at] = np.where(none & (free <= 1.0), frequencies[:, at], np.maximum(own, _RARE))
        for at in self.sets:
            # A sum of many clipped noises would be too large.
            total = np.maximum(means[:, at].sum(axis=1), _RARE)
            own = np.stack([on_simplex(row, size) for row, size in zip(means[:, at], total, strict=True)])
            frequencies[:, at] = np.clip(own, _RARE, 1.0 - _RARE)
        cell, indicator = self.cells
        frequencies[:, cell] = np.clip(
            frequencies[:, cell] / np.maximum(1.0 - frequencies[:, indicator], 0.05), _RARE, 1.0 - _RARE
        )
        return frequencies

    def chances(self, frequencies: Floats, group: int) -> Floats:
        """(C, m + 1) of a group's numbers, and of none of them, from (C, H)."""
        own = frequencies[:, self.groups[group]]
        rest = np.maximum(1.0 - own.sum(axis=1, keepdims=True), 0.0) if self.none[group] else np.zeros((len(own), 1))
        chances: Floats = np.concatenate([own, rest], axis=1)
        chances /= chances.sum(axis=1, keepdims=True)
        return chances

    def draw(self, frequencies: Floats, rows: Ints, rng: np.random.Generator, sets: bool = True) -> Floats:
        """(n, H) rows, each number for itself but those of groups.

        Args:
            frequencies: (C, H) frequency of each number in each class.
            rows: (n,) the class of each row.
            rng: The source of random numbers.
            sets: Whether codes of sets are drawn too; otherwise they are 0.
        """
        hot = np.zeros((len(rows), len(self.places)))
        codes = [np.arange(at.start, at.stop) for at in self.sets] if sets else []
        for alone in (self.singles, *codes):
            hot[:, alone] = rng.random((len(rows), len(alone))) < frequencies[:, alone][rows]
        for group, at in enumerate(self.groups):
            upto = np.cumsum(self.chances(frequencies, group), axis=1)[rows]
            best = (upto <= rng.random((len(rows), 1)) * upto[:, -1:]).sum(axis=1)
            hot[:, at] = np.eye(at.stop - at.start + 1)[np.minimum(best, at.stop - at.start)][:, :-1]
        return hot
