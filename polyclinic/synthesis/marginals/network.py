"""The synthesizer of a fitted model: each column given a few earlier ones, the label first.

A model of largest entropy over a junction tree is the same as a directed one. In it columns stand in an order in which
each one's earlier neighbours lie in one clique with it. So the file holds its conditional frequencies, by which drawing
is exact, needs no graphical library and takes any label. A pool of drawn rows would repeat its rows and run short of
rare labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from polyclinic.errors import DataError
from polyclinic.synthesis.checks import Numbers, check_arrays
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.marginals.cells import Table
from polyclinic.synthesis.marginals.counts import map_cells, merged_sizes, split
from polyclinic.synthesis.marginals.field import Field
from polyclinic.synthesis.marginals.posterior import Evidence, Posterior
from polyclinic.synthesis.methods.draws import pick
from polyclinic.types import Arrays, Floats, Ints, under

_EVIDENCE = "released "


@dataclass(frozen=True, eq=False)
class NetworkSynthesizer:
    """Draws cell by cell. Columns are those of ``table`` after ``merged``.

    order: (A,) columns, the label first.
    parents, conditionals: for each place in the order the columns that it depends on and (cells of the parents, cells)
        frequencies.
    fine: (all cells,) frequency of each cell of ``table`` among those merged with it.
    evidence: what was released, from which models can be drawn anew; None where that is not held, or the model is too
        large.
    """

    table: Table
    bins: int
    merged: Ints
    fine: Floats
    order: tuple[int, ...]
    parents: tuple[tuple[int, ...], ...]
    conditionals: tuple[Floats, ...]
    evidence: Evidence | None = None

    @property
    def layout(self) -> Layout:
        return self.table.layout

    @classmethod
    def of(
        cls, table: Table, bins: int, merged: Ints, frequencies: Floats, model: tuple[Field, Floats]
    ) -> NetworkSynthesizer:
        """The synthesizer of a fitted model.

        Args:
            table: The columns of cells before merging.
            bins: The most bins of a number in ``table``.
            merged: (all cells,) the number of each cell after merging.
            frequencies: (all cells,) noisy frequencies of the columns alone.
            model: The fitted field and its potentials.
        """
        field, potentials = model
        conditionals = tuple(conditional[0] for conditional in field.conditionals(potentials[None]))
        fine = shares_within(table, merged, frequencies)
        return cls(table, bins, merged, fine, field.order, field.parents, conditionals)

    @cached_property
    def posterior(self) -> Posterior | None:
        """Of the model, given what was released."""
        if self.evidence is None:
            return None
        sizes = merged_sizes(self.merged, self.table)
        return Posterior(Field(sizes, self.order, self.parents, self.evidence.cliques), self.evidence)

    def anew(self, count: int, rng: np.random.Generator) -> list[NetworkSynthesizer]:
        """``count`` models drawn from the posterior, each as likely as any other by what was released; none without evidence.

        Shares within merged cells are those that were released with noise and sampling once more.
        """
        if self.posterior is None or self.evidence is None:
            return []
        drawn = self.posterior.field.conditionals(self.posterior.draw(count, rng))
        alone = self.evidence.alone
        spread = np.sqrt(self.evidence.spread**2 + np.clip(alone, 0.0, 1.0) / self.evidence.patients)
        return [
            replace(
                self, conditionals=tuple(conditional[number] for conditional in drawn), evidence=None,
                fine=shares_within(self.table, self.merged, alone + spread * rng.standard_normal(len(alone))),
            )
            for number in range(count)
        ]  # fmt: skip

    @property
    def patients(self) -> float:
        """Of how many patients what was released is; 0 without evidence."""
        return self.evidence.patients if self.evidence else 0.0

    @property
    def together(self) -> list[tuple[str, str]]:
        """The pairs of columns, by their names, that were measured together; of a column of codes, all of its codes."""
        if self.evidence is None:
            return []
        names = [attribute.name for attribute in self.table.attributes[:-1]] + [self.layout.schema.label.name]
        pairs = [(names[pair[0]], names[pair[1]]) for pair in sorted(self.evidence.cliques) if len(pair) == 2]
        of, measured = Counter(names), Counter(pairs)
        return [
            (first, second) for first, second in dict.fromkeys(pairs)
            if measured[first, second] == (of[first] * of[second] if first != second else of[first] * (of[first] - 1) // 2)
        ]  # fmt: skip

    def merged_cells(self, rows: int, rng: np.random.Generator, labels: Ints | None = None) -> Ints:
        """(rows, A) cells after ``merged``.

        Args:
            rows: How many rows to draw.
            rng: The source of random numbers.
            labels: (rows,) classes; None draws them by the model's own frequencies.
        """
        sizes = merged_sizes(self.merged, self.table)
        cells = np.zeros((rows, len(self.order)), dtype=np.int64)
        for own, above, conditional in zip(self.order, self.parents, self.conditionals, strict=True):
            if not above and own == len(self.order) - 1 and labels is not None:
                cells[:, own] = labels
                continue
            case = np.zeros(rows, dtype=np.int64)
            for parent in above:
                case = case * sizes[parent] + cells[:, parent]
            cells[:, own] = pick(conditional[case], rng)
        return cells

    def sample(self, rows: int, rng: np.random.Generator, labels: Ints | None = None) -> Floats:
        """(rows, D) drawn rows.

        Args:
            rows: How many rows to draw.
            rng: The source of random numbers.
            labels: (rows,) classes; None draws them by the model's own frequencies.
        """
        coarse = self.merged_cells(rows, rng, labels)
        cells = np.empty_like(coarse)
        own = zip(split(self.merged, self.table.sizes), split(self.fine, self.table.sizes), strict=True)
        for place, (numbers, frequencies) in enumerate(own):
            among = np.where(numbers == np.arange(numbers.max() + 1)[:, None], frequencies, 0.0)
            cells[:, place] = pick(among[coarse[:, place]], rng)
        return self.table.rows(cells, rng)

    def arrays(self) -> Arrays:
        """Frequencies as float32, which is far below their noise."""
        arrays = {"merged": self.merged, "fine": self.fine, "order": np.array(self.order)}
        for own, above, conditional in zip(self.order, self.parents, self.conditionals, strict=True):
            arrays[f"parents {own}"] = np.array(above, dtype=np.int64)
            arrays[f"conditional {own}"] = conditional.astype(np.float32)
        released = self.evidence.arrays() if self.evidence else {}
        return arrays | {_EVIDENCE + name: values for name, values in released.items()}

    def options(self) -> dict[str, Any]:
        return {"bins": self.bins}

    @classmethod
    def load(cls, layout: Layout, arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> NetworkSynthesizer:
        """Makes a synthesizer again of what its ``arrays`` and ``options`` gave.

        Args:
            layout: The layout of the rows.
            arrays: The arrays by name.
            options: ``bins``.

        Raises:
            DataError: The arrays do not suit the layout or each other.
        """
        bins, released = int(options["bins"]), under(arrays, _EVIDENCE)
        own = {name: np.asarray(values) for name, values in arrays.items() if not name.startswith(_EVIDENCE)}
        table = Table.of(layout, bins, len(own["order"]))
        cells, columns = int(table.sizes.sum()), len(table.sizes)
        places = {
            "merged": Numbers((cells,), 0, cells - 1, whole=True),
            "fine": Numbers((cells,), 0.0, 1.0 + 1e-6),
            "order": Numbers((columns,), 0, columns - 1, whole=True),
        }
        check_arrays({name: own[name] for name in places}, places)
        merged, order = own["merged"].astype(np.int64), tuple(int(column) for column in own["order"])
        if sorted(order) != list(range(columns)) or order[0] != columns - 1:
            raise DataError("the array 'order' must hold the number of each column once, that of the label first")
        for numbers, shares in zip(split(merged, table.sizes), split(own["fine"], table.sizes), strict=True):
            if len(np.unique(numbers)) != numbers.max() + 1:
                raise DataError("the array 'merged' must hold for each column whole numbers without a gap from 0 on")
            if not np.allclose(np.bincount(numbers, shares), 1.0, rtol=0.0, atol=1e-3):
                raise DataError("the array 'fine' must add up to 1 over cells that are merged")
        sizes, tables = merged_sizes(merged, table), dict(places)
        for place, column in enumerate(order):
            above = own[f"parents {column}"]
            if above.ndim != 1 or above.dtype.kind not in "iu" or not set(above.tolist()) <= set(order[:place]):
                raise DataError(f"the array 'parents {column}' must hold columns that stand before it in 'order'")
            tables[f"parents {column}"] = Numbers(above.shape, whole=True)
            shape = int(np.prod(sizes[above], dtype=np.int64)), int(sizes[column])
            tables[f"conditional {column}"] = Numbers(shape, shares=True)
        check_arrays(own, tables)
        parents = tuple(tuple(int(parent) for parent in own[f"parents {column}"]) for column in order)
        conditionals = tuple(own[f"conditional {column}"].astype(np.float64) for column in order)
        families = [(column, *above) for column, above in zip(order, parents, strict=True)]
        evidence = Evidence.load(released, sizes, cells, families) if released else None
        return cls(table, bins, merged, own["fine"].astype(np.float64), order, parents, conditionals, evidence)


def pair_tables(
    model: NetworkSynthesizer, merged: Ints, pairs: Ints, rows: int, rng: np.random.Generator
) -> list[Floats]:
    """Flat frequencies of pairs of columns among drawn rows.

    Args:
        model: What draws the rows.
        merged: (all cells,) the number of each cell after merging, coarser than the model's.
        pairs: (m, 2) pairs of columns.
        rows: How many rows to draw.
        rng: The source of random numbers.
    """
    sizes = merged_sizes(merged, model.table)
    coarse = np.zeros(int(model.merged.size), dtype=np.int64)
    coarse[model.table.starts.repeat(model.table.sizes) + model.merged] = merged
    cells = map_cells(model.merged_cells(rows, rng), coarse, model.table)
    return [
        np.bincount(cells[:, first] * sizes[second] + cells[:, second], minlength=sizes[first] * sizes[second]) / rows
        for first, second in pairs
    ]


def shares_within(table: Table, merged: Ints, frequencies: Floats) -> Floats:
    """(all cells,) the share of each cell in the cells that it is merged with, equal where none was counted.

    Args:
        table: The columns of cells.
        merged: (all cells,) the number of each cell after merging.
        frequencies: (all cells,) noisy frequencies of each column.
    """
    shares = []
    for numbers, own in zip(split(merged, table.sizes), split(frequencies, table.sizes), strict=True):
        positive = np.maximum(own, 0.0)
        total = np.bincount(numbers, positive)[numbers]
        shares.append(
            np.where(total > 0, positive / np.where(total > 0, total, 1.0), 1.0 / np.bincount(numbers)[numbers])
        )
    return np.concatenate(shares)
