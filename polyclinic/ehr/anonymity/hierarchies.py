"""How a column is generalised: intervals, prefixes, ZIP codes, dates, diagnosis codes or a tree, each with its levels.

Level 0 is the cell as it is; the last level of every hierarchy is ``*``, which tells nothing. Each label of a level
lies within one label of the next. A hierarchy applied to a column is a ladder: every row's label at every level, as numbers, and
what each level loses.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype
from pydantic import ConfigDict, Field, model_validator

from polyclinic.ehr.anonymity.classes import compact
from polyclinic.ehr.anonymity.labels import CodeSystem, chapter, interval_name, short_zip, three_digits
from polyclinic.ehr.dates import ISO_DATE
from polyclinic.ehr.schema import Column
from polyclinic.errors import ConfigError, nearest
from polyclinic.toml import Declared, build_model, read_toml
from polyclinic.types import Floats, Ints

ANY = "*"
MOST_INTERVALS = 10_000  # of a column in the schema that a table fits
_LEAST_RANGE = 1e-9  # below it labels of twelve digits would not differ
ZIP_NAME = re.compile(r"zip|postal|postcode", re.IGNORECASE)


class Finite(Declared):
    """A declared table whose numbers are finite."""

    model_config = ConfigDict(allow_inf_nan=False)


class Hierarchy(Finite):
    """What every hierarchy does; each kind says its labels."""

    kind: str = ""

    @property
    def levels(self) -> int:
        """The number of levels between the cell as it is and ``*``."""
        return len(self.labels(0.0))

    def labels(self, cell: Any) -> tuple[str, ...]:
        """The labels of a known cell (text, or a float of a numeric column) at level 1 and up, as many for each cell."""
        raise NotImplementedError

    def points(self, low: float, high: float, level: int) -> Floats:
        """Return at least one number of each label that the numbers from ``low`` to ``high`` have at a level, rising.

        Args:
            low, high: The range of the numbers.
            level: The level of the hierarchy, from 1.
        """
        return _multiples(low, high, max((high - low) / MOST_INTERVALS, 1.0))


class Intervals(Hierarchy):
    """Numbers into intervals from multiples of each width, or between ``edges``, of which there is one level.

    Args:
        widths: The width of the intervals at each level.
        edges: The borders of the intervals, instead of widths. Numbers beyond them are one interval on either side.
        low, high: Numbers below ``low`` are one interval, and so are those from ``high`` on.
        last: The largest number there is, which the last interval holds where it would begin another.
        whole: All numbers are whole, so that 40-44 says what [40, 45) does.
    """

    kind: Literal["intervals"] = "intervals"
    widths: tuple[float, ...] = ()
    edges: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None
    last: float | None = None
    whole: bool = True

    @model_validator(mode="after")
    def _check(self) -> Intervals:
        if self.edges:
            if (self.widths, self.low, self.high) != ((), None, None):
                raise ValueError("give edges, or widths with low and high, not both")
            if len(self.edges) < 2 or any(b <= a for a, b in pairwise(self.edges)):
                raise ValueError("edges must be two or more numbers that rise")
            return self
        if (
            not self.widths
            or self.widths[0] <= 0
            or any(b <= a or not _divides(a, b) for a, b in pairwise(self.widths))
        ):
            raise ValueError("widths must be positive, and each a multiple of the one before it")
        ends = [end for end in (self.low, self.high) if end is not None]
        if any(not _divides(self.widths[-1], end) for end in ends) or (len(ends) == 2 and ends[0] >= ends[1]):
            raise ValueError("low must lie below high, and both must be multiples of the largest width")
        return self

    def labels(self, cell: Any) -> tuple[str, ...]:
        number, low, high = float(cell), self.low, self.high
        if self.edges:
            low, high = self.edges[0], None if self.edges[-1] == self.last else self.edges[-1]
        if low is not None and number < low:
            return (f"below {low:g}",) * max(len(self.widths), 1)
        if high is not None and number >= high:
            return (f"{high:g} or more",) * max(len(self.widths), 1)
        whole = self.whole and all(end.is_integer() for end in (*self.widths, *self.edges))
        return tuple(self._name(a, b, whole) for a, b in self._intervals(number))

    def _intervals(self, number: float) -> list[tuple[float, float]]:
        """Its interval at each level."""
        if self.edges:
            place = min(bisect_right(self.edges, number), len(self.edges) - 1)
            return [(self.edges[place - 1], self.edges[place])]
        places = [math.floor(round(number / width, 9)) for width in self.widths]
        if number == self.last:
            places = [place - _divides(width, number) for place, width in zip(places, self.widths, strict=True)]
        return [(place * width, (place + 1) * width) for place, width in zip(places, self.widths, strict=True)]

    def _name(self, low: float, high: float, whole: bool) -> str:
        if self.last is None or not math.isclose(high, self.last, abs_tol=1e-9):
            return interval_name(low, high, whole)
        return interval_name(low, high + 1, whole) if whole and low >= 0 else f"{interval_name(low, high, whole)[:-1]}]"

    def points(self, low: float, high: float, level: int) -> Floats:
        if self.edges:
            return np.clip([low, *self.edges], low, high)
        return _multiples(low, high, self.widths[level - 1])


class Prefix(Hierarchy):
    """Codes to their first characters, the others masked: 60637 at ``keep = [4, 3]`` is 6063* and then 606**."""

    kind: Literal["prefix"] = "prefix"
    keep: tuple[int, ...]

    @model_validator(mode="after")
    def _check(self) -> Prefix:
        if not self.keep or self.keep[-1] < 1 or any(b >= a for a, b in pairwise(self.keep)):
            raise ValueError("keep must hold falling numbers of characters, the last at least 1")
        return self

    def labels(self, cell: Any) -> tuple[str, ...]:
        text = cell_text(cell)
        return tuple(text[:shown] + "*" * max(len(text) - shown, 0) for shown in self.keep)


class Zip(Prefix):
    """ZIP codes to their first digits; with three, areas of 20,000 people or fewer become 000, as HIPAA asks."""

    kind: Literal["zip"] = "zip"  # type: ignore[assignment]
    keep: tuple[Annotated[int, Field(le=5)], ...] = (3,)

    def labels(self, cell: Any) -> tuple[str, ...]:
        return tuple(short_zip(cell_text(cell), digits) for digits in self.keep)


class Dates(Hierarchy):
    """ISO dates to month, year and decade."""

    kind: Literal["dates"] = "dates"

    def labels(self, cell: Any) -> tuple[str, ...]:
        text = cell_text(cell)
        return text[:7], text[:4], f"{text[:3]}0s"


class Codes(Hierarchy):
    """Diagnosis codes to three digits and to chapters."""

    kind: Literal["codes"] = "codes"
    system: CodeSystem

    def labels(self, cell: Any) -> tuple[str, ...]:
        code = cell_text(cell)
        return three_digits(code, self.system), chapter(code, self.system)


class Tree(Hierarchy):
    """Named groups: each level a table of a label and what of the level below it holds; what none names is ``other``."""

    kind: Literal["tree"] = "tree"
    groups: tuple[dict[str, tuple[str, ...]], ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Tree:
        for level in self.groups:
            members = [member for group in level.values() for member in group]
            if len(set(members)) < len(members):
                raise ValueError("a value is in two groups of one level")
        return self

    def labels(self, cell: Any) -> tuple[str, ...]:
        names = [cell_text(cell)]
        for groups in self.groups:
            names.append(next((name for name, members in groups.items() if names[-1] in members), "other"))
        return tuple(names[1:])


KINDS: dict[str, type[Hierarchy]] = {
    "intervals": Intervals, "prefix": Prefix, "zip": Zip, "dates": Dates, "codes": Codes, "tree": Tree,
}  # fmt: skip


def read_hierarchies(path: str | Path) -> dict[str, Hierarchy]:
    """The hierarchies in a TOML file: one table a column, with its ``kind``. Raises ConfigError naming file and field."""
    values = read_toml(path, "file of hierarchies")
    return {name: parse_hierarchy(name, given, str(path)) for name, given in values.items()}


def parse_hierarchy(name: str, given: Any, source: str = "hierarchies") -> Hierarchy:
    """Return one column's hierarchy from a table with its ``kind``.

    Args:
        name: The column's name, for messages.
        given: The table, with ``kind`` and the fields of that kind.
        source: The file or argument that messages name.

    Raises:
        ConfigError: Naming ``source`` and the field, for an unknown kind or a field that does not suit it.
    """
    kind = given.get("kind") if isinstance(given, Mapping) else None
    if kind not in KINDS:
        raise ConfigError(
            f"{source}: {name}: kind is {kind!r}; it must be one of {', '.join(KINDS)}.{nearest(str(kind), KINDS)}"
        )
    return build_model(KINDS[kind], given, source, within=(name,))


def default_hierarchy(values: pd.Series, column: Column | None = None) -> Hierarchy:
    """What a column is generalised by where nothing is declared.

    From the schema's column where there is one: doubling intervals of its public bounds. Else from the cells: intervals
    of their range, prefixes of ZIP codes (by the column's name), dates by their form; anything else is kept or ``*``.
    """
    if column is not None and column.bounds is not None:
        return Intervals(widths=doubling(*column.bounds, whole=column.kind == "integer"))
    name, present = str(values.name), values.dropna()
    if ZIP_NAME.search(name):
        longest = max((len(cell_text(cell)) for cell in present.unique()), default=5)
        return Prefix(keep=tuple(range(max(longest - 1, 1), 0, -1)))
    if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values) and present.nunique() > 2:
        low, high = float(present.min()), float(present.max())
        if _LEAST_RANGE < high - low < math.inf:
            return Intervals(widths=doubling(low, high, whole=bool((present == present.round()).all())))
    if len(present) and all(ISO_DATE.match(str(cell)) for cell in present.unique()):
        return Dates()
    return Tree()


def doubling(low: float, high: float, whole: bool) -> tuple[float, ...]:
    """Return widths for the levels of a number: the first about 1/25 of the range, each later one twice as much.

    The first is 1, 2 or 5 times a power of ten. The widths end once half of the range is passed.

    Args:
        low, high: The range of the numbers.
        whole: All numbers are whole, so that no width is below 2.
    """
    aim = (high - low) / 25
    power = 10.0 ** math.floor(math.log10(aim))
    first = next(step * power for step in (1, 2, 5, 10) if step * power >= aim * (1 - 1e-9))
    widths = [max(first, 2.0) if whole else first]
    while 2 * widths[-1] <= (high - low) / 2:
        widths.append(2 * widths[-1])
    return tuple(round(width, 12) for width in widths)


def coarser_column(column: Column, hierarchy: Hierarchy, level: int) -> Column | None:
    """Return the column as its labels of a level are: ordinal where it has public bounds, else of its categories' labels.

    Args:
        column: The column of the schema.
        hierarchy: The hierarchy that generalises it.
        level: The level of the labels, from 1.

    Returns:
        None where all labels are one. An identifier without bounds and categories stays as it is.
    """
    if column.bounds is not None:
        cells: Sequence[Any] = hierarchy.points(*column.bounds, level).tolist()
    elif column.categories:
        cells = column.categories
    elif column.kind == "binary":
        cells = (0.0, 1.0)
    else:
        return column
    kind = "ordinal" if column.bounds is not None else "code_set" if column.kind == "code_set" else "categorical"
    return listed_column(column, kind, [hierarchy.labels(cell)[level - 1] for cell in cells])


def listed_column(column: Column, kind: str, labels: Sequence[str]) -> Column | None:
    """Return the column with these labels for its categories; None where they are fewer than two, which tell nothing.

    Args:
        column: The column of the schema.
        kind: The kind that it gets. A code_set stays with fewer than two labels.
        labels: The labels in order; repetitions count once.
    """
    categories = tuple(label for label in dict.fromkeys(labels) if label != ANY or kind == "categorical")
    if len(categories) < 2 and kind != "code_set":
        return None
    changes = {"kind": kind, "categories": categories, "bounds": None, "drop_first": False}
    return Column(**(column.model_dump() | changes))


def _multiples(low: float, high: float, width: float) -> Floats:
    """Multiples of ``width``, the first and the last of them moved into the numbers from ``low`` to ``high``."""
    return np.clip(np.arange(math.floor(low / width), math.floor(high / width) + 1) * width, low, high)


def _divides(part: float, whole: float) -> bool:
    return math.isclose(whole / part, round(whole / part), rel_tol=0, abs_tol=1e-9)


def cell_text(cell: Any) -> str:
    """A cell as labels write it: a whole number without its point."""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


def without_unknown(hierarchies: Mapping[str, Hierarchy], quasi: Sequence[str], source: str) -> None:
    """Raise an error where a hierarchy is for a column that is no quasi-identifier.

    Args:
        hierarchies: The hierarchies by column.
        quasi: The quasi-identifiers.
        source: The file or argument that the message names.

    Raises:
        ConfigError: For the first such column.
    """
    for name in hierarchies:
        if name not in quasi:
            raise ConfigError(
                f"{source}: {name!r} is none of the quasi-identifiers {', '.join(quasi)}.{nearest(name, quasi)}"
            )


@dataclass(frozen=True, eq=False)
class Ladder:
    """The labels of one column at each level of its hierarchy. Level 0 is the column as it is, the last ``*``.

    Attributes:
        name: The column.
        labels: For each level the labels, ``None`` for missing.
        numbers: For each level (rows,) int64 places in the labels.
        losses: For each level (labels,) float64 in [0, 1]. It is the share of the column's other values from which a
            label cannot be told (Iyengar 2002's LM).
    """

    name: str
    labels: tuple[tuple[object, ...], ...]
    numbers: tuple[Ints, ...]
    losses: tuple[Floats, ...]

    @property
    def top(self) -> int:
        """The number of the last level."""
        return len(self.labels) - 1

    @property
    def mean_losses(self) -> Floats:
        """(levels,) float64 mean loss of the rows at each level."""
        return np.array([loss[rows].mean() for loss, rows in zip(self.losses, self.numbers, strict=True)])

    def cells(self, level: int) -> pd.Series:
        """The rows' labels at a level, as objects."""
        labels = np.empty(len(self.labels[level]), dtype=object)
        labels[:] = self.labels[level]
        return pd.Series(labels[self.numbers[level]], dtype=object, name=self.name)


def ladder(values: pd.Series, hierarchy: Hierarchy) -> Ladder:
    """The column on its hierarchy. Raises ConfigError where a label lies within two labels of the next level."""
    number, domain = pd.factorize(values)
    cells = domain.tolist()
    order = np.argsort(np.array(cells if is_numeric_dtype(values) else [str(cell) for cell in cells]), kind="stable")
    ordered_cells = [cells[place] for place in order.tolist()]
    number = np.append(np.argsort(order, kind="stable"), -1)[number]  # -1, missing, takes the last
    missing = bool((number < 0).any())
    base = np.where(number < 0, len(ordered_cells), number).astype(np.int64)
    sizes = np.bincount(base, minlength=len(ordered_cells) + missing)
    labels: list[tuple[object, ...]] = [(*ordered_cells, *([None] if missing else []))]
    maps = [np.arange(len(ordered_cells) + missing, dtype=np.int64)]
    by_cell = [hierarchy.labels(cell) for cell in ordered_cells]
    for level in range(1, hierarchy.levels + 1):
        names = [of_cell[level - 1] for of_cell in by_cell]
        place, distinct_labels = pd.factorize(np.array([*names, ""], dtype=object)[:-1])
        _check_nested(maps[-1][: len(ordered_cells)], place, str(values.name), level)
        labels.append((*distinct_labels.tolist(), *([None] if missing else [])))
        maps.append(np.append(place, len(distinct_labels)).astype(np.int64) if missing else place.astype(np.int64))
    labels.append((ANY,))
    maps.append(np.zeros_like(maps[0]))
    others = max(len(sizes) - 1, 1)
    losses = [(np.bincount(to, minlength=len(names)) - 1) / others for to, names in zip(maps, labels, strict=True)]
    return Ladder(str(values.name), tuple(labels), tuple(to[base] for to in maps), tuple(losses))


def _check_nested(below: Ints, above: Ints, name: str, level: int) -> None:
    pairs = compact(below * (int(above.max(initial=0)) + 1) + above)[1] if len(below) else 0
    if pairs > int(below.max(initial=-1)) + 1:
        raise ConfigError(f"The hierarchy of {name!r}: a label of level {level - 1} is in two labels of level {level}.")
