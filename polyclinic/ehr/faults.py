"""What is wrong with records, told at once: the first row and the number of cells of each kind of fault, and never a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from polyclinic.errors import DataError, several
from polyclinic.types import Ints

T = TypeVar("T")
_MOST_LINES = 20


@dataclass(frozen=True, eq=False)
class Fault:
    """One kind of fault in one column of ``source``: the data ``rows`` (from 0) whose cells have it."""

    source: str
    column: str
    problem: str
    rows: Ints = field(repr=False)

    def __str__(self) -> str:
        more = f" and {len(self.rows) - 1:,} more" if len(self.rows) > 1 else ""
        return f"{self.source}: column {self.column!r}, data row {min(self.rows) + 1}{more}: {self.problem}."


class CellsRefused(DataError):
    """Cells that do not have the declared form: a line for each kind of fault in each column, which quotes no cell."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        kinds: dict[tuple[str, str, str], Fault] = {}
        for fault in faults:
            before = kinds.setdefault((fault.source, fault.column, fault.problem), fault)
            if before is not fault:
                rows = np.concatenate([before.rows, fault.rows])
                kinds[fault.source, fault.column, fault.problem] = replace(before, rows=rows)
        self.faults = tuple(kinds.values())
        super().__init__(self.faults)

    def __str__(self) -> str:
        lines = several(map(str, self.faults), most=_MOST_LINES, between="\n")
        return lines if lines.endswith(".") else f"{lines}."

    def after(self, rows: int) -> CellsRefused:
        """The same, where so many rows lie before those that were counted."""
        return CellsRefused(replace(fault, rows=fault.rows + rows) for fault in self.faults)


def all_or_faults(calls: Iterable[Callable[[], T]]) -> list[T]:
    """The results of all calls. Raises CellsRefused with the faults of every call that raised it.

    Examples:
        >>> all_or_faults([lambda: 1, lambda: 2])
        [1, 2]
    """
    results, faults = [], list[Fault]()
    for call in calls:
        try:
            results.append(call())
        except CellsRefused as error:
            faults += error.faults
    if faults:
        raise CellsRefused(faults)
    return results
