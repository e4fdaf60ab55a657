"""The errors that a user sees: one clear sentence each, with the exit code that the command line returns."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")
#: Lines of one refusal of records.
_MOST_FAULTS = 20


class PolyclinicError(Exception):
    """Work that failed for a reason the user can act on; the message is one sentence."""

    exit_code = 1


class ConfigError(PolyclinicError):
    """A configuration value is unknown, of the wrong type or impossible."""

    exit_code = 2


class DataError(PolyclinicError):
    """Records, a schema or a file do not have the declared form; never quotes a patient's cell."""

    exit_code = 2


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
        lines = several(map(str, self.faults), most=_MOST_FAULTS, between="\n")
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


class BudgetRefused(PolyclinicError):
    """A charge would exceed a hospital's privacy budget; nothing was spent and no data was read."""

    exit_code = 3


def nearest(name: str, known: Iterable[str]) -> str:
    """``" Did you mean 'x'?"`` for the known name closest to ``name``, or an empty string."""
    match = get_close_matches(name, list(known), n=1)
    return f" Did you mean {match[0]!r}?" if match else ""


def why(error: BaseException) -> str:
    """What a stranger's code raised, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}"


# Where a researcher's own code is not.
_NOT_THEIRS = {"polyclinic", "flwr", "opacus", "torch", "click", "typer", "ray", *sys.stdlib_module_names} - {
    "__main__"
}


def traceback_of(error: BaseException) -> str:
    """The traceback of an error from where a stranger's code begins; empty where no such code took part."""
    frames = list(traceback.walk_tb(error.__traceback__))
    names = [str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame, _ in frames]
    begin = next((index for index, name in enumerate(names) if name not in _NOT_THEIRS), None)
    if begin is None:
        return ""
    stack = traceback.StackSummary.extract(iter(frames[begin:]))
    said = [*stack.format(), *traceback.format_exception_only(error)]
    return "Traceback (most recent call last):\n" + "".join(said).rstrip()


def several(names: Iterable[str], most: int = 5, between: str = ", ") -> str:
    """The names, the first ``most`` of them where there are more: ``"a, b and 9,998 more"``.

    A name that cannot be printed on one line, as a damaged file may hold, is escaped.
    """
    every = list(names)
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return between.join(name if name.isprintable() else repr(name) for name in every[:most]) + more


def without_name(name: str, reason: str) -> str:
    """A hospital's reason without its own name before it, for a line that names it already."""
    return reason.removeprefix(f"{name}: ")


def whose(reasons: Iterable[tuple[str, str]], between: str = "; ") -> str:
    """Every reason once, after the names of the hospitals that gave it; one that quotes its hospital's name stays as it is."""
    names: dict[str, list[str]] = {}
    for name, reason in sorted(set(reasons)):
        names.setdefault(without_name(name, reason), []).append(name)
    sentences = (
        reason if all(repr(name) in reason for name in named) else f"{several(named)}: {reason}"
        for reason, named in names.items()
    )
    return several(sorted(sentences), between=between)
