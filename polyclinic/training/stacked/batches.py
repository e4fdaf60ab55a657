"""Many hospitals' rows as one table, and a step's Poisson samples of their patients as padded tensors.

S sites, B rows in the largest batch, M patients in the largest batch, F features. Padding grows with the draw: a batch
is never cut to a size, so every sampled patient is in it with all their rows. Nothing here trains or clips.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polyclinic.training.task import SiteWork
from polyclinic.types import Bools, Floats, Ints

# Rows are padded to a multiple of this, with which a matrix product adds up a site's rows in the same order in any stack.
PADDED = 16


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of S sites, one site after the other, a patient's rows together.

    x: (rows + 1, F) in the module's dtype, the last row zero for padding; y: (rows + 1,) int64, or (rows + 1, ...) in the
    module's dtype where labels are numbers. For each patient: ``first`` row, ``count`` of rows, ``site``. ``one_row``: every
    patient has exactly one row.
    """

    x: Tensor
    y: Tensor
    first: Ints
    count: Ints
    site: Ints
    sites: int
    one_row: bool


@dataclass(frozen=True, eq=False)
class Batch:
    """Some patients of each site, all their rows.

    x: (S, B, F).
    y: (S, B, ...), as in the table.
    weight: (S, B), 1/(the patient's rows), 0 for padding.
    member: (S, B) int64, the row's patient in 0..patients-1, and for padding ``patients`` (with ``one_row``, row b is
        patient b, padding too).
    apart: each of the S is one patient of the same hospital, or padding.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    member: Tensor
    patients: int
    one_row: bool
    apart: bool = False


def build_table(work: Sequence[SiteWork], dtype: torch.dtype, device: str = "cpu") -> Table:
    """The sites' rows in one table; a NaN cell is 0, an infinite one the largest float64, then ``dtype``.

    Args:
        work: Each site's part, with its rows.
        dtype: Of the table's numbers.
        device: Where the table is.
    """
    sizes = [len(site.rows.y) for site in work]
    ends = np.cumsum(sizes)
    x = torch.zeros(int(ends[-1]) + 1, work[0].rows.x.shape[1], dtype=dtype, device="cpu")
    first = work[0].rows.y
    form = torch.int64 if first.dtype.kind in "iu" else dtype
    y = torch.zeros(int(ends[-1]) + 1, *first.shape[1:], dtype=form, device="cpu")
    counts: list[Ints] = []
    for site, end, size in zip(work, ends, sizes, strict=True):
        rows, part = site.rows, slice(int(end) - size, int(end))
        values, labels = rows.x, rows.y
        if np.any(rows.patient[1:] < rows.patient[:-1]):
            order = np.argsort(rows.patient, kind="stable")
            values, labels = values[order], labels[order]
        x[part] = torch.from_numpy(values)
        y[part] = torch.from_numpy(labels)
        counts.append(np.bincount(rows.patient, minlength=rows.patients))
    infinite = float(torch.tensor(torch.finfo(torch.float64).max, dtype=torch.float64, device="cpu").to(dtype))
    x.nan_to_num_(nan=0.0, posinf=infinite, neginf=-infinite)
    count = np.concatenate(counts)
    number = np.repeat(np.arange(len(work)), [site.rows.patients for site in work])
    begin = np.cumsum(count) - count
    return Table(x.to(device), y.to(device), begin, count, number, len(work), bool(np.all(count == 1)))


def batch_parts(table: Table, chosen: Bools, rows_at_once: int) -> Iterator[Batch]:
    """The batch of the ``chosen`` patients, in parts.

    A patient is wholly in one part, so that a part may pass ``rows_at_once`` by one patient's rows. Without chosen
    patients there is one part of padding alone.

    Args:
        table: The sites' rows.
        chosen: (patients,) bool, who is in the batch.
        rows_at_once: About how many rows of each site a part has.
    """
    taken = np.flatnonzero(chosen)
    rows = table.count[taken]
    part = _position(table.site[taken], rows, table.sites) // rows_at_once
    for number in range(int(part.max(initial=0)) + 1):
        yield _batch(table, taken[part == number])


def patient_blocks(table: Table, chosen: Bools, at_once: Callable[[int], int]) -> Iterator[Batch]:
    """The ``chosen`` patients of one hospital, each in a place of their own, in blocks of fixed shapes.

    A patient has R places for rows, the smallest power of two that is enough for that patient. A block is padded with
    nobody. So the shapes in which a patient is computed do not depend on others. Without chosen patients there is one
    block of padding alone.

    Args:
        table: The hospital's rows.
        chosen: (patients,) bool, who is in the batch.
        at_once: How many patients a block has, of R.
    """
    taken = np.flatnonzero(chosen)
    places = 1 << np.ceil(np.log2(np.maximum(table.count[taken], 1))).astype(np.int64)
    for rows in np.unique(places).tolist() or [1]:
        group, size = taken[places == rows], at_once(rows)
        for begin in range(0, max(len(group), 1), size):
            yield _block(table, group[begin : begin + size], size, rows)


def _block(table: Table, patients: Ints, size: int, rows: int) -> Batch:
    count, nobody = table.count[patients, None], len(table.y) - 1
    inside = np.zeros((size, rows), dtype=bool)
    inside[: len(patients)] = np.arange(rows) < count
    index, weight = np.full((size, rows), nobody), np.zeros((size, rows))
    index[: len(patients)] = np.where(inside[: len(patients)], table.first[patients, None] + np.arange(rows), nobody)
    weight[: len(patients)] = inside[: len(patients)] / np.maximum(count, 1)
    members = (~inside).astype(np.int64) if rows > 1 else np.zeros((size, 1), dtype=np.int64)
    return _gather(table, index, weight, members, 1, rows == 1, apart=True)


def _gather(
    table: Table, index: Ints, weight: Floats, members: Ints, patients: int, one_row: bool, apart: bool = False
) -> Batch:
    """The batch of the table's rows at ``index``, (S, B)."""
    device, flat = table.x.device, torch.from_numpy(index.reshape(-1)).to(table.x.device)
    x = table.x.index_select(0, flat).reshape(*index.shape, -1)
    y = table.y.index_select(0, flat).reshape(*index.shape, *table.y.shape[1:])
    own = torch.from_numpy(weight).to(device, table.x.dtype)
    return Batch(x, y, own, torch.from_numpy(members).to(device), patients, one_row, apart)


def _position(site: Ints, size: Ints, sites: int) -> Ints:
    """What the earlier entries of the same site add up to, for entries sorted by site."""
    before = np.cumsum(size) - size
    of_site = np.bincount(site, weights=size, minlength=sites).astype(np.int64)
    return before - (np.cumsum(of_site) - of_site)[site]


def _batch(table: Table, taken: Ints) -> Batch:
    site, rows = table.site[taken], table.first[taken]
    member = _position(site, np.ones_like(site), table.sites)
    patients = max(1, int(member.max(initial=0)) + 1)
    column, share = member, None
    if not table.one_row:
        count = table.count[taken]
        repeat = np.repeat(np.arange(len(taken)), count)
        rows = rows[repeat] + np.arange(len(repeat)) - (np.cumsum(count) - count)[repeat]
        site, member, share = site[repeat], member[repeat], 1.0 / count[repeat]
        column = _position(site, np.ones_like(site), table.sites)
    shape = (table.sites, -(-max(1, int(column.max(initial=0)) + 1) // PADDED) * PADDED)
    index = np.full(shape, len(table.y) - 1)
    index[site, column] = rows
    weight = np.zeros(shape)
    weight[site, column] = 1.0 if share is None else share
    if table.one_row:
        patients = shape[1]
        members = np.broadcast_to(np.arange(shape[1]), shape).copy()
    else:
        members = np.full(shape, patients)
        members[site, column] = member
    return _gather(table, index, weight, members, patients, table.one_row)


def group_sites(work: Sequence[SiteWork], sample_rate: float, row_bytes: int, memory_limit: int) -> list[list[int]]:
    """Indices of sites to train together: similar expected batches, and stacked rows within a limit of memory.

    A group has at least one site; what one site's batch takes is bounded by cutting the batch in parts, not here.

    Args:
        work: Each site's part, with its rows.
        sample_rate: The expected share of a site's rows in a batch.
        row_bytes: What a row of a batch, or a site's own parameters, take at most.
        memory_limit: The limit, in bytes.
    """
    expected = np.array([sample_rate * len(site.rows.y) for site in work])
    groups: list[list[int]] = []
    for index in np.argsort(expected, kind="stable"):
        largest = expected[index]
        group = groups[-1] if groups else []
        fits = (len(group) + 1) * (largest + 1.0) * row_bytes <= memory_limit
        if group and fits and largest <= 1.5 * expected[group[0]] + 32:
            group.append(int(index))
        else:
            groups.append([int(index)])
    return groups
