"""Additive models: a row's outputs are an intercept and, for each feature, the number of the bin that its cell lies in.

The numbers of one feature are its shape function, which can be drawn and read (Lou, Caruana and Gehrke 2012). Numeric features
have bins of equal shares of a wide normal distribution, so that they suit columns that are standardised; 0/1 features have two
bins. A missing cell has a bin of its own.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from polyclinic.ehr.encoding import nullable_mask, standardised_mask
from polyclinic.ehr.schema import Schema
from polyclinic.types import Floats, Ints

#: Options of the model ``ebm`` where none are given.
BINS, COMPONENTS, SMOOTHNESS = 32, 8, 2.0
_MOST_COMPONENTS = 64
_WIDE = 1.5  # standard deviations of the normal distribution of which bins have equal shares: counts have long tails
_YES_OR_NO = 0.2  # the usual variance of a feature that is 0 or 1


def bin_edges(schema: Schema, bins: int = BINS) -> np.ndarray:
    """(features, bins - 1) float32 rising edges between the bins of each standardised feature, from the schema alone.

    A 0/1 feature uses the first two bins. Raises ValueError for fewer than 2 or more than 1,000 bins.

    Examples:
        >>> from polyclinic.ehr.schema import Column
        >>> label = Column(name="died", kind="binary", role="label")
        >>> columns = (Column(name="age", kind="continuous", bounds=(0, 100)), Column(name="male", kind="binary"), label)
        >>> bin_edges(Schema(name="ward", unit="record", columns=columns), bins=4).astype(float).round(2).tolist()
        [[-1.01, 0.0, 1.01], [0.5, inf, inf]]
    """
    if not 2 <= bins <= 1000:
        raise ValueError(f"bins is {bins}; it must be from 2 to 1000")
    quantiles = [NormalDist(0, _WIDE).inv_cdf(number / bins) for number in range(1, bins)]
    yes_or_no = [0.5, *[np.inf] * (bins - 2)]
    return np.array([quantiles if is_number else yes_or_no for is_number in standardised_mask(schema)], np.float32)


class Additive(nn.Module):
    """(B, features) rows, NaN where a cell is missing, to (B, outputs).

    Attributes:
        shapes: (features, bins + 1, outputs) numbers that are added up; the last bin of a feature is that of missing cells.
        intercept: (outputs,).
        deviations: (features, bins + 1) how uncertain each number of ``shapes`` is, as a standard deviation: by the noise of
            private training and the number of patients, under the prior.
        importances: (columns,) standard deviation, among patients, of what each column adds to the outputs.
    """

    #: Missing cells must reach the model as NaN.
    reads_missing = True

    def __init__(self, edges: np.ndarray, outputs: int, columns: int) -> None:
        super().__init__()
        features, self.bins = edges.shape[0], edges.shape[1] + 1
        self.edges = nn.Buffer(torch.from_numpy(edges), persistent=False)
        self.shapes = nn.Parameter(torch.zeros(features, self.bins + 1, outputs))
        self.intercept = nn.Parameter(torch.zeros(outputs))
        self.deviations = nn.Buffer(torch.zeros(features, self.bins + 1))
        self.importances = nn.Buffer(torch.zeros(columns))

    def places(self, x: Tensor) -> Tensor:
        """(B, features) the number of each cell's bin."""
        return torch.where(x.isnan(), self.bins, (x[..., None] > self.edges).sum(-1))

    def contributions(self, x: Tensor) -> Tensor:
        """(B, features, outputs) what each cell adds to the outputs."""
        first = (self.bins + 1) * torch.arange(self.shapes.shape[0], device=x.device)
        return functional.embedding(self.places(x) + first, self.shapes.flatten(0, 1))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.intercept + self.contributions(x).sum(-2)
        return outputs


def additive(
    features: int, outputs: int, schema: Schema, bins: int = BINS, components: int = COMPONENTS,
    smoothness: float = SMOOTHNESS,
) -> nn.Module:  # fmt: skip
    """Return an additive model of a schema's encoded features that predicts the same for everybody.

    Args:
        features: The width of a row; the bins follow from the schema.
        outputs: The number of outputs.
        schema: The schema of the rows.
        bins: Of a number.
        components, smoothness: As ``Basis`` has them; only training reads them.

    Raises:
        ValueError: For options that ``Basis`` refuses.
    """
    Basis.of(schema, bins, components, smoothness)
    return Additive(bin_edges(schema, bins), outputs, len(schema.features))


class Basis:
    """Smooth functions of the bins, of which shape functions are made while they are trained.

    A number has a straight line over its standardised bins and what cosines of 1, 2, ... half waves add to it. These
    ``components`` functions (fewer than bins) are uncorrelated where the column is normal, each divided by its number
    to the power of ``smoothness``. With coefficients of one variance, a priori, slow changes are large and fast ones
    small. A 0/1 feature has itself, and a cell that may be missing the indicator that it is.

    Attributes:
        feature: (q,) which encoded feature each function is of.
        tables: (q, bins + 1) its value in each bin; the last one is that of missing cells.
        usual: (q,) its variance among patients before any is seen.
    """

    def __init__(self, feature: Ints, tables: Floats, usual: Floats, edges: np.ndarray) -> None:
        self.feature, self.tables, self.usual, self.edges = feature, tables, usual, edges

    @classmethod
    def of(
        cls, schema: Schema, bins: int = BINS, components: int = COMPONENTS, smoothness: float = SMOOTHNESS
    ) -> Basis:
        """Return the functions of a schema's encoded features.

        Args:
            schema: The schema of the rows.
            bins: Of a number, from 2 to 1,000.
            components: Functions of a number, from 1 to 64; at most one fewer than bins are used.
            smoothness: The power that makes fast changes small, from 0 to 10.

        Raises:
            ValueError: For bins, components or a smoothness outside these limits.
        """
        edges = bin_edges(schema, bins)
        if not 1 <= components <= _MOST_COMPONENTS:  # a hospital's rows have as many numbers for each feature
            raise ValueError(f"components is {components}; it must be from 1 to {_MOST_COMPONENTS}")
        components = min(components, bins - 1)
        if not 0 <= smoothness <= 10:
            raise ValueError(f"smoothness is {smoothness}; it must be from 0 to 10")
        waves = np.arange(1, components + 1)[:, None]
        scales: Floats = waves.astype(np.float64) ** -float(smoothness)
        middles = (np.arange(bins) + 0.5) / bins
        line = np.array([NormalDist(0, _WIDE).inv_cdf(middle) for middle in middles])
        raw = np.concatenate([line[None], np.cos(np.pi * waves[: components - 1] * middles)])
        below = [NormalDist().cdf(NormalDist(0, _WIDE).inv_cdf(number / bins)) for number in range(1, bins)]
        weights = np.diff(below, prepend=0.0, append=1.0)  # how many patients each bin has, were the column normal
        independent, triangle = np.linalg.qr(((raw - (raw @ weights)[:, None]) * np.sqrt(weights)).T)
        cosines = (independent * np.sign(np.diag(triangle))).T / np.sqrt(weights) * scales
        cosines = np.concatenate([cosines, np.zeros((components, 1))], axis=1)
        yes, gone = (np.eye(bins + 1)[[place]] for place in (1, bins))
        parts: list[tuple[int, Floats, Floats]] = []
        for number, (is_number, may_lack) in enumerate(
            zip(standardised_mask(schema), nullable_mask(schema), strict=True)
        ):
            own: tuple[Floats, Floats] = (cosines, scales[:, 0] ** 2) if is_number else (yes, np.array([_YES_OR_NO]))
            parts.append((number, *own))
            if may_lack:
                parts.append((number, gone, np.array([_YES_OR_NO])))
        feature = np.concatenate([np.full(len(tables), number) for number, tables, _ in parts])
        return cls(
            feature, np.concatenate([tables for _, tables, _ in parts]), np.concatenate([u for *_, u in parts]), edges
        )

    @property
    def farthest(self) -> float:
        """The length that no row exceeds."""
        squares = np.zeros(int(self.feature.max()) + 1)
        for number in range(len(squares)):
            squares[number] = (self.tables[self.feature == number] ** 2).sum(axis=0).max(initial=0.0)
        return float(np.sqrt(squares.sum()))

    def rows(self, x: Floats) -> Floats:
        """(n, q) the functions of (n, features) rows, NaN where a cell is missing."""
        cells = x.astype(np.float32)  # as the model reads them, so that no cell changes its bin
        missing = self.tables.shape[1] - 1
        parts = np.empty((len(x), len(self.feature)))
        for number in range(x.shape[1]):
            cell, edges = cells[:, number], self.edges[number]
            at = np.where(np.isnan(cell), missing, np.searchsorted(edges, cell, "left"))
            own = self.feature == number
            parts[:, own] = self.tables[own].T[at]
        return parts
