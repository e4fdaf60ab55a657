"""From a finished run's generator to files of synthetic records with their certificate: all of them, or none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from polyclinic.ehr.rules import Violations, violations
from polyclinic.ehr.schema import RECORDED_ROLES, Column, Schema
from polyclinic.errors import ConfigError, DataError
from polyclinic.files import sha256, write_outputs
from polyclinic.privacy.streams import generator
from polyclinic.runs.folder import Run
from polyclinic.synthesis.certificate import certificate, certificate_path, inference_of
from polyclinic.synthesis.conditions import conditions_of, draw, draw_where
from polyclinic.synthesis.layout import Layout
from polyclinic.synthesis.synthesizer import unsure
from polyclinic.types import Floats

ENDINGS = (".parquet", ".csv")


def synthesize(
    folder: str | Path, rows: int | str, out: str | Path, *, sets: int = 1, seed: int = 0, force: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Path:  # fmt: skip
    """Draw records from the generator of a run, write them to ``out``, and return the path of their certificate.

    It costs no privacy: whatever the run's guarantee, and under its neighbouring relation, it holds for the rows as well.
    Each row is a patient of its own; it has the schema's columns but site and those that are no feature. An error leaves no
    part of a file.

    Args:
        folder: The run's, or one that holds a single run.
        rows: In each set; or exactly so many of each value, as "arm=1:300,arm=0:200".
        out: The file to write, by its ending.
        sets: Independent tables, ``out`` with -01, -02 and so on before its ending. Several sets of ``marginals`` are each of a
            model drawn anew from the posterior, for rule 'full' (docs/synthesis/inference.md).
        seed: The same seed gives the same rows.
        force: Overwrites files that are there already.
        progress: Called with how many more rows are done.

    Raises:
        ConfigError: before anything is written, for a value that cannot be.
        DataError: before anything is written, for a run of which nothing can be drawn or certified.

    Examples:
        >>> import tempfile
        >>> from polyclinic import Federation
        >>> options = {"task": "synthesis", "model": "moments", "privacy": {"dp": False}, "synthesis": {"quality": False}}
        >>> run = Federation.from_dataset("breast-cancer", out=tempfile.mkdtemp(), **options).run(pictures=False)
        >>> certified = synthesize(run.path, rows=100, out=run.path / "patients.csv")
        >>> certified.name, pd.read_csv(run.path / "patients.csv").shape
        ('patients.certificate.json', (100, 32))
    """
    out = Path(out)
    if out.suffix.lower() not in ENDINGS:
        raise ConfigError(f"--out is {str(out)!r}; its ending must be one of {', '.join(ENDINGS)}.")
    for name, value, least in (("rows", rows, 1), ("sets", sets, 1), ("seed", seed, 0)):
        if isinstance(value, int) and value < least:
            raise ConfigError(f"--{name} is {value}; it must be {least} or more.")
    run = Run.open(folder)
    summary = run.summary()
    if lacking := {"privacy", "metrics"} - summary.model_fields_set:
        raise DataError(f"{run.summary_file} has no {max(lacking)!r}, without which nothing can be certified.")
    layout = run.layout()
    sources = {name: sha256(path) for name, path in run.certified.items()}
    synthesizer = run.synthesizer()
    able = unsure(synthesizer)
    models = able.anew(sets, generator(seed, "synthesize", "models")) if able and sets > 1 else [synthesizer] * sets
    conditions = () if isinstance(rows, int) else conditions_of(rows, layout)
    number_of_rows = rows if isinstance(rows, int) else sum(condition.rows for condition in conditions)
    digests: dict[str, str] = {}
    broken = [Violations(rule, 0, 0) for rule in layout.schema.rules]

    def write(number: int, name: str, path: Path) -> None:
        rng = generator(seed, "synthesize", number)
        by_value = (draw_where(models[number - 1], condition, rng) for condition in conditions)
        pieces = chain.from_iterable(by_value) if conditions else draw(models[number - 1], number_of_rows, rng)
        _write(_count_violations(_records(pieces, layout, progress), layout.schema, broken), layout.schema, path)
        digests[name] = sha256(path)

    def certify(path: Path) -> None:
        statement = summary.synthesis or {}
        drawn = {
            "method": {"name": statement.get("model") or statement.get("method"), "class": type(synthesizer).__name__},
            "rows": number_of_rows, "sets": sets, "seed": seed,
            "inference": inference_of(
                run.summary_json(), sets, able.together if able else [], able.patients if able else None, bool(conditions),
                [column.name for column in _record_columns(layout.schema) if column.kind == "code_set"],
            ),
            "conditions": [
                {key: value for key, value in asdict(condition).items() if key != "number"} for condition in conditions
            ],
            "schema": {"name": layout.schema.name, "sha256": layout.schema.digest()},
            "columns": [name for column in _record_columns(layout.schema) for name in column.record_names],
            "left_out": [c.name for c in layout.schema.columns if c not in _record_columns(layout.schema)],
            "rules": [asdict(violations) | {"share": violations.share} for violations in broken],
            "files": [{"file": name, "rows": number_of_rows, "sha256": digest} for name, digest in digests.items()],
        }  # fmt: skip
        content = certificate(run.summary_json(), run.name, sources, drawn)
        path.write_text(json.dumps(content, indent=2, allow_nan=False), encoding="utf-8")

    names = file_names(out, sets)
    files = {name: partial(write, number, name.name) for number, name in enumerate(names, start=1)}
    write_outputs({**files, certificate_path(out): certify}, force)
    return certificate_path(out)


def file_names(out: Path, sets: int) -> list[Path]:
    """``out``, or of several sets one with a number for each.

    Examples:
        >>> [path.name for path in file_names(Path("patients.csv"), sets=3)]
        ['patients-01.csv', 'patients-02.csv', 'patients-03.csv']
    """
    if sets == 1:
        return [out]
    width = max(2, len(str(sets)))
    return [out.with_name(f"{out.stem}-{number:0{width}d}{out.suffix}") for number in range(1, sets + 1)]


def _record_columns(schema: Schema) -> tuple[Column, ...]:
    """The columns that synthetic records have, in the schema's order."""
    return tuple(column for column in schema.columns if column.role in ("patient_id", *RECORDED_ROLES))


def _records(
    pieces: Iterator[Floats], layout: Layout, progress: Callable[[int], None] | None
) -> Iterator[pd.DataFrame]:
    """The pieces as records; patients are numbered from 1."""
    schema, done = layout.schema, 0
    names = [name for column in _record_columns(schema) for name in column.record_names]
    for z in pieces:
        records = layout.decode(z)
        if schema.patient_id is not None:
            numbers = np.arange(done + 1, done + 1 + len(z))
            records[schema.patient_id.name] = [f"synthetic-{number:06d}" for number in numbers]
        done += len(z)
        yield records[names]
        if progress is not None:
            progress(len(z))


def _count_violations(
    pieces: Iterator[pd.DataFrame], schema: Schema, broken: list[Violations]
) -> Iterator[pd.DataFrame]:
    """The pieces; what they break of the schema's rules is added to ``broken``. Rows alone are looked at, so it costs nothing."""
    for records in pieces:
        broken[:] = [a + b for a, b in zip(broken, violations(records, schema.rules, schema.columns), strict=True)]
        yield records


def _write(pieces: Iterator[pd.DataFrame], schema: Schema, path: Path) -> None:
    """One file of all pieces, by the ending of ``path``."""
    if path.suffix.lower() == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            for number, piece in enumerate(pieces):
                piece.to_csv(file, index=False, header=number == 0, lineterminator="\n")
        return
    import pyarrow as pa
    from pyarrow import parquet

    # Said beforehand: a piece in which a column is missing throughout would give it another type.
    types = pa.schema([(name, _type(column, pa)) for column in _record_columns(schema) for name in column.record_names])
    tables = (pa.Table.from_pandas(piece, types, preserve_index=False) for piece in pieces)
    first = next(tables)
    with parquet.ParquetWriter(path, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table)


def _type(column: Column, pa: Any) -> Any:
    if column.role == "patient_id" or column.categories:
        return pa.string()
    return pa.int64() if column.kind in ("integer", "binary") or column.whole else pa.float64()
