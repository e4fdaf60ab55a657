"""Who belongs to a study: rules of inclusion over a table, one row a patient, and how many are left after each step.

Steps look at one patient's rows alone, so what a patient adds or takes away is that patient's own rows: choosing a cohort
costs no privacy. The counts of a ``Flow`` are exact and not private: they are the hospital's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from pydantic import ConfigDict, Field, model_validator

from polyclinic.ehr.checks import require_names, texts
from polyclinic.ehr.dates import read_dates
from polyclinic.ehr.expressions import Expression, numbers, parse
from polyclinic.ehr.schema import Column, Schema
from polyclinic.errors import ConfigError, DataError, nearest
from polyclinic.toml import Declared, read_model
from polyclinic.types import Floats

_PATIENT = " patient"  # no file's column begins with a space: headers are stripped


class Step(Declared):
    """One step: ``keep``, the condition that rows must meet, or ``one-each``, which of a patient's rows is kept.

    by: the column, of dates or numbers, by which ``one-each`` finds a patient's first or last row.
    """

    model_config = ConfigDict(populate_by_name=True)

    name: str = Field(min_length=1, max_length=80)
    keep: str = ""
    one_each: Literal["first", "last"] | None = Field(None, alias="one-each")
    by: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.keep) == (self.one_each is not None):
            raise ValueError("a step has either 'keep' or 'one-each'")
        if self.by and self.one_each is None:
            raise ValueError("'by' goes with 'one-each'")
        return self


@dataclass(frozen=True)
class Stage:
    """What is left after one step: rows, and the patients who have them."""

    name: str
    rows: int
    patients: int


@dataclass(frozen=True)
class Flow:
    """The stages of a cohort; the first is before any step."""

    stages: tuple[Stage, ...]

    @classmethod
    def of(cls, *stages: tuple[str, int, int]) -> Flow:
        """The flow of stages given as (name, rows, patients)."""
        return cls(tuple(Stage(*stage) for stage in stages))

    @classmethod
    def from_list(cls, values: Sequence[Mapping[str, Any]]) -> Flow:
        """The flow that ``as_list`` gave."""
        return cls.of(*((str(value["name"]), int(value["rows"]), int(value["patients"])) for value in values))

    def as_list(self) -> list[dict[str, Any]]:
        """Plain values: name, rows, patients, and how many of both the step left out."""
        before = (self.stages[0], *self.stages)
        return [
            {"name": now.name, "rows": now.rows, "patients": now.patients, "rows_left_out": then.rows - now.rows,
             "patients_left_out": then.patients - now.patients}
            for then, now in zip(before, self.stages, strict=False)
        ]  # fmt: skip


@dataclass(frozen=True)
class Cohort:
    """Steps that were checked, in their order; ``conditions`` has None for a step by ``one-each``."""

    steps: tuple[Step, ...]
    conditions: tuple[Expression | None, ...]

    @classmethod
    def build(
        cls, steps: Sequence[Step], source: str, columns: Collection[str] | None = None, index: str = ""
    ) -> Cohort:
        """Check the steps of a cohort, read their conditions and return the cohort.

        Args:
            steps: The rules of inclusion, in order, with distinct names.
            source: The file or argument that messages name.
            columns: Those that steps may name, None for any.
            index: The column by which ``one-each`` goes where a step does not say.

        Raises:
            ConfigError: Naming ``source`` and the step.
        """
        done, conditions = list[Step](), list[Expression | None]()
        for step in steps:
            what = f"{source}: step {step.name!r}"
            if step.name in [other.name for other in done]:
                raise ConfigError(f"{what} is there twice; a name tells a step in the flow.")
            if step.one_each is not None:
                by = step.by or index
                if not by:
                    raise ConfigError(f"{what}: 'one-each' needs 'by', a column of dates or numbers.")
                if columns is not None and by not in columns:
                    raise ConfigError(f"{what}: there is no column {by!r}.{nearest(by, columns)}")
                step = step.model_copy(update={"by": by})
            done.append(step)
            conditions.append(parse(step.keep, columns, what) if step.keep else None)
        return cls(tuple(done), tuple(conditions))

    @classmethod
    def read(cls, path: str | Path) -> Cohort:
        """The ``[[steps]]`` of a TOML file. Raises ConfigError naming file and key."""
        return cls.build(read_model(_File, path, "cohort file").steps, str(path))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that the steps read."""
        read = (name for condition in self.conditions if condition for name in condition.names)
        return tuple(dict.fromkeys([*read, *(step.by for step in self.steps if step.by)]))

    def widen(self, schema: Schema) -> Schema:
        """The schema by which a source also reads the columns that only the steps need; for reading alone."""
        read_names = {name for column in schema.columns if column.is_read for name in column.record_names}
        more = [Column(name=name, kind="categorical", role="time") for name in self.names if name not in read_names]
        return schema.model_copy(update={"columns": (*schema.columns, *more)})

    def select(
        self, frames: Iterable[pd.DataFrame], patient: str | None, source: str, begin: str = "records"
    ) -> tuple[Iterator[pd.DataFrame], Callable[[], Flow]]:
        """Return the rows of the cohort, and a function that gives its flow once all of them were taken.

        Frames are passed on one by one but for ``one-each``, which needs all rows that are left in memory.

        Args:
            frames: The table, in parts.
            patient: The column that names the patient; None where each row is one.
            source: The table's name in messages.
            begin: The name of the flow's first stage, before any step.

        Raises:
            DataError: Naming source, step and column.
            ConfigError: For a ``one-each`` step where ``patient`` is None.
        """
        tallies = [_Tally(begin), *(_Tally(step.name) for step in self.steps)]
        rows = tallies[0].count(_identify_rows(frames, patient, source))
        for step, condition, tally in zip(self.steps, self.conditions, tallies[1:], strict=True):
            what = f"{source}, step {step.name!r}"
            if condition is None and patient is None:
                raise ConfigError(f"{what}: 'one-each' needs a schema with a patient_id column.")
            left = _one_each(rows, step, what) if condition is None else _rows_where(rows, condition, what)
            rows = tally.count(left)
        plain = (frame.drop(columns=_PATIENT) for frame in rows)
        return plain, lambda: Flow(tuple(Stage(t.name, t.rows, len(t.patients)) for t in tallies))


class _File(Declared):
    steps: tuple[Step, ...] = Field(min_length=1)


@dataclass
class _Tally:
    name: str
    rows: int = 0
    patients: set[object] = field(default_factory=set)

    def count(self, frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            self.rows += len(frame)
            self.patients.update(frame[_PATIENT].tolist())
            yield frame


def _identify_rows(frames: Iterable[pd.DataFrame], patient: str | None, source: str) -> Iterator[pd.DataFrame]:
    """The frames with each row's patient as text, or the row's number where each row is one."""
    start = 0
    for frame in frames:
        rows: Sequence[object] = range(start, start := start + len(frame))
        if patient is not None:
            require_names(frame.columns.tolist(), (patient,), source)
            rows = texts(frame[patient])
        yield frame.assign(**{_PATIENT: pd.Series(rows, index=frame.index, dtype=object)})


def _rows_where(frames: Iterable[pd.DataFrame], condition: Expression, what: str) -> Iterator[pd.DataFrame]:
    for frame in frames:
        require_names(frame.columns.tolist(), condition.names, what)
        try:
            chosen = condition.holds(frame)
        except DataError as error:
            raise DataError(f"{what}: {error}") from None
        yield frame[chosen].reset_index(drop=True)


def _one_each(frames: Iterable[pd.DataFrame], step: Step, what: str) -> Iterator[pd.DataFrame]:
    tables = list(frames)
    if not tables:
        return
    table = pd.concat(tables, ignore_index=True)
    require_names(table.columns.tolist(), (step.by,), what)
    if (table[_PATIENT] == "").any():
        raise DataError(f"{what}: a row names no patient; keep only rows that do, by a step before.")
    sign = 1.0 if step.one_each == "first" else -1.0
    # Rows without a place in time come last; of equal ones the earlier or, for "last", the later in the table is taken.
    order = np.lexsort((sign * np.arange(len(table)), sign * _in_time(table[step.by], f"{what}: column {step.by!r}")))
    chosen = order[~table[_PATIENT].iloc[order].duplicated().to_numpy()]
    yield table.iloc[np.sort(chosen)].reset_index(drop=True)


def _in_time(cells: pd.Series, what: str) -> Floats:
    """Numbers as they are, or dates in seconds; NaN, which sorts last, where missing. Raises DataError for others."""
    try:
        return numbers(cells, what)
    except DataError:
        pass
    try:
        seconds = (read_dates(cells, what) - pd.Timestamp(0)) / np.timedelta64(1, "s")
        return np.asarray(seconds, dtype=np.float64)
    except DataError:
        raise DataError(f"{what}: a cell is neither a number nor a date of the form 2020-01-31.") from None
