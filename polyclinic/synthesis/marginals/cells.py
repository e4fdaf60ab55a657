"""A row of numbers as a row of cells, and back: one column of few cells for each thing that a record says.

Everything here follows from the public schema. Numbers fall in equal bins between their public bounds, whole numbers
and ranks in a cell each where they are few. Each code of a set makes a column of two cells, and a missing value is the
last cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from polyclinic.ehr.schema import Column
from polyclinic.errors import ConfigError
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Floats, Ints


@dataclass(frozen=True)
class Attribute:
    """One column of cells. ``kind``: a number in bins, a flag of two cells, or a choice among categories.

    start, width: its features in a row. values: how many whole numbers or ranks lie between the bounds, 0 if any number may.
    missing: where the row says that it is missing, -1 if elsewhere. nullable: the last cell is for the missing.
    """

    name: str
    kind: Literal["number", "flag", "choice"]
    size: int
    start: int
    width: int = 1
    values: int = 0
    missing: int = -1
    nullable: bool = False
    drop_first: bool = False
    label: bool = False

    @property
    def value_cells(self) -> int:
        """The cells that are not for the missing."""
        return self.size - self.nullable

    def cells(self, z: Floats, mean: float, std: float) -> Ints:
        """(n,) cell of each row.

        Args:
            z: (n, D) rows of the layout.
            mean: The public centre of the column.
            std: Its public scale.
        """
        block = z[:, self.start : self.start + self.width]
        if self.kind == "choice":
            if self.drop_first:
                block = np.concatenate([np.full((len(block), 1), 0.5), block], axis=1)
            cells = np.argmax(block, axis=1)
            absent = block.max(axis=1, initial=0.0) < 0.5
        else:
            cells = block[:, 0] > 0.5 if self.kind == "flag" else self._bin((block[:, 0] * std + mean + 1.0) / 2.0)
            absent = z[:, self.missing] > 0.5
        cells = np.clip(cells, 0, self.value_cells - 1)
        return np.where(absent, self.value_cells, cells).astype(np.int64) if self.nullable else cells.astype(np.int64)

    def fill(self, z: Floats, cells: Ints, mean: float, std: float, rng: np.random.Generator) -> None:
        """Writes cells into the zeros of rows; a number is uniform within its bin.

        Args:
            z: (n, D) rows, which are changed.
            cells: (n,) cell of each row.
            mean: The public centre of the column.
            std: Its public scale.
            rng: The source of random numbers.
        """
        absent = cells == self.value_cells
        if self.kind == "choice":
            places = cells - self.drop_first
            rows = np.flatnonzero(~absent & (places >= 0))
            z[rows, self.start + places[rows]] = 1.0
            return
        values = cells.astype(np.float64)
        if self.kind == "number":
            values = (2.0 * self._share(cells, rng.random(len(cells))) - 1.0 - mean) / std
        z[:, self.start] = np.where(absent, 0.0, values)
        if self.nullable:
            z[:, self.missing] = absent

    def _bin(self, share: Floats) -> Floats:
        """(n,) bin of each ``share`` of the way between the bounds; a whole number lies in one bin, never in two."""
        if not self.values:
            return np.floor(share * self.value_cells)
        return np.floor(np.rint(share * (self.values - 1)) * self.value_cells / self.values)

    def _share(self, cells: Ints, level: Floats) -> Floats:
        """(n,) share of the way between the bounds, at ``level`` (0 to below 1) of each cell's numbers."""
        if not self.values:
            return (cells + level) / self.value_cells
        first, last = (-(-bound * self.values // self.value_cells) for bound in (cells, cells + 1))
        return (first + np.floor(level * (last - first))) / (self.values - 1)


@dataclass(frozen=True, eq=False)
class Table:
    """The columns of cells of a layout, the label last. A columns."""

    layout: Layout
    attributes: tuple[Attribute, ...]

    @classmethod
    def of(cls, layout: Layout, bins: int, columns: int) -> Table:
        """The columns of cells of a layout.

        Args:
            layout: The layout of the rows.
            bins: The most bins of a number.
            columns: The most columns of cells.

        Raises:
            ConfigError: The schema makes more than ``columns`` columns of cells.
        """
        attributes: list[Attribute] = []
        indicator = iter(range(layout.missing.start, layout.missing.stop))
        for column, at in layout.columns:
            for start in [at.start] if column.kind == "categorical" else range(at.start, at.stop):
                missing = next(indicator) if column.nullable and column.kind not in ("categorical", "code_set") else -1
                attributes.append(_attribute(column, layout.names[start], start, missing, bins))
        label = layout.label
        attributes.append(Attribute("label", "choice", layout.classes, label.start, layout.classes, label=True))
        if len(attributes) > columns:
            raise ConfigError(
                f"Schema {layout.schema.name!r} makes {len(attributes)} columns of cells, each code of a code set and each step "
                f"of a trajectory one; model 'marginals' takes at most {columns}: leave columns out, or use the model 'latent' "
                "or 'moments'."
            )
        return cls(layout, tuple(attributes))

    @cached_property
    def sizes(self) -> Ints:
        """(A,) how many cells each column has."""
        return np.array([attribute.size for attribute in self.attributes], dtype=np.int64)

    @cached_property
    def starts(self) -> Ints:
        """(A,) where each column's cells begin among all."""
        return np.cumsum(self.sizes) - self.sizes

    def cells(self, z: Floats) -> Ints:
        """(n, A) of (n, D) rows."""
        columns = [attribute.cells(z, *self._scale(attribute)) for attribute in self.attributes]
        return np.stack(columns, axis=1)

    def rows(self, cells: Ints, rng: np.random.Generator) -> Floats:
        """(n, D) rows that have the given (n, A) cells."""
        z = np.zeros((len(cells), self.layout.width))
        for place, attribute in enumerate(self.attributes):
            attribute.fill(z, cells[:, place], *self._scale(attribute), rng)
        return z

    def _scale(self, attribute: Attribute) -> tuple[float, float]:
        if attribute.kind != "number":
            return 0.0, 1.0
        return float(self.layout.mean[attribute.start]), float(self.layout.std[attribute.start])


def _attribute(column: Column, name: str, start: int, missing: int, bins: int) -> Attribute:
    null = int(column.nullable and column.kind != "code_set")
    if column.kind == "categorical":
        count = len(column.categories)
        return Attribute(
            column.name, "choice", count + null, start, count - column.drop_first,
            nullable=bool(null), drop_first=column.drop_first,
        )  # fmt: skip
    if column.kind in ("binary", "code_set"):
        return Attribute(name, "flag", 2 + null, start, missing=missing, nullable=bool(null))
    values = _whole(column)
    known_cells = min(bins, values) if values else bins
    return Attribute(name, "number", known_cells + null, start, values=values, missing=missing, nullable=bool(null))


def _whole(column: Column) -> int:
    """How many values lie between whole bounds, or how many ranks there are; 0 where any number may lie."""
    if column.kind == "ordinal":
        return len(column.categories)
    low, high = column.bounds or (0.0, 1.0)
    whole = column.kind == "integer" and low.is_integer() and high.is_integer()
    return int(high - low) + 1 if whole else 0
