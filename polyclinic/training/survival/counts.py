"""Counts of patients by group and interval of time, as a method of sums: what a hospital answers of its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from polyclinic.ehr.encoding import column_values, nullable_mask, public_standardiser, standardised_mask
from polyclinic.ehr.schema import BOUNDED_KINDS, CLASS_KINDS, Column, Schema
from polyclinic.errors import ConfigError, nearest
from polyclinic.inference.survival import Grid
from polyclinic.objectives.objective import made_up_labels
from polyclinic.privacy.sums import mean_of_rows
from polyclinic.synthesis.layout import Layout
from polyclinic.types import Arrays, Bools, Floats, Ints, Labels

_MOST_INTERVALS = 2000


class Cells(Layout):
    """Rows as a shard has them: encoded features, NaN where missing, and behind them the label's columns in their units."""

    @classmethod
    def of_shards(cls, schema: Schema) -> Cells:
        """The layout of a schema with any labels."""
        return cls(schema, *public_standardiser(schema), nullable_mask(schema))

    @property
    def classes(self) -> int:
        """One: patients are not told apart by their label."""
        return 1

    @property
    def label(self) -> slice:
        """The label's columns, last."""
        return slice(self.features, self.features + len(self.schema.labels))

    @cached_property
    def numeric(self) -> Bools:
        """(D,) True for numbers; the others are 0 or 1."""
        labels = [column.kind in BOUNDED_KINDS for column in self.schema.labels]
        return np.concatenate([standardised_mask(self.schema), labels])

    def rows(self, x: Floats, y: Labels, hospital: int = 0) -> Floats:
        """(n, D) of a shard's x and y.

        Args:
            x: (n, F) encoded features, NaN where missing.
            y: (n,) or (n, labels) the label's columns in their units.
            hospital: Of no weight here.
        """
        return np.concatenate([x, y.reshape(len(y), len(self.schema.labels))], axis=1)

    def some_labels(self, count: int) -> Labels:
        """(count, ...) made-up labels."""
        return made_up_labels(self.schema.labels, count)

    def labels(self, z: Floats) -> Ints:
        """(n,) the one class."""
        return np.zeros(len(z), dtype=np.int64)

    def values(self, z: Floats, column: Column) -> Floats:
        """(n,) cells of one column in its unit, or as numbers of its categories; NaN where missing."""
        if column in self.schema.labels:
            return z[:, self.features + self.schema.labels.index(column)]
        return column_values(z[:, : self.features], self.schema, column.name)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The columns that say how long each patient was seen, whether the event came then, and of which group the patient is.

    by: None where all patients are one group.
    """

    time: Column
    event: Column
    by: Column | None

    @classmethod
    def of(cls, schema: Schema, time: str, event: str, by: str = "") -> Outcome:
        """The columns of these names.

        Args:
            schema: The public schema.
            time: The column that says how long each patient was seen; empty for that of the role ``duration``.
            event: The column that says whether the event came then; empty for that of the role ``event``.
            by: The column of groups; empty for one group.

        Raises:
            ConfigError: A name is not a column which hospitals read, or a column is of another kind or of times below 0.
        """
        read = (*schema.features, *schema.labels)
        duration = _column(schema, read, "time", time or _of_role(schema, "duration"))
        if (duration.bounds or (0.0, 1.0))[0] < 0:
            raise ConfigError(
                f"Column {duration.name!r}, the time (--time), may hold numbers below 0; allowed are 0 and more, which the lower "
                "bound in the schema must say, or every row of your own tables."
            )
        return cls(
            duration,
            _column(schema, read, "event", event or _of_role(schema, "event")),
            _column(schema, read, "by", by) if by else None,
        )

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups."""
        return ("all",) if self.by is None else self.by.categories or ("0", "1")


def _of_role(schema: Schema, role: str) -> str:
    return next((column.name for column in schema.labels if column.role == role), "")


def check_outcome(schema: Schema, time: str, event: str) -> None:
    """Check that names are columns of a time and of an event, whatever role the schema gives them.

    Args:
        schema: The public schema.
        time: The column of the time.
        event: The column of the event.

    Raises:
        ConfigError: A name is not a column, or the column is of another kind.
    """
    for option, name in (("time", time), ("event", event)):
        _column(schema, schema.columns, option, name)


#: By option, which kinds its column may be of, and what such a column does.
_KINDS: Mapping[str, tuple[Sequence[str], str]] = {
    "time": (BOUNDED_KINDS[:2], "be a number with bounds"), "event": (("binary",), "hold two values, such as 0 and 1"),
    "by": (CLASS_KINDS, "be a column with categories"),
}  # fmt: skip


def _column(schema: Schema, among: Sequence[Column], option: str, name: str) -> Column:
    columns, (kinds, what) = {column.name: column for column in among}, _KINDS[option]
    if not name:
        raise ConfigError(
            f"Configuration key 'task-options' needs {option}: schema {schema.name!r} has no columns of the roles duration and "
            "event; name them by --time and --event."
        )
    if name not in columns:
        raise ConfigError(
            f"Configuration key 'task-options' (--{option}) names {name!r} as {option}, which is no feature and no label of "
            f"schema {schema.name!r}.{nearest(name, columns)}"
        )
    if columns[name].kind not in kinds:
        raise ConfigError(
            f"Configuration key 'task-options' (--{option}) names {name!r} as {option}, a column of kind {columns[name].kind!r}; "
            f"it must {what} (kind {' or '.join(kinds)})."
        )
    return columns[name]


def grid_of(time: Column, edges: Sequence[float], intervals: int, inside: float) -> Grid:
    """The public grid of time.

    Args:
        time: The time's column, whose bounds the grid covers.
        edges: The ends of the intervals, rising; empty for equal ones.
        intervals: The number of equal intervals, where there are no edges.
        inside: Which share of an interval counts for a patient whose time ends inside it, as ``Grid`` has it: 0.5 or 0.

    Raises:
        ConfigError: There is no such grid.
    """
    low, high = time.bounds or (0.0, 1.0)
    rising = all(isinstance(edge, int | float) for edge in edges) and list(edges) == sorted(set(edges))
    if not rising or any(not low < edge <= high for edge in edges) or len(edges) > _MOST_INTERVALS:
        raise ConfigError(
            f"Configuration key 'task-options' has the edges {', '.join(map(str, edges[:20]))}; allowed are at most "
            f"{_MOST_INTERVALS:,} numbers that rise, above {low:g} and up to {high:g}."
        )
    if not edges and not 1 <= intervals <= _MOST_INTERVALS:
        raise ConfigError(
            f"Configuration key 'task-options' has intervals {intervals}; allowed are 1 to {_MOST_INTERVALS:,}."
        )
    return Grid(np.array(edges, dtype=np.float64) if edges else np.linspace(low, high, intervals + 1)[1:], inside)


@dataclass(frozen=True, eq=False)
class SurvivalCounts:
    """``synthesis.sums.SumsMethod`` of one sum: of each patient a 1 in the cell of the group and of the interval.

    fewest: Without privacy a hospital tells nothing of a group of fewer patients than that.
    separate: Whether hospitals' counts are kept apart.
    """

    layout: Cells
    outcome: Outcome
    grid: Grid
    fewest: int = 5
    separate: bool = False
    name: str = field(default="survival", init=False)
    rounds: int = field(default=1, init=False)

    def question(self, round: int, state: Arrays) -> Arrays:
        """Nothing: the grid is part of the configuration."""
        return {}

    def size(self, round: int, question: Arrays) -> int:
        """Groups times cells."""
        return len(self.outcome.groups) * self.grid.size

    def contributions(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> Floats:
        """(patients, size) 0 and 1, of length 1 in all.

        A patient with several rows counts in several cells by their shares. A patient without a group counts nowhere.

        Args:
            round: The round, 1.
            question: What ``question`` gave for the round.
            z: (n, D) rows of the layout.
            patient: (n,) the patient of each row.
            patients: The number of patients.
        """
        complete, group, cell = self._place(z)
        cell = cell + self.grid.size * group
        vectors = np.zeros((len(z), self.size(round, question)))
        vectors[np.flatnonzero(complete), cell[complete]] = 1.0
        return mean_of_rows(vectors, patient, patients)

    def refusal(self, round: int, question: Arrays, z: Floats, patient: Ints, patients: int) -> str:
        """Why a hospital does not answer without privacy; empty where it does.

        Args:
            round: The round, 1.
            question: What ``question`` gave for the round.
            z: (n, D) rows of the layout.
            patient: (n,) the patient of each row.
            patients: The number of patients.
        """
        complete, group, _ = self._place(z)
        there = [len(np.unique(patient[complete & (group == at)])) for at in range(len(self.outcome.groups))]
        few = [name for name, count in zip(self.outcome.groups, there, strict=True) if 0 < count < self.fewest]
        if not few:
            return ""
        return f"Of the group {few[0]!r} there are fewer than {self.fewest} patients here, of whom exact counts would tell."

    def _place(self, z: Floats) -> tuple[Bools, Ints, Ints]:
        """(n,) which rows say all, and of each its group and its cell in that."""
        time, event = self.layout.values(z, self.outcome.time), self.layout.values(z, self.outcome.event)
        group = np.zeros(len(z)) if self.outcome.by is None else self.layout.values(z, self.outcome.by)
        complete = np.isfinite(time) & np.isfinite(event) & np.isfinite(group)
        return complete, np.where(complete, group, 0).astype(np.int64), self.grid.cell(time, event > 0.5)

    def absorb(self, round: int, state: Arrays, mean: Floats, noise: float) -> Arrays:
        """The counts by number of patients.

        Args:
            round: The round, 1.
            state: What was there before.
            mean: (size,) noisy sum by the number of patients.
            noise: Standard deviation in each entry of ``mean``.
        """
        return {**state, "mean": mean, "noise": np.array([noise])}
