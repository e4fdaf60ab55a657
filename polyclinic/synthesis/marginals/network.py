"""The synthesizer of a fitted model: each column given a few earlier ones, the label first.

A model of largest entropy over a junction tree is the same as a directed one: columns in an order in which each one's earlier
neighbours lie in one clique with it. So the file holds its conditional frequencies, by which drawing is exact, needs no graphical
library and takes any label; a pool of drawn rows would repeat its rows and run short of rare labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.marginals.cells import Table
from polyclinic.synthesis.marginals.counts import mapped, merged_sizes, split
from polyclinic.synthesis.marginals.estimation import Clusters
from polyclinic.synthesis.methods.draws import picked
from polyclinic.types import Arrays, Floats, Ints


@dataclass(frozen=True, eq=False)
class NetworkSynthesizer:
    """Draws cell by cell. Columns are those of ``table`` after ``merged``.

    order: (A,) columns, the label first. parents, conditionals: for each place in the order the columns that it depends on and
    (cells of the parents, cells) frequencies. fine: (all cells,) frequency of each cell of ``table`` among those merged with it.
    """

    table: Table
    bins: int
    merged: Ints
    fine: Floats
    order: tuple[int, ...]
    parents: tuple[tuple[int, ...], ...]
    conditionals: tuple[Floats, ...]

    @property
    def layout(self) -> Layout:
        return self.table.layout

    @classmethod
    def of(cls, table: Table, bins: int, merged: Ints, frequencies: Floats, model: Clusters) -> NetworkSynthesizer:
        """Of a fitted ``model`` and the (all cells,) noisy ``frequencies`` of the columns alone."""
        label = len(table.attributes) - 1
        order, parents = _order(label, [clique for clique, _ in model], len(table.attributes))
        conditionals = tuple(_conditional(own, above, model) for own, above in zip(order, parents, strict=True))
        return cls(table, bins, merged, _within(table, merged, frequencies), order, parents, conditionals)

    def merged_cells(self, rows: int, rng: np.random.Generator, labels: Ints | None = None) -> Ints:
        """(rows, A) cells after ``merged``."""
        sizes = merged_sizes(self.merged, self.table)
        cells = np.zeros((rows, len(self.order)), dtype=np.int64)
        for own, above, conditional in zip(self.order, self.parents, self.conditionals, strict=True):
            if not above and own == len(self.order) - 1 and labels is not None:
                cells[:, own] = labels
                continue
            case = np.zeros(rows, dtype=np.int64)
            for parent in above:
                case = case * sizes[parent] + cells[:, parent]
            cells[:, own] = picked(conditional[case], rng)
        return cells

    def sample(self, rows: int, rng: np.random.Generator, labels: Ints | None = None) -> Floats:
        """(rows, D); of the given (rows,) classes, or of classes by the model's own frequencies."""
        coarse = self.merged_cells(rows, rng, labels)
        cells = np.empty_like(coarse)
        own = zip(split(self.merged, self.table.sizes), split(self.fine, self.table.sizes), strict=True)
        for place, (numbers, frequencies) in enumerate(own):
            among = np.where(numbers == np.arange(numbers.max() + 1)[:, None], frequencies, 0.0)
            cells[:, place] = picked(among[coarse[:, place]], rng)
        return self.table.rows(cells, rng)

    def arrays(self) -> Arrays:
        """Frequencies as float32, which is far below their noise."""
        found = {"merged": self.merged, "fine": self.fine, "order": np.array(self.order)}
        for own, above, conditional in zip(self.order, self.parents, self.conditionals, strict=True):
            found[f"parents {own}"] = np.array(above, dtype=np.int64)
            found[f"conditional {own}"] = conditional.astype(np.float32)
        return found

    def options(self) -> dict[str, Any]:
        return {"bins": self.bins}

    @classmethod
    def load(cls, layout: Layout, arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> NetworkSynthesizer:
        """Raises ValueError for arrays that do not suit the layout."""
        bins, merged = int(options["bins"]), np.asarray(arrays["merged"], dtype=np.int64)
        table = Table.of(layout, bins, len(arrays["order"]))
        order = tuple(int(own) for own in arrays["order"])
        if merged.shape != (table.sizes.sum(),) or sorted(order) != list(range(len(table.sizes))):
            raise ValueError("The columns are not those of the schema.")
        sizes = merged_sizes(merged, table)
        parents = tuple(tuple(int(parent) for parent in arrays[f"parents {own}"]) for own in order)
        conditionals = tuple(np.asarray(arrays[f"conditional {own}"], dtype=np.float64) for own in order)
        for own, above, conditional in zip(order, parents, conditionals, strict=True):
            if conditional.shape != (np.prod(sizes[list(above)], dtype=np.int64), sizes[own]):
                raise ValueError("A table has not the size of its columns.")
        return cls(table, bins, merged, np.asarray(arrays["fine"], dtype=np.float64), order, parents, conditionals)


def pair_tables(
    model: NetworkSynthesizer, merged: Ints, pairs: Ints, rows: int, rng: np.random.Generator
) -> list[Floats]:
    """Flat frequencies of ``pairs`` among ``rows`` drawn rows, over the cells left after ``merged``, which is coarser."""
    sizes = merged_sizes(merged, model.table)
    coarse = np.zeros(int(model.merged.size), dtype=np.int64)
    coarse[model.table.starts.repeat(model.table.sizes) + model.merged] = merged
    cells = mapped(model.merged_cells(rows, rng), coarse, model.table)
    return [
        np.bincount(cells[:, first] * sizes[second] + cells[:, second], minlength=sizes[first] * sizes[second]) / rows
        for first, second in pairs
    ]


def _order(
    root: int, cliques: list[tuple[int, ...]], columns: int
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Each column after the neighbours that it depends on, from ``root`` (Tarjan and Yannakakis 1984)."""
    near: list[set[int]] = [set() for _ in range(columns)]
    for clique in cliques:
        for column in clique:
            near[column] |= set(clique) - {column}
    order, parents = [root], [()]  # type: tuple[list[int], list[tuple[int, ...]]]
    while len(order) < columns:
        done = set(order)
        nearest = max(
            (column for column in range(columns) if column not in done), key=lambda one: len(near[one] & done)
        )
        order.append(nearest)
        parents.append(tuple(sorted(near[nearest] & done)))
    return tuple(order), tuple(parents)


def _conditional(own: int, parents: tuple[int, ...], model: Clusters) -> Floats:
    """(cells of the parents, cells) frequencies of a column; the column's own for parents that the model holds impossible."""
    clique, frequencies = min(
        ((clique, found) for clique, found in model if {own, *parents} <= set(clique)), key=lambda one: one[1].size
    )
    others = tuple(axis for axis, column in enumerate(clique) if column not in (own, *parents))
    left = [column for column in clique if column in (own, *parents)]
    joint = np.maximum(np.moveaxis(frequencies.sum(axis=others), left.index(own), -1), 0.0)
    flat = joint.reshape(-1, joint.shape[-1])
    total = flat.sum(axis=1, keepdims=True)
    return np.asarray(np.where(total > 0, flat / np.where(total > 0, total, 1.0), flat.sum(axis=0) / flat.sum()))


def _within(table: Table, merged: Ints, frequencies: Floats) -> Floats:
    """(all cells,) the share of each cell in the cells that it is merged with, equal where none was counted."""
    found = []
    for numbers, own in zip(split(merged, table.sizes), split(frequencies, table.sizes), strict=True):
        positive = np.maximum(own, 0.0)
        total = np.bincount(numbers, positive)[numbers]
        found.append(
            np.where(total > 0, positive / np.where(total > 0, total, 1.0), 1.0 / np.bincount(numbers)[numbers])
        )
    return np.concatenate(found)
