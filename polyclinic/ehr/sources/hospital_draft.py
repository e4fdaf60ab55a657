"""The draft of a hospital's schema and mapping, as files that a person confirms.

Without ``look`` nothing in it comes from values but the kinds and spellings of columns. It marks each column whose
bounds or categories a person must still find in public.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import tomli_w

from polyclinic.ehr.sources.cells import plain_name, text_table
from polyclinic.ehr.sources.drafting import Draft, draft_tables
from polyclinic.ehr.sources.files import found_files, whole_table
from polyclinic.ehr.sources.joining import Roles, join_tables, usual_site
from polyclinic.errors import DataError

HEAD = """# A DRAFT, not yet a schema, made by looking at records: keep it inside the hospital until a person has confirmed it.
# For each column with a line `draft`: give it bounds or categories that are known in public, without looking at the records
# (a guideline, a device's range, a code book), check its kind and role, and delete the line.
"""
MAPPING_HEAD = """# How this hospital's cells are read (docs/records/sources.md): of this hospital alone, and not shared.
"""
#: Rows of each file that a draft for a hospital reads.
ROWS_OF_DRAFT = 100_000
#: Ranges of living people, for columns of these names: to be confirmed, as every bound of a draft.
PUBLIC_BOUNDS: Mapping[str, tuple[float, float]] = {
    "age": (0, 120), "sbp": (0, 300), "dbp": (0, 200), "heart_rate": (0, 300), "pulse": (0, 300), "spo2": (0, 100),
    "bmi": (5, 150), "height_cm": (20, 280), "weight_kg": (0.2, 650), "gcs": (3, 15), "ph": (6, 8),
}  # fmt: skip


def draft_schema(
    path: str | Path,
    label: str = "",
    patient: str = "",
    site: str = "",
    leave_out: Sequence[str] = (),
    look: bool = False,
) -> SchemaDraft:
    """A draft of the schema of one hospital's files at ``path``, and of its mapping, for a person to confirm.

    Args:
        path: A CSV or Parquet file, a folder of them or a pattern.
        label, patient, site: Names of these columns; usual names are looked for where they are empty.
        leave_out: Columns that are no features.
        look: Take bounds and categories from the records, as a simulation may. Otherwise the draft has only what is known in
            public of columns of these names, and the kinds and spellings of columns.

    Raises:
        ConfigError: for names that are no columns. DataError: for files that cannot be read or have no rows.
    """
    files = found_files(path)
    cells, _, notes, doubts = join_tables({file.name: text_table(whole_table(file, ROWS_OF_DRAFT)) for file in files})
    roles = Roles.find(list(cells), label, patient, site or usual_site(list(cells)), leave_out)
    cells = cells[(cells[[name for name in (roles.label, roles.patient) if name]] != "").all(axis=1)]
    if cells.empty:
        raise DataError(f"{path}: there are no records to draft a schema from.")
    cells = cells.reset_index(drop=True)
    draft = draft_tables(cells, pd.Series("", index=cells.index), roles)
    columns = [column | _to_confirm(column) for column in draft.columns] if look else public_draft(draft)
    if drafts := [column["name"] for column in columns if "draft" in column]:
        notes.append(f"{len(drafts)} of {len(columns)} columns are drafts: give them public bounds or categories.")
    if not roles.label:
        notes.append("No column has role 'label'; give it to the outcome, or name it by --label.")
    if not roles.patient:
        notes.append(
            "No column names the patient: each row would be a unit of privacy of its own; name it by --patient."
        )
    ignored = [
        {"name": name, "kind": "categorical", "role": "ignore", "description": f"left out as {why}"}
        for why, names in draft.left_out.items()
        for name in names
    ]
    notes = [*filter(None, [draft.label]), *notes, *doubts, *draft.doubts, *draft.all_readings]
    unit = "patient" if roles.patient else "record"
    values = {"name": Path(path).stem or "draft", "unit": unit, "columns": [*columns, *ignored]}
    return SchemaDraft(values, {"columns": draft.rules} if draft.rules else {}, len(cells), tuple(notes))


def _to_confirm(column: Mapping[str, Any]) -> dict[str, str]:
    """What a person must find in public for a column."""
    numeric = column["kind"] in ("integer", "continuous")
    return {"draft": "bounds"} if numeric else {"draft": "categories"} if "categories" in column else {}


def public_draft(draft: Draft) -> list[dict[str, Any]]:
    """The columns of a draft without anything that came from values but their kinds, with ``draft`` where a person must find
    bounds or categories in public."""
    columns = []
    bounds = {plain_name(name): list(limits) for name, limits in PUBLIC_BOUNDS.items()}
    for column in draft.columns:
        public = {key: column[key] for key in ("name", "kind", "role", "unit", "nullable") if column.get(key)}
        public |= _to_confirm(column)
        if public.get("draft") == "bounds":
            public |= {"bounds": bounds.get(plain_name(column["name"]), []), "clip": True}
        elif public.get("draft") == "categories":
            public["categories"] = []
        columns.append(public)
    return columns


@dataclass(frozen=True)
class SchemaDraft:
    """A draft of a schema and of a hospital's mapping.

    Attributes:
        values: As ``Schema.from_dict`` would take them but for ``draft``.
        mapping: A hospital's mapping file, empty where cells need none.
        rows: The rows that were read.
        notes: What a person must still decide.
    """

    values: dict[str, Any]
    mapping: dict[str, Any]
    rows: int
    notes: tuple[str, ...]

    def write(self, schema: Path, mapping: Path) -> list[Path]:
        """Write the files. Raises DataError where one exists or cannot be written."""
        texts = {schema: HEAD + tomli_w.dumps(self.values)}
        texts |= {mapping: MAPPING_HEAD + tomli_w.dumps(self.mapping)} if self.mapping else {}
        for path in texts:
            if path.exists():
                raise DataError(f"{path}: the file exists; give another name.")
        for path, text in texts.items():
            try:
                path.write_text(text, encoding="utf-8")
            except OSError as error:
                raise DataError(f"{path}: the draft cannot be written ({type(error).__name__}).") from None
        return list(texts)
