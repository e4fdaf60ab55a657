"""Rows drawn from a synthesizer in pieces that fit in memory: as many as asked, or exactly so many of each value of a column."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyclinic.ehr.encoding import column_values
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError, DataError, nearest, several
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.synthesizer import Synthesizer
from polyclinic.types import Bools, Floats, Ints

# Numbers of the rows that are held at once, and rows.
_AT_ONCE, _MOST = 1 << 22, 1 << 16
# A value is too rare when so many rows, and so many for each wanted one, held too few of it.
_LEAST_TRIES, _TRIES = 100_000, 100
_KINDS = ("binary", "categorical", "ordinal")
#: What a condition calls the hospital of a row.
HOSPITAL = "hospital"
_NEXT = re.compile(r"(?<=\d)\s*,(?=[^,=]+=)")
_FORM = re.compile(r"(?P<column>[^=]+)=(?P<value>.*):\s*(?P<rows>-?\d+)\s*", re.DOTALL)


@dataclass(frozen=True)
class Condition:
    """``rows`` rows in which ``column`` has ``value``, the category of this ``number``."""

    column: str
    value: str
    rows: int
    number: int

    def __str__(self) -> str:
        return f"{self.column}={self.value}:{self.rows}"

    def holds(self, layout: Layout, z: Floats) -> Bools:
        """(rows,) whether each record that ``z`` decodes to meets it."""
        x, labels = layout.features_and_labels(z)
        if self.column == HOSPITAL and layout.hospitals > 1:
            return np.asarray(layout.labels(z) % layout.hospitals == self.number)
        if self.column == layout.schema.label.name:
            return np.asarray(labels == self.number)
        return np.asarray(column_values(x, layout.schema, self.column) == self.number)


def conditions_of(text: str, layout: Layout) -> tuple[Condition, ...]:
    """What ``"arm=1:300,arm=0:200"`` asks for: the label, or a binary, categorical or ordinal feature, its value, and how many.

    Where rows say of which hospital they are, ``"hospital=2:100"`` as well, numbered from 1 in the order of the run's.
    Raises ConfigError for another form, column, value or number.
    """
    conditions = tuple(_condition(part, layout) for part in _NEXT.split(text))
    places = [(condition.column, condition.value) for condition in conditions]
    if twice := [f"{column}={value}" for column, value in places if places.count((column, value)) > 1]:
        raise ConfigError(f"--condition names {twice[0]} twice; give each value once.")
    return conditions


def _condition(text: str, layout: Layout) -> Condition:
    schema = layout.schema
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"--condition is {text.strip()!r}; the form is COLUMN=VALUE:ROWS, several with commas between."
        )
    name, value, rows = match["column"].strip(), match["value"].strip(), int(match["rows"])
    allowed = {column.name: column for column in (*schema.features, schema.label) if column.kind in _KINDS}
    hospital = name == HOSPITAL and layout.hospitals > 1
    if name not in allowed and not hospital:
        raise ConfigError(f"--condition names column {name!r}; allowed are {several(allowed)}.{nearest(name, allowed)}")
    values = _values(allowed[name], schema) if not hospital else tuple(map(str, range(1, layout.hospitals + 1)))
    if value not in values:
        raise ConfigError(f"--condition gives column {name!r} the value {value!r}; allowed are {several(values)}.")
    if rows < 1:
        raise ConfigError(f"--condition asks for {rows} rows of {name}={value}; it must be 1 or more.")
    return Condition(name, value, rows, values.index(value))


def _values(column: Column, schema: Schema) -> tuple[str, ...]:
    classes = schema.num_classes if column.is_label else 2
    return column.categories or tuple(str(number) for number in range(classes))


def draw(synthesizer: Synthesizer, rows: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Pieces (n, D) of ``rows`` rows in all.

    Args:
        synthesizer: What draws the rows.
        rows: How many rows to draw.
        rng: The source of random numbers.

    Raises:
        DataError: The generator gives no finite numbers.
    """
    for first in range(0, rows, at_once := _piece(synthesizer.layout)):
        yield _sample(synthesizer, min(at_once, rows - first), rng)


def draw_where(synthesizer: Synthesizer, condition: Condition, rng: np.random.Generator) -> Iterator[Floats]:
    """Pieces of exactly the condition's rows: of a label by asking for it, else by throwing away the others.

    Args:
        synthesizer: What draws the rows.
        condition: The column, its value, and how many rows of it are wanted.
        rng: The source of random numbers.

    Raises:
        ConfigError: The value is so rare that it would take more than 100 rows for each wanted one, and 100,000.
    """
    layout = synthesizer.layout
    by_label = condition.column == layout.schema.label.name and layout.hospitals == 1
    most = _LEAST_TRIES + _TRIES * condition.rows
    matching = drawn = 0
    while matching < condition.rows:
        if drawn >= most:
            surely = int(0.8 * _LEAST_TRIES * matching / drawn)
            raise ConfigError(
                f"--condition {condition} is too rare: the generator gave {matching:,} such rows in {drawn:,}; "
                + (f"ask for at most {surely:,}." if surely else "leave it out.")
            )
        share = (matching + 1) / (drawn + 1)
        wanted = math.ceil(1.1 * (condition.rows - matching) / share) + 16
        rows = min(wanted, _piece(synthesizer.layout), most - drawn)
        labels = np.full(rows, condition.number, dtype=np.int64) if by_label else None
        z = _sample(synthesizer, rows, rng, labels)
        piece = z[condition.holds(synthesizer.layout, z)][: condition.rows - matching]
        drawn, matching = drawn + rows, matching + len(piece)
        if len(piece):
            yield piece


def _piece(layout: Layout) -> int:
    return max(1, min(_MOST, _AT_ONCE // layout.width))


def _sample(synthesizer: Synthesizer, rows: int, rng: np.random.Generator, labels: Ints | None = None) -> Floats:
    try:
        z: np.ndarray[Any, Any] = np.asarray(synthesizer.sample(rows, rng, labels), dtype=np.float64)
    except (ValueError, ArithmeticError) as error:
        raise DataError(f"The generator cannot draw rows, it may have diverged: {str(error).rstrip('.')}.") from None
    if z.shape != (rows, synthesizer.layout.width):
        raise DataError(f"The generator gave rows of shape {z.shape}; needed is {(rows, synthesizer.layout.width)}.")
    if not np.isfinite(z).all():
        raise DataError(
            "The generator gave numbers that are not finite: it has diverged, and nothing can be drawn from it."
        )
    return z
