"""What is wrong with records, told at once: the first row and the number of cells of each kind of fault, and never a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from polyclinic.errors import DataError, several

T = TypeVar("T")
_MOST_LINES = 20


@dataclass(frozen=True)
class Fault:
    """One kind of fault in one column: how many ``cells`` have it, the first in data row ``row`` (from 1) of ``source``."""

    source: str
    column: str
    problem: str
    row: int
    cells: int = 1

    def __str__(self) -> str:
        more = f" and {self.cells - 1:,} more" if self.cells > 1 else ""
        return f"{self.source}: column {self.column!r}, data row {self.row}{more}: {self.problem}."


class CellsRefused(DataError):
    """Cells that do not have the declared form: a line for each kind of fault in each column, which quotes no cell."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        kinds: dict[tuple[str, str, str], Fault] = {}
        for fault in faults:
            before = kinds.setdefault((fault.source, fault.column, fault.problem), fault)
            if before is not fault:
                first = min(before.row, fault.row)
                kinds[fault.source, fault.column, fault.problem] = replace(
                    before, row=first, cells=before.cells + fault.cells
                )
        self.faults = tuple(kinds.values())
        super().__init__(self.faults)

    def __str__(self) -> str:
        lines = several(map(str, self.faults), most=_MOST_LINES, between="\n")
        return lines if lines.endswith(".") else f"{lines}."

    def after(self, rows: int) -> CellsRefused:
        """The same, where so many rows lie before those that were counted."""
        return CellsRefused(replace(fault, row=fault.row + rows) for fault in self.faults)


def all_or_faults(calls: Iterable[Callable[[], T]]) -> list[T]:
    """The results of all calls. Raises CellsRefused with the faults of every call that raised it.

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
