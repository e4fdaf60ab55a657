"""Coarser labels of cells: categories and chapters of diagnosis codes, short ZIP codes, and intervals of numbers.

Chapters are those of ICD-9-CM's tabular list, and of ICD-10 as the WHO and the USA (ICD-10-CM) have them, the wider range
where they differ. A code is read with or without its dot. Intervals are written and read back.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from typing import Literal

CodeSystem = Literal["icd9", "icd10"]

#: ZIP code areas of three digits with 20,000 people or fewer (US census of 2000), which HIPAA's safe harbor writes 000.
#: HHS, Guidance regarding methods for de-identification of protected health information, 2012.
SMALL_ZIP3 = frozenset(
    ["036", "059", "063", "102", "203", "556", "692", "790", "821", "823", "830", "831", "878", "879", "884", "890", "893"]
)  # fmt: skip
#: What no chapter holds.
UNKNOWN = "unknown"
# The first category of each of ICD-9's chapters, and the end of the last.
_ICD9 = (1, 140, 240, 280, 290, 320, 390, 460, 520, 580, 630, 680, 710, 740, 760, 780, 800, 1000)
_ICD10 = (
    ("A00", "B99"), ("C00", "D49"), ("D50", "D89"), ("E00", "E90"), ("F00", "F99"), ("G00", "G99"), ("H00", "H59"),
    ("H60", "H95"), ("I00", "I99"), ("J00", "J99"), ("K00", "K95"), ("L00", "L99"), ("M00", "M99"), ("N00", "N99"),
    ("O00", "O9A"), ("P00", "P96"), ("Q00", "Q99"), ("R00", "R99"), ("S00", "T98"), ("U00", "U99"), ("V01", "Y99"),
    ("Z00", "Z99"),
)  # fmt: skip


def three_digits(code: str, system: CodeSystem) -> str:
    """The category of a code: ``250`` of ``250.01`` and ``25001``, ``E11`` of ``E11.9``; an ICD-9 E code's has four."""
    plain = code.strip().upper().replace(".", "")
    return plain[: 4 if system == "icd9" and plain.startswith("E") else 3]


def chapter(code: str, system: CodeSystem) -> str:
    """The chapter of a code by its range, such as ``390-459`` or ``I00-I99``; ``unknown`` of what is no code."""
    category = three_digits(code, system)
    if system == "icd9":
        if category[:1] in ("V", "E"):
            return category[:1]
        place = bisect_right(_ICD9, int(category)) - 1 if category.isdigit() and len(category) == 3 else -1
        return f"{_ICD9[place]:03d}-{_ICD9[place + 1] - 1:03d}" if 0 <= place < len(_ICD9) - 1 else UNKNOWN
    chapters = (f"{first}-{last}" for first, last in _ICD10 if first <= category <= last)
    return next(chapters, UNKNOWN) if len(category) == 3 and category[1].isdigit() else UNKNOWN


def short_zip(code: str, keep: int = 3) -> str:
    """The first digits of a ZIP code (zeros put before one that a table has cut); three of a small area are 000."""
    short = code.split("-")[0].zfill(5)[:keep]
    return "000" if keep == 3 and short in SMALL_ZIP3 else short


_NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_WHOLE = re.compile(r"(\d+)-(\d+)")
_HALF_OPEN = re.compile(rf"\[({_NUMBER}), ({_NUMBER})([)\]])")
_BELOW = re.compile(rf"below ({_NUMBER})")
_ABOVE = re.compile(rf"({_NUMBER}) or more")


def interval_name(low: float, high: float, whole: bool) -> str:
    """Return how [low, high) is written: ``40-44`` for whole numbers that are not negative, else ``[1.5, 2)``.

    Args:
        low: The first number of the interval.
        high: The number before which it ends.
        whole: Whether all numbers are whole.
    """
    if whole and low >= 0:
        last = int(high) - 1
        return str(last) if last == int(low) else f"{int(low)}-{last}"
    return f"[{low:.12g}, {high:.12g})"


def range_name(low: float, high: float, whole: bool) -> str:
    """Return how the numbers from ``low`` to ``high``, both included, are written: ``40-47``, ``41`` or ``[1.5, 2.7]``.

    Args:
        low, high: The smallest and the largest number.
        whole: Whether all numbers are whole.
    """
    if low == high:
        return f"{low:.12g}"
    return f"{int(low)}-{int(high)}" if whole and low >= 0 else f"[{low:.12g}, {high:.12g}]"


def bounds_of(label: str) -> tuple[float, float, bool] | None:
    """The least and the largest number of a label, and whether the latter belongs to it; None where it is no interval."""
    if (match := _WHOLE.fullmatch(label)) and int(match[1]) <= int(match[2]):
        return float(match[1]), float(match[2]) + 1, False
    if match := _HALF_OPEN.fullmatch(label):
        return float(match[1]), float(match[2]), match[3] == "]"
    if match := _BELOW.fullmatch(label):
        return -math.inf, float(match[1]), False
    if match := _ABOVE.fullmatch(label):
        return float(match[1]), math.inf, True
    return None


def midpoint(label: str) -> float:
    """The middle of an interval, the end of a half-line, the number of a plain cell; NaN of anything else."""
    if (bounds := bounds_of(label)) is not None:
        low, high, _ = bounds
        if math.isinf(low) or math.isinf(high):
            return high if math.isinf(low) else low
        return (low + high - 1) / 2 if _WHOLE.fullmatch(label) else (low + high) / 2
    try:
        return float(label)
    except ValueError:
        return math.nan
