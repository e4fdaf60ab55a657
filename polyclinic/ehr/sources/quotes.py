"""Quotation marks that stand astray in a CSV: one that opens a cell swallows the lines up to the next mark, silently."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple


class Stray(NamedTuple):
    """How many marks stand astray, and how many lines they swallow."""

    marks: int
    lines: int


def stray_quotes(lines: Iterable[str], separator: str) -> Stray | None:
    """Return the stray marks of a CSV's lines, the header first; None where none swallows a line.

    A quoted cell may hold line breaks. A mark stands astray in each of these cases:

    - the file ends within its cell;
    - neither a separator nor the line's end follows the closing mark;
    - the record has not as many cells as the header;
    - every cell with line breaks holds as many separators as whole rows of three columns or more, none before a space
      as in a sentence.
    """
    quoted = re.compile(rf'(?:^|{re.escape(separator)})("[^"]*(?:""[^"]*)*("?))(?=(.?))', re.DOTALL)
    columns, certain, likely, others = 0, list[int](), list[int](), 0
    pending: list[str] = []
    for line in lines:
        pending.append(line)
        if '"' not in line if len(pending) > 1 else columns and _is_plain(line, separator):
            if len(pending) == 1:
                pending = []
            continue
        record = "".join(pending)
        cells = list(quoted.finditer(record))
        if cells and not cells[-1][2]:
            continue
        count = record.count(separator) - sum(cell[1].count(separator) for cell in cells) + 1
        broken = "".join(cell[1] for cell in cells if "\n" in cell[1])
        breaks = broken.count("\n")
        columns = columns or (count if record.strip() else 0)
        if breaks and (count != columns or any(cell[3] not in ("", "\n", separator) for cell in cells)):
            certain.append(breaks)
        elif (
            columns > 2
            and breaks
            and broken.count(separator) == breaks * (columns - 1)
            and f"{separator} " not in broken
        ):
            likely.append(breaks)
        else:
            others += breaks > 0
        pending = []
    if pending:
        certain.append(len(pending) - 1)
    if not certain and (others or not likely):
        return None
    return Stray(len(certain + likely), sum(certain + likely))


def _is_plain(line: str, separator: str) -> bool:
    """Whether each mark of a line opens a cell, or closes one that ends there; the last closes one."""
    if '"' not in line:
        return True
    line = f"{separator}{line.rstrip(chr(10))}{separator}"
    opening, closing = line.count(f'{separator}"'), line.count(f'"{separator}')
    before, _, after = line.rpartition('"')
    return opening == closing == line.count('"') / 2 and before[-1] != separator and after.startswith(separator)
