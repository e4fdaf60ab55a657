"""Rows of each class from a Gaussian or a Gaussian copula beneath: scaled numbers, and 0/1 numbers that are 1 as often as they
should be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from polyclinic.synthesis.checks import Numbers
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.methods.bins import Bins
from polyclinic.synthesis.methods.covariance import positive
from polyclinic.synthesis.methods.draws import RowsByClass
from polyclinic.types import Arrays, Bools, Floats, Ints

# Frequencies are kept this far from 0 and 1; a correlation with a rare 0/1 number is raised at most so often.
_RARE, _MOST_RAISED = 1e-4, 3.0
_GRID = np.linspace(-8.0, 8.0, 321)
_RACES = 200
# Of a root of correlations; rounding lengthens its rows a little.
_LONGEST = 1.5


@dataclass(frozen=True, eq=False)
class Places:
    """Which of the P numbers before the label are scaled numbers, which stand alone as 0 or 1, and the one-hot groups.

    none: for each group whether all its numbers may be 0.
    """

    numeric: Bools
    single: Bools
    groups: tuple[slice, ...]
    none: tuple[bool, ...]

    @classmethod
    def of(cls, layout: Layout) -> Places:
        width = layout.label.start
        single = ~layout.numeric[:width]
        categorical = [(column, at) for column, at in layout.columns if column.kind == "categorical"]
        for _, at in categorical:
            single[at] = False
        none = tuple(column.nullable or column.drop_first for column, _ in categorical)
        return cls(layout.numeric[:width], single, tuple(at for _, at in categorical), none)


def group_frequencies(values: Floats, none: bool) -> Floats:
    """(m + 1,) frequencies of a group's numbers and of none of them, from their (m,) noisy means."""
    floored = np.maximum(values, _RARE)
    rest = max(1.0 - float(floored.sum()), _RARE) if none else 0.0
    return np.asarray(np.append(floored, rest) / (floored.sum() + rest))


def race(frequencies: Floats) -> Floats:
    """(m,) b, so that number j of independent standard normals plus b is the largest with frequency j; -inf for 0."""
    runs = frequencies > 0
    wanted = frequencies[runs]
    biases = np.log(wanted) - np.log(wanted).max()
    weights = np.gradient(_GRID)
    for _ in range(_RACES):
        below = ndtr(_GRID[:, None] - biases + biases.max())
        density = norm.pdf(_GRID[:, None] - biases + biases.max())
        product = below.prod(axis=1, keepdims=True) / np.maximum(below, 1e-300)
        wins = np.maximum((weights[:, None] * density * product).sum(axis=0), 1e-12)
        biases = biases + 0.5 * np.log(wanted * wins.sum() / wins)
    offsets = np.full(len(frequencies), -np.inf)
    offsets[runs] = biases - biases.max()
    return offsets


def cuts(places: Places, mean: Floats) -> Floats:
    """(P,) above which a standard normal beneath a single 0/1 number makes it 1."""
    thresholds = np.zeros_like(mean)
    thresholds[places.single] = -ndtri(np.clip(mean[places.single], _RARE, 1.0 - _RARE))
    return thresholds


def beneath(places: Places, mean: Floats, covariance: Floats) -> tuple[Floats, Floats]:
    """(P,) deviations, and the (P, P) root of the correlations beneath: rows of normals times it have them.

    A 0/1 number's correlation with anything is less than that of the normal beneath it by phi(t) / sqrt(p (1 - p))
    (Pearson 1909, biserial correlation). For two of them this is exact in the sense of Sheppard 1899 where both p are
    1/2.

    Args:
        places: Which numbers are numeric, 0/1, or in a group.
        mean: (P,) mean of z.
        covariance: (P, P) covariance of z.
    """
    hot = ~places.numeric
    share = np.clip(mean, _RARE, 1.0 - _RARE)
    variance = np.maximum(np.diag(covariance), 1e-12)
    variance = np.where(hot, np.maximum(share * (1.0 - share), variance), variance)
    deviation = np.sqrt(variance)
    raised = np.sqrt(share * (1.0 - share)) / norm.pdf(ndtri(share))
    raised = np.where(hot, np.minimum(raised, _MOST_RAISED), 1.0)
    linear = covariance / np.outer(deviation, deviation) * np.outer(raised, raised)
    both = np.outer(hot, hot)
    linear = np.where(both, np.sin(np.clip(linear, -np.pi / 2, np.pi / 2)), linear)
    for at in places.groups:
        linear[at, at] = 0.0
    linear = np.clip(linear, -1.0, 1.0)
    np.fill_diagonal(linear, 1.0)
    whole = positive(linear)
    unit = np.sqrt(np.diag(whole))
    values, vectors = np.linalg.eigh(whole / np.outer(unit, unit))
    return deviation, (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


def one_class(places: Places, mean: Floats, covariance: Floats) -> Arrays:
    """What ``draw_rows`` needs for one class.

    Args:
        places: Which numbers are numeric, 0/1, or in a group.
        mean: (P,) mean of z.
        covariance: (P, P) covariance of z.
    """
    share = mean.copy()
    biases, none = np.zeros(len(mean)), np.full(len(places.groups), -np.inf)
    for number, (at, empty) in enumerate(zip(places.groups, places.none, strict=True)):
        frequencies = group_frequencies(mean[at], empty)
        share[at] = frequencies[:-1]
        offsets = race(frequencies)
        biases[at], none[number] = offsets[:-1], offsets[-1]
    deviation, root = beneath(places, share, covariance)
    return {
        "mean": mean, "deviation": deviation, "root": root, "cuts": cuts(places, mean), "biases": biases, "none": none,
    }  # fmt: skip


def draw_rows(
    places: Places,
    normals: Floats,
    numbers: Floats,
    cut: Floats,
    biases: Floats,
    none: Floats,
    rng: np.random.Generator,
) -> Floats:
    """(n, P) rows: ``numbers`` where numeric; elsewhere what correlated ``normals`` and their cuts and biases make.

    Args:
        places: Which numbers are numeric, 0/1, or in a group.
        normals: (n, P) correlated normal numbers.
        numbers: (n, P) values where numeric.
        cut: (P,) above which a normal makes a 1.
        biases: (P,) what is added to the normals of a group, of which the largest makes a 1.
        none: (groups,) biases of no number of a group.
        rng: The source of random numbers.
    """
    z = np.where(places.numeric, numbers, (normals > cut).astype(np.float64))
    for number, at in enumerate(places.groups):
        other = (rng.standard_normal(len(z)) + none[number])[:, None]
        best = np.argmax(np.concatenate([normals[:, at] + biases[at], other], axis=1), axis=1)
        z[:, at] = np.eye(at.stop - at.start + 1)[best][:, :-1]
    return z


def normals_of(layout: Layout) -> dict[str, Numbers]:
    """What the numbers of ``one_class`` are, of all classes of a layout."""
    classes, width = layout.classes, int(layout.label.start)
    return {
        "mean": Numbers((classes, width)),
        "deviation": Numbers((classes, width), 0.0),
        "root": Numbers((classes, width, width), -_LONGEST, _LONGEST),
        "cuts": Numbers((classes, width)),
        "biases": Numbers((classes, width), high=0.0, endless=True),
        "none": Numbers((classes, len(Places.of(layout).groups)), high=0.0, endless=True),
    }


def histograms_of(layout: Layout, bins: int) -> Numbers:
    """What histograms of a layout's numbers are."""
    binned = Bins.of(layout, bins)
    return Numbers(binned.used.shape, shares=bool(len(binned.places)))


@dataclass(frozen=True, eq=False)
class Gaussian(RowsByClass):
    """Draws what ``Moments`` found.

    numbers: ``classes`` (K,) frequencies; of each class mean, deviation, root of the correlations beneath, cuts and
        biases of 0/1 numbers. Of a copula also (Q, most) histograms of ``bins`` bins, and then numbers are normal
        scores.
    """

    bins: int

    def allowed_numbers(self) -> dict[str, Numbers]:
        scored = {"histograms": histograms_of(self.layout, self.bins)} if "histograms" in self.numbers else {}
        return {**normals_of(self.layout), **scored}

    def _fill(self, z: Floats, y: Ints, rng: np.random.Generator) -> None:
        for label in np.unique(y):
            of_class = np.flatnonzero(y == label)
            z[of_class, : self.layout.label.start] = self._rows(int(label), len(of_class), rng)

    def _rows(self, label: int, rows: int, rng: np.random.Generator) -> Floats:
        mean, deviation, root, cut, biases, none = (
            self.numbers[name][label] for name in ("mean", "deviation", "root", "cuts", "biases", "none")
        )
        normals = rng.standard_normal((rows, len(mean))) @ root
        values = mean + deviation * normals
        if "histograms" in self.numbers:
            bins = Bins.of(self.layout, self.bins)
            values[:, bins.places] = bins.quantiles(ndtr(values[:, bins.places]), self.numbers["histograms"])
        return draw_rows(Places.of(self.layout), normals, values, cut, biases, none, rng)
