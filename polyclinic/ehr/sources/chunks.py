"""What a source gives: its records in chunks, each of which knows its place in the source.

A source is a function of a ``Place`` and a schema that yields chunks. Their cells may be of any type that the checks
of ``ehr.checks`` understand; ``typed_records`` makes them what the schema declares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pandas as pd

from polyclinic.ehr.checks import class_numbers, code_sets, codes, identifiers, numbers, require_columns, texts
from polyclinic.ehr.cohorts import Cohort, Flow
from polyclinic.ehr.faults import CellsRefused, all_or_faults
from polyclinic.ehr.schema import CLASS_KINDS, Column, Schema
from polyclinic.errors import ConfigError, nearest

#: Rows of a chunk: at most so many are in memory as text.
ROWS = 20_000


@dataclass(frozen=True)
class Place:
    """Where a hospital says that its records lie.

    text: what follows the source's name in ``data``. folder: what relative paths are relative to. options: the keys of
    the hospital file's table ``[source]``.
    """

    text: str
    folder: Path = Path()
    options: Mapping[str, str] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """The file that an option names. Raises ConfigError where the option is missing."""
        if name not in self.options:
            raise ConfigError(f"{self.text}: the key {name!r} of [source] is missing; it names a file.")
        return self.folder / self.options[name]

    def allow(self, *names: str) -> None:
        """Raises ConfigError for an option that is not one of the names."""
        for name in self.options:
            if name not in names:
                options = f"known are {', '.join(names)}" if names else "this source has none"
                raise ConfigError(f"{self.text}: [source] has the key {name!r}; {options}.{nearest(name, names)}")


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some rows of a source, with a column for each cell that the schema reads.

    source: the name by which messages call the file or query. start: how many of its rows lie before these.
    flow: how the records came to be those of a cohort; the last chunk of a cohort has it.
    """

    records: pd.DataFrame
    source: str
    start: int
    flow: Flow | None = None


Source = Callable[[Place, Schema], Iterable[Chunk]]


def as_chunks(frames: Iterable[pd.DataFrame], source: str) -> Iterator[Chunk]:
    """Consecutive frames of one file or query as chunks."""
    start = 0
    for frame in frames:
        yield Chunk(frame, source, start)
        start += len(frame)


def of_cohort(
    chunks: Iterable[Chunk], cohort: Cohort, patient: str | None, source: str, begin: str = "records"
) -> Iterator[Chunk]:
    """Yield the chunks' rows that belong to a cohort, numbered within it, and in the last chunk its flow.

    Args:
        chunks: The records in parts, each with its place in the source.
        cohort: The rules of inclusion.
        patient: The column that names the patient, or None where each row is one.
        source: The source's name in messages.
        begin: The name of the flow's first stage, where the chunks have no flow of their own.

    Raises:
        DataError: As ``Cohort.select`` does.
    """
    before: list[Flow] = []

    def frames() -> Iterator[pd.DataFrame]:
        for chunk in chunks:
            before.extend([chunk.flow] if chunk.flow else [])
            yield chunk.records

    rows, flow = cohort.select(frames(), patient, source, begin)
    last: Chunk | None = None
    for chunk in as_chunks(rows, f"{source}, rows of the cohort"):
        if last is not None:
            yield last
        last = chunk
    if last is not None:
        stages = flow().stages
        yield replace(last, flow=Flow((*before[-1].stages, *stages[1:]) if before else stages))


def typed_records(chunk: Chunk, schema: Schema) -> pd.DataFrame:
    """The chunk's records with exactly the schema's columns (role "ignore" left out), typed by their kinds.

    Raises CellsRefused with all faults, naming source, column and row of the source, never a cell.
    """
    columns = [column for column in schema.columns if column.is_read]
    require_columns(chunk.records, tuple(columns), chunk.source)
    names = [(name, column) for column in columns for name in column.record_names]
    try:
        cells = all_or_faults(
            partial(_typed_cells, chunk.records[name], column, chunk.source) for name, column in names
        )
    except CellsRefused as error:
        raise error.after(chunk.start) from None
    return pd.DataFrame({name: cell for (name, _), cell in zip(names, cells, strict=True)})


def _typed_cells(values: pd.Series, column: Column, source: str) -> pd.Series:
    if column.role in ("patient_id", "site"):
        return pd.Series(identifiers(values, source), dtype=object)
    if column.role == "time":
        return pd.Series([cell or None for cell in texts(values)], dtype=object)
    if column.is_label and column.kind in CLASS_KINDS:
        class_numbers(pd.DataFrame({column.name: values}), column, source)
    if column.kind == "code_set":
        code_sets(values, column, source)
        return pd.Series(texts(values), dtype=object)
    if column.categories:
        indices = codes(values, column, source)
        if column.is_open:
            return pd.Series([cell or None for cell in texts(values)], dtype=object)
        return pd.Series([column.categories[i] if i >= 0 else None for i in indices.tolist()], dtype=object)
    parsed = pd.Series(numbers(values, column, source))
    if column.kind in ("integer", "binary"):
        return parsed.astype("Int64" if column.nullable else "int64")
    return parsed
