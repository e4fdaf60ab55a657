"""Counts of cells as sums over patients: what a hospital adds, and how cells are merged where counts are lost in noise."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from polyclinic.synthesis.marginals.cells import Attribute, Table
from polyclinic.types import Floats, Ints

Number = TypeVar("Number", bound=np.generic)

# Cells below this many deviations of their noise are merged (McKenna et al. 2021, section 4.1).
_LOST = 3.0
# Into how many groups a column is cut to see which columns depend on one another.
_GROUPS = 4


def indicators(codes: Ints, sizes: Ints, patient: Ints, patients: int) -> Floats:
    """(patients, sum of sizes) what each patient adds to the counts of m marginals.

    A row is one-hot in each marginal, over sqrt(m): its L2 norm is 1. A patient's is the mean of its rows', of norm at
    most 1.

    Args:
        codes: (n, m) the cell of each row in each marginal.
        sizes: (m,) cells of each marginal.
        patient: (n,) the patient of each row.
        patients: The number of patients.
    """
    total = int(sizes.sum())
    places = codes + (np.cumsum(sizes) - sizes)
    rows = np.bincount(patient, minlength=patients)
    weight = 1.0 / (np.maximum(rows, 1)[patient] * np.sqrt(len(sizes)))
    flat = (patient[:, None] * total + places).ravel()
    contributions = np.bincount(flat, np.repeat(weight, len(sizes)), minlength=patients * total)
    return np.asarray(contributions, dtype=np.float64).reshape(patients, total)


def split(values: NDArray[Number], sizes: Ints) -> list[NDArray[Number]]:
    """The marginals that lie one behind another in ``values``."""
    return np.split(values, np.cumsum(sizes)[:-1])


def map_cells(cells: Ints, merged: Ints, table: Table) -> Ints:
    """(n, A) cells after merging.

    Args:
        cells: (n, A) cells before.
        merged: (all cells,) for each cell of each column its number afterwards.
        table: The columns of cells.
    """
    return np.asarray(merged[table.starts + cells])


def merged_sizes(merged: Ints, table: Table) -> Ints:
    """(A,) how many cells are left of each column."""
    return np.maximum.reduceat(merged, table.starts) + 1


def sum_parts(values: Floats, merged: Ints) -> Floats:
    """(parts,) sums of one column's values over the cells of each part."""
    return np.asarray(np.bincount(merged, values), dtype=np.float64)


def pair_sizes(pairs: Ints, sizes: Ints) -> Ints:
    """(m,) cells of the marginals of (m, 2) ``pairs``; a column with itself stands for the column alone."""
    first, second = pairs.T
    return np.asarray(np.where(first == second, sizes[first], sizes[first] * sizes[second]).astype(np.int64))


def pair_codes(cells: Ints, pairs: Ints, sizes: Ints) -> Ints:
    """(n, m) cell of each row in the marginal of each pair.

    Args:
        cells: (n, A) cells.
        pairs: (m, 2) pairs of columns; a column with itself is its own marginal.
        sizes: (A,) cells of each column.
    """
    first, second = pairs.T
    alone = cells[:, first]
    return np.where(first == second, alone, alone * sizes[second] + cells[:, second]).astype(np.int64)


def parts(table: Table, frequencies: Floats, noise: float) -> Ints:
    """(all cells,) a number within its column for each cell, of which several have the same where noise hides their counts.

    Neighbouring bins are merged until they hold more than three deviations of a cell, rare categories with one another.
    Flags, the label and the cell of the missing stay as they are.

    Args:
        table: The columns of cells.
        frequencies: (all cells,) noisy frequencies of each column.
        noise: The standard deviation of the noise in a cell.
    """
    merged = [
        _parts(attribute, own, _LOST * noise)
        for attribute, own in zip(table.attributes, split(frequencies, table.sizes), strict=True)
    ]
    return np.concatenate(merged)


def _parts(attribute: Attribute, frequencies: Floats, least: float) -> Ints:
    numbers = np.arange(attribute.size)
    if attribute.kind == "flag" or attribute.label or least <= 0:
        return numbers
    present = frequencies[: attribute.value_cells]
    merged = _neighbours(present, least) if attribute.kind == "number" else _rare(present, least)
    return np.append(merged, merged.max() + 1) if attribute.nullable else merged


def _neighbours(frequencies: Floats, least: float) -> Ints:
    numbers, part, held = np.zeros(len(frequencies), dtype=np.int64), 0, 0.0
    for cell, frequency in enumerate(frequencies):
        numbers[cell] = part
        held += frequency
        if held >= least and frequencies[cell + 1 :].sum() >= least:
            part, held = part + 1, 0.0
    return numbers


def _rare(frequencies: Floats, least: float) -> Ints:
    rare = frequencies < least
    if rare.sum() < 2:
        return np.arange(len(frequencies))
    numbers = np.cumsum(~rare) - 1
    numbers[rare] = int((~rare).sum())
    return numbers.astype(np.int64)


def groups(table: Table, frequencies: Floats, merged: Ints) -> Ints:
    """(all cells,) the group of each cell, about equally many patients in each: coarser than ``merged``, to see dependence by.

    Args:
        table: The columns of cells.
        frequencies: (all cells,) noisy frequencies of each column.
        merged: (all cells,) the number of each cell after merging.
    """
    grouped = []
    shares = zip(table.attributes, split(frequencies, table.sizes), split(merged, table.sizes), strict=True)
    for attribute, own, numbers in shares:
        grouped.append(_groups(attribute, sum_parts(np.maximum(own, 0.0), numbers))[numbers])
    return np.concatenate(grouped)


def _groups(attribute: Attribute, mass: Floats) -> Ints:
    count = len(mass) - attribute.nullable
    if attribute.label or count <= _GROUPS:
        return np.arange(len(mass))
    present = mass[:count]
    if attribute.kind == "number":
        middle = (np.cumsum(present) - present / 2) / max(present.sum(), 1e-12)
        numbers = np.unique(np.minimum((middle * _GROUPS).astype(np.int64), _GROUPS - 1), return_inverse=True)[1]
    else:
        rank = np.argsort(np.argsort(-present, kind="stable"), kind="stable")
        numbers = np.minimum(rank, _GROUPS - 1)
    return np.append(numbers, numbers.max() + 1) if attribute.nullable else numbers
