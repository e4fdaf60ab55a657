"""Columns one by one: a noisy histogram or frequency of each, within each class of the label or not. What others must beat."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from polyclinic.privacy.sums import mean_of_rows
from polyclinic.synthesis.checks import Numbers
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.bins import Bins, distributions
from polyclinic.synthesis.methods.covariance import class_means
from polyclinic.synthesis.methods.draws import RowsByClass
from polyclinic.synthesis.methods.hot import Hot
from polyclinic.synthesis.methods.options import check_number, check_switch
from polyclinic.types import Arrays, Floats, Ints


@dataclass(frozen=True, eq=False)
class Independent:
    """A patient's vector: [bins of numeric columns, 0/1 numbers], of length 1 at most, in the block of the label.

    bins: of a numeric column, equal and public.
    most: codes of a set; a patient with more counts less for each.
    by_label: columns are independent within each class; otherwise the label is one more column.

    Raises ConfigError for an option out of range.
    """

    layout: Layout
    bins: int = 24
    most: int = 20
    by_label: bool = True
    name: ClassVar[str] = "independent"
    rounds: ClassVar[int] = 1
    separate: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_number(self.name, "bins", self.bins, 2, 1000, whole=True)
        check_number(self.name, "most", self.most, 1, 10_000, whole=True)
        check_switch(self.name, "by_label", self.by_label)

    def question(self, round: int, state: Arrays) -> Arrays:
        return {}

    def size(self, round: int, question: Arrays) -> int:
        return self._blocks * sum(self._parts)

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size); of length at most 1 whatever the rows hold.

        Args:
            round: The round, 1.
            question: Empty.
            z: (n, D) rows of the layout.
            patient: (n,) the patient of each row.
            patients: The number of patients.
        """
        binned = self._bins.histograms(z).reshape(len(z), self._parts[0])
        vectors = np.concatenate([binned, self._hot.values(z)], axis=1) / self._length
        if self._blocks == 1:
            return mean_of_rows(vectors, patient, patients)
        return mean_of_rows(self.layout.by_class(z, vectors), patient, patients)

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        return {**state, "mean": mean, "noise": np.array([noise])}

    def synthesizer(self, state: Arrays) -> Columns:
        classes = np.asarray(state["classes"], dtype=np.float64)
        shares = classes if self.by_label else np.ones(1)
        noise = float(state["noise"][0]) * self._length
        means = state["mean"].reshape(len(shares), -1) * self._length / shares[:, None]
        binned, hot = np.split(class_means(means, shares, noise), [self._parts[0]], axis=1)
        of_all = (shares @ means)[: self._parts[0]].reshape(self._bins.used.shape)
        there = self._bins.standing_out(of_all, noise * np.sqrt(len(shares)))
        arrays = {
            "classes": classes,
            "histograms": distributions(binned.reshape(len(shares), *there.shape), there),
            "frequencies": self._hot.frequencies(hot),
        }
        return Columns(self.layout, arrays, self.bins, self.most)

    @cached_property
    def _bins(self) -> Bins:
        return Bins.of(self.layout, self.bins)

    @cached_property
    def _hot(self) -> Hot:
        return Hot.of(self.layout, self.most)

    @property
    def _blocks(self) -> int:
        return self.layout.classes if self.by_label else 1

    @property
    def _parts(self) -> tuple[int, int]:
        return len(self._bins.places) * self._bins.most, len(self._hot.places)

    @property
    def _length(self) -> float:
        return float(np.sqrt(self._hot.square + len(self._bins.places)))


@dataclass(frozen=True, eq=False)
class Columns(RowsByClass):
    """Draws independent columns. numbers: ``classes`` (K,); ``histograms`` (K or 1, Q, bins); ``frequencies`` (K or 1, H)."""

    bins: int
    most: int

    def allowed_numbers(self) -> dict[str, Numbers]:
        bins, hot = Bins.of(self.layout, self.bins), Hot.of(self.layout, self.most)
        blocks = 1 if len(self.numbers["frequencies"]) == 1 else self.layout.classes
        return {
            "histograms": Numbers((blocks, *bins.used.shape), shares=bool(len(bins.places))),
            "frequencies": Numbers((blocks, len(hot.places)), 0.0, 1.0),
        }

    def _fill(self, z: Floats, y: Ints, rng: np.random.Generator) -> None:
        bins, hot = Bins.of(self.layout, self.bins), Hot.of(self.layout, self.most)
        block = y if len(self.numbers["frequencies"]) > 1 else np.zeros(len(y), dtype=np.int64)
        z[:, hot.places] = hot.draw(self.numbers["frequencies"], block, rng)
        chance = rng.random((len(y), len(bins.places)))
        for number in np.unique(block):
            at = np.flatnonzero(block == number)
            z[np.ix_(at, bins.places)] = bins.quantiles(chance[at], self.numbers["histograms"][number])
