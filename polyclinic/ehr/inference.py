"""A first draft of a schema from a file, for a person to confirm.

It looks at real values, so it is not private: what it writes is for the hospital's own eyes. Each column whose bounds or
categories it took from values carries ``draft``, and a schema with drafts is refused wherever a schema is read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

from polyclinic.ehr.checks import texts
from polyclinic.ehr.sources.files import column_names, found_files, read_table
from polyclinic.errors import DataError

HEAD = """# A DRAFT, made from real values: not private, and not yet a schema. Keep it inside the hospital.
# For each column with a line `draft`: replace its bounds or categories by ones that are known in public, without looking
# at the records (a guideline, a device's range, a code book), check its kind and role, and delete the line.
"""
_IDENTIFIERS = (
    "patient_id", "patientid", "subject_id", "person_id", "uniquepid", "patient", "mrn", "pid", "patient_nr", "nhs_number", "id",
)  # fmt: skip
_MOST_CATEGORIES = 20
FEWEST_ROWS = 5  # a category of fewer rows could tell who it is


@dataclass
class Seen:
    """What is known of a column after some chunks of it."""

    low: float = math.inf
    high: float = -math.inf
    numeric: bool = True
    whole: bool = True
    missing: int = 0
    cells: Counter[str] = field(default_factory=Counter)
    many: bool = False

    def look(self, values: pd.Series) -> None:
        known = [cell for cell in texts(values) if cell]
        self.missing += len(values) - len(known)
        if not self.many:
            self.cells.update(known)
            self.many = len(self.cells) > 10 * _MOST_CATEGORIES
        if self.numeric and known:
            numbers = pd.to_numeric(pd.Series(known, dtype=object), errors="coerce").to_numpy(dtype=np.float64)
            self.numeric = bool(np.isfinite(numbers).all())
            if self.numeric:
                self.whole = self.whole and bool((numbers == np.round(numbers)).all())
                self.low, self.high = min(self.low, float(numbers.min())), max(self.high, float(numbers.max()))


@dataclass(frozen=True)
class Draft:
    """values: the draft as ``Schema.from_dict`` would take it but for ``draft``. notes: what a person must still decide."""

    values: dict[str, Any]
    rows: int
    notes: tuple[str, ...]

    def to_toml(self, path: Path) -> None:
        """Write the draft, its warning at the head. Raises DataError where the file exists or cannot be written."""
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(HEAD + tomli_w.dumps(self.values))
        except FileExistsError:
            raise DataError(f"{path}: the file exists; give another name.") from None
        except OSError as error:
            raise DataError(f"{path}: the draft cannot be written ({type(error).__name__}).") from None


def infer_schema(path: str | Path, label: str = "", patient: str = "") -> Draft:
    """A draft of the schema of the files at ``path``, read in chunks.

    label, patient: names of these columns; a usual name is taken for the patient's where none is given. Bounds are the
    smallest and largest value rounded outward, categories those of five or more rows. Raises DataError for files that
    cannot be read, without columns of the given names, or without rows.
    """
    files = found_files(path)
    names = column_names(files[0])
    for name in filter(None, (label, patient)):
        if name not in names:
            # The header is not quoted: in a file without one its place is taken by a patient's row.
            raise DataError(f"{files[0]}: there is no column {name!r}; give a name of the file's header.")
    seen = {name: Seen() for name in names}
    rows = 0
    for frame in _frames(files, names):
        rows += len(frame)
        for name, one in seen.items():
            one.look(frame[name])
    if not rows:
        raise DataError(f"{path}: there are no records to draft a schema from.")
    patient = patient or usual_name(names)
    columns = [draft_column(name, one, label, patient) for name, one in seen.items()]
    if label and not any(column.get("role") == "label" for column in columns):
        most = f"2 to {_MOST_CATEGORIES} categories of {FEWEST_ROWS} or more rows"
        raise DataError(f"{path}: column {label!r} cannot be a label; it must hold 0 and 1, or {most} each.")
    values = {"name": Path(path).stem or "draft", "unit": "patient" if patient else "record", "columns": columns}
    return Draft(values, rows, tuple(_notes(columns, label, patient)))


def usual_name(names: Sequence[str], usual: Sequence[str] = _IDENTIFIERS) -> str:
    """The first of the ``usual`` names, of a patient's column by default, that is among ``names``; "" where there is none."""
    return next((name for known in usual for name in names if name.lower().replace(" ", "_") == known), "")


def _frames(files: Sequence[Path], names: Sequence[str]) -> Iterator[pd.DataFrame]:
    for file in files:
        yield from read_table(file, names)


def draft_column(name: str, seen: Seen, label: str, patient: str) -> dict[str, Any]:
    if name == patient:
        return {"name": name, "kind": "integer" if seen.numeric and seen.whole else "categorical", "role": "patient_id"}
    role = {"role": "label"} if name == label else {}
    nullable = {"nullable": True} if seen.missing and not role else {}
    if not seen.many and set(seen.cells) <= {"0", "1"} and seen.cells:
        return {"name": name, "kind": "binary", **role, **nullable}
    common = sorted(cell for cell, rows in seen.cells.items() if rows >= FEWEST_ROWS)
    listed = not seen.many and 2 <= len(seen.cells) <= _MOST_CATEGORIES and len(common) >= 2
    if listed and (role or not seen.numeric):
        return {"name": name, "kind": "categorical", "categories": common, **role, **nullable, "draft": "categories"}
    if seen.numeric and seen.cells:
        kind, bounds = ("integer" if seen.whole else "continuous"), _rounded(seen.low, seen.high)
        return {"name": name, "kind": kind, "bounds": bounds, **nullable, "draft": "bounds"}
    return {"name": name, "kind": "categorical", "role": "ignore", "draft": "kind"}


def _rounded(low: float, high: float) -> list[float]:
    """Bounds around the values, outward to the power of ten below their spread."""
    step = 10.0 ** math.floor(math.log10(high - low or max(abs(high), 1.0)))
    below, above = math.floor(low / step) * step, math.ceil(high / step) * step
    return [float(f"{below:.12g}"), float(f"{above if above > below else below + step:.12g}")]


def _notes(columns: Sequence[dict[str, Any]], label: str, patient: str) -> Iterator[str]:
    drafts = [column["name"] for column in columns if "draft" in column]
    if drafts:
        yield f"{len(drafts)} of {len(columns)} columns are drafts: replace their bounds and categories by public ones."
    if not label:
        yield "No column has role 'label'; give it to the outcome, or name it by --label."
    if not patient:
        yield "No column names the patient: each row would be a unit of privacy of its own; name it by --patient."
    if ignored := [column["name"] for column in columns if column.get("role") == "ignore"]:
        yield f"Left out as free text, dates or codes: {', '.join(ignored[:8])}{' ...' if len(ignored) > 8 else ''}."
