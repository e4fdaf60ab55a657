"""One hospital's records under a schema, checked, encoded and split by patient.

The patient is the unit of privacy: rows carry the index of their patient, and a patient is wholly train or wholly test
(``split``).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import sha256
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from polyclinic.ehr.checks import identifiers, require_columns, texts
from polyclinic.ehr.encoding import encode
from polyclinic.ehr.faults import all_or_faults
from polyclinic.ehr.schema import Schema
from polyclinic.ehr.sources.chunks import Chunk, typed_records
from polyclinic.ehr.split import OWN_SPLIT, Split
from polyclinic.errors import ConfigError, DataError, several
from polyclinic.types import Bools, Floats, Ints, Labels


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one side of a split: x (rows, features), y as in a Shard, patient (rows,) in 0..patients-1."""

    x: Floats
    y: Labels
    patient: Ints
    patients: int

    @cached_property
    def one_each(self) -> bool:
        """Whether each patient has exactly one row."""
        return len(self.y) == self.patients and bool((np.bincount(self.patient, minlength=self.patients) == 1).all())

    def of_patients(self, chosen: Bools) -> Rows:
        """The rows of the ``chosen`` patients, (patients,) bool, in their order; the patients are numbered anew."""
        rows = chosen[self.patient]
        return Rows(self.x[rows], self.y[rows], (np.cumsum(chosen) - 1)[self.patient[rows]], int(chosen.sum()))

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """All rows and patients of the parts, the first part's first."""
        begin = np.cumsum([0, *(part.patients for part in parts)]).tolist()
        patient = [part.patient + first for part, first in zip(parts, begin, strict=False)]
        x, y = ([part.x for part in parts], [part.y for part in parts])
        return cls(np.concatenate(x), np.concatenate(y), np.concatenate(patient), begin[-1])


@dataclass(frozen=True, eq=False)
class Shard:
    """A hospital's encoded records.

    Attributes:
        x: (rows, features) float64, may hold NaN.
        y: (rows,) int64 class numbers; of a label without classes float64, (rows,) in its unit or (rows, columns)
            (``encoding.encode_labels``).
        patient: (rows,) int64 in 0..patients-1, numbered by first appearance (one number a row where the schema's unit
            is "record").
        is_test: (patients,) bool.
        cells: Of columns whose vocabulary is still open, each row's text ("" where missing); (rows,) object.
    """

    site: str
    schema: Schema
    x: Floats
    y: Labels
    patient: Ints
    is_test: Bools
    cells: Mapping[str, NDArray[np.object_]] = field(default_factory=dict)

    @property
    def patients(self) -> int:
        """The number of units of privacy: patients, or rows where the schema's unit is "record"."""
        return len(self.is_test)

    @property
    def trained_on(self) -> int:
        """The number of training patients, whose rows need not be copied to count them."""
        return self.patients - int(np.count_nonzero(self.is_test))

    @cached_property
    def digest(self) -> str:
        """Identifies the records: SHA-256 (hex) over the arrays."""
        hashed = sha256(f"{self.x.shape}".encode())
        for part in (self.x, self.y, self.patient, self.is_test):
            hashed.update(np.ascontiguousarray(part).data)
        for name, cells in sorted(self.cells.items()):
            hashed.update(json.dumps([name, *cells]).encode())
        return hashed.hexdigest()

    @cached_property
    def contents(self) -> str:
        """Identifies the patients, their rows and their sides of the split, in whatever order they come: SHA-256 (hex) of
        64-bit hashes of the patients. A data base may give the same rows in another order."""
        columns = [
            *self.x.T,
            *np.atleast_2d(self.y.T),
            self.is_test[self.patient],
            *(cells for _, cells in sorted(self.cells.items())),
        ]
        rows = pd.util.hash_pandas_object(pd.DataFrame(dict(enumerate(columns))), index=False).to_numpy()
        patients = np.zeros(self.patients, dtype=np.uint64)
        np.add.at(patients, self.patient, rows)
        return sha256(np.sort(pd.util.hash_array(patients)).data).hexdigest()

    @cached_property
    def train(self) -> Rows:
        """The training patients' rows, in the order of the records."""
        return self._side(~self.is_test)

    @cached_property
    def test(self) -> Rows:
        """The held-out patients' rows, in the order of the records."""
        return self._side(self.is_test)

    def _side(self, chosen: Bools) -> Rows:
        return Rows(self.x, self.y, self.patient, self.patients).of_patients(chosen)


def patient_ids(records: pd.DataFrame, schema: Schema, source: str) -> list[str]:
    """Return each row's patient id as text; the row's number (from 1) if the schema has no patient_id column.

    Args:
        records: The table, one row for each record.
        schema: The schema of the records.
        source: The table's name in messages.

    Raises:
        DataError: Where the patient_id column or a cell of it is missing.
    """
    if schema.patient_id is None:
        return [str(row + 1) for row in range(len(records))]
    require_columns(records, (schema.patient_id,), source)
    return identifiers(records[schema.patient_id.name], source)


@dataclass(frozen=True, eq=False)
class Checked:
    """Records that fit a schema: x and y as in a Shard, and ids (rows,), each row's patient as text.

    Attributes:
        x, y: As in a Shard.
        ids: None where the schema has no patient_id column: each row is then a patient.
        cells: As in a Shard.
        times: (rows,) the cells of each column with role "time", by which patients may be split.
    """

    x: Floats
    y: Labels
    ids: NDArray[np.object_] | None
    cells: Mapping[str, NDArray[np.object_]] = field(default_factory=dict)
    times: Mapping[str, NDArray[np.object_]] = field(default_factory=dict)

    def at(self, rows: Ints) -> Checked:
        """The records of these rows."""
        cells, times = ({name: cell[rows] for name, cell in held.items()} for held in (self.cells, self.times))
        return Checked(self.x[rows], self.y[rows], None if self.ids is None else self.ids[rows], cells, times)

    @property
    def patients(self) -> NDArray[np.object_]:
        """Each row's patient as text: its id, or the row's number (from 1)."""
        if self.ids is None:
            return np.array([str(row + 1) for row in range(len(self.y))], dtype=object)
        return self.ids

    def test_rows(self, split: Split, schema: Schema, source: str) -> Bools:
        """Return (rows,) True for the rows of patients whom the split holds out.

        Args:
            split: The rule by which patients are held out.
            schema: The schema of the records.
            source: The table's name in messages.

        Raises:
            ConfigError: Where its column is lacking, and where one record could move others, each a unit of its own.
        """
        if split.time and schema.unit == "record" and self.ids is not None:
            raise ConfigError(
                f"{source}: split.time holds out patients as a whole, but the unit of the schema is 'record', so that one record "
                "more would move others; set unit to 'patient', or leave split.time out."
            )
        if split.time and split.column not in self.times:
            hint = f"; the schema's columns of role 'time' are {several(self.times) or 'none'}"
            raise ConfigError(
                f"{source}: the split's time names the column {split.column!r}, which holds no moments{hint}."
            )
        return split.test_rows(self.patients, self.times.get(split.column))


def check_records(records: pd.DataFrame, schema: Schema, source: str) -> Checked:
    """Return the records, encoded, after checking them against the schema.

    Args:
        records: The table, one row for each record.
        schema: The schema that they must fit.
        source: The table's name in messages.

    Raises:
        DataError: With the row but never the cell, where the schema does not allow the records.
    """
    require_columns(records, tuple(c for c in (*schema.features, *schema.labels, schema.patient_id) if c), source)
    if records.empty:
        raise DataError(f"{source}: there are no records; give a file with at least one row under its header.")
    encoded = encode(records, schema, source)
    if encoded.y is None:
        raise DataError(f"{source}: the label column {schema.labels[0].name!r} is missing.")
    ids = None if schema.patient_id is None else np.array(patient_ids(records, schema, source), dtype=object)
    cells = {c.name: np.array(texts(records[c.name]), dtype=object) for c in schema.features if c.is_open}
    times = {c.name: records[c.name].to_numpy(object) for c in schema.columns if c.role == "time" and c.name in records}
    return Checked(encoded.x, encoded.y, ids, cells, times)


def check_chunks(chunks: Iterable[Chunk], schema: Schema, source: str, missing: Counter[str] | None = None) -> Checked:
    """Return ``check_records`` of records that come in chunks; only a chunk and the encoded rows are in memory at once.

    The result equals, bit for bit, that of all rows read at once.

    Args:
        chunks: The records in parts, each with its place in the source.
        schema: The schema that they must fit.
        source: The source's name in messages.
        missing: Counts the missing cells of each column; None counts nothing.

    Raises:
        CellsRefused: With the faults of all chunks, naming rows within their files.
        DataError: Where there are no records.
    """

    def check(chunk: Chunk) -> Checked:
        records = typed_records(chunk, schema)
        if missing is not None:
            missing.update(records.isna().sum().to_dict())
        return check_records(records, schema, chunk.source)

    parts = all_or_faults(partial(check, chunk) for chunk in chunks if not chunk.records.empty)
    if not parts:
        raise DataError(f"{source}: there are no records; give at least one row.")
    rows = sum(len(part.y) for part in parts)
    first = parts[0].y
    x, y = np.empty((rows, parts[0].x.shape[1])), np.empty((rows, *first.shape[1:]), dtype=first.dtype)
    ids = None if parts[0].ids is None else np.empty(rows, dtype=object)
    cells, times = (
        {name: np.concatenate([getattr(part, held)[name] for part in parts]) for name in getattr(parts[0], held)}
        for held in ("cells", "times")
    )
    parts.reverse()
    start = 0
    while parts:  # each part is given back as soon as it is copied
        part = parts.pop()
        here = slice(start, start := start + len(part.y))
        x[here], y[here] = part.x, part.y
        if ids is not None:
            ids[here] = part.ids
    return Checked(x, y, ids, cells, times)


def count_records(chunks: Iterable[Chunk], schema: Schema, source: str) -> dict[str, Any]:
    """Check records as ``check_chunks`` does, and return {"rows", "patients", "missing": {column: cells}}.

    The counts are exact and not private.

    Args:
        chunks: The records in parts, each with its place in the source.
        schema: The schema that they must fit.
        source: The source's name in messages.

    Raises:
        DataError: As ``check_chunks`` does.
    """
    missing: Counter[str] = Counter()
    checked = check_chunks(chunks, schema, source, missing)
    return {"rows": len(checked.y), "patients": len(set(checked.patients)), "missing": dict(missing)}


def read_shard(
    chunks: Iterable[Chunk], schema: Schema, site: str, source: str | None = None, split: Split = OWN_SPLIT
) -> Shard:
    """Return ``shard_of`` records that come in chunks.

    Args:
        chunks: The records in parts, each with its place in the source.
        schema: The schema that they must fit.
        site: The hospital's name.
        source: The source's name in messages (the site's name if None).
        split: The rule by which patients are held out.

    Raises:
        DataError: As ``shard_of``, and for records that the schema does not allow.
        ConfigError: Where the records lack the split's column.
    """
    source = site if source is None else source
    return shard_of(check_chunks(chunks, schema, source), schema, site, source, split)


def shard_of(checked: Checked, schema: Schema, site: str, source: str, split: Split = OWN_SPLIT) -> Shard:
    """Return a hospital's shard of records that were checked before, as the split divides its patients.

    Args:
        checked: The encoded records.
        schema: The schema that they fit.
        site: The hospital's name.
        source: The source's name in messages.
        split: The rule by which patients are held out.

    Raises:
        DataError: As ``split_shard`` for the hospital's own split, and for no other: whether a side that a run chose is
            empty, or lacks a class, must not be heard.
        ConfigError: Where the records lack the split's column.
    """
    test_rows = checked.test_rows(split, schema, source)
    if split == OWN_SPLIT:
        return split_shard(checked, schema, site, source, test_rows)
    return divide(checked, schema, site, test_rows)


def build_shard(
    records: pd.DataFrame,
    schema: Schema,
    site: str,
    source: str | None = None,
    test_fraction: float = 0.25,
    split: Bools | None = None,
    allow_small: bool = False,
) -> Shard:
    """Return the shard of ``site``: records checked against the schema, encoded and split by patient.

    Args:
        records: The table, one row for each record.
        schema: The schema that they must fit.
        site: The hospital's name.
        source: The file's name for error messages (the site's name if None).
        test_fraction: Share of patients, by hash of their ids, that is held out.
        split: (rows,) bool, True for test rows, instead of the hash.
        allow_small: Accept training rows that all have one label (a published split may leave a small hospital so; it
            still helps the others). Accept also a lone patient without anyone held out.

    Raises:
        DataError: With the row but never the cell, for records that the schema does not allow.
        DataError: For an empty shard, a side of the split without rows, and a patient on both sides.
        DataError: For one class only among the training rows (unless allowed).
        ConfigError: If ``test_fraction`` is not between 0 and 1.
    """
    source = site if source is None else source
    if not 0.0 < test_fraction < 1.0:
        raise ConfigError(f"test_fraction is {test_fraction!r}; it must lie between 0 and 1, both excluded.")
    checked = check_records(records, schema, source)
    if split is None:
        return _split_by_patient(checked, schema, site, source, test_fraction, allow_small)
    return split_shard(checked, schema, site, source, np.asarray(split, dtype=bool), allow_small)


def _split_by_patient(
    checked: Checked, schema: Schema, site: str, source: str, test_fraction: float, allow_small: bool = False
) -> Shard:
    test_rows = checked.test_rows(Split(test_fraction), schema, source)
    return split_shard(checked, schema, site, source, test_rows, allow_small)


def split_shard(
    checked: Checked, schema: Schema, site: str, source: str, test_rows: Bools, allow_small: bool = False
) -> Shard:
    """Return ``build_shard`` of records that were checked before.

    Args:
        checked: The encoded records.
        schema: The schema that they fit.
        site: The hospital's name.
        source: The source's name in messages.
        test_rows: (rows,) True for the rows that are held out.
        allow_small: As in ``build_shard``.

    Raises:
        DataError: For a split that ``build_shard`` would refuse.
    """
    if test_rows.shape != (len(checked.y),):
        raise DataError(f"{source}: the split has shape {test_rows.shape}; it must have one entry for each row.")
    person = pd.factorize(checked.patients)[0].astype(np.int64)
    _check_split(test_rows, person, source, allow_small)
    if not allow_small and len(np.unique(checked.y[~test_rows], axis=0)) < 2:
        raise DataError(
            f"{source}: all training rows have the same label, so nothing can be learned here; "
            "give records of at least two."
        )
    return divide(checked, schema, site, test_rows, person)


def divide(checked: Checked, schema: Schema, site: str, test_rows: Bools, person: Ints | None = None) -> Shard:
    """Return the shard with patients on the sides that ``test_rows`` says, even where a side is empty.

    A hospital's answer therefore does not tell how many patients there are.

    Args:
        checked: The encoded records.
        schema: The schema that they fit.
        site: The hospital's name.
        test_rows: (rows,) True for the rows that are held out.
        person: (rows,) the number of each row's patient, or None if it is not known yet.
    """
    if person is None:
        person = pd.factorize(checked.patients)[0].astype(np.int64)
    patient = np.arange(len(checked.y), dtype=np.int64) if schema.unit == "record" else person
    is_test = np.zeros(int(patient.max()) + 1, dtype=bool)
    is_test[patient[test_rows]] = True
    return Shard(site, schema, checked.x, checked.y, patient, is_test, checked.cells)


def _check_split(test_rows: Bools, person: Ints, source: str, allow_small: bool) -> None:
    tested = np.zeros(int(person.max()) + 1, dtype=bool)
    tested[person[test_rows]] = True
    astray = tested[person] & ~test_rows
    if astray.any():
        raise DataError(
            f"{source}: data row {int(np.argmax(astray)) + 1}: this patient has rows both in train and in test; "
            "put all rows of a patient on one side of the split."
        )
    for side, rows in (("train", ~test_rows), ("test", test_rows)):
        if not rows.any() and not (allow_small and side == "test" and len(tested) == 1):
            raise DataError(f"{source}: the split leaves no rows in {side}; give more patients or another test share.")
