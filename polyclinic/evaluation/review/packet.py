"""Which patients a packet shows and in what order, and its folder: the form, its answer key, and who gets what.

The synthetic table is a file, or drawn from a run. A packet holds real records: it is no release with differential privacy, and
spends no epsilon, because it stays inside.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from polyclinic.ehr.schema import Schema
from polyclinic.ehr.shard import Checked, check_chunks
from polyclinic.ehr.sources.files import column_names, file_chunks, found_files
from polyclinic.errors import ConfigError, DataError, several
from polyclinic.evaluation.review.form import render_form
from polyclinic.evaluation.review.grid import Table, on_grid, steps
from polyclinic.files import SECRET, NewFile, new_folder, reason, write_files
from polyclinic.privacy.streams import generator
from polyclinic.runs.folder import Run
from polyclinic.runs.synthesize import synthesize
from polyclinic.synthesis.certificate import certificate_path
from polyclinic.types import Ints

PACKET, KEY, README = "packet.html", "answer-key.json", "README.txt"
KEY_FORMAT = "polyclinic-review-key/1"
FEWEST, MOST = 4, 1000
STAYS = (
    "This packet contains real patients' records. It stays at the hospital: it is no release with differential privacy and "
    "spends no epsilon, because it does not leave."
)


@dataclass(frozen=True, eq=False)
class Packet:
    """The patients in the order of their packet numbers, from 1: their cells on one grid, and which are real.

    Attributes:
        patients: Each (records, width) as in a ``Table``.
        real: For each patient.
        grid: The steps of columns.
        copies: Synthetic patients left out because they equal a real one.
        one_record: Of each patient with several records one was drawn, since synthetic ones have one each.
    """

    patients: tuple[Ints, ...]
    real: tuple[bool, ...]
    grid: Mapping[str, float]
    copies: int
    one_record: bool


def choose(
    real: Checked, synthetic: Checked, schema: Schema, patients: int, seed: int, leave_out_copies: bool = False
) -> Packet:
    """Draw half real patients and half synthetic ones, each without replacement, in an order that says nothing.

    The same seed and records give the same packet.

    Args:
        real, synthetic: Records, both checked against the schema.
        schema: The ``bare`` schema.
        patients: An even number from 4 to 1000.
        seed: At least 0.
        leave_out_copies: Leave out synthetic patients that equal a real one.

    Raises:
        ConfigError: For a number of patients that is odd or not from 4 to 1000 and a negative seed.
        DataError: For too few patients, and for synthetic patients that equal a real one on the common grid, unless
            they are to be left out.
    """
    if patients % 2 or not FEWEST <= patients <= MOST:
        raise ConfigError(f"--patients is {patients}; allowed are even numbers from {FEWEST} to {MOST}: half are real.")
    if seed < 0:
        raise ConfigError(f"--seed is {seed}; allowed are whole numbers of at least 0.")
    rng, half = generator(seed, "review"), patients // 2
    grid = steps(real, schema)
    tables = [on_grid(records, schema, grid) for records in (real, synthetic)]
    given, made = tables
    one_record = given.patients < len(given.patient) and made.patients == len(made.patient)
    keys_of_real = {given.cells[row].tobytes() for row in range(len(given.cells))} if one_record else set(_keys(given))
    original = [number for number, key in enumerate(_keys(made)) if key not in keys_of_real]
    copies = made.patients - len(original)
    if copies and not leave_out_copies:
        raise DataError(
            f"{copies:,} of {made.patients:,} synthetic patients equal a real one as reviewers would see them, so that no "
            "answer could be right; --leave-out-copies leaves them out and says so in the answer key."
        )
    for what, number in (("real", given.patients), ("synthetic", len(original))):
        if number < half:
            more = f" that equal no real one ({copies:,} do)" if what == "synthetic" and copies else ""
            raise DataError(f"There are {number:,} {what} patients{more}; a packet of {patients} needs {half}.")
    chosen = [
        _records(given, int(number), one_record, rng) for number in rng.choice(given.patients, half, replace=False)
    ]
    chosen += [_records(made, int(number), False, rng) for number in rng.choice(original, half, replace=False)]
    order = rng.permutation(patients)
    return Packet(tuple(chosen[i] for i in order), tuple(bool(i < half) for i in order), grid, copies, one_record)


def _records(table: Table, patient: int, single: bool, rng: np.random.Generator) -> Ints:
    """A patient's records, sorted by their first column that differs: the order of one table's rows would tell."""
    rows = table.rows_of(patient)
    cells = table.cells[rng.choice(rows, 1) if single else rows]
    return cells[np.lexsort(cells.T[::-1])]


def _keys(table: Table) -> list[bytes]:
    """What tells a patient from another: the rows, in whatever order."""
    order = np.argsort(table.patient, kind="stable")
    parts = np.split(table.cells[order], np.flatnonzero(np.diff(table.patient[order])) + 1)
    return [b"".join(sorted(row.tobytes() for row in part)) for part in parts]


def write_packet(
    packet: Packet, schema: Schema, seed: int, out: Path, names: Mapping[str, str] | None = None,
    sources: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Write the packet's folder, all or nothing, and return the answer key. The files can be read by their owner alone.

    Args:
        packet: The patients.
        schema: The schema of their records.
        seed: With which the patients were drawn, for the key alone.
        out: The folder, which must not exist.
        names: What codes and categories mean.
        sources: Whence the tables are, for the key alone.

    Raises:
        ConfigError: Where ``out`` exists or cannot be made.
    """
    if out.exists():
        raise ConfigError(
            f"{out} exists already; a packet is never replaced, since scores may be on their way: give another."
        )
    page, digest = render_form(packet.patients, schema, packet.grid, names or {})
    numbered = list(enumerate(packet.real, start=1))
    key = {
        "format": KEY_FORMAT, "packet": digest, "packet_sha256": sha256(page.encode()).hexdigest(), "seed": seed,
        "schema": {"name": schema.name, "sha256": schema.digest()}, "patients": len(packet.patients),
        "real": [number for number, real in numbered if real],
        "synthetic": [number for number, real in numbered if not real],
        "copies_left_out": packet.copies, "one_record_each": packet.one_record, "grid": dict(packet.grid),
        "sources": dict(sources or {}),
    }  # fmt: skip
    readme = README_TEXT.format(patients=len(packet.patients), half=len(packet.patients) // 2, digest=digest)
    files = {PACKET: page, KEY: json.dumps(key, indent=2, allow_nan=False), README: readme}
    try:
        with new_folder(out) as beside:
            write_files({beside / name: NewFile(text, SECRET) for name, text in files.items()})
    except OSError as error:
        raise ConfigError(f"{out} cannot be written: {reason(error)}.") from None
    return key


README_TEXT = """A blinded review of {patients} patients, {half} real and {half} synthetic.

packet.html CONTAINS REAL PATIENTS' RECORDS. It stays at the hospital, and so do printed copies.

packet.html        for each reviewer, on a computer of the hospital or on paper. It is one file and needs no network.
                   A reviewer opens it in a browser, gives a score and a guess for each patient and saves a small file,
                   scores-INITIALS-....json, which comes back here.
answer-key.json    for whoever runs the review, and for no reviewer: it says which patients are real. Copy packet.html
                   alone, never this folder.
scores-*.json      what reviewers send back: initials, scores and guesses by the patient's number; no record.

When all are back:  polyclinic review score THIS-FOLDER scores-*.json

The packet is no release with differential privacy and spends no epsilon, because it does not leave the hospital. What the
scores say is computed from {half} real patients' records without noise: ask whoever answers for privacy before the result
leaves. Delete packet.html, its copies and its printouts when the review is over.

Packet {digest}
"""


def schema_of_run(run: Path, out: Path, rows: int, seed: int) -> tuple[Schema, Path]:
    """Draw rows from the generator of a finished run of task synthesis, and return its schema and ``out``.

    Args:
        run: The run's folder.
        out: The file of the rows.
        rows: How many are drawn.
        seed: Of the rows.

    Raises:
        ConfigError, DataError: As ``synthesize`` does.
    """
    synthesize(run, rows, out, seed=seed)
    return Run.open(run).schema(), out


def read_synthetic(path: Path, schema: Schema) -> Checked:
    """The synthetic records in a CSV or Parquet file, checked against the schema of what reviewers see.

    Raises DataError where the file has other columns than the schema, or its certificate names another schema.
    """
    allowed = {name for column in schema.columns for name in column.record_names}
    for file in found_files(path):
        if unknown := [name for name in column_names(file) if name not in allowed]:
            raise DataError(
                f"{file}: the schema {schema.name!r} has no column {several(map(repr, unknown))}; real and synthetic "
                "patients must be of one schema."
            )
    _check_certificate(path, schema)
    return check_chunks(file_chunks(path, schema), schema, str(path))


def _check_certificate(path: Path, schema: Schema) -> None:
    place = certificate_path(path)
    if not place.is_file():
        return
    try:
        columns, name = (
            (certificate := json.loads(place.read_text(encoding="utf-8")))["columns"],
            certificate["schema"]["name"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{place} cannot be read as a certificate of synthetic records.") from None
    wanted = [name for column in schema.columns for name in column.record_names]
    if name != schema.name or columns != wanted:
        raise DataError(
            f"{path} was drawn for the schema {name!r} with other columns than {schema.name!r} has; give the run's own "
            "schema.toml by --schema."
        )


def read_names(path: Path) -> dict[str, str]:
    """What codes and categories mean, by a CSV file with columns ``code`` and ``name``. Raises DataError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:  # as spreadsheets write it
            rows = csv.DictReader(file)
            if not {"code", "name"} <= set(rows.fieldnames or ()):
                raise DataError(f"{path}: the header must have the columns 'code' and 'name'.")
            return {row["code"].strip(): row["name"].strip() for row in rows if row["code"] and row["name"]}
    except OSError as error:
        raise DataError(f"{path} cannot be read: {reason(error)}.") from None
    except (UnicodeDecodeError, csv.Error):
        raise DataError(f"{path}: the file cannot be read; it must be UTF-8 CSV.") from None
